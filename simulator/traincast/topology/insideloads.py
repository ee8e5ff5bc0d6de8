"""Bytes on the links inside nodes: NVLink, each GPU's own bus, and what lies between PCIe switches and sockets."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traincast.topology.cluster import Cluster
from traincast.topology.inside import over_nvlink, pcie_paths
from traincast.topology.lanes import Visits, visits_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Edge = tuple[str, str]


@dataclass(frozen=True, eq=False)
class InsideBytes:
    """Bytes out of and into each GPU (GPUs,) over NVLink and over its bus, and on directed edges beyond the bus."""

    nvlink_out: Floats
    nvlink_in: Floats
    bus_out: Floats
    bus_in: Floats
    edges: Mapping[Edge, float]


def inside_bytes(cluster: Cluster, groups: Ints, sent: Floats, ring: bool) -> InsideBytes:
    """What groups (count, size) that send `sent` (count,) bytes from each member to the next put on links inside nodes.

    A ring over several nodes leaves each of them once, so its n ranks there pass n-1 of n shares on to each other; over
    PCIe it is counted closed, as its bandwidth is. The way to a NIC is not counted here.
    """
    visits = visits_of(cluster.fabric, groups)
    together = visits.ranks[visits.of_rank] > 1
    switched = cluster.fabric.domain_switched[visits.domain[visits.of_rank]]
    count = len(cluster.gpus)
    nvlink = together & switched
    edges: Counter[Edge] = Counter()
    for visit, members in _unswitched(visits, together & ~switched).items():
        keys = [cluster.gpus[gpu] for gpu in visits.gpu[members].tolist()]
        if over_nvlink(cluster, keys):
            nvlink[members] = True
            continue
        size = float(sent[visits.group[visit]])
        for path in pcie_paths(cluster, keys, ring):
            edges.update(dict.fromkeys(pairwise(path), size))
    out, into = _shares(visits, groups.shape[1], sent, ring)
    own: list[Floats] = [
        np.bincount(visits.gpu[nvlink], weights=share[nvlink], minlength=count).astype(np.float64)
        for share in (out, into)
    ]
    return _split(cluster, edges, own[0], own[1])


def _shares(visits: Visits, size: int, sent: Floats, ring: bool) -> tuple[Floats, Floats]:
    """Bytes that each rank sends to and takes from members in its own node."""
    group = visits.group[visits.of_rank]
    ranks = visits.ranks[visits.of_rank]
    whole = visits.nodes[group] == 1
    out = sent[group] * np.where(whole, 1.0, (ranks - 1) / ranks)
    into = out.copy()
    if not ring:
        place = np.arange(len(out)) % size
        out[whole & (place == size - 1)] = 0.0
        into[whole & (place == 0)] = 0.0
    return out, into


def _unswitched(visits: Visits, used: npt.NDArray[np.bool_]) -> dict[int, list[int]]:
    """Ranks (places in `visits.gpu`) of each visit to a node without an NVSwitch."""
    found: dict[int, list[int]] = {}
    places = np.flatnonzero(used)
    for place, visit in zip(places.tolist(), visits.of_rank[places].tolist(), strict=True):
        found.setdefault(visit, []).append(place)
    return found


def _split(cluster: Cluster, edges: Mapping[Edge, float], nvlink_out: Floats, nvlink_in: Floats) -> InsideBytes:
    """Edges that belong to a GPU are counted there: NVLink bridges and its own bus."""
    place = {key: number for number, key in enumerate(cluster.gpus)} if edges else {}
    bus_out, bus_in = np.zeros_like(nvlink_out), np.zeros_like(nvlink_in)
    beyond: dict[Edge, float] = {}
    for (a, b), size in edges.items():
        by_nvlink = cluster.graph.edges[a, b]["kind"] == "nvlink"
        if a in place:
            (nvlink_out if by_nvlink else bus_out)[place[a]] += size
        if b in place:
            (nvlink_in if by_nvlink else bus_in)[place[b]] += size
        if a not in place and b not in place:
            beyond[a, b] = size
    return InsideBytes(nvlink_out, nvlink_in, bus_out, bus_in, beyond)
