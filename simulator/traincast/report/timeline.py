"""A picture of one step: what every pipeline stage computes, sends and waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.errors import UsageError
from traincast.lower.program import Program, Result
from traincast.report.bars import GROUP, MESSAGE, REDUCTION, Bar, bars, representative_pipeline, waits
from traincast.schedule import PassTimes, ScheduleKey
from traincast.schedule.placement import family
from traincast.units import counted, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from traincast.forecast import Forecast

# One hue for each pass, a lighter tint for each further chunk that a stage holds.
_PASS_HUES: Mapping[str, tuple[str, ...]] = {
    "forward": ("#2f6fb3", "#7fb0dd", "#b4d3ee", "#d6e7f6"),
    "backward": ("#2e8b57", "#7cc49a", "#b3dec5", "#d5eede"),
    "input gradient": ("#1d7f8c", "#6fb8c1", "#aedae0", "#d3ecef"),
    "weight gradient": ("#b0812f", "#dcb97c", "#ecd8b2", "#f5ead6"),
}
_OTHER_HUES: Mapping[str, str] = {
    MESSAGE: "#d9534f",
    REDUCTION: "#f0ad4e",
    "optimizer": "#7a5195",
    GROUP: "#c77cba",
}
_WAIT_HUES: Mapping[str, tuple[str, str]] = {
    MESSAGE: ("#f6d9d8", "wait for a message"),
    REDUCTION: ("#fbe3c0", "wait for gradients"),
    GROUP: ("#efdcec", "wait for others of the group"),
}
_IDLE, _INK, _DEFAULT_HUE = "#eceff1", "#263238", "#90a4ae"

_LANE, _COMPUTE_HEIGHT, _STRIP_HEIGHT = 1.0, 0.62, 0.14
_NUMBER_WIDTH_SHARE = 0.011
_LEGEND_COLUMNS = 8
MOST_BARS = 20_000
_SUFFIXES = (".png", ".svg", ".pdf")
_SCHEDULE_WORDS = {
    "none": "no pipeline",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "gpipe": "GPipe",
    "looped-bfs": "looped breadth-first",
    "zb-h1": "ZB-H1",
    "zb-h2": "ZB-H2",
    "zb-1p": "ZB-1p",
    "zb-2p": "ZB-2p",
    "zb-v": "ZB-V",
    "dualpipe": "DualPipe",
    "dualpipev": "DualPipeV",
}


@dataclass(frozen=True)
class Panel:
    """One step to draw, and what to write above it."""

    title: str
    program: Program
    result: Result


def panel_of(forecast: "Forecast") -> Panel:
    """The panel of a forecast, its title in words."""
    name, stages, microbatches, chunks = forecast.run.program.schedule_key
    of_chunks = f", {chunks} chunks a stage" if chunks > 1 else ""
    idle = 100 * forecast.bubble.share_of_step
    name = family(name)
    title = (
        f"{forecast.model}, {_SCHEDULE_WORDS.get(name, name)}{of_chunks}: {counted(stages, 'stage')}, "
        f"{counted(microbatches, 'microbatch', 'microbatches')}, {format_time(forecast.step_time_s)} "
        f"(idle {idle:.0f} %)"
    )
    return Panel(title, forecast.run.program, forecast.run.result)


def schedule_panel(key: ScheduleKey, times: PassTimes, *, rolling: bool = False) -> Panel:
    """The panel of a bare schedule, as papers print it: uniform stages, nothing but the pipeline."""
    from traincast.analytic import evaluate
    from traincast.lower.uniform import passes_program

    program = passes_program(key, times, rolling=rolling)
    result = evaluate(program)
    name, stages, microbatches, chunks = key
    of_chunks = f", {chunks} chunks a stage" if chunks > 1 else ""
    idle = 100 * (1 - microbatches * times.work_s / result.step_time_s) if result.step_time_s else 0.0
    title = (
        f"{_SCHEDULE_WORDS.get(name, name)}{of_chunks}: {counted(stages, 'stage')}, "
        f"{counted(microbatches, 'microbatch', 'microbatches')}, "
        f"{format_time(result.step_time_s)} (idle {idle:.0f} %){', steps roll' if rolling else ''}"
    )
    return Panel(title, program, result)


def draw_timeline(panels: Sequence[Panel], path: Path, *, dpi: int = 160) -> None:
    """Draws panels one above the other on a common time axis, into a file whose suffix says the kind.

    A stage is a lane: instructions with their microbatch on its upper part, messages and gradient reductions
    on the strip below. Where the stage computes nothing it is tinted as what it waits for, grey where that is no
    running communication. A frame holds passes that run as one. Dashes end the
    step; where steps roll, they begin and end that of each stage.
    """
    _check(panels, path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    stages = [len(panel.program.schedule) for panel in panels]
    longest = max(end_s for panel in panels for _, end_s in _windows(panel))
    scale, unit = time_unit(longest)
    figure, grid = plt.subplots(
        len(panels),
        1,
        sharex=True,
        squeeze=False,
        figsize=(12.0, 1.15 + sum(0.52 * count + 0.5 for count in stages)),
        height_ratios=stages,
        layout="constrained",
    )
    kinds: dict[str, str] = {}
    chunks = max(panel.program.schedule_key[3] for panel in panels)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        kinds |= _draw_panel(axes, panel, longest, scale, chunks)
    grid[-1, 0].set_xlabel(f"time in the step [{unit}]", color=_INK)
    _legend(figure, kinds)
    try:
        figure.savefig(path, dpi=dpi, bbox_inches="tight", facecolor="white")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write {path}: {reason}", fix="name a file that can be written") from error
    finally:
        plt.close(figure)


def _check(panels: Sequence[Panel], path: Path) -> None:
    """Raises UsageError for another kind of file, and for more bars than anybody could see."""
    if path.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{path} is no picture that can be drawn", fix=f"end it in {', '.join(_SUFFIXES)}")
    count = sum(len(order) for panel in panels for order in panel.program.schedule)
    if count > MOST_BARS:
        raise UsageError(
            f"a timeline of {count} passes is too fine to see",
            fix="lower training.global_batch or parallelism.pp with --set, or use predict --trace",
        )


def time_unit(longest_s: float) -> tuple[float, str]:
    """Factor and name of the unit that suits a step: microseconds, milliseconds or seconds."""
    if longest_s < 2e-3:
        return 1e6, "us"
    return (1e3, "ms") if longest_s < 20.0 else (1.0, "s")


def _draw_panel(axes: "Axes", panel: Panel, longest_s: float, scale: float, chunks: int) -> dict[str, str]:
    """Draws one step in the shades of so many chunks; returns the colour of each kind of bar drawn, for the legend."""
    stages = len(panel.program.schedule)
    for stage, (begin_s, end_s) in enumerate(_windows(panel)):
        axes.add_patch(_box(stage * _LANE, (begin_s * scale, end_s * scale), _COMPUTE_HEIGHT, _IDLE))
        ends = (begin_s, end_s) if panel.program.rolling else (end_s,)
        top = stage * _LANE - 0.15
        axes.vlines([one * scale for one in ends], top, top + _LANE, color=_INK, linewidth=0.9, linestyle=(0, (3, 2)))
    kinds = {"idle": _IDLE}
    for bar in waits(panel.program, panel.result):
        hue, name = _WAIT_HUES[bar.kind]
        kinds[name] = hue
        times = (bar.start_s * scale, bar.end_s * scale)
        axes.add_patch(_box(bar.stage * _LANE, times, _COMPUTE_HEIGHT, hue, hue))
    for bar in bars(panel.program, panel.result):
        hue = _hue(bar, chunks)
        kinds.setdefault(_legend_name(bar), hue)
        on_strip = bar.stream != "compute"
        top = bar.stage * _LANE + (_COMPUTE_HEIGHT + 0.03 if on_strip else 0.0)
        height = _STRIP_HEIGHT if on_strip else _COMPUTE_HEIGHT
        line = hue if on_strip else "white"
        axes.add_patch(_box(top, (bar.start_s * scale, bar.end_s * scale), height, hue, line))
        if not on_strip and bar.microbatch is not None:
            _number(axes, bar, top, longest_s, scale)
        if bar.joint_until_s is not None:
            both = (bar.start_s * scale, bar.joint_until_s * scale)
            axes.add_patch(_box(top, both, height, "none", line=_INK))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.4g}" if value < 1e4 else f"{value:,.0f}")
    axes.set_title(panel.title, loc="left", fontsize=10.5, color=_INK, pad=5)
    axes.set_xlim(0.0, longest_s * scale * 1.005)
    axes.set_ylim(stages * _LANE - 0.1, -0.12)
    axes.set_yticks([stage * _LANE + _COMPUTE_HEIGHT / 2 for stage in range(stages)])
    axes.set_yticklabels([f"stage {stage}" for stage in range(stages)], color=_INK)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return kinds


def _windows(panel: Panel) -> list[tuple[float, float]]:
    """Begin and end of each stage's step: the same for all, unless steps roll."""
    step_s = panel.result.step_time_s
    if not panel.program.rolling:
        return [(0.0, step_s)] * len(panel.program.schedule)
    begins_s = [panel.result.classes[index].begin_s for index in representative_pipeline(panel.program)]
    return [(begin_s, begin_s + step_s) for begin_s in begins_s]


def _box(top: float, times: tuple[float, float], height: float, hue: str, line: str = _IDLE) -> "Rectangle":
    from matplotlib.patches import Rectangle

    start, end = times
    width = 0.5 if line == "white" else 0.7 if line == _INK else 0.3
    order = 3.0 if line == _INK else 1.0
    return Rectangle((start, top), end - start, height, facecolor=hue, edgecolor=line, linewidth=width, zorder=order)


def _number(axes: "Axes", bar: Bar, top: float, longest_s: float, scale: float) -> None:
    """Writes the microbatch on a bar that is wide enough to hold it."""
    width_s = bar.end_s - bar.start_s
    if width_s < _NUMBER_WIDTH_SHARE * longest_s:
        return
    dark = (bar.chunk or 0) == 0
    middle = (bar.start_s + width_s / 2) * scale
    axes.text(
        middle,
        top + _COMPUTE_HEIGHT / 2 + 0.01,
        str(bar.microbatch),
        ha="center",
        va="center",
        fontsize=7.5,
        color="white" if dark else _INK,
    )


def _hue(bar: Bar, chunks: int) -> str:
    tints = _PASS_HUES.get(bar.kind)
    if tints is not None:
        return chunk_hue(tints, bar.chunk or 0, chunks)
    return _OTHER_HUES.get(bar.kind, _DEFAULT_HUE)


def chunk_hue(tints: Sequence[str], chunk: int, chunks: int) -> str:
    """The shade of a chunk: a tint each while they last; for more chunks, even steps from first to last."""
    if chunks <= len(tints):
        return tints[chunk]
    place = chunk * (len(tints) - 1) / (chunks - 1)
    low = min(int(place), len(tints) - 2)
    ends = ([int(tint[i : i + 2], 16) for i in (1, 3, 5)] for tint in tints[low : low + 2])
    mixed = (round(a + (b - a) * (place - low)) for a, b in zip(*ends, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


def _legend_name(bar: Bar) -> str:
    if bar.kind in _PASS_HUES:
        return bar.kind if not bar.chunk else f"{bar.kind}, chunk {bar.chunk}"
    return {MESSAGE: "pipeline message", REDUCTION: "gradient reduction"}.get(bar.kind, bar.kind)


def _legend(figure: "Figure", kinds: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    order = ("forward", "backward", "input", "weight", "pipeline", "gradient", "tp", "optimizer", "wait", "idle")

    def rank(name: str) -> tuple[int, str]:
        found = [place for place, start in enumerate(order) if name.startswith(start)]
        return (found[0] if found else len(order), name)

    names = sorted(kinds, key=rank)
    patches = [Patch(facecolor=kinds[name], label=name) for name in names]
    figure.legend(
        handles=patches,
        loc="outside lower center",
        ncols=len(patches) if len(patches) <= _LEGEND_COLUMNS else -(-len(patches) // 2),
        frameon=False,
        fontsize=9,
        handlelength=1.2,
        columnspacing=1.4,
    )
