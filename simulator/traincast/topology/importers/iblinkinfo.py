"""iblinkinfo: one line for each port of an InfiniBand fabric, under its switch or adapter, or with it (`-l`).

Ports are told apart by LID and number. The rate is that of one lane, in Gbaud (``4X 106.25 Gbps`` is NDR, 4 x 100
Gbit/s of data). A link stands on the side of either end. Down ports lead nowhere.
"""

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from traincast.topology.importers.fabric import (
    MOST_PORTS,
    Fabric,
    FabricLink,
    FabricNode,
    kind_of,
    lane_rate,
    make_fabric,
)
from traincast.topology.importers.text import Problem, damaged, lines_of, shown

FORM: Final = "iblinkinfo"
ARROW: Final = re.compile(r"==\(.*\)==>")
_HEAD: Final = re.compile(r"(Switch|CA|Router|RTR|SW)\s*:?\s+(?:(0x[0-9a-f]{1,16})\s+)?(.*?):?\s*")
_PORT: Final = re.compile(
    r'\s*(?:(0x[0-9a-f]{1,16})\s+)?(?:"\s*([^"]*?)\s*"\s+)?(\d{1,6})\s+(\d{1,5})\[[^\]]*\]\s*'
    r"==\((.*?)\)==>\s*(.*)"
)
_UP: Final = re.compile(r"\s*(\d{1,2})X\s+(\d{1,3}(?:\.\d{1,6})?)\s*Gbps(?:\s*\((\w+)\))?\s+(\w+)\s*/\s*(\w+)\s*")
_PEER: Final = re.compile(
    r'(?:(0x[0-9a-f]{1,16})\s+)?(\d{1,6})\s+(\d{1,5})\[[^\]]*\]\s+"([^"]*)"\s*\(\s*(.*?)\s*\)?\s*'
)
# signalling rate of a lane in Gbaud -> generation (InfiniBand Architecture Specification 1.3 and its roadmap)
_GENERATIONS: Final = (
    (2.5, "SDR"),
    (5.0, "DDR"),
    (10.0, "QDR"),
    (10.3125, "FDR10"),
    (14.0625, "FDR"),
    (25.78125, "EDR"),
    (53.125, "HDR"),
    (106.25, "NDR"),
    (212.5, "XDR"),
)
_FORM_TEXT: Final = 'lid port[ ] ==( 4X 106.25 Gbps Active/ LinkUp)==> lid port[ ] "name" ( )'
_FIX: Final = "save the output of iblinkinfo again"


@dataclass
class _State:
    """What has been read so far; `head` is kind, name and line of the record that port lines belong to."""

    name: str
    nodes: dict[str, FabricNode] = field(default_factory=dict)
    links: list[FabricLink] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    head: tuple[str, str, int] = ("", "", 0)
    down: list[int] = field(default_factory=list)


def parse_iblinkinfo(text: str, name: str = "input") -> Fabric:
    """The fabric of an output. Raises TopologyError, with the line, where it is damaged or has no live link."""
    state = _State(name)
    for number, line in enumerate(lines_of(text), 1):
        if not line.strip():
            continue
        if "==(" in line or ")==>" in line:
            _port(state, number, line)
        elif found := _HEAD.fullmatch(line.strip()):
            kind = "S" if found.group(1) in ("Switch", "SW", "Router", "RTR") else "H"
            state.head = (kind, found.group(3).strip(), number)
        elif not line.strip().startswith("#"):
            state.problems.append(Problem(name, number, f"{shown(line)} is no part of a fabric: left out"))
    if not state.links:
        raise damaged(name, 1, "no live link", _FORM_TEXT, "run iblinkinfo on a node with an active port")
    if state.down:
        what = f"ports that are down: {len(state.down)}; no cable is built for them"
        state.problems.append(Problem(name, state.down[0], what))
    fabric = make_fabric(name, FORM, _kinds(state), state.links, state.problems)
    if not fabric.of_kind("switch"):
        raise damaged(name, 1, "no switch", "a port of a switch", _FIX)
    if not fabric.of_kind("ca"):
        raise damaged(name, 1, f"{len(fabric.of_kind('switch'))} switches and no host", "a port to a host", _FIX)
    return fabric


def _port(state: _State, number: int, line: str) -> None:
    found = _PORT.fullmatch(line)
    if found is None:
        raise damaged(state.name, number, shown(line), _FORM_TEXT, _FIX)
    _, own_name, lid, port, link, rest = found.groups()
    kind, head_name, head_line = state.head if own_name is None else ("", own_name, number)
    if own_name is None and not head_name:
        raise damaged(state.name, number, "a port line before any Switch or CA", "Switch: 0x<guid> name:", _FIX)
    own = _node(state, lid, (kind, head_name, head_line or number), recorded=True)
    up = _UP.fullmatch(link)
    if up is None:
        if not re.search(r"\b(Down|Disabled|Polling|Sleep|Initialize|NoStateChange)\b", link, re.I):
            raise damaged(state.name, number, f"the link {shown(link)}", "4X 106.25 Gbps Active/ LinkUp, or Down", _FIX)
        state.down.append(number)
        return
    peer = _PEER.fullmatch(rest)
    if peer is None:
        raise damaged(state.name, number, f"the peer {shown(rest)}", 'lid port[ ] "name" ( )', _FIX)
    lanes, gbaud, _, logical, _ = up.groups()
    if logical.lower() != "active":
        what = f"port {port} of {own.name} is {logical}, not Active: no cable is built"
        state.problems.append(Problem(state.name, number, what))
        return
    other = _node(state, peer.group(2), ("", peer.group(4), number), recorded=False)
    rate = _rate(float(gbaud), int(lanes))
    if not rate:
        what = f"{lanes}X {gbaud} Gbps is no rate of InfiniBand: expected one of 2.5 to 212.5 a lane"
        state.problems.append(Problem(state.name, number, what))
    if peer.group(5):
        what = f"port {port} of {own.name} to {other.name}: {peer.group(5)}"
        state.problems.append(Problem(state.name, number, f"{what}; it runs at {lanes}X {gbaud} Gbps"))
    state.links.append(FabricLink(own.key, int(port), other.key, int(peer.group(3)), rate, number))


def _node(state: _State, lid: str, said: tuple[str, str, int], *, recorded: bool) -> FabricNode:
    """The node of a LID, as it is known now; a record of its own counts more than a peer's line."""
    kind, name, line = said
    key = f"lid {int(lid)}"
    known = state.nodes.get(key)
    if known is None or (recorded and not known.recorded):
        label = name.strip().rstrip(":") or key
        state.nodes[key] = FabricNode(key, label, kind_of(kind, label), recorded, line)
    return state.nodes[key]


def _kinds(state: _State) -> list[FabricNode]:
    """The nodes; one with many ports is a switch, whatever its name."""
    ports: Counter[str] = Counter()
    for key, port in {(link.a, link.a_port) for link in state.links} | {(link.b, link.b_port) for link in state.links}:
        ports[key] += 1 + 0 * port
    usual = Counter(link.bytes_per_s for link in state.links if link.bytes_per_s).most_common(1)
    state.links = [
        replace(link, bytes_per_s=link.bytes_per_s or (usual[0][0] if usual else 0.0)) for link in state.links
    ]
    return [
        replace(node, kind="switch") if node.kind == "ca" and ports[node.key] > MOST_PORTS else node
        for node in state.nodes.values()
    ]


def _rate(gbaud: float, lanes: int) -> float:
    """Data rate of a link in bytes/s; 0.0 where no generation has that lane rate."""
    hit = next((name for rate, name in _GENERATIONS if abs(rate - gbaud) < 0.02), "")
    return lane_rate(hit, lanes)
