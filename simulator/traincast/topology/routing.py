"""Structural routes: up the tree to the first level where two GPUs meet, and down again.

A route follows from where its ends hang, never from a search over the graph: breadth-first search from every
GPU takes seconds at 3,072 GPUs and hours at 100,000. Between nodes a message stays on one rail where the
fabric has rails: it leaves by the NIC of the receiver's rail, which the sender reaches over its PCIe switch
or over NVLink (NCCL's PXN). Of equal paths one is chosen by a hash of the two ends, as ECMP does.
"""

from dataclasses import dataclass
from itertools import pairwise

from traincast.errors import TopologyError
from traincast.topology.cluster import Cluster, Tier
from traincast.topology.paths import inside, up_and_down


@dataclass(frozen=True)
class Route:
    """One path. `hops` are graph keys from end to end, `kinds` the kind of each link, one less than the hops.

    `bandwidth_bytes_per_s` is that of the narrowest link alone, raw, bundles in full; `latency_s` sums links
    and switches.
    """

    hops: tuple[str, ...]
    kinds: tuple[str, ...]
    tier: Tier
    bandwidth_bytes_per_s: float
    latency_s: float


def route(cluster: Cluster, a: int, b: int) -> Route:
    """The path of a message from GPU `a` to GPU `b` (numbers in physical order).

    Raises TopologyError for a GPU that is not there and for nodes without a network between them.
    """
    for gpu in (a, b):
        if not 0 <= gpu < len(cluster.gpus):
            raise TopologyError(f"no GPU {gpu} in {cluster.name}", fix=f"use 0 to {len(cluster.gpus) - 1}")
    if a == b:
        return Route((cluster.gpus[a],), (), "self", 0.0, 0.0)
    domain = cluster.fabric.gpu_domain
    if domain[a] == domain[b]:
        return _measured(cluster, inside(cluster.graph, cluster.gpus[a], cluster.gpus[b]))
    out, into = _nics(cluster, a, b)
    fabric = cluster.fabric
    before = _to_nic(cluster, a, out)
    after = _to_nic(cluster, b, into)
    between = _through_fabric(cluster, int(fabric.nic_leaf[out]), int(fabric.nic_leaf[into]), _hash(a, b))
    return _measured(cluster, (*before, *between, *reversed(after)))


def _hash(a: int, b: int) -> int:
    """A number that depends on both ends and their order, with all bits mixed."""
    mixed = (a * 0x9E3779B1 + b * 0x85EBCA77) & 0xFFFFFFFF
    return ((mixed ^ (mixed >> 15)) * 0xC2B2AE3D & 0xFFFFFFFF) >> 8


def _nics(cluster: Cluster, a: int, b: int) -> tuple[int, int]:
    """The NIC that the message leaves by and the one that it arrives at."""
    fabric = cluster.fabric
    own = [int(n) for n in fabric.gpu_nics[a] if n >= 0 and fabric.nic_leaf[n] >= 0]
    theirs = [int(n) for n in fabric.gpu_nics[b] if n >= 0 and fabric.nic_leaf[n] >= 0]
    if not own or not theirs:
        lonely = cluster.gpus[b if own else a]
        raise TopologyError(f"{lonely} has no NIC to leave its node by", fix="give the node NICs")
    rails = {int(fabric.nic_rail[n]): n for n in own}
    into = next((n for n in theirs if int(fabric.nic_rail[n]) in rails), theirs[0])
    rail = int(fabric.nic_rail[into])
    if rail in rails:
        return rails[rail], into
    node = int(cluster.node_index[a])
    same = int(fabric.rail_nic[node, rail]) if rail < fabric.rail_nic.shape[1] else -1
    cabled = same >= 0 and fabric.nic_leaf[same] >= 0
    crosses = cabled and fabric.domain_switched[fabric.gpu_domain[a]] and fabric.leaf_rail[fabric.nic_leaf[same]] >= 0
    return (same if crosses else own[0]), into


def _to_nic(cluster: Cluster, gpu: int, nic: int) -> tuple[str, ...]:
    """From a GPU to a NIC of its node: over the PCIe switch where both hang on it, else by the GPU that is
    near."""
    fabric, graph = cluster.fabric, cluster.graph
    start, end = cluster.gpus[gpu], fabric.nic_keys[nic]
    direct = up_and_down(graph, start, end)
    if nic in fabric.gpu_nics[gpu] or len(direct) <= 3:
        return direct
    near = next((g for g in _mates(cluster, gpu) if nic in fabric.gpu_nics[g]), None)
    if near is None:
        return direct
    return (*inside(graph, start, cluster.gpus[near]), *up_and_down(graph, cluster.gpus[near], end)[1:])


def _mates(cluster: Cluster, gpu: int) -> range:
    """The GPUs of a GPU's node; they are consecutive."""
    node = cluster.node_index[gpu]
    low, high = cluster.node_index.searchsorted([node, node + 1])
    return range(int(low), int(high))


def _through_fabric(cluster: Cluster, source: int, target: int, choice: int) -> tuple[str, ...]:
    """Switches between two leaves (numbers), both included; `choice` picks one of equal paths."""
    fabric, graph = cluster.fabric, cluster.graph
    first, last = fabric.leaf_keys[source], fabric.leaf_keys[target]
    if source == target:
        return (first,)
    spines = [key for key in graph[first] if graph.nodes[key]["kind"] == "spine"]
    both = [key for key in spines if graph.has_edge(key, last)]  # in a real fabric a leaf may lack a cable
    if fabric.leaf_block[source] == fabric.leaf_block[target] and both:
        return (first, both[choice % len(both)], last)
    goal = {key for key in graph[last] if graph.nodes[key]["kind"] == "spine"}
    for turn in range(len(spines)):
        spine = spines[(choice + turn) % len(spines)]
        cores = [key for key in graph[spine] if graph.nodes[key]["kind"] == "core"]
        if not cores:
            continue
        core = cores[choice % len(cores)]
        down = [key for key in graph[core] if key in goal]
        if down:
            return (first, spine, core, down[choice % len(down)], last)
    raise TopologyError(f"{first} and {last} have no switch above them in common", fix="join them by a spine or a core")


def _measured(cluster: Cluster, hops: tuple[str, ...]) -> Route:
    graph = cluster.graph
    edges = [graph.edges[pair] for pair in pairwise(hops)]
    kinds = {graph.nodes[key]["kind"] for key in hops}
    by_nvlink = all(edge["kind"] == "nvlink" for edge in edges)
    inner: Tier = "nvlink" if by_nvlink else "pcie"
    tiers: tuple[Tier, ...] = ("core", "spine", "leaf")
    return Route(
        hops=hops,
        kinds=tuple(edge["kind"] for edge in edges),
        tier=next((tier for tier in tiers if tier in kinds), inner),
        bandwidth_bytes_per_s=min(edge["bandwidth_bytes_per_s"] for edge in edges),
        latency_s=sum(edge["latency_s"] for edge in edges)
        + sum(graph.nodes[key].get("latency_s", 0.0) for key in hops),
    )
