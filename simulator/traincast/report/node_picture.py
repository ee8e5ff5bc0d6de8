"""One node in detail: GPUs on NVLink, PCIe switches and sockets, NICs and the leaves that they go to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from traincast.report.paint import INK, QUIET, SWITCH_HUES, Paint, Words, box, label
from traincast.topology import Cluster
from traincast.units import format_bandwidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# heights of the rows, from the sockets upwards
_CPU, _PCIE, _PARTS, _NVLINK, _HEAD = 0.0, 1.15, 2.35, 3.85, 4.85
_BOWS: Final = 3.15
_CABLE_UNDER, _CABLE_OVER = 2.85, 4.1
"""Ends of the NICs' cables: below an NVSwitch, which they do not pass; above the bows of NVLink between pairs."""
_HEIGHT: Final = 0.5
_MOST_NODES: Final = 3
_SINGLE_NICS: Final = 2
"""So many NICs of a PCIe switch are drawn one by one; more become one box."""


@dataclass(frozen=True)
class NodeParts:
    """Graph keys of one node by kind, its NVSwitch ("" without one), and the columns of GPUs and NICs.

    A column is one GPU, or one NIC, or all NICs of a host where it has many.
    """

    number: int
    keys: Mapping[str, tuple[str, ...]]
    nvswitch: str
    columns: tuple[tuple[str, ...], ...]


def shown_nodes(cluster: Cluster) -> list[NodeParts]:
    """The first node of each design, three at most."""
    first: dict[object, int] = {}
    for gpu, node in zip(cluster.gpus, cluster.node_index.tolist(), strict=True):
        first.setdefault(cluster.graph.nodes[gpu]["design"], node)
    return [_parts(cluster, node) for node in list(first.values())[:_MOST_NODES]]


def _parts(cluster: Cluster, node: int) -> NodeParts:
    graph = cluster.graph
    keys: dict[str, list[str]] = {kind: [] for kind in ("gpu", "nic", "pcie", "cpu")}
    for key, data in graph.nodes(data=True):
        if data.get("node") == node and data["kind"] in keys:
            keys[data["kind"]].append(key)
    columns: list[tuple[str, ...]] = []
    hosts = [*keys["pcie"], *keys["cpu"]]
    for host in hosts:
        columns += [(key,) for key in keys["gpu"] if host in graph[key]]
        nics = tuple(key for key in keys["nic"] if host in graph[key])
        columns += [nics] if len(nics) > _SINGLE_NICS else [(nic,) for nic in nics]
    placed = {key for column in columns for key in column}
    columns += [(key,) for key in (*keys["gpu"], *keys["nic"]) if key not in placed]
    switches = [key for gpu in keys["gpu"] for key in graph[gpu] if graph.nodes[key]["kind"] == "nvswitch"]
    frozen = {kind: tuple(found) for kind, found in keys.items()}
    return NodeParts(node, frozen, switches[0] if switches else "", tuple(columns))


def draw_node(axes: "Axes", cluster: Cluster, node: NodeParts, paint: Paint) -> None:
    """Draws one node: sockets at the bottom, cables to the leaves at the top."""
    place = _places(cluster, node)
    numbers = _numbers(cluster, node)
    _wires(axes, cluster, node, place, (paint, numbers))
    end = _CABLE_UNDER if node.nvswitch else _CABLE_OVER
    for column in node.columns:
        if cluster.graph.nodes[column[0]]["kind"] == "gpu":
            _gpu(axes, cluster, column[0], place[column[0]], (paint, numbers))
        else:
            _nics(axes, cluster, column, (place[column[0]], end), (paint, numbers))
    for kind, height in (("pcie", _PCIE), ("cpu", _CPU)):
        for number, key in enumerate(node.keys[kind]):
            words = f"PCIe switch {number}" if kind == "pcie" else f"socket {number}"
            box(axes, (place[key] - 0.7, height), (1.4, _HEIGHT), SWITCH_HUES[kind], Words(words, 7.5))
    gpus = [place[key] for key in node.keys["gpu"]]
    if node.nvswitch:
        units = cluster.graph.nodes[node.nvswitch].get("units", 1)
        joined = sum(1 for key in cluster.graph[node.nvswitch])
        words = f"NVSwitch ({units} chips, {joined} GPUs)"
        box(axes, (min(gpus) - 0.4, _NVLINK), (max(gpus) - min(gpus) + 0.8, 0.4), SWITCH_HUES["nvswitch"], Words(words))
    _texts(axes, cluster, node)
    axes.set_xlim(-2.55, max(len(node.columns), 5) + 0.1)
    axes.set_ylim(_CPU - 0.5, _HEAD + 0.4)
    axes.axis("off")


def _places(cluster: Cluster, node: NodeParts) -> dict[str, float]:
    """Middle of each part: columns from left to right, hosts over what hangs on them, sockets over their hosts."""
    graph = cluster.graph
    place = {key: x + 0.5 for x, column in enumerate(node.columns) for key in column}
    for kind, below in (("pcie", ("gpu", "nic")), ("cpu", ("pcie", "gpu", "nic"))):
        for number, key in enumerate(node.keys[kind]):
            hung = [place[o] for o in graph[key] if o in place and graph.nodes[o]["kind"] in below]
            middle = (min(hung) + max(hung)) / 2 if hung else 0.5 + number * len(node.columns) / 2
            place[key] = middle
    return place


def _numbers(cluster: Cluster, node: NodeParts) -> dict[str, int]:
    """GPU and NIC numbers of the node's parts, as links are numbered."""
    gpus = {key: number for number, key in enumerate(cluster.gpus)}
    nics = {key: number for number, key in enumerate(cluster.fabric.nic_keys)}
    known = gpus | nics
    return {key: known[key] for kind in ("gpu", "nic") for key in node.keys[kind] if key in known}


def _width(bytes_per_s: float) -> float:
    """Line width of a link: it grows with the bandwidth, but slower."""
    return float(min(7.0, max(0.9, 0.9 * (bytes_per_s / 10e9) ** 0.45)))


Drawn = tuple[Paint, Mapping[str, int]]


def _wires(axes: "Axes", cluster: Cluster, node: NodeParts, place: Mapping[str, float], drawn: Drawn) -> None:
    graph = cluster.graph
    heights = {"gpu": _PARTS, "nic": _PARTS, "pcie": _PCIE, "cpu": _CPU}
    paint, numbers = drawn
    for a in place:
        for b, edge in graph[a].items():
            kinds = graph.nodes[a]["kind"], graph.nodes[b]["kind"]
            style = paint.line(_heat(paint, numbers, a, (b, edge["kind"])), _width(edge["bandwidth_bytes_per_s"]))
            if b in place and (a < b or kinds[0] != kinds[1]) and heights[kinds[0]] >= heights[kinds[1]]:
                ends = [place[a], place[b]], [heights[kinds[0]], heights[kinds[1]]]
                if edge["kind"] == "nvlink":
                    _arc(axes, (place[a], place[b]), style)
                else:
                    axes.plot(*ends, **style)
            elif b == node.nvswitch:
                axes.plot([place[a]] * 2, [_PARTS, _NVLINK], **style)


def _heat(paint: Paint, numbers: Mapping[str, int], a: str, other: tuple[str, str]) -> float | None:
    """Time of the busier direction of a link of a GPU or NIC; of others, which are not numbered by part, of none."""
    b, kind = other
    if paint.loads is None:
        return None
    if a not in numbers or b in numbers:
        return paint.between(a, b)
    if kind in ("ib", "ethernet", "opa") or "nic" in a.rpartition("/")[2]:
        return paint.worst(("nic out", "nic in"), [numbers[a]])
    return paint.worst(("nvlink out", "nvlink in") if kind == "nvlink" else ("bus out", "bus in"), [numbers[a]])


def _arc(axes: "Axes", ends: tuple[float, float], style: Mapping[str, Any]) -> None:
    """A link between two GPUs, as a bow above them."""
    from matplotlib.patches import FancyArrowPatch

    low = _PARTS + _HEIGHT / 2
    bow = -0.55 if abs(ends[1] - ends[0]) < 4 else -0.3
    wire = FancyArrowPatch(
        (ends[0], low),
        (ends[1], low),
        connectionstyle=f"arc3,rad={bow}",
        arrowstyle="-",
        color=style["color"],
        linewidth=style["linewidth"],
        zorder=2,
    )
    axes.add_patch(wire)


def _gpu(axes: "Axes", cluster: Cluster, key: str, x: float, drawn: Drawn) -> None:
    paint, numbers = drawn
    data = cluster.graph.nodes[key]
    dead = data.get("dead", False)
    hue = (0.93, 0.93, 0.93) if dead else paint.cell(numbers[key])
    slow = data.get("speed", 1.0)
    words = f"GPU {data['index']}" + ("\ndead" if dead else f"\n{100 * slow:.3g} %" if slow < 1.0 else "")
    ink = INK if dead or _pale(hue) else "white"
    box(axes, (x - 0.42, _PARTS), (0.84, _HEIGHT), hue, Words(words, 7.5, ink))


def _nics(axes: "Axes", cluster: Cluster, keys: Sequence[str], at: tuple[float, float], drawn: Drawn) -> None:
    """The NICs of a column with their cables, which end at the height of `at` with the leaf's name."""
    graph = cluster.graph
    paint, numbers = drawn
    x, end = at
    rails = [graph.nodes[key]["rail"] for key in keys]
    leaves = [next((o for o in graph[key] if graph.nodes[o]["kind"] == "leaf"), "") for key in keys]
    rates = [graph.edges[key, leaf]["bandwidth_bytes_per_s"] for key, leaf in zip(keys, leaves, strict=True) if leaf]
    words = f"NIC {rails[0]}" if len(keys) == 1 else f"NICs\n{rails[0]}-{rails[-1]}"
    box(axes, (x - 0.36, _PARTS), (0.72, _HEIGHT), SWITCH_HUES["nic"], Words(words, 7.0))
    if not rates:
        label(axes, (x, _PARTS + 0.5), "no cable", size=7, hue="#c62828")
        return
    heat = paint.worst(("nic out", "nic in"), [numbers[key] for key in keys])
    axes.plot([x, x], [_PARTS, end], **paint.line(heat, _width(sum(rates))))
    names = [leaf.rpartition("/")[2] for leaf in leaves if leaf]
    lines = [names[0]] if len(set(names)) == 1 else [names[0], f"to {names[-1]}"]
    text = "\n".join([format_bandwidth(sum(rates)), *lines])
    axes.text(x, end + 0.07, text, fontsize=6.8, color=QUIET, ha="center", va="bottom", linespacing=1.25)


def _pale(hue: Any) -> bool:
    red, green, blue = hue
    return bool(0.3 * red + 0.59 * green + 0.11 * blue > 0.62)


def _texts(axes: "Axes", cluster: Cluster, node: NodeParts) -> None:
    """Names of the rows at the left margin, each with the bandwidth of one link."""
    graph = cluster.graph
    gpus = node.keys["gpu"]
    fast = [e["bandwidth_bytes_per_s"] for gpu in gpus for e in graph[gpu].values() if e["kind"] == "nvlink"]
    buses = [e["bandwidth_bytes_per_s"] for gpu in gpus for e in graph[gpu].values() if e["kind"] in ("pcie", "c2c")]
    roots = [
        graph.edges[a, b]["bandwidth_bytes_per_s"] for a in node.keys["pcie"] for b in graph[a] if b in node.keys["cpu"]
    ]
    sockets = [
        graph.edges[a, b]["bandwidth_bytes_per_s"] for a in node.keys["cpu"] for b in graph[a] if b in node.keys["cpu"]
    ]
    model = graph.nodes[gpus[0]]["model"]
    rows = [
        (_HEAD, f"node {node.number}", f"{len(gpus)} x {model}"),
        (
            _NVLINK if node.nvswitch else _BOWS,
            "NVLink",
            f"{format_bandwidth(max(fast))} a {'GPU' if node.nvswitch else 'pair'}" if fast else "",
        ),
        (_PARTS, "GPUs and NICs", ""),
        (_PCIE, "PCIe" if roots else "to the CPU", f"{format_bandwidth(max(buses))} a GPU" if buses else ""),
        (_CPU, "sockets", f"{format_bandwidth(max(sockets))} between" if sockets else ""),
    ]
    for height, head, text in rows:
        if head == "NVLink" and not fast:
            continue
        axes.text(-2.5, height + 0.12, head, fontsize=9, color=INK, va="center", fontweight="bold")
        axes.text(-2.5, height - 0.2, text, fontsize=7.5, color=QUIET, va="center")
    if roots:
        axes.text(-2.5, (_PCIE + _CPU) / 2, f"{format_bandwidth(max(roots))} to a socket", fontsize=7, color=QUIET)
