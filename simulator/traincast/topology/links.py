"""Directed links by number, and which of them a group's flows cross: structural up and down, never a search.

A flow between two nodes leaves by its NIC, goes up to the first level where both ends meet, and down again. What
lies above the leaves is either bundled (`adaptive`: all uplinks of a leaf are one link, all uplinks of a block
another, as ideal adaptive routing would use them) or cable by cable (`ecmp`: a hash of the flow picks one cable at
each level, so that two flows may meet on one while the next is idle). A lane of `ecmp` is several flows, each with an
even part of its bytes and a hash of its own. Up and down are different links.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.topology.cables import Cables, build_cables, climb
from traincast.topology.cluster import Cluster
from traincast.topology.lanes import Flows, Visits, flows_of, visits_of

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


DEFAULT_FLOWS: Final = 2
"""Flows of a lane (a pair of NICs) under `ecmp`: two channels on each NIC with one queue pair each.

NCCL's logs show 16 channels on eight H100 and 8 to 16 on eight A100 with a NIC each, and to a peer over the network
it opens two channels per NIC; NCCL_IB_QPS_PER_CONNECTION is 1 unless it is set (NCCL User Guide, environment
variables). Llama Team 2024 (arXiv:2407.21783) §3.3.1 have 16 flows between two GPUs.
"""
MOST_FLOWS: Final = 128
"""NCCL takes at most as many queue pairs per connection (NCCL_IB_MAX_QPS of its net_ib.cc)."""


@dataclass(frozen=True)
class Spread:
    """How flows spread over parallel links: `ecmp` hashes `flows` of them in each lane, `seed` turns the hash.

    Raises TopologyError for fewer than one flow or more than MOST_FLOWS, and for a negative seed.
    """

    kind: Literal["adaptive", "ecmp"] = "adaptive"
    seed: int = 0
    flows: int = DEFAULT_FLOWS

    def __post_init__(self) -> None:
        if not 1 <= self.flows <= MOST_FLOWS:
            raise TopologyError(f"{self.flows} flows in a lane", fix=f"give 1 to {MOST_FLOWS}")
        if self.seed < 0:
            raise TopologyError(f"seed {self.seed}", fix="give a whole number from 0")


@dataclass(frozen=True, eq=False)
class LinkTable:
    """All directed links of a cluster's network. Compared by identity.

    `bytes_per_s` (links,) is the raw capacity of each, one direction. Links are numbered section by section, `first`
    has the number at which each begins: NICs (with the bus behind them) out and in, leaf uplinks up and down, block
    uplinks up and down, GPU buses out and in. With `ecmp` the uplinks are single cables.
    """

    cluster: Cluster
    spread: Spread
    bytes_per_s: Floats
    first: Mapping[str, int]
    cables: Cables | None = field(default=None, repr=False)

    def name(self, link: int) -> str:
        """A link in words, such as `n0/nic3 out` or `su0/leaf3 up`."""
        section = [name for name, begin in self.first.items() if begin <= link][-1]  # sections may be empty
        index, fabric = link - self.first[section], self.cluster.fabric
        what, way = section.split()
        if what == "nic":
            return f"{fabric.nic_keys[index]} {way}"
        if what == "bus":
            return f"{self.cluster.gpus[index]} bus {way}"
        if self.cables is not None:
            return f"{self.cables.name(what, index)} {way}"
        return f"{fabric.leaf_keys[index]} {way}" if what == "leaf" else f"block{index} {way}"


@dataclass(frozen=True, eq=False)
class GroupLinks:
    """What groups put on links: one entry for each pair of a group and a link that it uses.

    Group `group[i]` puts `weight[i]` times its lane rate on link `link[i]`. The lane rate of a group is its rate out
    of a node divided by `lanes[group]`, its lanes on the edge that has fewest (0: it stays inside a node).
    """

    group: Ints
    link: Ints
    weight: Floats
    lanes: Ints


def link_table(cluster: Cluster, spread: Spread | None = None) -> LinkTable:
    """Number the directed links of a cluster."""
    spread = spread or Spread()
    fabric = cluster.fabric
    cables = build_cables(cluster) if spread.kind == "ecmp" else None
    leaf = fabric.leaf_up_bytes_per_s if cables is None else cables.leaf_bytes_per_s
    block = fabric.block_up_bytes_per_s if cables is None else cables.spine_bytes_per_s
    sections = {
        **{f"nic {way}": fabric.nic_cap_bytes_per_s for way in ("out", "in")},
        **{f"leaf {way}": leaf for way in ("up", "down")},
        **{f"block {way}": block for way in ("up", "down")},
        **{f"bus {way}": fabric.gpu_bus_bytes_per_s for way in ("out", "in")},
    }
    begins = [0, *accumulate(len(rates) for rates in sections.values())]
    first = dict(zip(sections, begins, strict=False))
    return LinkTable(cluster, spread, np.concatenate(list(sections.values())), first, cables)


def group_links(table: LinkTable, groups: npt.ArrayLike, *, ring: bool = True, channel: int = 0) -> GroupLinks:
    """Links of groups of GPUs, shape (count, size), that send round the nodes they are on.

    With `ring` every node sends to the next and the last to the first; without, the last one sends nothing (a pair
    is then one message from its first GPU to its second). `channel` stands for the port numbers in the hash of
    `ecmp`: groups and channels that share their NICs are hashed apart, and so are the flows of a lane, which share its
    bytes evenly and end with the slowest of them. Raises TopologyError for nodes without a network between them.
    """
    members = np.asarray(groups, dtype=np.int64)
    visits = visits_of(table.cluster.fabric, members)
    flows = flows_of(table.cluster, visits, ring=ring)
    lanes_of_edge = np.bincount(flows.edge, minlength=len(flows.edge_group))
    lanes = np.full(len(members), np.iinfo(np.int64).max)
    np.minimum.at(lanes, flows.edge_group, lanes_of_edge)
    lanes[lanes == np.iinfo(np.int64).max] = 0
    lane, link, part = _lane_parts(table, flows, flows.group * 64 + channel)
    edge = flows.edge[lane]
    fullest = lanes[flows.group[lane]]
    entries = [(flows.group[lane], link, part * fullest / lanes_of_edge[edge])]
    entries += _bus_entries(table, visits, flows, lanes)
    group, used, weight = (np.concatenate(column) for column in zip(*entries, strict=True))
    return _summed(group, used, weight.astype(np.float64), lanes)


def _lane_parts(table: LinkTable, flows: Flows, channel: Ints) -> tuple[Ints, Ints, Floats]:
    """Lane, link and part of the lane's bytes on it: all on its NICs, split over the cables of its hashed flows."""
    count = 1 if table.cables is None else table.spread.flows
    if count == 1:
        lane, link = lane_links(table, flows.out, flows.into, channel=channel)
        return lane, link, np.ones(len(lane))
    each = np.repeat(np.arange(len(flows.out)), count)
    number = np.tile(np.arange(count), len(flows.out))
    flow, link = lane_links(table, flows.out[each], flows.into[each], channel=channel[each] + (number << 40))
    nic = link < table.first["leaf up"]
    keep = ~nic | (number[flow] == 0)
    return each[flow[keep]], link[keep], np.where(nic, 1.0, 1.0 / count)[keep]


def _bus_entries(table: LinkTable, visits: Visits, flows: Flows, lanes: Ints) -> list[tuple[Ints, Ints, Floats]]:
    """What the GPUs at both ends of each edge move over their own bus; the ranks of a visit share it evenly."""
    by_visit = np.argsort(visits.of_rank, kind="stable")
    begin = np.concatenate(([0], np.cumsum(visits.ranks)[:-1]))
    found = []
    for way, ends in (("out", flows.edge_from), ("in", flows.edge_to)):
        ranks = visits.ranks[ends]
        edge = np.repeat(np.arange(len(ends)), ranks)
        place = np.arange(len(edge)) - np.repeat(np.cumsum(ranks) - ranks, ranks)
        gpu = visits.gpu[by_visit[begin[ends][edge] + place]]
        group = flows.edge_group[edge]
        used = table.cluster.fabric.gpu_bus_bytes_per_s[gpu] > 0.0
        found.append((group[used], table.first[f"bus {way}"] + gpu[used], (lanes[group] / ranks[edge])[used]))
    return found


def _summed(group: Ints, link: Ints, weight: Floats, lanes: Ints) -> GroupLinks:
    """One entry a pair of group and link: a ring that passes an uplink several times counts it as often."""
    size = int(link.max(initial=0)) + 1
    pairs, which = np.unique(group * size + link, return_inverse=True)
    total = np.asarray(np.bincount(which, weights=weight, minlength=len(pairs)), dtype=np.float64)
    return GroupLinks(pairs // size, pairs % size, total, lanes)


def lane_links(table: LinkTable, out: Ints, into: Ints, *, channel: npt.ArrayLike = 0) -> tuple[Ints, Ints]:
    """Directed links of lanes from NIC `out` to NIC `into`: (lane, link) of every pair, without the GPUs' buses.

    Raises TopologyError where two leaves have no switch in common above them.
    """
    fabric, first = table.cluster.fabric, table.first
    leaf_out, leaf_in = fabric.nic_leaf[out], fabric.nic_leaf[into]
    lane = np.arange(len(out))
    found = [(lane, first["nic out"] + out), (lane, first["nic in"] + into)]
    above_leaf = leaf_out != leaf_in
    block_out, block_in = fabric.leaf_block[leaf_out], fabric.leaf_block[leaf_in]
    above_block = above_leaf & (block_out != block_in)
    if table.cables is None:
        found += [
            (lane[above_leaf], first["leaf up"] + leaf_out[above_leaf]),
            (lane[above_leaf], first["leaf down"] + leaf_in[above_leaf]),
            (lane[above_block], first["block up"] + block_out[above_block]),
            (lane[above_block], first["block down"] + block_in[above_block]),
        ]
    else:
        keys = (out, into, np.broadcast_to(np.asarray(channel, dtype=np.int64), out.shape))
        high = np.flatnonzero(above_leaf)
        steps = climb(table.cables, leaf_out[high], leaf_in[high], [key[high] for key in keys], table.spread.seed)
        for section, cable in steps.items():
            used = cable >= 0
            found.append((high[used], first[section] + cable[used]))
    lanes, links = (np.concatenate(column) for column in zip(*found, strict=True))
    order = np.argsort(lanes, kind="stable")
    return lanes[order], links[order]
