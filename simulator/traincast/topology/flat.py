"""Flattening: the graph, read once into arrays that the span arithmetic indexes.

GPUs, NICs, leaves and blocks get numbers; each array holds one property of one kind of part. Nothing here
looks for paths: a leaf knows its uplinks, a GPU its NICs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
import numpy.typing as npt

from traincast.topology.affinity import Data, Near, nearest_nics
from traincast.topology.paths import up_and_down

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fabric:
    """Properties by number: gpu_* (G,), domain_* (D,), nic_* (N,), leaf_* (L,), block_* (B,). -1 stands for
    none.

    A domain is a set of GPUs that reach each other over NVLink: a node, or a rack of several. Bandwidths are
    raw, per direction; `*_up_bytes_per_s` is the sum over all uplinks of a leaf or of the spines of a block.
    `nic_bytes_per_s` is the port, `nic_cap_bytes_per_s` also counts the bus behind it. Latencies are one way:
    `nic_latency_s` from the GPU that uses the NIC to the leaf's port, `*_up_latency_s` of one uplink,
    `leaf_`, `block_` and `core_latency_s` of one switch. `nic_host` numbers what NICs hang on. `gpu_nics` (G,
    K) lists the NICs near a GPU. `rail_nic` (nodes, rails) finds the NIC of a rail.
    """

    gpu_domain: Ints
    gpu_unit: Ints
    gpu_pod: Ints
    gpu_nvlink_bytes_per_s: Floats
    gpu_nvlink_latency_s: Floats
    gpu_bus_bytes_per_s: Floats
    gpu_bus_latency_s: Floats
    gpu_nics: Ints
    domain_switched: npt.NDArray[np.bool_]
    domain_switch_latency_s: Floats
    nic_keys: tuple[str, ...]
    nic_node: Ints
    nic_rail: Ints
    nic_host: Ints
    nic_leaf: Ints
    nic_bytes_per_s: Floats
    nic_cap_bytes_per_s: Floats
    nic_latency_s: Floats
    rail_nic: Ints
    leaf_keys: tuple[str, ...]
    leaf_block: Ints
    leaf_rail: Ints
    leaf_up_bytes_per_s: Floats
    leaf_latency_s: Floats
    leaf_up_latency_s: Floats
    block_up_bytes_per_s: Floats
    block_latency_s: Floats
    block_up_latency_s: Floats
    core_latency_s: float


@dataclass(frozen=True, eq=False)
class GraphView:
    """A graph as plain dictionaries: networkx's own views cost a call for every look."""

    data: Data
    around: Near
    by_kind: Mapping[str, list[str]]

    def near(self, key: str, kind: str) -> list[str]:
        return [other for other in self.around[key] if self.data[other]["kind"] == kind]

    def attribute(self, keys: Sequence[str], name: str, default: Any = None) -> list[Any]:
        return [self.data[key].get(name, default) for key in keys]


def view_of(graph: "nx.Graph[str]") -> GraphView:
    """The vertices and edges of a graph, and its vertices by kind."""
    data: dict[str, Mapping[str, Any]] = {}
    by_kind: dict[str, list[str]] = {}
    for key, attributes in graph.nodes(data=True):
        data[key] = attributes
        by_kind.setdefault(str(attributes["kind"]), []).append(key)
    return GraphView(data, dict(graph.adjacency()), by_kind)


def flatten(graph: "nx.Graph[str]", gpus: Sequence[str], physical: Sequence[str] | None = None) -> Fabric:
    """The arrays of a graph in the vocabulary of `cluster`; `gpus` gives the order of the GPUs.

    `physical` lists all GPUs, also those that are not used: NICs are dealt out among them, so that a dead GPU
    does not leave its NICs to its neighbours.
    """
    view = view_of(graph)
    everyone = gpus if physical is None else physical
    nics = view.by_kind.get("nic", [])
    leaves = view.by_kind.get("leaf", [])
    tree = _tree(view, leaves)
    pod = tree.pop("leaf_pod")
    affinity = nearest_nics(view.data, view.around, everyone, nics)
    wires = _nic_wires(view, nics, {key: number for number, key in enumerate(leaves)})
    wires["nic_latency_s"] = wires["nic_latency_s"] + _bus_latency(graph, view, everyone, affinity, nics)
    if everyone is not gpus:
        place = {key: number for number, key in enumerate(everyone)}
        affinity = affinity[[place[key] for key in gpus]]
    first = affinity[:, 0] if affinity.shape[1] else np.full(len(gpus), -1, dtype=np.int64)
    leaf = np.where(first >= 0, wires["nic_leaf"][first], -1) if nics else first
    unit = np.array([*view.attribute(leaves, "unit", 0), -1], dtype=np.int64)
    return Fabric(
        **_gpu_arrays(view, gpus),
        gpu_unit=_compact(unit[leaf]),
        gpu_pod=_compact(pod[leaf]),
        gpu_nics=affinity,
        nic_keys=tuple(nics),
        **wires,
        leaf_keys=tuple(leaves),
        leaf_rail=np.array(view.attribute(leaves, "rail", -1), dtype=np.int64),
        leaf_latency_s=np.array(view.attribute(leaves, "latency_s", 0.0), dtype=np.float64),
        **tree,
        core_latency_s=max(view.attribute(view.by_kind.get("core", []), "latency_s", 0.0), default=0.0),
    )


def _gpu_arrays(view: GraphView, gpus: Sequence[str]) -> dict[str, Any]:
    """Domains, and what each GPU has towards NVLink and towards its host."""
    data, around = view.data, view.around
    domain_of: dict[object, int] = {}
    domain, nvlink, nvlink_s, bus, bus_s, switched, switch_s = [], [], [], [], [], [], []
    for key in gpus:
        name: object = data[key]["node"]
        rate, wait, host_rate, host_wait, switch = 0.0, 0.0, 0.0, 0.0, None
        for other, edge in around[key].items():
            if edge["kind"] == "nvlink":
                rate += edge["bandwidth_bytes_per_s"]
                wait = edge["latency_s"]
                switch = other if data[other]["kind"] == "nvswitch" else switch
            else:
                host_rate, host_wait = edge["bandwidth_bytes_per_s"], edge["latency_s"]
        name = switch or name
        if name not in domain_of:
            domain_of[name] = len(domain_of)
            switched.append(switch is not None)
            switch_s.append(data[switch]["latency_s"] if switch else 0.0)
        domain.append(domain_of[name])
        nvlink.append(rate)
        nvlink_s.append(wait)
        bus.append(host_rate)
        bus_s.append(host_wait)
    return {
        "gpu_domain": np.array(domain, dtype=np.int64),
        "gpu_nvlink_bytes_per_s": np.array(nvlink),
        "gpu_nvlink_latency_s": np.array(nvlink_s),
        "gpu_bus_bytes_per_s": np.array(bus),
        "gpu_bus_latency_s": np.array(bus_s),
        "domain_switched": np.array(switched, dtype=np.bool_),
        "domain_switch_latency_s": np.array(switch_s),
    }


def _nic_wires(view: GraphView, nics: Sequence[str], leaf_number: Mapping[str, int]) -> dict[str, Any]:
    """Leaf, bandwidth and latency of each NIC; a NIC without a leaf has bandwidth 0 and leaf -1."""
    leaf, rate, cap, wait, host = [], [], [], [], []
    hosts: dict[str, int] = {}
    for key in nics:
        port, bus, path, at, on = 0.0, np.inf, 0.0, -1, key
        for other, edge in view.around[key].items():
            if other in leaf_number:
                at, port = leaf_number[other], edge["bandwidth_bytes_per_s"]
                path += edge["latency_s"]
            else:
                bus, on = min(bus, edge["bandwidth_bytes_per_s"]), other
        leaf.append(at)
        rate.append(port)
        cap.append(min(port, bus))
        wait.append(path)
        host.append(hosts.setdefault(on, len(hosts)))
    node = np.array(view.attribute(nics, "node", 0), dtype=np.int64)
    rail = np.array(view.attribute(nics, "rail", 0), dtype=np.int64)
    shape = (int(node.max()) + 1, int(rail.max()) + 1) if len(nics) else (0, 0)
    rail_nic = np.full(shape, -1, dtype=np.int64)
    rail_nic[node, rail] = np.arange(len(nics))
    return {
        "nic_node": node,
        "nic_rail": rail,
        "nic_host": np.array(host, dtype=np.int64),
        "nic_leaf": np.array(leaf, dtype=np.int64),
        "nic_bytes_per_s": np.array(rate, dtype=np.float64),
        "nic_cap_bytes_per_s": np.array(cap, dtype=np.float64),
        "nic_latency_s": np.array(wait, dtype=np.float64),
        "rail_nic": rail_nic,
    }


def _bus_latency(
    graph: "nx.Graph[str]", view: GraphView, gpus: Sequence[str], affinity: Ints, nics: Sequence[str]
) -> Floats:
    """From a GPU to each NIC near it, over PCIe [s]; the farthest of the GPUs that use a NIC counts."""
    known: dict[tuple[object, ...], float] = {}
    wait = [0.0] * len(nics)
    rails = view.attribute(nics, "rail")
    for gpu, near in zip(gpus, affinity.tolist(), strict=True):
        data = view.data[gpu]
        for nic in near:
            if nic < 0:
                break
            pattern = (data["design"], data["index"], rails[nic])
            if pattern not in known:
                path = up_and_down(graph, gpu, nics[nic])
                known[pattern] = sum(graph.edges[pair]["latency_s"] for pair in pairwise(path))
            wait[nic] = max(wait[nic], known[pattern])
    return np.array(wait)


def _tree(view: GraphView, leaves: Sequence[str]) -> dict[str, Any]:
    """Blocks of leaves and spines, and the capacity of their uplinks. A leaf without a spine is a block of
    its own."""
    data, around = view.data, view.around
    block_of: dict[object, int] = {}
    pod_of: dict[object, int] = {}
    members: list[dict[str, None]] = []
    leaf_block, leaf_up, leaf_up_s, pods = [], [], [], []
    for key in leaves:
        up = view.near(key, "spine")
        name: object = data[up[0]]["block"] if up else key
        if name not in block_of:
            block_of[name] = len(block_of)
            members.append({})
            pods.append(pod_of.setdefault(data[up[0]]["pod"] if up else key, len(pod_of)))
        leaf_block.append(block_of[name])
        members[block_of[name]].update(dict.fromkeys(up))
        leaf_up.append(sum(around[key][spine]["bandwidth_bytes_per_s"] for spine in up))
        leaf_up_s.append(max((around[key][spine]["latency_s"] for spine in up), default=0.0))
    ups = [[around[s][c] for s in spines for c in view.near(s, "core")] for spines in members]
    waits = [max(view.attribute(list(spines), "latency_s", 0.0), default=0.0) for spines in members]
    block = np.array(leaf_block, dtype=np.int64)
    pod = np.array(pods, dtype=np.int64)
    return {
        "leaf_block": block,
        "leaf_pod": np.append(pod[block] if len(leaves) else pod, -1),
        "leaf_up_bytes_per_s": np.array(leaf_up, dtype=np.float64),
        "leaf_up_latency_s": np.array(leaf_up_s, dtype=np.float64),
        "block_up_bytes_per_s": np.array([sum(e["bandwidth_bytes_per_s"] for e in edges) for edges in ups]),
        "block_up_latency_s": np.array([max((e["latency_s"] for e in edges), default=0.0) for edges in ups]),
        "block_latency_s": np.array(waits, dtype=np.float64),
    }


def _compact(numbers: Ints) -> Ints:
    """The same partition with numbers 0, 1, 2 … in order of first appearance."""
    values, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.empty(len(values), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(values))
    return order[inverse]
