"""The tiers of a cluster as parallelism sees them: PCIe switch, NUMA domain, NVLink domain, node, leaf, pod."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np

from traincast.topology import Cluster, family_spans
from traincast.topology.summary import summarise

_FABRIC = {"leaf": "leaf", "spine": "pod", "core": "cluster"}


@dataclass(frozen=True)
class ClusterTier:
    """One tier: how many groups it forms, GPUs of the largest, and what each GPU has towards the others in it [bytes/s,
    raw, per direction] when all of them use it at once."""

    name: str
    groups: int
    gpus: int
    bytes_per_s: float


def cluster_tiers(cluster: Cluster) -> tuple[ClusterTier, ...]:
    """The tiers of a cluster, the nearest first; those that are no larger than the one before are left out."""
    found: list[ClusterTier] = []
    for tier in (*_inside(cluster), *_above(cluster)):
        if tier.gpus > (found[-1].gpus if found else 1):
            found.append(tier)
        elif found and tier.gpus == found[-1].gpus and tier.bytes_per_s >= found[-1].bytes_per_s:
            found[-1] = tier  # the wider name for the same GPUs
    return tuple(found)


def _inside(cluster: Cluster) -> Iterator[ClusterTier]:
    """Tiers up to the NVLink domain or node, with the rate of a ring over the GPUs of one group."""
    graph = cluster.graph
    place = {key: number for number, key in enumerate(cluster.gpus)}
    bridged = _bridged(cluster, place)
    for name, kind in (("PCIe switch", "pcie"), ("NUMA domain", "cpu")):
        below: dict[str, list[int]] = {}
        for key, number in place.items():
            switch = _above_of(graph, key, kind)
            if switch:
                below.setdefault(switch, []).append(number)
        if below:
            yield _tier(cluster, name, list(below.values()))
        if bridged and kind == "pcie":
            yield _tier(cluster, "NVLink pair", bridged)
    joined = _has_nvlink(cluster) and not bridged
    yield _tier(cluster, "NVLink domain" if joined else "node", _by_number(cluster.fabric.gpu_domain.tolist()))


def _has_nvlink(cluster: Cluster) -> bool:
    return bool(cluster.fabric.gpu_nvlink_bytes_per_s.any())


def _bridged(cluster: Cluster, place: dict[str, int]) -> list[list[int]]:
    """Pairs of GPUs that bridges join, on nodes whose other GPUs have none to them."""
    found: set[tuple[int, ...]] = set()
    if not _has_nvlink(cluster) or cluster.fabric.domain_switched.all():
        return []
    for key, number in place.items():
        near = [other for other, edge in cluster.graph[key].items() if edge["kind"] == "nvlink" and other in place]
        if len(near) == 1:
            found.add(tuple(sorted((number, place[near[0]]))))
    return [list(pair) for pair in sorted(found)]


def _above_of(graph: "nx.Graph[str]", key: str, kind: str) -> str:
    """The PCIe switch or socket above a GPU; empty where there is none."""
    seen, here = {key}, [key]
    for _ in range(3):
        here = [
            other
            for one in here
            for other in graph[one]
            if other not in seen and graph.nodes[other]["kind"] in ("pcie", "cpu")
        ]
        match = [one for one in here if graph.nodes[one]["kind"] == kind]
        if match:
            return match[0]
        seen.update(here)
    return ""


def _by_number(numbers: Sequence[int]) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for gpu, number in enumerate(numbers):
        groups.setdefault(number, []).append(gpu)
    return list(groups.values())


def _tier(cluster: Cluster, name: str, groups: Sequence[Sequence[int]]) -> ClusterTier:
    """A tier by the most common size of its groups; its rate is that of the slowest of these while all are busy."""
    size = Counter(map(len, groups)).most_common(1)[0][0]
    if size == 1:
        return ClusterTier(name, len(groups), 1, 0.0)
    alike = np.array([list(group) for group in groups if len(group) == size], dtype=np.int64)
    rate = min(span.intra_bytes_per_s for span in set(family_spans(cluster, alike)))
    return ClusterTier(name, len(groups), size, rate)


def _above(cluster: Cluster) -> Iterator[ClusterTier]:
    """Levels of the fabric: what all GPUs of a group can send to it at once, by GPU."""
    for row in summarise(cluster).tiers:
        if row.tier in _FABRIC:
            rate = 2.0 * row.bisection_bytes_per_s / row.gpus_per_group
            yield ClusterTier(_FABRIC[row.tier], row.groups, row.gpus_per_group, rate)
