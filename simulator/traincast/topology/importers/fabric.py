"""InfiniBand fabrics as ibnetdiscover and iblinkinfo list them: one record for both.

Rates of links are data rates after coding, as in the catalogue: a lane of EDR carries 25, HDR 50, NDR 100, XDR 200
Gbit/s (InfiniBand Trade Association roadmap; the older ones from the Architecture Specification 1.3, 5.6).
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from traincast.topology.importers.text import Problem

LANE_GBIT_PER_S: Final[Mapping[str, float]] = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 56.0 * 64 / 66 / 4,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
_SWITCH_NAME: Final = re.compile(
    r"^MF0;|switch|quantum|infiniscale|\bM[QSC][A-Z]?\d{4}|/U\d+$|\b(leaf|spine|core)\b", re.I
)
_AGGREGATION: Final = "Aggregation Node"
_UNNAMED: Final = re.compile(r"^(MT\d+\b|ConnectX|Mellanox\b|Infiniband\b|$)|\bHCA\s*$", re.I)
MOST_PORTS: Final = 4
"""A device with more linked ports than that is a switch; adapters have one to four."""


@dataclass(frozen=True)
class FabricNode:
    """A switch, host adapter (`ca`) or SHARP aggregation node; `recorded`: it has a record of its own."""

    key: str
    name: str
    kind: str
    recorded: bool
    line: int


@dataclass(frozen=True)
class FabricLink:
    """One cable between ports, with what one of its ends says; rate 0.0 where that is not stated."""

    a: str
    a_port: int
    b: str
    b_port: int
    bytes_per_s: float
    line: int


@dataclass(frozen=True)
class Fabric:
    """A fabric file. Links stand once, aggregation nodes and their links apart; `port_lines` counts lines."""

    name: str
    form: str
    nodes: tuple[FabricNode, ...]
    links: tuple[FabricLink, ...]
    aggregation_links: int
    port_lines: int
    problems: tuple[Problem, ...]

    def of_kind(self, kind: str, recorded: bool | None = None) -> tuple[FabricNode, ...]:
        """The nodes of a kind; all, or those with or without a record."""
        return tuple(n for n in self.nodes if n.kind == kind and recorded in (None, n.recorded))


def looks_like_switch(name: str) -> bool:
    """Whether a description is one that switches have."""
    return _SWITCH_NAME.search(name) is not None


def lane_rate(generation: str, lanes: int) -> float:
    """Bytes/s of a link, one way; 0.0 for a generation that is not known."""
    return LANE_GBIT_PER_S.get(generation, 0.0) * lanes * 1e9 / 8


def host_of(node: FabricNode) -> tuple[str, str]:
    """Host and device of an adapter's description (``node-001 mlx5_0``); the host is empty where it names none."""
    if _UNNAMED.search(node.name):
        return "", ""
    words = node.name.split()
    return words[0], " ".join(words[1:])


def make_fabric(
    name: str, form: str, nodes: Iterable[FabricNode], links: Iterable[FabricLink], problems: Iterable[Problem]
) -> Fabric:
    """The fabric of all port lines: each cable once, what the two ends disagree about as problems."""
    by_key = {node.key: node for node in nodes}
    notes = list(problems)
    listed = list(links)
    once: dict[frozenset[tuple[str, int]], FabricLink] = {}
    at_port: dict[tuple[str, int], FabricLink] = {}
    said: Counter[frozenset[tuple[str, int]]] = Counter()
    for link in listed:
        ends = frozenset({(link.a, link.a_port), (link.b, link.b_port)})
        if len(ends) < 2 or link.a == link.b:
            notes.append(
                Problem(name, link.line, f"port {link.a_port} of {by_key[link.a].name} leads to itself: left out")
            )
            continue
        said[ends] += 1
        first = once.get(ends)
        if first is None:
            clash = next((at_port[end] for end in ends if end in at_port), None)
            if clash is not None:
                what = f"port {link.a_port} of {by_key[link.a].name} or its peer is already linked by line {clash.line}"
                notes.append(Problem(name, link.line, f"{what}: left out"))
                continue
            once[ends] = link
            at_port |= dict.fromkeys(ends, link)
        elif link.bytes_per_s and first.bytes_per_s and link.bytes_per_s != first.bytes_per_s:
            slower = min(link.bytes_per_s, first.bytes_per_s)
            what = f"the ends of a link disagree about its rate (line {first.line}): the slower one is taken"
            notes.append(Problem(name, link.line, what))
            once[ends] = replace(first, bytes_per_s=slower)
    notes += _one_sided(name, by_key, once, said)
    real, aggregation = [], 0
    for link in once.values():
        if "aggregation" in (by_key[link.a].kind, by_key[link.b].kind):
            aggregation += 1
        else:
            real.append(link)
    notes += _summary(name, by_key.values())
    return Fabric(name, form, tuple(by_key.values()), tuple(real), aggregation, len(listed), tuple(notes))


def _one_sided(
    name: str,
    nodes: Mapping[str, FabricNode],
    once: Mapping[frozenset[tuple[str, int]], FabricLink],
    said: Mapping[frozenset[tuple[str, int]], int],
) -> list[Problem]:
    """Links that only one end lists although both have a record."""
    lonely = [
        link
        for ends, link in once.items()
        if said[ends] == 1 and nodes[link.a].recorded and nodes[link.b].recorded and nodes[link.b].kind != "aggregation"
    ]
    return [
        Problem(
            name,
            link.line,
            f"{nodes[link.a].name} port {link.a_port} leads to {nodes[link.b].name}, whose record lacks it: kept",
        )
        for link in lonely
    ]


def _summary(name: str, nodes: Iterable[FabricNode]) -> list[Problem]:
    """What is worth saying about whole kinds of nodes."""
    listed = list(nodes)
    notes: list[Problem] = []
    stubs = {kind: [n for n in listed if n.kind == kind and not n.recorded] for kind in ("switch", "ca")}
    if any(stubs.values()):
        line = min(node.line for nodes in stubs.values() for node in nodes)
        counts = f"{len(stubs['switch'])} switches and {len(stubs['ca'])} adapters"
        notes.append(
            Problem(name, line, f"without a record of their own: {counts}; known from their peers' ports alone")
        )
    sharp = [node for node in listed if node.kind == "aggregation"]
    if sharp:
        what = f"SHARP aggregation nodes, which are no hosts: {len(sharp)}, left out"
        notes.append(Problem(name, sharp[0].line, what))
    unnamed = [node for node in listed if node.kind == "ca" and not host_of(node)[0]]
    if unnamed:
        what = (
            f"adapters that name no host: {len(unnamed)} ({unnamed[0].name[:40]!r}); each is taken as a host of its own"
        )
        notes.append(Problem(name, unnamed[0].line, what))
    return notes


def kind_of(key_kind: str, name: str) -> str:
    """`switch`, `ca` or `aggregation` of a node that a file calls S, H or R, or whose kind it leaves open."""
    if _AGGREGATION.lower() in name.lower():
        return "aggregation"
    if key_kind in ("S", "R"):
        return "switch"
    if key_kind == "H":
        return "ca"
    return "switch" if looks_like_switch(name) else "ca"
