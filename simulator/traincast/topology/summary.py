"""Counts, links and bisection bandwidths of a cluster, for people."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.topology.cluster import Cluster

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_SWITCHES = ("leaf", "spine", "core")
_KINDS = ("gpu", "nvswitch", "pcie", "cpu", "nic", *_SWITCHES)


@dataclass(frozen=True)
class LinkRow:
    """All links of one kind between two kinds of parts; bandwidth and latency of one link, one way."""

    kind: str
    between: str
    links: int
    bandwidth_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class TierRow:
    """One tier: how many groups it forms, and what half of a group can send to the other half at once.

    `oversubscription` is what the GPUs below can send over the capacity towards this tier, at the worst switch below
    it.
    """

    tier: str
    groups: int
    gpus_per_group: int
    bisection_bytes_per_s: float
    oversubscription: float


@dataclass(frozen=True)
class Summary:
    """What a cluster consists of. `counts` has gpus, nics, switches (of the fabric) and nodes; GPUs that cannot be used
    are not counted."""

    name: str
    counts: dict[str, int]
    parts: dict[str, int]
    gpu_models: dict[str, int]
    links: tuple[LinkRow, ...]
    tiers: tuple[TierRow, ...]
    assumed: tuple[str, ...]


def summarise(cluster: Cluster) -> Summary:
    """Counts per kind, links per kind and pair of kinds, and the tiers."""
    parts: Counter[str] = Counter()
    for _, data in cluster.graph.nodes(data=True):
        parts[data["kind"]] += 0 if data.get("dead", False) else data.get("units", 1)
    return Summary(
        name=cluster.name,
        counts={
            "gpus": len(cluster.gpus),
            "nics": parts["nic"],
            "switches": sum(parts[kind] for kind in _SWITCHES),
            "nodes": cluster.nodes,
        },
        parts={kind: parts[kind] for kind in (*_KINDS, *sorted(set(parts) - set(_KINDS))) if parts[kind]},
        gpu_models=dict(Counter(cluster.gpu_model)),
        links=_links(cluster),
        tiers=_tiers(cluster),
        assumed=cluster.assumptions,
    )


def _links(cluster: Cluster) -> tuple[LinkRow, ...]:
    order = {kind: place for place, kind in enumerate(_KINDS)}
    kinds: dict[str, str] = {key: data["kind"] for key, data in cluster.graph.nodes(data=True)}
    found: Counter[tuple[str, str, str, float, float]] = Counter()
    for a, b, edge in cluster.graph.edges(data=True):
        low, high = sorted((kinds[a], kinds[b]), key=lambda kind: order.get(kind, len(order)))
        rate = edge["bandwidth_bytes_per_s"] / edge["links"]
        found[low, high, edge["kind"], rate, edge["latency_s"]] += edge["links"]
    rows = sorted(found.items(), key=lambda item: (order.get(item[0][0], 99), order.get(item[0][1], 99), item[0]))
    return tuple(LinkRow(kind, f"{low}-{high}", count, rate, wait) for (low, high, kind, rate, wait), count in rows)


def _tiers(cluster: Cluster) -> tuple[TierRow, ...]:
    fabric = cluster.fabric
    rows = []
    if fabric.gpu_nvlink_bytes_per_s.max() > 0:
        joined = _joined(cluster)
        rows.append(_tier("nvlink", joined, _sums(joined, fabric.gpu_nvlink_bytes_per_s), 1.0))
    if not rows or rows[0].gpus_per_group < int(np.bincount(fabric.gpu_domain).max()):
        rows.append(_tier("pcie", fabric.gpu_domain, _over_sockets(cluster), 1.0))
    used = np.zeros(max(1, fabric.rail_nic.shape[0], int(cluster.node_index.max()) + 1), dtype=np.bool_)
    used[cluster.node_index] = True
    wired = (fabric.nic_leaf >= 0) & used[fabric.nic_node]
    if not wired.any():
        return tuple(rows)
    leaves, blocks = len(fabric.leaf_keys), len(fabric.block_up_bytes_per_s)
    into = _sums(fabric.nic_leaf[wired], fabric.nic_bytes_per_s[wired], leaves)
    unit, pod = cluster.place("leaf"), cluster.place("spine")
    unit_of, pod_of = _of_leaf(cluster, unit), _of_leaf(cluster, pod)
    rows.append(_tier("leaf", unit, _sums(unit_of, into), 1.0))
    up = np.minimum(into, fabric.leaf_up_bytes_per_s)
    if fabric.leaf_up_bytes_per_s.any():
        rows.append(_tier("spine", pod, _sums(pod_of, up), _worst(into, fabric.leaf_up_bytes_per_s)))
    if fabric.block_up_bytes_per_s.any():
        reach = _sums(fabric.leaf_block, up, blocks)
        top = np.minimum(reach, fabric.block_up_bytes_per_s).sum(keepdims=True)
        worst = _worst(reach, fabric.block_up_bytes_per_s)
        rows.append(_tier("core", np.zeros_like(unit), top, worst))
    return tuple(rows)


def _over_sockets(cluster: Cluster) -> Floats:
    """Twice what one half of a node's GPUs can send to the other over PCIe: their buses, or the socket links."""
    fabric = cluster.fabric
    buses = _sums(fabric.gpu_domain, fabric.gpu_bus_bytes_per_s)
    domain_of = dict(zip(cluster.node_index.tolist(), fabric.gpu_domain.tolist(), strict=True))
    between: Counter[int] = Counter()
    for a, _, edge in cluster.graph.edges(data=True):
        if edge["kind"] == "cpu":
            domain = domain_of.get(cluster.graph.nodes[a]["node"], -1)
            between[domain] += edge["bandwidth_bytes_per_s"]
    sockets = np.array([2.0 * between[domain] or np.inf for domain in range(len(buses))])
    return np.asarray(np.minimum(buses, sockets), dtype=np.float64)


def _joined(cluster: Cluster) -> Ints:
    """Group number of each GPU: those that NVLinks join, over a switch or from one to the next."""
    fabric = cluster.fabric
    place = {key: number for number, key in enumerate(cluster.gpus)}
    group = fabric.gpu_domain.copy()
    free = len(fabric.domain_switched)
    alone = ~fabric.domain_switched[fabric.gpu_domain]
    for gpu in np.flatnonzero(alone).tolist():
        if group[gpu] >= len(fabric.domain_switched):
            continue
        todo = [gpu]
        while todo:
            one = todo.pop()
            group[one] = free
            near = cluster.graph[cluster.gpus[one]]
            others = [place[key] for key, edge in near.items() if edge["kind"] == "nvlink" and key in place]
            todo += [other for other in others if group[other] != free]
        free += 1
    return np.asarray(np.unique(group, return_inverse=True)[1], dtype=np.int64)


def _sums(group: Ints, values: Floats, count: int = 0) -> Floats:
    return np.asarray(np.bincount(group, weights=values, minlength=count), dtype=np.float64)


def _of_leaf(cluster: Cluster, place: Ints) -> Ints:
    """The group of each leaf at a tier, from the GPUs near its NICs."""
    fabric = cluster.fabric
    found = np.zeros(len(fabric.leaf_keys), dtype=np.int64)
    near = fabric.gpu_nics
    gpu, slot = np.nonzero(near >= 0)
    leaf = fabric.nic_leaf[near[gpu, slot]]
    found[leaf[leaf >= 0]] = place[gpu[leaf >= 0]]
    return found


def _worst(down: Floats, up: Floats) -> float:
    return float((down[up > 0] / up[up > 0]).max())


def _tier(
    name: str,
    group: Ints,
    capacity: Floats,
    oversubscription: float,
) -> TierRow:
    """A row about the largest group."""
    sizes = np.bincount(group)
    largest = int(sizes.argmax())
    return TierRow(name, len(sizes), int(sizes[largest]), float(capacity[largest]) / 2, oversubscription)
