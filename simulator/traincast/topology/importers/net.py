"""Switches of any fabric -> leaves, spines and cores, with the cables between them.

The graph knows three levels, files know more: trees of other depths, switches that are joined beside each other,
hosts on upper switches. What does not fit is carried by helper vertices, which are no boxes (units 0) and cost
nothing but the bandwidth of the cables they stand for. The notes say where that was needed.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from traincast.errors import TopologyError
from traincast.topology.graphform import PartRow, WireRow
from traincast.topology.hostlist import compress

# a switch with so much fewer hosts than every switch around it stands above them; its hosts are for management
_STRAY_RATIO: Final = 4
_LEAF_NAME: Final = re.compile(r"leaf|edge|\btor\b", re.I)


@dataclass(frozen=True)
class HostPort:
    """A host's NIC on a switch; `device` is what the file calls it. Rate in bytes/s."""

    host: str
    device: str
    switch: str
    bytes_per_s: float


@dataclass(frozen=True)
class NetLink:
    """Parallel links between two switches; bytes/s of one."""

    a: str
    b: str
    links: int
    bytes_per_s: float


@dataclass(frozen=True)
class Net:
    """A fabric. `heights` are the levels of a tree file, None where they follow from the cables.

    `seen` says of each switch whether the file lists its own ports (`graphform.SEEN`); empty where it cannot tell.
    """

    source: str
    kind: str
    hosts: tuple[str, ...]
    ports: tuple[HostPort, ...]
    switches: tuple[str, ...]
    links: tuple[NetLink, ...]
    heights: Mapping[str, int] | None = None
    seen: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Switches and cables for the graph, the vertex that stands for each switch's hosts, and what to say."""

    switches: tuple[PartRow, ...]
    cables: tuple[WireRow, ...]
    leaf_of: Mapping[str, str]
    notes: tuple[str, ...]


Cable = tuple[str, int, float, float]
"""Kind, links, bytes/s of one, latency [s]."""


@dataclass
class _Draft:
    """The graph's switches and bundles while they are put together; a bundle is links and their total rate."""

    levels: Mapping[str, int]
    kinds: dict[str, str] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    bundles: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)
    shares: dict[tuple[str, str], float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, low: str, high: str, links: int, total: float, share: float = 1.0) -> None:
        """More links from a lower to a higher vertex; `share` of a cable's latency counts here."""
        count, rate = self.bundles.get((low, high), (0, 0.0))
        self.bundles[low, high] = (count + links, rate + total)
        self.shares[low, high] = share

    def helper(self, name: str, kind: str) -> str:
        """A vertex that is no box, named so that it cannot be one."""
        label = f"{name}~{kind}"
        self.kinds[label] = kind
        self.helpers.add(label)
        return label


def lay_out(net: Net, cable_s: float, latency_of: Callable[[float], float]) -> Layout:
    """The fabric in three levels. `cable_s` is the latency of a cable, `latency_of` of a switch with ports of a rate.

    Raises TopologyError for a fabric without hosts.
    """
    if not net.ports:
        raise TopologyError("no host hangs on a switch", where=net.source, fix="give a file with hosts")
    levels = net.heights or _levels(net)
    top_of = _tops(net, levels)
    draft = _Draft(levels, {top_of.get(name, name): _kind(levels[name]) for name in net.switches})
    if top_of:
        draft.notes.append(
            f"{len(top_of)} switches above the second level are joined to each other: they count as "
            f"{len(set(top_of.values()))} core switches, whose inner links are not modelled"
        )
    flat: dict[int, list[NetLink]] = {1: [], 2: []}
    tall: dict[str, list[NetLink]] = {}
    for link in net.links:
        low, high = sorted((link.a, link.b), key=lambda name: levels[name])
        bottom, top = min(levels[low], 3), min(levels[high], 3)
        high = top_of.get(high, high)
        if top == bottom == 3:
            continue
        if top == bottom:
            flat[bottom].append(link)
        elif (bottom, top) == (1, 3):
            tall.setdefault(low, []).append(NetLink(low, high, link.links, link.bytes_per_s))
        else:
            draft.add(low, high, link.links, link.links * link.bytes_per_s)
    _beside(draft, flat[1], "spine")
    _beside(draft, flat[2], "core")
    _skipping(draft, tall)
    leaf_of = _host_leaves(draft, net, top_of)
    parts = _part_rows(draft, net, top_of, latency_of)
    wires: dict[Cable, list[tuple[str, str]]] = {}
    for (low, high), (count, rate) in draft.bundles.items():
        cable = (net.kind, count, rate / count, cable_s * draft.shares[low, high])
        wires.setdefault(cable, []).append((low, high))
    return Layout(
        switches=parts,
        cables=wire_rows(wires),
        leaf_of=leaf_of,
        notes=tuple(draft.notes),
    )


def _part_rows(
    draft: _Draft, net: Net, top_of: Mapping[str, str], latency_of: Callable[[float], float]
) -> tuple[PartRow, ...]:
    """Rows of equal switches. Several boxes in one vertex are seen as whole as the least of them."""
    boxes = Counter(top_of.values())
    rates = _fastest(net)
    seen = {top_of.get(name, name): said for name, said in net.seen.items()}
    seen |= {top_of.get(name, name): said for name, said in net.seen.items() if said == "partly"}
    parts: dict[tuple[str, int, float, str], list[str]] = {}
    for name, kind in draft.kinds.items():
        helper = name in draft.helpers
        wait = 0.0 if helper else latency_of(rates.get(name, 0.0))
        key = (kind, 0 if helper else boxes.get(name, 1), wait, "" if helper else seen.get(name, ""))
        parts.setdefault(key, []).append(name)
    return tuple(
        PartRow(",".join(compress(names)), kind, units=units, latency_s=wait, seen=said)
        for (kind, units, wait, said), names in parts.items()
    )


def wire_rows(wires: Mapping[Cable, Sequence[tuple[str, str]]]) -> tuple[WireRow, ...]:
    """Rows of equal cables, their ends in bundles."""
    return tuple(WireRow(kind, links, rate, wait, bundle(pairs)) for (kind, links, rate, wait), pairs in wires.items())


def bundle(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Pairs as texts ``names -- names``: those with the same right end together, then those with the same left."""
    by_right: dict[str, list[str]] = {}
    for a, b in pairs:
        by_right.setdefault(b, []).append(a)
    by_left: dict[str, list[str]] = {}
    for right, lefts in by_right.items():
        by_left.setdefault(",".join(compress(lefts)), []).append(right)
    return tuple(f"{left} -- {','.join(compress(rights))}" for left, rights in by_left.items())


def _tops(net: Net, levels: Mapping[str, int]) -> dict[str, str]:
    """The switches above the second level that are joined to each other, with the topmost one of each set."""
    root: dict[str, str] = {}
    for link in net.links:
        if min(levels[link.a], levels[link.b]) >= 3:
            _merge(root, link.a, link.b)
    best: dict[str, str] = {}
    for name in root:
        top = _root(root, name)
        if levels[name] > levels[best.setdefault(top, name)]:
            best[top] = name
    return {name: best[_root(root, name)] for name in root}


def _root(root: dict[str, str], name: str) -> str:
    while root.setdefault(name, name) != name:
        root[name] = root.setdefault(root[name], root[name])
        name = root[name]
    return name


def _merge(root: dict[str, str], a: str, b: str) -> None:
    root[_root(root, b)] = _root(root, a)


def _kind(level: int) -> str:
    return ("leaf", "spine", "core")[min(level, 3) - 1]


def _fastest(net: Net) -> dict[str, float]:
    """The fastest port of each switch [bytes/s]."""
    rates: dict[str, float] = {}
    for port in net.ports:
        rates[port.switch] = max(rates.get(port.switch, 0.0), port.bytes_per_s)
    for link in net.links:
        for name in (link.a, link.b):
            rates[name] = max(rates.get(name, 0.0), link.bytes_per_s)
    return rates


def _levels(net: Net) -> dict[str, int]:
    """Distance from the hosts, from 1; switches that only management hosts hang on stand above their neighbours.

    A switch that is far from all known hosts, but named as a leaf, is one whose hosts the file does not show.
    """
    near: dict[str, list[str]] = {name: [] for name in net.switches}
    for link in net.links:
        near[link.a].append(link.b)
        near[link.b].append(link.a)
    hosts = Counter(port.switch for port in net.ports)
    stray = {
        name
        for name, count in hosts.items()
        if near[name] and all(hosts[other] >= _STRAY_RATIO * count for other in near[name])
    }
    levels = {name: 1 for name in hosts if name not in stray}
    ready = list(levels)
    for name in ready:
        for other in near[name]:
            if other not in levels:
                levels[other] = levels[name] + 1
                ready.append(other)
    for name in net.switches:
        far = levels.setdefault(name, 3) > 2
        if far and not hosts[name] and _LEAF_NAME.search(name):
            levels[name] = 1
    return levels


def _beside(draft: _Draft, links: Sequence[NetLink], kind: str) -> None:
    """Switches of one level that are joined to each other: a helper above stands for the cables between them."""
    root: dict[str, str] = {}
    for link in links:
        _merge(root, link.a, link.b)
    helpers: dict[str, str] = {}
    for link in links:
        top = _root(root, link.a)
        helper = helpers.setdefault(top, "") or draft.helper(top, kind)
        helpers[top] = helper
        for name in (link.a, link.b):
            # half a cable to the helper and half from it to the other switch
            draft.add(name, helper, link.links, link.links * link.bytes_per_s, 0.5)
    if helpers:
        what = {"spine": "leaves", "core": "spines"}[kind]
        draft.notes.append(
            f"{len(root)} {what} are joined to each other: a helper above them stands for those cables, "
            "each switch with all of its own"
        )


def _skipping(draft: _Draft, tall: Mapping[str, Sequence[NetLink]]) -> None:
    """Leaves that reach a core switch directly: a helper spine in between."""
    for leaf, links in tall.items():
        helper = draft.helper(leaf, "spine")
        for link in links:
            draft.add(leaf, helper, link.links, link.links * link.bytes_per_s, 0.0)
            draft.add(helper, link.b, link.links, link.links * link.bytes_per_s)
    if tall:
        draft.notes.append(f"{len(tall)} leaves reach core switches without a spine: a helper stands in between")


def _host_leaves(draft: _Draft, net: Net, top_of: Mapping[str, str]) -> dict[str, str]:
    """The vertex that the hosts of each switch hang on: the leaf itself, a helper below an upper switch."""
    ports: dict[str, list[float]] = {}
    for port in net.ports:
        ports.setdefault(port.switch, []).append(port.bytes_per_s)
    leaf_of: dict[str, str] = {}
    upper = 0
    for name, rates in ports.items():
        level = draft.levels[name]
        if level == 1:
            leaf_of[name] = name
            continue
        upper += 1
        leaf = leaf_of[name] = draft.helper(name, "leaf")
        above = name if level == 2 else draft.helper(f"{name}~leaf", "spine")
        draft.add(leaf, above, len(rates), sum(rates), 0.0)
        if above != name:
            draft.add(above, top_of.get(name, name), len(rates), sum(rates), 0.0)
    if upper:
        draft.notes.append(f"{upper} upper switches have hosts of their own: helper leaves carry them")
    return leaf_of
