"""Every pipeline schedule drawn as its paper prints it, and what each costs: uniform stages, nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traincast.errors import ShapeError
from traincast.report.tables import Cell, Table
from traincast.report.timeline import Panel, draw_timeline, schedule_panel
from traincast.schedule import SCHEDULES, SPLIT, TWO_CHUNKS, PassTimes, ScheduleKey, bubble_s, held, in_flight_bound

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("one_pass_backward", ("gpipe", "1f1b", "interleaved", "looped-bfs")),
    ("zero_bubble", ("zb-h1", "zb-h2", "zb-1p", "zb-2p")),
    ("folded", ("zb-v", "dualpipe", "dualpipev")),
)
"""Pictures and the schedules that share one."""


@dataclass(frozen=True)
class ScheduleFigures:
    """What a schedule costs: seconds of a step, of it idle on a stage, by the paper's formula (None: none is stated).

    `held` and `bound` are the microbatches whose activations the fullest stage holds, in units of what one stage of
    1F1B keeps of one microbatch.
    """

    schedule: str
    chunks: int
    step_s: float
    idle_s: float
    formula_s: float | None
    held: float
    bound: float


def schedule_keys(p: int, m: int) -> Iterator[ScheduleKey]:
    """A key for each schedule that p stages and m microbatches allow; two chunks a stage where it has more than one."""
    for name in SCHEDULES:
        if name == "none":
            continue
        chunks = 2 if name in (*TWO_CHUNKS, "interleaved", "looped-bfs") else 1
        yield name, p, m, chunks


def draw_schedules(p: int, m: int, times: PassTimes, folder: Path) -> tuple[tuple[ScheduleFigures, ...], list[Path]]:
    """Draws all schedules into `folder`, a picture a group; returns their figures and the files.

    Schedules that p and m do not allow (DualPipe needs even numbers and 2 p microbatches) are left out.
    """
    panels: dict[str, Panel] = {}
    figures = []
    for key in schedule_keys(p, m):
        try:
            panel = schedule_panel(key, times, rolling=key[0] in SPLIT)
        except ShapeError:
            continue
        panels[key[0]] = panel
        figures.append(_figures(key, panel, times))
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for group, names in GROUPS:
        drawn = [panels[name] for name in names if name in panels]
        if drawn:
            files.append(folder / f"{group}.png")
            draw_timeline(drawn, files[-1], dpi=100)
    return tuple(figures), files


def _figures(key: ScheduleKey, panel: Panel, times: PassTimes) -> ScheduleFigures:
    name, _, m, v = key
    share = min(1.0, 32 / 34)  # of a layer's activations its W needs (Qi et al. 2023, Table 1)
    parts = 1 if name == "dualpipe" else v
    return ScheduleFigures(
        schedule=name,
        chunks=v,
        step_s=panel.result.step_time_s,
        idle_s=panel.result.step_time_s - m * times.work_s,
        formula_s=bubble_s(key, times),
        held=max(held(panel.program.schedule, share)) / parts,
        bound=max(in_flight_bound(key)) / parts,
    )


def schedules_table(figures: Sequence[ScheduleFigures]) -> Table:
    """The figures as a table."""
    rows = tuple(
        (
            one.schedule,
            one.chunks,
            Cell(one.step_s, f"{one.step_s:.3f}"),
            Cell(one.idle_s, f"{one.idle_s:.3f}"),
            "-" if one.formula_s is None else Cell(one.formula_s, f"{one.formula_s:.3f}"),
            Cell(one.held, f"{one.held:.2f}"),
            Cell(one.bound, f"{one.bound:.2f}"),
        )
        for one in figures
    )
    columns = ("schedule", "chunks", "step s", "idle s", "formula s", "held", "bound")
    return Table("Schedules: uniform stages; held and bound in microbatches of one stage", columns, rows)


def as_rows(figures: Sequence[ScheduleFigures]) -> list[dict[str, Any]]:
    """The figures as JSON shows them."""
    return [asdict(one) for one in figures]
