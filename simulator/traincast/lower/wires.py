"""Flows of all ranks on the links of the cluster, and the partition under which alike flows see alike links."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.lower.fold import RankGroups, refine
from traincast.topology.links import LinkTable, group_links
from traincast.topology.mix import Words, mix

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KINDS = 3
ONWARD, BACK, GRADIENTS = range(KINDS)
"""Kinds of flows: a rank's message to the next stage, its message to the previous one, a gradient group."""

_SLACK = 1.0 + 1e-9


@dataclass(frozen=True)
class Parties:
    """GPUs by flow: `onward` and `back` are pairs (sender, receiver) of the ranks `onward_of`, `back_of`.

    `groups` are the gradient groups, `members` the mesh ranks in them, both (count, size); `world` counts ranks.
    """

    world: int
    onward: Ints
    onward_of: Ints
    back: Ints
    back_of: Ints
    groups: Ints
    members: Ints


@dataclass(frozen=True, eq=False)
class Wires:
    """What flows put on the links that can be overloaded: flow `flow[i]` puts `weight[i]` * lane rate on `link[i]`.

    Flow r is the message of rank r onward, world + r its message back, 2 world + g gradient group g. `lanes[f]` is 0
    for a flow that stays inside a node.
    """

    world: int
    members: Ints
    table: LinkTable
    flow: Ints
    link: Ints
    weight: Floats
    lanes: Ints

    def group_of(self) -> Ints:
        """Gradient group of every rank, -1 for none."""
        found = np.full(self.world, -1, dtype=np.int64)
        found[self.members] = np.arange(len(self.members))[:, None]
        return found

    def flow_colours(self, classes: Ints) -> Ints:
        """A number for each flow, of its kind and the class of its rank, or the classes of its group's members."""
        ordered = np.sort(classes[self.members], axis=1)
        kinds = np.unique(ordered, axis=0, return_inverse=True)[1].reshape(-1)
        return np.concatenate([KINDS * classes + ONWARD, KINDS * classes + BACK, KINDS * kinds + GRADIENTS])

    def link_colours(self, flow_colours: Ints) -> Ints:
        """A number for each link of the table: equal for links of one capacity with equal flows on them."""
        words = self._sums(self.link, flow_colours[self.flow], len(self.table.bytes_per_s))
        rows = np.stack([words.view(np.int64), self.table.bytes_per_s.view(np.int64)], axis=1)
        return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)

    def flow_views(self, link_colours: Ints) -> Words:
        """A word for each flow: equal for flows that see alike links with equal weights."""
        return self._sums(self.flow, link_colours[self.link], len(self.lanes))

    def _sums(self, owner: Ints, colours: Ints, count: int) -> Words:
        """Hash of the multiset of (colour, weight) that each owner has: sums of mixed words do not know an order."""
        words = np.zeros(count, dtype=np.uint64)
        np.add.at(words, owner, mix([colours, self.weight.view(np.int64)]))
        return words


def lay_wires(table: LinkTable, parties: Parties, lane_bytes_per_s: Floats) -> Wires:
    """Lay all flows over the links of a cluster; `lane_bytes_per_s` is what each uses at most out of a node."""
    flows, links, weights = [], [], []
    lanes = np.zeros(2 * parties.world + len(parties.groups), dtype=np.int64)
    groups_from = 2 * parties.world + np.arange(len(parties.groups))
    for channel, (pairs, owners) in enumerate(
        (
            (parties.onward, parties.onward_of),
            (parties.back, parties.world + parties.back_of),
            (parties.groups, groups_from),
        )
    ):
        if pairs.size and pairs.shape[1] > 1:
            found = group_links(table, pairs, ring=channel == GRADIENTS, channel=channel)
            flows.append(owners[found.group])
            links.append(found.link)
            weights.append(np.round(found.weight, 9))  # so that the order of a sum makes no difference
            lanes[owners] = found.lanes
    flow, link = (np.concatenate([np.zeros(0, dtype=np.int64), *rows]) for rows in (flows, links))
    weight = np.concatenate([np.zeros(0), *weights])
    rates = lane_bytes_per_s / np.maximum(lanes, 1)
    demand = np.bincount(link, weights=weight * rates[flow], minlength=len(table.bytes_per_s))
    keep = _overloadable(table, np.asarray(demand, dtype=np.float64))[link]
    return Wires(parties.world, parties.members, table, flow[keep], link[keep], weight[keep], lanes)


def _overloadable(table: LinkTable, demand: Floats) -> npt.NDArray[np.bool_]:
    """Which links could be overloaded with all flows at full rate; an uplink gets no more than the NICs below pass."""
    capacity, fabric, first = table.bytes_per_s, table.cluster.fabric, table.first
    bound = demand.copy()
    if table.cables is None:
        nics, leaves, blocks = len(fabric.nic_keys), len(fabric.leaf_keys), len(fabric.block_up_bytes_per_s)
        wired = fabric.nic_leaf >= 0
        for up, nic_way in (("up", "out"), ("down", "in")):
            nic = slice(first[f"nic {nic_way}"], first[f"nic {nic_way}"] + nics)
            leaf = slice(first[f"leaf {up}"], first[f"leaf {up}"] + leaves)
            block = slice(first[f"block {up}"], first[f"block {up}"] + blocks)
            passed = np.minimum(demand[nic], capacity[nic])[wired]
            below = np.bincount(fabric.nic_leaf[wired], weights=passed, minlength=leaves)
            bound[leaf] = np.minimum(demand[leaf], below)
            passed = np.minimum(bound[leaf], capacity[leaf])
            below = np.bincount(fabric.leaf_block, weights=passed, minlength=blocks)
            bound[block] = np.minimum(demand[block], below)
    return np.asarray(bound > capacity * _SLACK)


def refine_by_links(classes: Ints, groups: RankGroups, wires: Wires, most: int | None = None) -> Ints:
    """The coarsest refinement of a partition of ranks under which all members of a class see alike links.

    Alternates colour refinement over the groups with that over the links until neither tells more ranks apart, or, not
    finished, until there are more than `most` classes.
    """
    families = groups.families()
    group = wires.group_of()
    while True:
        views = wires.flow_views(wires.link_colours(wires.flow_colours(classes))).view(np.int64)
        world = wires.world
        in_group = np.where(group >= 0, np.append(views[2 * world :], 0)[group], 0)
        rows = np.stack([classes, views[:world], views[world : 2 * world], in_group], axis=1)
        finer = refine(np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1), families)
        if finer.max(initial=-1) == classes.max(initial=-1):
            return classes
        classes = finer
        if most is not None and classes.max(initial=-1) >= most:
            return classes


@dataclass(frozen=True)
class LinkClass:
    """Alike links: one of them, how many they are, and what flows of each colour put on one of them."""

    link: int
    links: int
    weights: dict[int, float]


def link_classes(wires: Wires, classes: Ints) -> list[LinkClass]:
    """Classes of the links that may be overloaded, under a partition of ranks that `refine_by_links` gave.

    A link whose flows all load another one at least as much, by its capacity, is left out: it never binds.
    """
    flow_colours = wires.flow_colours(classes)
    used = np.unique(wires.link)
    _, first, counts = np.unique(wires.link_colours(flow_colours)[used], return_index=True, return_counts=True)
    place = np.full(len(wires.table.bytes_per_s), -1, dtype=np.int64)
    place[used[first]] = np.arange(len(first))
    loads: list[dict[int, float]] = [{} for _ in first]
    shown = place[wires.link] >= 0
    entries = (place[wires.link[shown]], flow_colours[wires.flow[shown]], wires.weight[shown])
    for at, colour, weight in zip(*(column.tolist() for column in entries), strict=True):
        loads[at][colour] = loads[at].get(colour, 0.0) + weight
    capacities = wires.table.bytes_per_s[used[first]].tolist()
    return [
        LinkClass(int(used[first[index]]), int(counts[index]), loads[index]) for index in _binding(loads, capacities)
    ]


def _binding(loads: list[dict[int, float]], capacities: list[float]) -> list[int]:
    """Links that no other link dominates: of equal ones the last.

    The fullest first: what dominates a link is as full as it, and is known by then.
    """
    full = [sum(load.values()) / capacity for load, capacity in zip(loads, capacities, strict=True)]
    kept: dict[int, list[int]] = {colour: [] for load in loads for colour in load}
    found = []
    for link in sorted(range(len(loads)), key=lambda one: (-full[one], -one)):
        load = loads[link]
        rarest = min((kept[colour] for colour in load), key=len)
        if not any(_dominates(loads[other], capacities[other], load, capacities[link]) for other in rarest):
            found.append(link)
            for colour in load:
                kept[colour].append(link)
    return sorted(found)


def _dominates(bigger: dict[int, float], bigger_capacity: float, load: dict[int, float], capacity: float) -> bool:
    return all(
        colour in bigger and weight * bigger_capacity <= bigger[colour] * capacity * _SLACK
        for colour, weight in load.items()
    )
