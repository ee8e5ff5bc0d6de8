"""Groups as visits to nodes, edges between them, and the NICs that each edge uses.

Everything is an array over all groups of a family at once; Python loops run over distinct patterns only.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.topology.cluster import TIERS, Cluster
from traincast.topology.flat import Fabric

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Rails = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Visits:
    """One visit is one group at one node (NVLink domain); a group's visits stand together, in ring order.

    `group`, `domain`, `ranks` are per visit, `starts` (first visit) and `nodes` (how many) per group. `gpu`
    and `of_rank` (its visit) are per rank.
    """

    group: Ints
    domain: Ints
    ranks: Ints
    starts: Ints
    nodes: Ints
    gpu: Ints
    of_rank: Ints


@dataclass(frozen=True, eq=False)
class Flows:
    """One flow is one lane of one edge. `out` and `into` are NIC numbers, `tier` an index into TIERS, `edge`
    its edge.

    `edge_from`, `edge_to` are visits, `edge_group` their group. `detour_s` is the way over NVLink to the NIC
    of the receiver's rail, where the sender's own NICs are on other rails.
    """

    out: Ints
    into: Ints
    tier: Ints
    edge: Ints
    group: Ints
    detour_s: Floats
    edge_from: Ints
    edge_to: Ints
    edge_group: Ints


def visits_of(fabric: Fabric, table: Ints) -> Visits:
    """The visits of groups, shape (count, size), of GPU numbers."""
    count, size = table.shape
    domains = len(fabric.domain_switched)
    gpu = table.reshape(-1)
    key = np.repeat(np.arange(count), size) * domains + fabric.gpu_domain[gpu]
    keys, first, which, ranks = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    # first positions grow with the group, and inside a group with the order in which its ranks meet the nodes
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    group = keys[order] // domains
    nodes = np.bincount(group, minlength=count)
    return Visits(
        group=group,
        domain=keys[order] % domains,
        ranks=ranks[order],
        starts=np.concatenate(([0], np.cumsum(nodes)[:-1])),
        nodes=nodes,
        gpu=gpu,
        of_rank=place[which.reshape(-1)],
    )


def flows_of(cluster: Cluster, visits: Visits, *, ring: bool) -> Flows:
    """The flows of all groups that have more than one node. Raises TopologyError where one of them has no
    NIC."""
    start, end = _edges(visits, ring)
    lanes = _visit_nics(cluster, visits)
    if not len(start):
        none = np.zeros(0, dtype=np.int64)
        return Flows(none, none, none, none, none, np.zeros(0), none, none, none)
    out, into, rerouted = _paired(cluster, lanes[start], lanes[end])
    edge, lane = np.nonzero(out >= 0)
    group = visits.group[start]
    out_nic, into_nic = out[edge, lane], into[edge, lane]
    detour = _nvlink_hop(cluster.fabric)[visits.domain[start[edge]]] * rerouted[edge, lane]
    return Flows(
        out=out_nic,
        into=into_nic,
        tier=_tiers(cluster.fabric, out_nic, into_nic),
        edge=edge,
        group=group[edge],
        detour_s=detour,
        edge_from=start,
        edge_to=end,
        edge_group=group,
    )


def _edges(visits: Visits, ring: bool) -> tuple[Ints, Ints]:
    """From which visit to which: each to the next of its group, and with `ring` the last to the first."""
    here = np.arange(len(visits.group))
    last = visits.starts[visits.group] + visits.nodes[visits.group] - 1
    after = np.where(here == last, visits.starts[visits.group], here + 1)
    used = visits.nodes[visits.group] > 1
    if not ring:
        used &= here != last
    return here[used], after[used]


def _visit_nics(cluster: Cluster, visits: Visits) -> Ints:
    """NICs near the GPUs of each visit in ascending order, shape (visits, most NICs), filled up with -1."""
    fabric = cluster.fabric
    near = fabric.gpu_nics[visits.gpu]
    crosses = visits.nodes[visits.group[visits.of_rank]] > 1
    used = (near >= 0) & crosses[:, None]
    used[used] &= fabric.nic_leaf[near[used]] >= 0
    nics = max(1, len(fabric.nic_keys))
    visit = np.repeat(visits.of_rank, near.shape[1]).reshape(near.shape)
    keys = np.unique(visit[used] * nics + near[used])
    visit_of, nic = keys // nics, keys % nics
    count = np.bincount(visit_of, minlength=len(visits.group))
    lacking = (count == 0) & (visits.nodes[visits.group] > 1)
    if lacking.any():
        gpu = cluster.gpus[int(visits.gpu[np.argmax(visits.of_rank == int(np.argmax(lacking)))])]
        raise TopologyError(f"{gpu} has no NIC to leave its node by", fix="give the nodes NICs, or use one node")
    lanes = np.full((len(visits.group), int(count.max(initial=0))), -1, dtype=np.int64)
    begin = np.concatenate(([0], np.cumsum(count)[:-1]))
    lanes[visit_of, np.arange(len(keys)) - begin[visit_of]] = nic
    return lanes


def _paired(cluster: Cluster, source: Ints, target: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """NICs out and in for each lane of each edge (-1: no lane), and whether the lane takes NVLink to
    leave."""
    fabric = cluster.fabric
    out, into = source.copy(), target.copy()
    rerouted = np.zeros(out.shape, dtype=np.bool_)
    rails_out, rails_in = _rails(fabric, source), _rails(fabric, target)
    odd = np.nonzero((rails_out != rails_in).any(axis=1))[0]
    if not len(odd):
        return out, into, rerouted
    patterns, which = np.unique(np.hstack([rails_out[odd], rails_in[odd]]), axis=0, return_inverse=True)
    width = source.shape[1]
    for number, pattern in enumerate(patterns.tolist()):
        rows = odd[which.reshape(-1) == number]
        here, there = match_rails(tuple(pattern[:width]), tuple(pattern[width:]))
        lanes = len(here)
        nic_out, nic_in = source[np.ix_(rows, here)], target[np.ix_(rows, there)]
        via = _same_rail(fabric, nic_out, nic_in)
        out[rows], into[rows] = -1, -1
        out[rows, :lanes], into[rows, :lanes] = via, nic_in
        # a NIC on the same PCIe switch needs no detour
        rerouted[rows, :lanes] = fabric.nic_host[via] != fabric.nic_host[nic_out]
    return out, into, rerouted


def match_rails(out: Rails, into: Rails) -> tuple[list[int], list[int]]:
    """Which lane of one node meets which lane of the other, as places in both lists: equal rails first.

    -1 stands for no lane. As many lanes are used as the side with fewer has.
    """
    free_out = [place for place, rail in enumerate(out) if rail >= 0]
    free_in = [place for place, rail in enumerate(into) if rail >= 0]
    lanes = min(len(free_out), len(free_in))
    pairs = []
    for place in list(free_out):
        partner = next((other for other in free_in if into[other] == out[place]), None)
        if partner is not None:
            pairs.append((place, partner))
            free_out.remove(place)
            free_in.remove(partner)
    pairs += list(zip(free_out, free_in, strict=False))
    chosen = sorted(pairs[:lanes])
    return [a for a, _ in chosen], [b for _, b in chosen]


def _rails(fabric: Fabric, nics: Ints) -> Ints:
    return np.where(nics >= 0, fabric.nic_rail[nics], -1)


def _same_rail(fabric: Fabric, out: Ints, into: Ints) -> Ints:
    """The sender's NIC on the receiver's rail where NVLink leads to it and the leaves are by rail; else the
    sender's."""
    rail = fabric.nic_rail[into]
    same = fabric.rail_nic[fabric.nic_node[out], rail]
    by_rail = fabric.leaf_rail[fabric.nic_leaf[out]] >= 0
    usable = (same >= 0) & by_rail & _switched_nodes(fabric)[fabric.nic_node[out]]
    return np.where(usable & (fabric.nic_leaf[same] >= 0), same, out)


def _switched_nodes(fabric: Fabric) -> npt.NDArray[np.bool_]:
    """Whether the GPUs of a node are on an NVSwitch, by node number."""
    found = np.zeros(fabric.rail_nic.shape[0], dtype=np.bool_)
    owner = fabric.gpu_nics[:, 0]
    known = owner >= 0
    found[fabric.nic_node[owner[known]]] = fabric.domain_switched[fabric.gpu_domain[known]]
    return found


def _nvlink_hop(fabric: Fabric) -> Floats:
    """GPU to GPU over the NVSwitch [s], by domain."""
    wait = np.zeros(len(fabric.domain_switched))
    np.maximum.at(wait, fabric.gpu_domain, 2.0 * fabric.gpu_nvlink_latency_s)
    return wait + fabric.domain_switch_latency_s


def _tiers(fabric: Fabric, out: Ints, into: Ints) -> Ints:
    leaf_out, leaf_in = fabric.nic_leaf[out], fabric.nic_leaf[into]
    below_core = fabric.leaf_block[leaf_out] == fabric.leaf_block[leaf_in]
    level = np.where(below_core, TIERS.index("spine"), TIERS.index("core"))
    return np.where(leaf_out == leaf_in, TIERS.index("leaf"), level)
