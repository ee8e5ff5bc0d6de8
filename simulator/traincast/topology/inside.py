"""What a group has inside its nodes: NVLink over a switch, a fixed NVLink mesh or bridges, or PCIe.

Over PCIe the path counts: under one switch, over the host bridge of a socket, or over both sockets. The
groups of a family run at the same time, so each link of a node is shared by the rings that pass it in the
same direction (static share, as between nodes). A ring over PCIe takes its GPUs in physical order, as NCCL's
search would: neighbours under a switch or joined by a bridge stay together.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.topology.cluster import TIERS, Cluster
from traincast.topology.lanes import Visits
from traincast.topology.paths import inside

NVLINK, PCIE = TIERS.index("nvlink"), TIERS.index("pcie")
Figures = tuple[int, float, float]
"""Tier, bytes/s per GPU, one-way latency [s]."""
Links = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, eq=False)
class Inner:
    """Figures inside nodes, one for each group: tier (index into TIERS), slowest bytes/s per GPU, one-way
    latency."""

    tier: npt.NDArray[np.int64]
    bytes_per_s: npt.NDArray[np.float64]
    latency_s: npt.NDArray[np.float64]


def inner_figures(cluster: Cluster, visits: Visits, *, ring: bool = True) -> Inner:
    """The slowest of a group's nodes counts. A node with one rank alone counts with what its GPU has.

    Without `ring` each member sends to the next and the last to nobody.
    """
    fabric = cluster.fabric
    rate = np.full(len(visits.group), np.inf)
    has_nvlink = fabric.gpu_nvlink_bytes_per_s > 0
    own = np.where(has_nvlink, fabric.gpu_nvlink_bytes_per_s, fabric.gpu_bus_bytes_per_s)
    np.minimum.at(rate, visits.of_rank, own[visits.gpu])
    wait = np.zeros(len(visits.group))
    own_s = np.where(has_nvlink, fabric.gpu_nvlink_latency_s, fabric.gpu_bus_latency_s)
    np.maximum.at(wait, visits.of_rank, 2.0 * own_s[visits.gpu])
    wait = wait + fabric.domain_switch_latency_s[visits.domain]
    tier = np.full(len(visits.group), NVLINK, dtype=np.int64)
    tier[visits.of_rank[~has_nvlink[visits.gpu]]] = PCIE
    for visit, figures in _without_switch(cluster, visits, ring):
        tier[visit], rate[visit], wait[visit] = figures
    return Inner(
        tier=np.maximum.reduceat(tier, visits.starts),
        bytes_per_s=np.minimum.reduceat(rate, visits.starts),
        latency_s=np.maximum.reduceat(wait, visits.starts),
    )


def _without_switch(cluster: Cluster, visits: Visits, ring: bool) -> Iterator[tuple[int, Figures]]:
    """Visits of several ranks to nodes without an NVSwitch, with their figures; equal patterns of groups in a
    node are worked out once."""
    open_visit = (visits.ranks > 1) & ~cluster.fabric.domain_switched[visits.domain]
    if not open_visit.any():
        return
    members: dict[int, dict[int, list[str]]] = {}
    used = open_visit[visits.of_rank]
    domain = visits.domain[visits.of_rank]
    rows = zip(domain[used].tolist(), visits.of_rank[used].tolist(), visits.gpu[used].tolist(), strict=True)
    for node, visit, gpu in rows:
        members.setdefault(node, {}).setdefault(visit, []).append(cluster.gpus[gpu])
    data = cluster.graph.nodes
    known: dict[tuple[object, ...], list[Figures]] = {}
    for groups in members.values():
        keys = list(groups.values())
        pattern = tuple(tuple((data[key]["design"], data[key]["index"]) for key in group) for group in keys)
        if pattern not in known:
            known[pattern] = node_figures(cluster, keys, ring)
        yield from zip(groups, known[pattern], strict=True)


def node_figures(cluster: Cluster, groups: Sequence[Sequence[str]], ring: bool = True) -> list[Figures]:
    """Figures of groups of GPUs of one node without an NVSwitch that all communicate at once.

    On an NVLink mesh a GPU has the links to the other members, as rings over all of them use; if the links do
    not join all members, or there are none, the group goes over PCIe, each member to the next.
    """
    found = {place: figures for place, keys in enumerate(groups) if (figures := over_nvlink(cluster, keys))}
    paths = {place: pcie_paths(cluster, keys, ring) for place, keys in enumerate(groups) if place not in found}
    load = Counter(pair for hops in paths.values() for path in hops for pair in pairwise(path))
    edges = cluster.graph.edges
    for place, hops in paths.items():
        rate = min(edges[pair]["bandwidth_bytes_per_s"] / load[pair] for path in hops for pair in pairwise(path))
        wait = max(sum(edges[pair]["latency_s"] for pair in pairwise(path)) for path in hops)
        found[place] = (PCIE, rate, wait)
    return [found[place] for place in range(len(groups))]


def pcie_paths(cluster: Cluster, keys: Sequence[str], ring: bool = True) -> list[tuple[str, ...]]:
    """The path from each GPU to the next; in a ring in physical order, and from the last to the first."""
    graph = cluster.graph
    if not ring:
        return [inside(graph, a, b) for a, b in pairwise(keys)]
    order = sorted(keys, key=lambda key: (graph.nodes[key]["node"], graph.nodes[key]["index"]))
    return [inside(graph, a, b) for a, b in (*pairwise(order), (order[-1], order[0]))]


def over_nvlink(cluster: Cluster, keys: Sequence[str]) -> Figures | None:
    """Figures of GPUs that NVLinks between them join; None where they do not."""
    wanted = set(keys)
    links: Links = {
        key: {other: edge for other, edge in cluster.graph[key].items() if other in wanted and edge["kind"] == "nvlink"}
        for key in keys
    }
    reached, todo = {keys[0]}, [keys[0]]
    while todo:
        fresh = set(links[todo.pop()]) - reached
        reached |= fresh
        todo += fresh
    if reached != wanted:
        return None
    rates = [sum(edge["bandwidth_bytes_per_s"] for edge in near.values()) for near in links.values()]
    return NVLINK, min(rates), max(edge["latency_s"] for near in links.values() for edge in near.values())
