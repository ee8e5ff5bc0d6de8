"""ibnetdiscover: every switch and adapter of an InfiniBand fabric, with what each port leads to.

A record starts with ``Switch`` or ``Ca``; its port lines name the port, the peer's GUID and port, and behind a #
the peer's description and the link's width and generation (``4xNDR``). Real files are often cut: peers may have no
record of their own.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from traincast.errors import TopologyError
from traincast.topology.importers.fabric import Fabric, FabricLink, FabricNode, kind_of, lane_rate, make_fabric
from traincast.topology.importers.text import Problem, damaged, lines_of, shown

FORM: Final = "ibnetdiscover"
RECORD_LINE: Final = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,5})\s+"([SHR])-([0-9a-f]{1,16})"\s*(?:#\s*"([^"]*)".*)?')
_PORT: Final = re.compile(
    r"\[(\d{1,5})\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s+"
    r'"([SHR])-([0-9a-f]{1,16})"\[(\d{1,5})\](?:\[ext \d+\])?(?:\([0-9a-f]+\))?\s*#\s*(.*)'
)
_RATE: Final = re.compile(r"\b(\d{1,2})x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_HEADS: Final = re.compile(r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid|DR path|port)\b")
_FIX: Final = "save the output of ibnetdiscover again"
_RECORD_FORM: Final = 'Switch or Ca, ports, "S-<guid>" or "H-<guid>"'
_PORT_FORM: Final = '[port] "S-<guid>"[port] # "name" lid n 4xNDR'


@dataclass
class _State:
    """What has been read so far; `current` is the key of the record that port lines belong to."""

    name: str
    nodes: dict[str, FabricNode] = field(default_factory=dict)
    links: list[FabricLink] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    current: str = ""


def parse_ibnetdiscover(text: str, name: str = "input") -> Fabric:
    """The fabric of an output. Raises TopologyError, with the line, where it is damaged or has no switch."""
    state = _State(name)
    for number, line in enumerate(lines_of(text), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or _HEADS.match(stripped):
            continue
        if re.match(r"(Switch|Ca|Rt)\b", stripped):
            _record(state, number, stripped)
        elif stripped.startswith("["):
            _port(state, number, stripped)
        else:
            state.problems.append(Problem(name, number, f"{shown(stripped)} is no part of a fabric: left out"))
    _refuse_lonely(state)
    rates = Counter(link.bytes_per_s for link in state.links if link.bytes_per_s)
    silent = [link for link in state.links if not link.bytes_per_s]
    if silent:
        usual = rates.most_common(1)[0][0] if rates else 0.0
        what = f"{len(silent)} port lines state no rate, expected a form like 4xNDR"
        state.problems.append(Problem(name, silent[0].line, f"{what}: the usual rate of the file is taken"))
        state.links = [replace(link, bytes_per_s=link.bytes_per_s or usual) for link in state.links]
    return make_fabric(name, FORM, state.nodes.values(), state.links, state.problems)


def _record(state: _State, number: int, line: str) -> None:
    found = RECORD_LINE.fullmatch(line)
    if found is None:
        raise damaged(state.name, number, shown(line), _RECORD_FORM, _FIX)
    guid, label = found.group(4).zfill(16), found.group(5) or ""
    known = state.nodes.get(guid)
    if known is not None and known.recorded:
        what = f"{label or guid} has a second record (the first is line {known.line}): both are read"
        state.problems.append(Problem(state.name, number, what))
    state.nodes[guid] = FabricNode(guid, label or guid, kind_of(found.group(3), label), True, number)
    state.current = guid


def _port(state: _State, number: int, line: str) -> None:
    found = _PORT.fullmatch(line)
    if found is None:
        raise damaged(state.name, number, shown(line), _PORT_FORM, _FIX)
    if not state.current:
        raise damaged(state.name, number, "a port line before any record", _RECORD_FORM, _FIX)
    port, kind, guid, peer_port, rest = found.groups()
    label = re.search(r'"([^"]*)"', rest)
    rate = _RATE.search(rest)
    peer = guid.zfill(16)
    name = label.group(1).strip() if label else ""
    state.nodes.setdefault(peer, FabricNode(peer, name or peer, kind_of(kind, name), False, number))
    speed = lane_rate(rate.group(2), int(rate.group(1))) if rate else 0.0
    state.links.append(FabricLink(state.current, int(port), peer, int(peer_port), speed, number))


def _refuse_lonely(state: _State) -> None:
    switches = [node for node in state.nodes.values() if node.kind == "switch"]
    adapters = [node for node in state.nodes.values() if node.kind == "ca"]
    if not state.nodes:
        raise damaged(state.name, 1, "no record", _RECORD_FORM, _FIX)
    if not switches:
        first = next(iter(state.nodes.values()))
        raise TopologyError(
            f"{len(adapters)} Ca and no Switch: ibnetdiscover ran on a port without a link, expected Switch records",
            where=f"{state.name}:{first.line}",
            fix="run it on a node with an active port",
        )
    if not adapters:
        raise damaged(state.name, switches[0].line, f"{len(switches)} switches and no host", "a port to a Ca", _FIX)
