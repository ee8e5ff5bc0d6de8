"""Figures of SC21: measured rates hollow, forecast ones filled, errors of step time below. One renderer for all."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traincast.report.sc21_points import RATE_LABELS, Point, Standing
from traincast.report.sc21_studies import Study

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _QUIET, _GRID = "#263238", "#78909c", "#e0e0e0"
_BLUE, _ORANGE, _GREEN, _PURPLE = "#2f6fb3", "#d98219", "#2e8b57", "#a0529e"
_HUES: Final = (_BLUE, _ORANGE, _GREEN, _PURPLE)
_SERIES_HUES: Final = {
    **{"batch 8": _PURPLE, "batch 32": _BLUE, "batch 128": _ORANGE, "batch 512": _GREEN},
    # scatter/gather is what interleaving runs with: the same runs, the same colour
    **{"interleaved": _ORANGE, "scatter/gather": _ORANGE, "without scatter/gather": _GREEN},
}
"""What keeps its colour over several figures; other series take theirs in order."""
_GROUP_WIDTH: Final = 0.82
_ERROR_WIDTH: Final = 0.64
_STYLES: Final[dict[Standing, dict[str, Any]]] = {
    "scored": {},
    "fitted": {"hatch": "/////", "fill": False},
    "shown": {"hatch": ".....", "fill": False},
}
_STYLE_NAMES: Final[dict[Standing, str]] = {
    "scored": "scored",
    "fitted": "a fitted row",
    "shown": "shown, not scored",
}


def draw_study(study: Study, points: Sequence[Point]) -> "Figure":
    """The study's figure; `points` has at least one.

    Every line and every group of bars is labelled `SERIES, measured`, `SERIES, forecast` or `SERIES, error`, and
    holds the numbers of the points as they are.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(2.5, 1.0))
    hues = _hues(points)
    for number, (series, hue) in enumerate(hues.items()):
        own = [point for point in points if point.series == series]
        draw = _bars if study.kind == "bars" else _lines
        draw(upper, own, hue, (number, len(hues)))
        _errors(lower, own, hue, (number, len(hues)))
    figure.suptitle(f"SC21 {study.label}: {study.title}", x=0.01, ha="left", color=_INK, fontsize=12)
    _finish(study, points, upper, lower)
    handles = _legend(points, hues, study.kind == "bars")
    figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9.5, handlelength=2.2)
    return figure


def _hues(points: Sequence[Point]) -> dict[str, str]:
    names = list(dict.fromkeys(point.series for point in points))
    return {name: _SERIES_HUES.get(name, _HUES[number % len(_HUES)]) for number, name in enumerate(names)}


def save(figure: "Figure", path: Path, *, dpi: int = 150) -> None:
    """Writes a PNG that depends on nothing but the figure: no date, no version. Raises OSError."""
    figure.savefig(path, dpi=dpi, facecolor="white", metadata={"Software": None})


def _lines(axes: "Axes", points: Sequence[Point], hue: str, _: tuple[int, int]) -> None:
    known = sorted(points, key=lambda point: point.index)
    series = known[0].series
    measured = [(point.index, point.published) for point in known if point.published is not None]
    forecast = [(point.index, point.forecast) for point in known if point.forecast is not None]
    style: dict[str, Any] = {"color": hue, "clip_on": False}
    # forecast first: a hollow ring around a filled dot shows both where they meet
    axes.plot(*_columns(forecast), "o-", markersize=5, linewidth=1.6, label=f"{series}, forecast", **style)
    style |= {"markerfacecolor": "none", "markeredgewidth": 1.5}
    axes.plot(*_columns(measured), "o--", markersize=9, linewidth=1.0, label=f"{series}, measured", **style)


def _bars(axes: "Axes", points: Sequence[Point], hue: str, seat: tuple[int, int]) -> None:
    """Pairs of bars, measured and forecast, side by side; `seat` is the number of the series and how many there are."""
    number, count = seat
    width = _GROUP_WIDTH / (2 * count)
    left = -_GROUP_WIDTH / 2 + 2 * number * width
    series = points[0].series
    measured = [(point.index + left + 0.5 * width, point.published) for point in points if point.published is not None]
    forecast = [(point.index + left + 1.5 * width, point.forecast) for point in points if point.forecast is not None]
    style: dict[str, Any] = {"edgecolor": hue, "linewidth": 1.3}
    axes.bar(*_columns(measured), 0.84 * width, facecolor="white", label=f"{series}, measured", **style)
    axes.bar(*_columns(forecast), 0.84 * width, facecolor=hue, label=f"{series}, forecast", **style)


def _errors(axes: "Axes", points: Sequence[Point], hue: str, seat: tuple[int, int]) -> None:
    """Error of step time of each point, in the order of the points; hatched where the row does not count."""
    number, count = seat
    width = _ERROR_WIDTH / count
    known = [(point, point.score.error_pct) for point in points if point.score.error_pct is not None]
    places = [point.index - _ERROR_WIDTH / 2 + (number + 0.5) * width for point, _ in known]
    bars = axes.bar(
        places,
        [error for _, error in known],
        0.86 * width,
        facecolor=hue,
        edgecolor=hue,
        linewidth=0.8,
        label=f"{points[0].series}, error",
    )
    for bar, (point, _) in zip(bars, known, strict=True):
        bar.set(**_STYLES[point.standing])


def _finish(study: Study, points: Sequence[Point], upper: "Axes", lower: "Axes") -> None:
    """Axes, ticks, frames."""
    highest = max((rate for p in points for rate in (p.published, p.forecast) if rate is not None), default=1.0)
    upper.set_ylim(0.0, 1.08 * highest)
    upper.set_ylabel(RATE_LABELS[study.rate], color=_INK)
    lower.set_ylabel("error of\nstep time [%]", color=_INK)
    lower.axhline(0.0, color=_INK, linewidth=0.8)
    lower.margins(y=0.15)
    places = dict(sorted((point.index, point.place) for point in points))
    lower.set_xticks(list(places), list(places.values()), fontsize=8.5 if len(places) > 9 else 9.5)
    lower.set_xlabel(study.axis, color=_INK)
    lower.set_xlim(-0.55, len(places) - 0.45)
    for axes in (upper, lower):
        axes.grid(axis="y", color=_GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(axis="x", length=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    upper.tick_params(axis="x", labelbottom=False)


def _legend(points: Sequence[Point], hues: dict[str, str], as_bars: bool) -> "list[Artist]":
    """Colours of the series, then what hollow, filled and hatched mean, then what is not drawn."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = []
    if len(hues) > 1:
        handles += [Line2D([], [], color=hue, linewidth=5.0, label=series) for series, hue in hues.items()]
        handles.append(_words(""))
    hue = _QUIET if len(hues) > 1 else next(iter(hues.values()))
    if as_bars:
        handles.append(Patch(facecolor="white", edgecolor=hue, linewidth=1.3, label="measured"))
        handles.append(Patch(facecolor=hue, edgecolor=hue, linewidth=1.3, label="forecast"))
    else:
        ring: dict[str, Any] = {"markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.5, "linewidth": 1.0}
        handles.append(Line2D([], [], color=hue, linestyle="--", marker="o", label="measured", **ring))
        handles.append(Line2D([], [], color=hue, marker="o", markersize=5, linewidth=1.6, label="forecast"))
    present = {point.standing for point in points}
    if present - {"scored", "no forecast"}:
        handles += [_words(""), _words("error below:")]
        for standing in [one for one in _STYLES if one in present]:
            style: dict[str, Any] = {"facecolor": hue, "edgecolor": hue, "linewidth": 0.8} | _STYLES[standing]
            handles.append(Patch(label=_STYLE_NAMES[standing], **style))
    without = sum(point.standing == "no forecast" for point in points)
    if without:
        handles += [_words(""), _words(f"{without} of {len(points)} rows without\na forecast: see the table")]
    return handles


def _words(text: str) -> "Artist":
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="none", label=text or " ")


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in pairs], [y for _, y in pairs]
