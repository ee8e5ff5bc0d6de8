"""What a group has inside its nodes: NVLink over a switch, a fixed NVLink mesh, or PCIe."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traincast.topology.cluster import TIERS, Cluster
from traincast.topology.lanes import Visits
from traincast.topology.paths import inside

NVLINK, PCIE = TIERS.index("nvlink"), TIERS.index("pcie")


@dataclass(frozen=True, eq=False)
class Inner:
    """Figures inside nodes, one for each group: tier (index into TIERS), slowest bytes/s per GPU, one-way
    latency."""

    tier: npt.NDArray[np.int64]
    bytes_per_s: npt.NDArray[np.float64]
    latency_s: npt.NDArray[np.float64]


def inner_figures(cluster: Cluster, visits: Visits) -> Inner:
    """The slowest of a group's nodes counts. A node with one rank alone counts with what its GPU has."""
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
    _without_switch(cluster, visits, tier, rate, wait)
    return Inner(
        tier=np.maximum.reduceat(tier, visits.starts),
        bytes_per_s=np.minimum.reduceat(rate, visits.starts),
        latency_s=np.maximum.reduceat(wait, visits.starts),
    )


def _without_switch(
    cluster: Cluster,
    visits: Visits,
    tier: npt.NDArray[np.int64],
    rate: npt.NDArray[np.float64],
    wait: npt.NDArray[np.float64],
) -> None:
    """Fills in the visits of several ranks to nodes without an NVSwitch; equal patterns are worked out
    once."""
    open_visit = (visits.ranks > 1) & ~cluster.fabric.domain_switched[visits.domain]
    if not open_visit.any():
        return
    members: dict[int, list[int]] = {}
    for gpu, visit in zip(visits.gpu.tolist(), visits.of_rank.tolist(), strict=True):
        if open_visit[visit]:
            members.setdefault(visit, []).append(gpu)
    known: dict[tuple[object, ...], tuple[int, float, float]] = {}
    data = cluster.graph.nodes
    for visit, gpus in members.items():
        keys = [cluster.gpus[gpu] for gpu in gpus]
        pattern = tuple((data[key]["design"], data[key]["index"]) for key in keys)
        if pattern not in known:
            known[pattern] = mesh_figures(cluster, keys)
        tier[visit], rate[visit], wait[visit] = known[pattern]


def mesh_figures(cluster: Cluster, keys: Sequence[str]) -> tuple[int, float, float]:
    """Tier, bytes/s per GPU and latency of GPUs of one node without an NVSwitch.

    On an NVLink mesh a GPU has the links to the other members, as rings over all of them use; if the links do
    not join all members, or there are none, the group goes over PCIe, each to the next in order.
    """
    graph = cluster.graph
    wanted = set(keys)
    links = {
        key: {
            other: edge for other, edge in graph[key].items() if other in wanted and edge["kind"] == "nvlink"
        }
        for key in keys
    }
    reached, todo = {keys[0]}, [keys[0]]
    while todo:
        fresh = set(links[todo.pop()]) - reached
        reached |= fresh
        todo += fresh
    if reached == wanted:
        rates = [sum(edge["bandwidth_bytes_per_s"] for edge in near.values()) for near in links.values()]
        return NVLINK, min(rates), max(edge["latency_s"] for near in links.values() for edge in near.values())
    paths = [inside(graph, a, b) for a, b in (*pairwise(keys), (keys[-1], keys[0]))]
    edges = [[graph.edges[pair] for pair in pairwise(path)] for path in paths]
    slowest = min(edge["bandwidth_bytes_per_s"] for path in edges for edge in path)
    return PCIE, slowest, max(sum(edge["latency_s"] for edge in path) for path in edges)
