"""A cluster written out: types of nodes, who has which type, switches and cables, and the graph made of it.

Importers and cluster files of the form ``builder: graph`` meet here. A row bundles equal parts or equal links by
lists of names (`hostlist`), so that ten thousand nodes are a few hundred rows. Node number i has the vertices
``n<i>/<part>`` of its type. What follows from the cables is worked out and never written: scalable units and rails
of leaves, blocks and pods of spines.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import networkx as nx

from traincast.errors import TopologyError
from traincast.topology.hostlist import expand, natural_key

NODE_KINDS: Final = ("gpu", "nic", "pcie", "cpu", "nvswitch")
SWITCH_KINDS: Final = ("leaf", "spine", "core", "nvswitch")
CABLE_ENDS: Final = (
    frozenset({"nic", "leaf"}),
    frozenset({"leaf", "spine"}),
    frozenset({"spine", "core"}),
    frozenset({"core"}),
    frozenset({"gpu", "nvswitch"}),
)
SEEN: Final = ("whole", "partly")
"""All ports of a switch are listed, or only those that its peers name as their far ends."""
_BETWEEN: Final = " -- "


@dataclass(frozen=True)
class PartRow:
    """Equal parts. `model` is a GPU's catalogue name; `port_bytes_per_s` a NIC's rate, 0.0 where it is not known;
    `units` how many chips or boxes one vertex stands for (0: a helper that is no box); `seen` whether the file that
    switches were read from lists their own ports (SEEN; empty: nobody says)."""

    names: str
    kind: str
    model: str = ""
    units: int = 1
    latency_s: float = 0.0
    port_bytes_per_s: float = 0.0
    seen: str = ""


@dataclass(frozen=True)
class WireRow:
    """Equal bundles of `links` links; bandwidth raw, per direction, of one link; latency one way, of the link.

    Each text of `between` is ``names -- names``: everything on the left is joined to everything on the right.
    """

    kind: str
    links: int
    bandwidth_bytes_per_s: float
    latency_s: float
    between: tuple[str, ...]


@dataclass(frozen=True)
class NodeType:
    """What is inside nodes of one type, by local names; GPUs are indexed, NICs have their number as rail."""

    name: str
    parts: tuple[PartRow, ...]
    wires: tuple[WireRow, ...]


@dataclass(frozen=True)
class HostRow:
    """Nodes of one type, in order; they are numbered through all rows."""

    type: str
    names: str


@dataclass(frozen=True)
class GraphForm:
    """A whole cluster."""

    types: tuple[NodeType, ...]
    hosts: tuple[HostRow, ...]
    switches: tuple[PartRow, ...] = ()
    cables: tuple[WireRow, ...] = ()

    @property
    def host_names(self) -> tuple[str, ...]:
        """The nodes' names, in order of their numbers."""
        return tuple(name for row in self.hosts for name in expand(row.names))

    def node_types(self) -> tuple[NodeType, ...]:
        """The type of each node, in order of their numbers."""
        by_name = {one.name: one for one in self.types}
        return tuple(by_name[row.type] for row in self.hosts for _ in expand(row.names))

    def parts_of(self, node: NodeType, kind: str) -> tuple[str, ...]:
        """Local names of the parts of a kind."""
        return tuple(name for row in node.parts if row.kind == kind for name in expand(row.names))


def pairs(between: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The joined pairs of a row. Raises TopologyError where a text has no `` -- `` or a list is wrong."""
    for text in between:
        left, divider, right = text.partition(_BETWEEN)
        if not divider or not left.strip() or not right.strip():
            raise TopologyError(f"{text!r} joins nothing", fix="write: names -- names")
        ends = expand(right)
        for a in expand(left):
            for b in ends:
                yield a, b


def expand_graph(form: GraphForm, nodes: int | None = None) -> "nx.Graph[str]":
    """The graph of the first `nodes` nodes (None: all) in the vocabulary of `cluster`.

    Raises TopologyError for a part that nothing names, for links between parts that cannot be joined, and for
    parts of a node that hang on nothing.
    """
    graph: nx.Graph[str] = nx.Graph()
    templates = {one.name: _template(one) for one in form.types}
    hosts = [(row.type, name) for row in form.hosts for name in expand(row.names)]
    kept = len(hosts) if nodes is None else min(nodes, len(hosts))
    for node, (kind, host) in enumerate(hosts[:kept]):
        parts, wires = templates[kind]
        names = {key: f"n{node}/{key}" for key in parts}
        for key, data in parts.items():
            own = {} if data["kind"] == "nvswitch" else {"node": node}
            named = {"host": host} if data["kind"] == "gpu" and host else {}
            graph.add_node(names[key], **data, **own, **named)
        graph.add_edges_from((names[a], names[b], data) for a, b, data in wires)
    for row in form.switches:
        for name in expand(row.names):
            if name in graph:
                raise TopologyError(f"{name} stands twice", fix="give each switch a name of its own")
            graph.add_node(name, **_part_data(row))
    _add_cables(graph, form.cables, kept)
    annotate(graph)
    return graph


def _add_cables(graph: "nx.Graph[str]", cables: Iterable[WireRow], kept: int) -> None:
    kinds: dict[str, str] = {key: data["kind"] for key, data in graph.nodes(data=True)}
    for row in cables:
        data = _wire_data(row)
        for a, b in pairs(row.between):
            beyond = [key for key in (a, b) if key not in kinds]
            if beyond:
                if any(_node_of(key) >= kept for key in beyond):
                    continue  # a cable of a node that was cut off
                raise TopologyError(f"no part {beyond[0]}", fix="name a switch, or n<node>/<part>")
            ends = frozenset({kinds[a], kinds[b]})
            if ends not in CABLE_ENDS or a == b:
                raise TopologyError(f"a cable joins {a} ({kinds[a]}) and {b} ({kinds[b]})", fix=_cable_fix())
            if graph.has_edge(a, b):
                raise TopologyError(f"{a} and {b} are joined twice", fix="write one row with more links")
            graph.add_edge(a, b, **data)


def _cable_fix() -> str:
    names = sorted("-".join(sorted(ends)) for ends in CABLE_ENDS)
    return f"cables join {', '.join(names)}"


def _node_of(key: str) -> int:
    """The node number of a key ``n<i>/part``; -1 where it has another form."""
    head, slash, _ = key.partition("/")
    number = head[1:]
    return int(number) if slash and head[:1] == "n" and number.isascii() and number.isdigit() else -1


def _part_data(row: PartRow) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": row.kind}
    if row.kind in SWITCH_KINDS:
        data["latency_s"] = row.latency_s
    if row.kind == "nvswitch" or row.units != 1:
        data["units"] = row.units
    if row.seen:
        data["seen"] = row.seen
    if row.kind == "nic" and row.port_bytes_per_s:
        data["port_bytes_per_s"] = row.port_bytes_per_s
    if row.kind == "gpu":
        data["model"] = row.model
    return data


def _wire_data(row: WireRow) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "bandwidth_bytes_per_s": row.links * row.bandwidth_bytes_per_s,
        "latency_s": row.latency_s,
        "links": row.links,
    }


Template = tuple[dict[str, dict[str, Any]], list[tuple[str, str, dict[str, Any]]]]


def _template(node: NodeType) -> Template:
    parts: dict[str, dict[str, Any]] = {}
    for row in node.parts:
        if row.kind not in NODE_KINDS:
            raise TopologyError(f"{node.name}: no part of kind {row.kind!r}", fix=f"use {', '.join(NODE_KINDS)}")
        for name in expand(row.names):
            if name in parts:
                raise TopologyError(f"{node.name}: {name} stands twice", fix="name each part once")
            parts[name] = _part_data(row)
    gpus = sorted((name for name, data in parts.items() if data["kind"] == "gpu"), key=natural_key)
    for index, name in enumerate(gpus):
        parts[name] |= {"index": index, "design": node.name}
    for name, data in parts.items():
        if data["kind"] == "nic":
            data["rail"] = _trailing_number(node, name)
    wires: list[tuple[str, str, dict[str, Any]]] = []
    joined: dict[str, list[str]] = {name: [] for name in parts}
    for wire in node.wires:
        for a, b in pairs(wire.between):
            for key in (a, b):
                if key not in parts:
                    raise TopologyError(f"{node.name}: no part {key}", fix="list it under parts")
            if a == b or b in joined[a]:
                raise TopologyError(f"{node.name}: {a} and {b} are joined twice", fix="write one row with more links")
            joined[a].append(b)
            joined[b].append(a)
            wires.append((a, b, _wire_data(wire)))
    _check_tree(node.name, {key: data["kind"] for key, data in parts.items()}, joined)
    return parts, wires


def _trailing_number(node: NodeType, name: str) -> int:
    digits = name[len(name.rstrip("0123456789")) :]
    if not digits or len(digits) > 4:
        raise TopologyError(f"{node.name}: {name} has no rail", fix="end a NIC's name in a number below 10000")
    return int(digits)


def _check_tree(name: str, kinds: Mapping[str, str], joined: Mapping[str, list[str]]) -> None:
    """Paths inside a node are read off its tree, so the tree must be one: device, PCIe switch or not, socket."""
    cpus = [key for key, kind in kinds.items() if kind == "cpu"]
    for key, kind in kinds.items():
        near = Counter(kinds[other] for other in joined[key])
        above = near["pcie"] + near["cpu"] if kind in ("gpu", "nic") else near["cpu"]
        if kind in ("gpu", "nic", "pcie") and above != 1:
            raise TopologyError(
                f"{name}: {key} hangs on {above} PCIe switches or CPUs", fix="join it to exactly one by a wire"
            )
        if kind == "cpu" and near["cpu"] != len(cpus) - 1:
            raise TopologyError(f"{name}: {key} is not joined to every other CPU", fix="join each two of them")
        wrong = {"gpu": near["nic"], "nic": near["nic"] + near["nvswitch"]}.get(kind, 0)
        if wrong:
            raise TopologyError(f"{name}: {key} is wired to a part it cannot reach directly", fix="use a PCIe switch")


def annotate(graph: "nx.Graph[str]") -> None:
    """Adds what follows from the cables: unit and rail of leaves, block and pod of spines.

    A unit is leaves that share at least half of their nodes; so one NIC on the wrong switch does not merge two.
    A leaf's rail is that of most of its NICs, where its unit has several leaves. A block is leaves and spines
    that reach each other without a core switch, a pod the blocks that share a unit.
    """
    kinds: dict[str, str] = {key: data["kind"] for key, data in graph.nodes(data=True)}
    leaves = [key for key, kind in kinds.items() if kind == "leaf"]
    nics = {leaf: [key for key in graph[leaf] if kinds[key] == "nic"] for leaf in leaves}
    unit_of = _units(graph, nics)
    sizes = Counter(unit_of.values())
    for leaf in leaves:
        rails = Counter(graph.nodes[nic]["rail"] for nic in nics[leaf]).most_common(1)
        by_rail = sizes[unit_of[leaf]] > 1 and rails and rails[0][1] * 2 > len(nics[leaf])
        graph.nodes[leaf]["unit"] = unit_of[leaf]
        graph.nodes[leaf]["rail"] = rails[0][0] if by_rail else -1
    block_root = {key: key for key, kind in kinds.items() if kind in ("leaf", "spine")}
    spines = [key for key, kind in kinds.items() if kind == "spine"]
    for spine in spines:
        for other in graph[spine]:
            if kinds[other] == "leaf":
                _join(block_root, spine, other)
    pod_root = dict(block_root)
    first_of_unit: dict[int, str] = {}
    for leaf in leaves:
        _join(pod_root, first_of_unit.setdefault(unit_of[leaf], leaf), leaf)
    blocks, pods = _numbered(block_root), _numbered(pod_root)
    for spine in spines:
        graph.nodes[spine].update(block=blocks[spine], pod=pods[spine])


def _units(graph: "nx.Graph[str]", nics: Mapping[str, list[str]]) -> dict[str, int]:
    on: dict[int, set[str]] = {}
    nodes: dict[str, int] = {}
    for leaf, ports in nics.items():
        own = {graph.nodes[nic]["node"] for nic in ports}
        nodes[leaf] = len(own)
        for node in own:
            on.setdefault(node, set()).add(leaf)
    shared: Counter[tuple[str, str]] = Counter()
    for near in on.values():
        ordered = sorted(near, key=natural_key)
        shared.update((a, b) for place, a in enumerate(ordered) for b in ordered[place + 1 :])
    root = {leaf: leaf for leaf in nics}
    for (a, b), count in shared.items():
        if 2 * count >= min(nodes[a], nodes[b]):
            _join(root, a, b)
    return _numbered(root)


def _find(root: dict[str, str], key: str) -> str:
    while root[key] != key:
        root[key] = root[root[key]]
        key = root[key]
    return key


def _join(root: dict[str, str], a: str, b: str) -> None:
    root[_find(root, b)] = _find(root, a)


def _numbered(root: dict[str, str]) -> dict[str, int]:
    """Numbers of the sets, in order of first appearance."""
    numbers: dict[str, int] = {}
    return {key: numbers.setdefault(_find(root, key), len(numbers)) for key in list(root)}
