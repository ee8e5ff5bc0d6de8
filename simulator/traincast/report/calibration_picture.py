"""Measured against forecast times, drawn: one panel a log, times over sizes; kernels as forecast over measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.report.paint import GROUP_HUES, INK, QUIET

if TYPE_CHECKING:
    from traincast.calibration.compare import Case

_MOST_PANELS = 24
_COLUMNS = 4


def draw_cases(cases: "Sequence[Case]", profile: str, path: Path) -> None:
    """Writes the picture to `path`. Raises UsageError where there is nothing to draw or the file cannot be written."""
    from matplotlib.figure import Figure

    from traincast.errors import UsageError

    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group if case.size_bytes else "kernels", []).append(case)
    if not groups:
        raise UsageError("nothing to draw", where="-o", fix="name results, or a profile that was fitted on curves")
    shown = list(groups.items())[:_MOST_PANELS]
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows + 0.6), layout="constrained")
    more = "" if len(shown) == len(groups) else f" ({len(groups) - len(shown)} more not drawn)"
    figure.suptitle(f"measured (dots) and forecast by {profile} (line){more}", color=INK)
    for place, (name, members) in enumerate(shown):
        axes = figure.add_subplot(rows, columns, place + 1)
        _panel(axes, name, members)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write {path}: {reason}", where="-o", fix="name a file that can be written") from error


def _panel(axes: Any, name: str, members: "Sequence[Case]") -> None:
    axes.set_xscale("log", base=2 if members[0].size_bytes else 10)
    axes.set_yscale("log")
    axes.set_title(name, fontsize=8, color=INK)
    axes.tick_params(labelsize=7, colors=QUIET)
    if not members[0].size_bytes:
        times = [case.measured_s * 1e6 for case in members]
        axes.plot(times, [case.forecast_s * 1e6 for case in members], "o", ms=3, color=GROUP_HUES[0])
        axes.plot([min(times), max(times)], [min(times), max(times)], color=QUIET, lw=0.8)
        axes.set_xlabel("measured, us", fontsize=7)
        axes.set_ylabel("forecast, us", fontsize=7)
        return
    ordered = sorted(members, key=lambda case: case.size_bytes)
    sizes = [case.size_bytes for case in ordered]
    axes.plot(sizes, [case.measured_s * 1e6 for case in ordered], "o", ms=3, color=GROUP_HUES[1])
    axes.plot(sizes, [case.forecast_s * 1e6 for case in ordered], color=GROUP_HUES[0], lw=1.2)
    axes.set_xlabel("bytes", fontsize=7)
    axes.set_ylabel("us", fontsize=7)
