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

from traincast.topology.affinity import nearest_nics
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


@dataclass
class _Kinds:
    """Vertices by kind, and the neighbours of a vertex by kind."""

    graph: "nx.Graph[str]"
    by_kind: Mapping[str, list[str]]

    def near(self, key: str, kind: str) -> list[str]:
        data = self.graph.nodes
        return [other for other in self.graph[key] if data[other]["kind"] == kind]

    def attribute(self, keys: Sequence[str], name: str, default: Any = None) -> list[Any]:
        data = self.graph.nodes
        return [data[key].get(name, default) for key in keys]


def flatten(graph: "nx.Graph[str]", gpus: Sequence[str]) -> Fabric:
    """The arrays of a graph in the vocabulary of `cluster`; `gpus` gives the order of the GPUs."""
    by_kind: dict[str, list[str]] = {}
    for key, kind in graph.nodes(data="kind"):
        by_kind.setdefault(str(kind), []).append(key)
    kinds = _Kinds(graph, by_kind)
    nics = by_kind.get("nic", [])
    leaves = by_kind.get("leaf", [])
    tree = _tree(kinds, leaves)
    pod = tree.pop("leaf_pod")
    affinity = nearest_nics(graph, gpus, nics)
    wires = _nic_wires(kinds, nics, {key: number for number, key in enumerate(leaves)})
    wires["nic_latency_s"] = wires["nic_latency_s"] + _bus_latency(graph, affinity, nics)
    gpu_nics = _padded([affinity[key] for key in gpus])
    first = gpu_nics[:, 0] if gpu_nics.shape[1] else np.full(len(gpus), -1, dtype=np.int64)
    leaf = np.where(first >= 0, wires["nic_leaf"][first], -1) if nics else first
    unit = np.array([*kinds.attribute(leaves, "unit", 0), -1], dtype=np.int64)
    return Fabric(
        **_gpu_arrays(kinds, gpus),
        gpu_unit=_compact(unit[leaf]),
        gpu_pod=_compact(pod[leaf]),
        gpu_nics=gpu_nics,
        nic_keys=tuple(nics),
        **wires,
        leaf_keys=tuple(leaves),
        leaf_rail=np.array(kinds.attribute(leaves, "rail", -1), dtype=np.int64),
        leaf_latency_s=np.array(kinds.attribute(leaves, "latency_s", 0.0), dtype=np.float64),
        **tree,
        core_latency_s=max(kinds.attribute(by_kind.get("core", []), "latency_s", 0.0), default=0.0),
    )


def _gpu_arrays(kinds: _Kinds, gpus: Sequence[str]) -> dict[str, Any]:
    """Domains, and what each GPU has towards NVLink and towards its host."""
    graph = kinds.graph
    domain_of: dict[object, int] = {}
    domain, nvlink, nvlink_s, bus, bus_s, switched, switch_s = [], [], [], [], [], [], []
    for key in gpus:
        name: object = graph.nodes[key]["node"]
        rate, wait, host_rate, host_wait, switch = 0.0, 0.0, 0.0, 0.0, None
        for other, edge in graph[key].items():
            if edge["kind"] == "nvlink":
                rate += edge["bandwidth_bytes_per_s"]
                wait = edge["latency_s"]
                switch = other if graph.nodes[other]["kind"] == "nvswitch" else switch
            else:
                host_rate, host_wait = edge["bandwidth_bytes_per_s"], edge["latency_s"]
        name = switch or name
        if name not in domain_of:
            domain_of[name] = len(domain_of)
            switched.append(switch is not None)
            switch_s.append(graph.nodes[switch]["latency_s"] if switch else 0.0)
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


def _nic_wires(kinds: _Kinds, nics: Sequence[str], leaf_number: Mapping[str, int]) -> dict[str, Any]:
    """Leaf, bandwidth and latency of each NIC; a NIC without a leaf has bandwidth 0 and leaf -1."""
    graph = kinds.graph
    leaf, rate, cap, wait, host = [], [], [], [], []
    hosts: dict[str, int] = {}
    for key in nics:
        port, bus, path, at, on = 0.0, np.inf, 0.0, -1, key
        for other, edge in graph[key].items():
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
    node = np.array(kinds.attribute(nics, "node", 0), dtype=np.int64)
    rail = np.array(kinds.attribute(nics, "rail", 0), dtype=np.int64)
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


def _bus_latency(graph: "nx.Graph[str]", affinity: Mapping[str, list[int]], nics: Sequence[str]) -> Floats:
    """From a GPU to each NIC near it, over PCIe [s]; the farthest of the GPUs that use a NIC counts."""
    known: dict[tuple[object, ...], float] = {}
    wait = np.zeros(len(nics))
    for gpu, near in affinity.items():
        data = graph.nodes[gpu]
        for nic in near:
            pattern = (data["design"], data["index"], graph.nodes[nics[nic]]["rail"])
            if pattern not in known:
                path = up_and_down(graph, gpu, nics[nic])
                known[pattern] = sum(graph.edges[pair]["latency_s"] for pair in pairwise(path))
            wait[nic] = max(wait[nic], known[pattern])
    return wait


def _tree(kinds: _Kinds, leaves: Sequence[str]) -> dict[str, Any]:
    """Blocks of leaves and spines, and the capacity of their uplinks. A leaf without a spine is a block of
    its own."""
    graph = kinds.graph
    block_of: dict[object, int] = {}
    pod_of: dict[object, int] = {}
    spines: dict[int, list[str]] = {}
    leaf_block, leaf_up, leaf_up_s, pods = [], [], [], []
    for key in leaves:
        up = kinds.near(key, "spine")
        name: object = graph.nodes[up[0]]["block"] if up else key
        if name not in block_of:
            block_of[name] = len(block_of)
            pods.append(pod_of.setdefault(graph.nodes[up[0]]["pod"] if up else key, len(pod_of)))
        leaf_block.append(block_of[name])
        spines.setdefault(block_of[name], up)
        leaf_up.append(sum(graph[key][spine]["bandwidth_bytes_per_s"] for spine in up))
        leaf_up_s.append(max((graph[key][spine]["latency_s"] for spine in up), default=0.0))
    ups = [[graph[s][c] for s in spines[b] for c in kinds.near(s, "core")] for b in range(len(spines))]
    waits = [max(kinds.attribute(spines[b], "latency_s", 0.0), default=0.0) for b in range(len(spines))]
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


def _padded(lists: Sequence[Sequence[int]]) -> Ints:
    """Rows of unequal length as one array, filled up with -1."""
    width = max((len(row) for row in lists), default=0)
    rows = [[*row, *[-1] * (width - len(row))] for row in lists]
    return np.array(rows, dtype=np.int64).reshape(len(lists), width)


def _compact(numbers: Ints) -> Ints:
    """The same partition with numbers 0, 1, 2 … in order of first appearance."""
    values, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.empty(len(values), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(values))
    return order[inverse]
