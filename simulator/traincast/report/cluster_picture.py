"""A picture of a cluster: its fabric by tier, a node in detail, groups coloured on it, link load as heat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from traincast.errors import UsageError
from traincast.report.cluster_layout import Layout, PodBox, UnitBox, plan_layout
from traincast.report.node_picture import draw_node, shown_nodes
from traincast.report.paint import EMPTY, INK, MODEL_HUES, QUIET, SWITCH_HUES, Paint, Words, box, label, paint_of
from traincast.topology import Cluster
from traincast.topology.loads import LinkLoads
from traincast.topology.summary import Summary, summarise
from traincast.units import format_bandwidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ints = npt.NDArray[np.int64]

_SUFFIXES: Final = (".png", ".svg", ".pdf")
_WIDTH_INCHES, _INCHES_A_TIER, _NODE_INCHES = 13.0, 0.9, 3.9
# heights of the tiers, from the nodes upwards
_GRID, _LEAF, _SPINE, _CORE = (0.0, 1.6), 2.15, 3.55, 4.95
_BOX = 0.42
_MOST_LEAVES = 16
_LEAST_WIDTH = 4.5
_MARGIN = 0.2
"""Share of the width for the words about the tiers."""


@dataclass(frozen=True, eq=False)
class Overlay:
    """What is shown on the cluster: groups of one family (count, size) of GPU numbers, and the load of its links."""

    family: str = ""
    groups: Ints | None = None
    loads: LinkLoads | None = None


def draw_cluster(cluster: Cluster, path: Path, overlay: Overlay | None = None, *, dpi: int = 150) -> None:
    """Draws the cluster into a file whose suffix says the kind. Raises UsageError for another, or where it fails."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path} is no picture that can be drawn", fix=f"end it in {', '.join(_SUFFIXES)}")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    overlay = overlay or Overlay()
    paint = paint_of(cluster, overlay.family, overlay.groups, overlay.loads)
    nodes = shown_nodes(cluster)
    summary = summarise(cluster)
    layout = plan_layout(cluster, paint.highlighted)
    low, high = _reach(layout, summary)
    fabric_inches = [_INCHES_A_TIER * (high - low)] if cluster.fabric.leaf_keys else []
    heights = [*fabric_inches, *[_NODE_INCHES] * len(nodes)]
    figure, grid = plt.subplots(
        len(heights),
        1,
        squeeze=False,
        figsize=(_WIDTH_INCHES, 1.3 + sum(heights)),
        height_ratios=heights,
        layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1),
    )
    if cluster.fabric.leaf_keys:
        _fabric(grid[0, 0], cluster, layout, (paint, summary))
        grid[0, 0].set_ylim(low, high)
    for axes, node in zip(grid[-len(nodes) :, 0], nodes, strict=True):
        draw_node(axes, cluster, node, paint)
    figure.suptitle(_title(cluster, summary), x=0.012, ha="left", fontsize=14, color=INK, fontweight="bold")
    _legend(figure, cluster, paint)
    try:
        figure.savefig(path, dpi=dpi, facecolor="white")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write {path}: {reason}", fix="name a file that can be written") from error
    finally:
        plt.close(figure)


def _title(cluster: Cluster, summary: Summary) -> str:
    models = " + ".join(f"{count:,} x {model}" for model, count in summary.gpu_models.items())
    return f"{cluster.name}: {models} in {_many(cluster.nodes, 'node')}"


def _reach(layout: Layout, summary: Summary) -> tuple[float, float]:
    """Heights from below the last node to above the highest switch."""
    rows = max((unit.grid.shape[0] for pod in layout.pods for unit in pod.units), default=1)
    tiers = (("core", _CORE), ("spine", _SPINE), ("leaf", _LEAF))
    top = next((height for tier, height in tiers if summary.parts.get(tier, 0)), _LEAF)
    return _foot(rows) - 0.42, top + 0.42


def _foot(rows: int) -> float:
    """Lower edge of a unit of so many nodes."""
    return _GRID[1] - (_GRID[1] - _GRID[0]) * min(1.0, 0.25 + rows / 20)


def _fabric(axes: "Axes", cluster: Cluster, layout: Layout, drawn: tuple[Paint, Summary]) -> None:
    paint, summary = drawn
    tall = summary.parts.get("core", 0) > 0
    spines = summary.parts.get("spine", 0) > 0
    if tall:
        _cores(axes, cluster, layout, paint, summary)
    for pod in layout.pods:
        if spines:
            _spines(axes, cluster, pod, paint)
        for unit in pod.units:
            _unit(axes, cluster, unit, paint)
    for gap in layout.gaps:
        label(axes, (gap.middle, _GRID[1] - 0.3), gap.text, size=6.5, hue=QUIET)
        label(axes, (gap.middle, _LEAF), "...", size=12, hue=QUIET)
    wide = max(layout.width, _LEAST_WIDTH) / (1.0 - _MARGIN)
    left = layout.width / 2 - wide * (1.0 + _MARGIN) / 2
    rows = max(unit.grid.shape[0] for pod in layout.pods for unit in pod.units)
    _tier_texts(axes, summary, (left, (_GRID[1] + _foot(rows)) / 2))
    axes.set_xlim(left, left + wide * 1.005)
    axes.set_autoscale_on(False)
    axes.axis("off")


def _cores(axes: "Axes", cluster: Cluster, layout: Layout, paint: Paint, summary: Summary) -> None:
    wide = min(layout.width, 7.0)
    left = (layout.width - wide) / 2
    blocks = _blocks(cluster)
    for pod in layout.pods:
        heat = paint.worst(("block up", "block down"), blocks.get(pod.number, []))
        middle = (pod.left + pod.right) / 2
        share = (middle / layout.width - 0.5) * wide * 0.85 + layout.width / 2
        axes.plot([middle, share], [_SPINE + _BOX / 2, _CORE - _BOX / 2], **paint.line(heat, 5.0))
    count = summary.parts["core"]
    box(
        axes,
        (left, _CORE),
        (wide, _BOX),
        SWITCH_HUES["core"],
        Words(f"{count:,} core switch{'es' if count > 1 else ''}"),
    )


def _spines(axes: "Axes", cluster: Cluster, pod: PodBox, paint: Paint) -> None:
    middle = (pod.left + pod.right) / 2
    wide = min(pod.right - pod.left, max(1.0, 0.55 * (pod.right - pod.left)))
    for unit in pod.units:
        heat = paint.worst(("leaf up", "leaf down"), unit.leaves)
        at = unit.left + 0.5
        end = middle + (at - middle) / max(pod.right - pod.left, 1e-9) * wide * 0.9
        axes.plot([at, end], [_LEAF + _BOX / 2, _SPINE - _BOX / 2], **paint.line(heat, 3.2))
    words = _many(pod.spines, "spine")
    box(axes, (middle - wide / 2, _SPINE), (wide, _BOX), SWITCH_HUES["spine"], Words(words))


def _unit(axes: "Axes", cluster: Cluster, unit: UnitBox, paint: Paint) -> None:
    """Leaves as cells, and below them a row of GPUs for each node."""
    low, high = _foot(unit.grid.shape[0]), _GRID[1]
    heat = paint.worst(("nic out", "nic in"), _nics(cluster, unit.leaves))
    axes.plot([unit.left + 0.5] * 2, [high, _LEAF - _BOX / 2], **paint.line(heat, 6.0))
    count = len(unit.leaves)
    if count > _MOST_LEAVES:
        box(axes, (unit.left, _LEAF), (1.0, _BOX), SWITCH_HUES["leaf"], Words(_many(count, "leaf"), 8.0))
    else:
        for place in range(count):
            box(axes, (unit.left + (place + 0.06) / count, _LEAF), (0.88 / count, _BOX), SWITCH_HUES["leaf"], Words())
    _cells(axes, unit, (low, high), paint)
    first = int(cluster.node_index[unit.grid[unit.grid >= 0].min()])
    last = int(cluster.node_index[unit.grid.max()])
    words = f"n{first}-{last}" if last > first else f"n{first}"
    label(axes, (unit.left + 0.5, low - 0.17), words, size=7.5 if len(words) < 9 else 6.0, hue=QUIET)


def _cells(axes: "Axes", unit: UnitBox, heights: tuple[float, float], paint: Paint) -> None:
    """The GPUs of a unit: a row a node, a cell a GPU."""
    low, high = heights
    rows, columns = unit.grid.shape
    colours = np.array([[paint.cell(int(gpu)) for gpu in row] for row in unit.grid])
    extent = (unit.left, unit.left + 1.0, low, high)
    axes.imshow(colours, extent=extent, aspect="auto", interpolation="nearest", zorder=3)
    for row in range(1, rows):
        y = low + (high - low) * row / rows
        axes.plot([unit.left, unit.left + 1.0], [y, y], color="white", linewidth=0.7, zorder=4)
    for column in range(1, columns):
        x = unit.left + column / columns
        axes.plot([x, x], [low, high], color="white", linewidth=0.35, zorder=4)


def _tier_texts(axes: "Axes", summary: Summary, at: tuple[float, float]) -> None:
    """What each tier consists of, at the left margin, and what joins it to the one below."""
    left, nodes = at
    tiers = {row.tier: row for row in summary.tiers}
    lines: list[tuple[float, str, str]] = [
        (nodes, _many(summary.counts["nodes"], "node"), "a row is a node, a cell a GPU")
    ]
    for tier, height, below in (
        ("leaf", _LEAF, "nic-leaf"),
        ("spine", _SPINE, "leaf-spine"),
        ("core", _CORE, "spine-core"),
    ):
        count = summary.parts.get(tier, 0)
        if not count:
            continue
        over = tiers[tier].oversubscription if tier in tiers else 1.0
        ratio = "" if tier == "leaf" or abs(over - 1.0) < 0.01 else f", {_ratio(over)}"
        lines.append((height, _many(count, tier), _wires(summary, below) + ratio))
    for height, head, text in lines:
        axes.text(left, height + 0.13, head, fontsize=10, color=INK, va="center", fontweight="bold")
        axes.text(left, height - 0.17, text, fontsize=8, color=QUIET, va="center")


def _wires(summary: Summary, between: str) -> str:
    """The links below a tier: how many, and what each carries."""
    rows = [row for row in summary.links if row.between == between]
    rates = sorted(row.bandwidth_bytes_per_s for row in rows)
    if not rates:
        return "no links"
    each = format_bandwidth(rates[-1])
    each = each if rates[0] == rates[-1] else f"{format_bandwidth(rates[0])} to {each}"
    return f"{sum(row.links for row in rows):,} down, {each}"


def _many(count: int, what: str) -> str:
    plural = {"leaf": "leaves", "core switch": "core switches"}.get(what, f"{what}s")
    return f"{count:,} {what if count == 1 else plural}"


def _ratio(over: float) -> str:
    return f"{over:.3g}:1" if over > 1.0 else f"1:{1 / over:.3g}"


def _blocks(cluster: Cluster) -> dict[int, list[int]]:
    """Blocks of each pod, by the leaves of its GPUs."""
    fabric = cluster.fabric
    near = fabric.gpu_nics[:, 0] if fabric.gpu_nics.shape[1] else np.zeros(0, dtype=np.int64)
    found: dict[int, set[int]] = {}
    for pod in np.unique(cluster.place("spine")).tolist():
        nics = fabric.gpu_nics[cluster.place("spine") == pod] if len(near) else near
        leaves = fabric.nic_leaf[nics[nics >= 0]]
        found[pod] = set(np.unique(fabric.leaf_block[leaves[leaves >= 0]]).tolist())
    return {pod: sorted(blocks) for pod, blocks in found.items()}


def _nics(cluster: Cluster, leaves: Sequence[int]) -> list[int]:
    return np.flatnonzero(np.isin(cluster.fabric.nic_leaf, leaves)).tolist()


def _legend(figure: "Figure", cluster: Cluster, paint: Paint) -> None:
    from matplotlib.patches import Patch

    names: Mapping[str, str] = paint.legend or {
        model: MODEL_HUES[place % len(MODEL_HUES)] for place, model in enumerate(dict.fromkeys(cluster.gpu_model))
    }
    patches = [Patch(facecolor=hue, label=name) for name, hue in names.items()]
    if paint.legend and len(paint.highlighted) < len(cluster.gpus):
        patches.append(Patch(facecolor=EMPTY, label="other groups"))
    figure.legend(handles=patches, loc="outside lower left", ncols=4, fontsize=8, frameon=False, labelcolor=INK)
    if paint.loads is not None:
        bar = figure.colorbar(paint.scale(), ax=figure.axes, location="right", shrink=0.5, pad=0.01, aspect=30)
        bar.set_label("least time of a link for its bytes in a step [ms]", color=INK, fontsize=8.5)
        bar.ax.tick_params(labelsize=8)
