"""Small multiples of a family: error of step time against every axis that varies in it. One renderer for all."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from traincast.report.residuals import OUTLIER_PCT, FamilyResiduals, Residual
from traincast.report.residuals_axes import CATEGORIES, Axis, word

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, QUIET, GRID = "#263238", "#78909c", "#e0e0e0"
HUES: Final = ("#2f6fb3", "#d98219", "#2e8b57", "#a0529e", "#b3423a", "#2a9d9d", "#8a6d3b")
OTHER = "other"
OTHER_HUE = "#607d8b"
COLUMNS = 4
MOST_PLACES = 12
MOST_NAMES = 6


@dataclass(frozen=True)
class Scale:
    """Where values stand along a panel: side by side where they are few, else by their logarithm.

    `places` maps a value to its place, `ticks` a place to its label.
    """

    places: Mapping[int, float]
    ticks: Mapping[float, str]
    ordinal: bool

    @property
    def crowded(self) -> bool:
        """Whether its labels must stand on their heads."""
        return len(self.ticks) * (1 + max(map(len, self.ticks.values()))) > 48


def draw_family(family: FamilyResiduals) -> "Figure":
    """The family's figure; it has at least one scored row.

    Scored points of each panel are labelled `AXIS: GROUP`, fitted ones `AXIS: fitted`; they hold the errors as the CSV
    has them. A family in which no axis varies gets one panel with a place for each row.
    """
    from matplotlib.figure import Figure

    axes = family.drawn or (_row_axis(family),)
    hues = group_hues(family)
    handles = _legend(family, hues)
    wide, high = _grid(len(axes))
    scales = [scale_of(axis, family) for axis in axes]
    layout = _Layout(wide, high, len(handles), any(scale.crowded for scale in scales[wide * (high - 1) :]))
    figure = Figure(figsize=layout.size)
    figure.subplots_adjust(**layout.margins())
    panels = list(figure.subplots(high, wide, sharey=True, squeeze=False).flat)
    named = named_axis(family, axes)
    for panel, axis, scale in zip(panels, axes, scales, strict=False):
        _points(panel, axis, family, (scale, hues))
        _lines(panel, family)
        if axis is named:
            _names(panel, axis, family, scale)
        _finish(panel, axis, family, scale)
    for panel in panels[len(axes) :]:
        panel.set_visible(False)
    for row in range(high):
        panels[row * wide].set_ylabel("error of step time [%]", color=INK)
    width, height = layout.size
    figure.suptitle(_title(family), x=0.1 / width, y=1 - 0.1 / height, ha="left", va="top", color=INK, fontsize=11.5)
    figure.legend(
        handles=handles,
        title=f"coloured by {CATEGORIES[family.category]}" if family.category else None,
        title_fontsize=8.5,
        alignment="left",
        loc="lower left",
        bbox_to_anchor=(0.05 / width, 0.0),
        ncols=layout.legend_columns,
        frameon=False,
        fontsize=8.5,
    )
    return figure


def _grid(count: int) -> tuple[int, int]:
    """Columns and rows of panels."""
    wide = count if count <= COLUMNS else 3 if count <= 6 else COLUMNS
    return wide, -(-count // wide)


@dataclass(frozen=True)
class _Layout:
    """Sizes in inches; worked out here, as matplotlib's own layout takes longer than the drawing."""

    wide: int
    high: int
    handles: int
    crowded: bool

    @property
    def panel(self) -> tuple[float, float]:
        """Width and height of a panel; a single one is wide."""
        return (6.2 if self.wide == 1 else 4.0 if self.wide == 2 else 2.95), 2.25

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the figure."""
        width, height = self.panel
        between = self.high * (height + 0.75) - 0.75
        return 0.8 + self.wide * (width + 0.25), 0.65 + between + self.below

    @property
    def below(self) -> float:
        """Height of tick labels and legend."""
        return self.legend + (0.65 if self.crowded else 0.35)

    @property
    def legend_columns(self) -> int:
        """Entries of the legend side by side."""
        return max(1, int((self.wide * (self.panel[0] + 0.25) + 0.8) / 2.35))

    @property
    def legend(self) -> float:
        """Height of the legend."""
        return 0.3 + 0.19 * -(-self.handles // self.legend_columns)

    def margins(self) -> dict[str, float]:
        """What `Figure.subplots_adjust` takes."""
        width, height = self.size
        return {
            "left": 0.7 / width,
            "right": 1 - 0.15 / width,
            "top": 1 - 0.65 / height,
            "bottom": self.below / height,
            "wspace": 0.25 / self.panel[0],
            "hspace": 0.75 / self.panel[1],
        }


def named_axis(family: FamilyResiduals, axes: Sequence[Axis]) -> Axis:
    """The axis whose panel names the worst rows: that of the strongest dependence, else the first."""
    strongest = family.dependences[0].axis if family.dependences else ""
    return next((axis for axis in axes if axis.name == strongest), axes[0])


def group_hues(family: FamilyResiduals) -> dict[str, str]:
    """Colour of each group of the family's category, the largest groups first; what is left shares one."""
    rows = [one.row for one in family.standing("scored")]
    if not family.category:
        return {"": HUES[0]}
    counts = Counter(word(row, family.category) for row in rows)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    own = names if len(names) <= len(HUES) else names[: len(HUES) - 1]
    return dict(zip(own, HUES, strict=False)) | ({OTHER: OTHER_HUE} if len(own) < len(names) else {})


def scale_of(axis: Axis, family: FamilyResiduals) -> Scale:
    """The axis' scale over scored and fitted rows."""
    found = {axis.value(one.row) for one in (*family.standing("scored"), *family.standing("fitted"))}
    values = sorted(value for value in found if value is not None)
    if axis.name == "row":
        ids = short_ids(family)
        places = {value: float(index) for index, value in enumerate(values)}
        return Scale(places, {place: ids[value] for value, place in places.items()}, True)
    if len(values) <= MOST_PLACES:
        places = {value: float(index) for index, value in enumerate(values)}
        return Scale(places, {place: _tick(axis, value) for value, place in places.items()}, True)
    places = {value: float(np.log2(value)) for value in values}
    first, last = int(np.floor(places[values[0]])), int(np.ceil(places[values[-1]]))
    step = -(-(last - first) // 8) or 1
    return Scale(places, {float(power): _tick(axis, 2**power) for power in range(first, last + 1, step)}, False)


def short_ids(family: FamilyResiduals) -> list[str]:
    """Ids of all rows of the family without what they all begin with."""
    ids = [one.score.id for one in family.residuals]
    first, last = min(ids), max(ids)  # what these two begin with, all begin with
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    cut = max(first.rfind("_", 0, same), first.rfind("-", 0, same)) + 1
    return [name[cut:] for name in ids]


def _row_axis(family: FamilyResiduals) -> Axis:
    index = {one.score.id: number for number, one in enumerate(family.residuals)}
    return Axis("row", "row", lambda row: index[row.id])


def _tick(axis: Axis, value: int) -> str:
    if axis.name == "seq" and value >= 1024 and value % 1024 == 0:
        return f"{value >> 20}M" if value % (1 << 20) == 0 else f"{value >> 10}K"
    return str(value)


def _points(panel: "Axes", axis: Axis, family: FamilyResiduals, look: tuple[Scale, Mapping[str, str]]) -> None:
    """Fitted rows first, hollow and grey, then the scored ones by group, and the mean at each place."""
    scale, hues = look
    everything = [one for one in family.residuals if one.standing in ("scored", "fitted")]
    known = [one for one in everything if axis.value(one.row) is not None]
    seats = [(_place(axis, scale, one), one.error_pct) for one in known]
    spread = _spread(seats) if scale.ordinal else [0.0] * len(known)
    at = {one.score.id: place + shift for one, (place, _), shift in zip(known, seats, spread, strict=True)}
    size = 22.0 if len(known) < 120 else 9.0
    style: dict[str, Any] = {"s": size, "linewidths": 0.8, "clip_on": False}
    fitted = [one for one in known if one.standing == "fitted"]
    if fitted:
        label = f"{axis.label}: fitted"
        x, y = [at[one.score.id] for one in fitted], [one.error_pct for one in fitted]
        panel.scatter(x, y, facecolors="none", edgecolors=QUIET, label=label, zorder=2, **style)
    for group, hue in hues.items():
        own = [one for one in known if one.standing == "scored" and _group(one, family, hues) == group]
        x, y = [at[one.score.id] for one in own], [one.error_pct for one in own]
        label = f"{axis.label}: {group or 'scored'}"
        panel.scatter(x, y, color=hue, alpha=0.8, label=label, zorder=3, **{**style, "linewidths": 0.0})
    if scale.ordinal and len(scale.places) < len(known):
        _means(panel, axis, scale, [one for one in known if one.standing == "scored"])


def _group(one: Residual, family: FamilyResiduals, hues: Mapping[str, str]) -> str:
    name = word(one.row, family.category) if family.category else ""
    return name if name in hues else OTHER


def _place(axis: Axis, scale: Scale, one: Residual) -> float:
    value = axis.value(one.row)
    assert value is not None, f"{one.score.id} states no {axis.label}"
    return scale.places[value]


def _spread(points: Sequence[tuple[float, float]]) -> list[float]:
    """Sideways shifts that keep points of one place and about one height apart, within a third of a place."""
    if not points:
        return []
    heights = [error for _, error in points]
    bin_pct = max(1e-9, (max(heights) - min(heights)) / 40.0)
    taken: Counter[tuple[float, int]] = Counter()
    ranks = []
    for place, error in points:
        key = (place, round(error / bin_pct))
        ranks.append(taken[key])
        taken[key] += 1
    step = min(0.1, 0.36 / max(1, (max(ranks) + 1) // 2))
    # in turn to the right and to the left of the middle
    return [step * ((rank + 1) // 2) * (1 if rank % 2 else -1) for rank in ranks]


def _means(panel: "Axes", axis: Axis, scale: Scale, scored: Sequence[Residual]) -> None:
    """A short bar at the mean error of each place that several rows share."""
    by_place: dict[float, list[float]] = {}
    for one in scored:
        by_place.setdefault(_place(axis, scale, one), []).append(one.error_pct)
    means = {place: float(np.mean(errors)) for place, errors in sorted(by_place.items()) if len(errors) > 1}
    places = np.array(list(means))
    panel.hlines(list(means.values()), places - 0.3, places + 0.3, color=INK, linewidth=1.6, zorder=4, label="means")


def _lines(panel: "Axes", family: FamilyResiduals) -> None:
    """No error, the family's mean, and the band beyond which points have names."""
    panel.axhspan(-OUTLIER_PCT, OUTLIER_PCT, color="#f4f6f8", zorder=0)
    panel.axhline(0.0, color=INK, linewidth=0.8, zorder=1, label="zero")
    bias = family.score.bias_pct
    assert bias is not None, f"{family.name} has no scored row"
    panel.axhline(bias, color=INK, linewidth=0.9, linestyle=(0, (5, 3)), zorder=1, label="mean")


def _names(panel: "Axes", axis: Axis, family: FamilyResiduals, scale: Scale) -> None:
    """The worst rows beyond 15 % by short ids, moved apart, a thin line to each point."""
    short = dict(zip((one.score.id for one in family.residuals), short_ids(family), strict=True))
    worst = [one for one in family.outliers if axis.value(one.row) is not None][:MOST_NAMES]
    if not worst or axis.name == "row":
        return
    low, high = panel.get_ylim()
    heights = _apart(sorted(one.error_pct for one in worst), 0.06 * (high - low), high)
    middle = sum(scale.places.values()) / len(scale.places)
    for one, height in zip(sorted(worst, key=lambda one: one.error_pct), heights, strict=True):
        place = _place(axis, scale, one)
        side = -1 if place > middle else 1
        width = (max(scale.places.values()) - min(scale.places.values())) or 1.0
        panel.annotate(
            short[one.score.id],
            xy=(place, one.error_pct),
            xytext=(place + side * 0.09 * width, height),
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=6.5,
            color=INK,
            zorder=5,
            arrowprops={"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 0.0, "shrinkB": 2.0},
        )


def _apart(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Ascending heights moved up to be `gap` apart, then down again where they are above `top`."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + gap) if placed else height)
    limit = top
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - gap
    return placed


def _finish(panel: "Axes", axis: Axis, family: FamilyResiduals, scale: Scale) -> None:
    """Title with the rank correlation, ticks, frame."""
    panel.set_title(axis.label, loc="left", fontsize=9.5, color=INK)
    found = next((one for one in family.dependences if one.axis == axis.name), None)
    if found is not None:
        weight = "bold" if found.beyond_chance else "normal"
        panel.set_title(f"rank corr. {found.rho:+.2f}", loc="right", fontsize=8.5, color=INK, fontweight=weight)
    panel.set_xticks(list(scale.ticks), list(scale.ticks.values()), fontsize=8.0, rotation=55 if scale.crowded else 0)
    low, high = min(scale.places.values()), max(scale.places.values())
    margin = 0.6 if scale.ordinal else 0.05 * (high - low)
    panel.set_xlim(low - margin, high + margin)
    panel.grid(axis="y", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(axis="x", length=0 if scale.ordinal else 3)
    panel.tick_params(axis="y", labelsize=8.0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _title(family: FamilyResiduals) -> str:
    score = family.score
    rows = "1 scored row" if score.scored == 1 else f"{score.scored} scored rows"
    null = "" if score.null_mape_pct is None else f" (null forecast {score.null_mape_pct:.1f} %)"
    return f"{family.name}: {rows}, mean |error| {score.mape_pct:.1f} %{null}, bias {score.bias_pct:+.1f} %"


def _legend(family: FamilyResiduals, hues: Mapping[str, str]) -> "list[Artist]":
    from matplotlib.lines import Line2D

    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 5}
    handles: list[Artist] = []
    for group, hue in hues.items():
        handles.append(Line2D([], [], color=hue, label=_short(group) or "scored", markeredgewidth=0, **dot))
    if family.standing("fitted"):
        ring: dict[str, Any] = {"color": QUIET, "markerfacecolor": "none", **dot}
        handles.append(Line2D([], [], label="a profile was fitted on it", **ring))
    handles.append(Line2D([], [], color=INK, linewidth=0.9, linestyle=(0, (5, 3)), label="family mean"))
    if family.drawn:
        handles.append(Line2D([], [], color=INK, linewidth=1.6, label="mean at a value"))
    return handles


def _short(text: str) -> str:
    """A group's name for the legend."""
    return text if len(text) <= 30 else f"{text[:29]}…"
