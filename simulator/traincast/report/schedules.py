"""Every pipeline schedule drawn as its paper prints it, and what each costs: uniform stages, nothing else."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Final

from traincast.errors import ShapeError, UsageError
from traincast.report.tables import Cell, Table
from traincast.report.timeline import MOST_BARS, Panel, draw_timeline, schedule_panel
from traincast.schedule import SCHEDULES, SPLIT, TWO_CHUNKS, PassTimes, ScheduleKey, bubble_s, held, in_flight_bound

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("one_pass_backward", ("gpipe", "1f1b", "interleaved", "looped-bfs")),
    ("zero_bubble", ("zb-h1", "zb-h2", "zb-1p", "zb-2p")),
    ("folded", ("zb-v", "dualpipe", "dualpipev")),
)
"""Pictures and the schedules that share one."""

SHORTEST_S: Final = 1e-9
LONGEST_S: Final = 1e6
"""Seconds that the work of a microbatch takes at least, and one pass or message at most."""


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


@dataclass(frozen=True)
class LeftOut:
    """A schedule that the stages and microbatches do not allow, and why."""

    schedule: str
    chunks: int
    reason: str


@dataclass(frozen=True)
class Drawing:
    """What was drawn: figures of each schedule, those left out with their reason, and the pictures."""

    figures: tuple[ScheduleFigures, ...]
    left_out: tuple[LeftOut, ...]
    files: tuple[Path, ...]


def draw_schedules(p: int, m: int, times: PassTimes, folder: Path) -> Drawing:
    """Draws all schedules into `folder`, a picture a group.

    Schedules that p and m do not allow (DualPipe needs even numbers and 2 p microbatches) are left out, with the
    reason. Raises UsageError for times that nothing can be drawn of, and for more passes than anybody could see.
    """
    _check_times(times)
    _check_passes(p, m)
    panels: dict[str, Panel] = {}
    figures, left_out = [], []
    for key in schedule_keys(p, m):
        try:
            panel = schedule_panel(key, times, rolling=key[0] in SPLIT)
        except ShapeError as error:
            left_out.append(LeftOut(key[0], key[3], error.message))
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
    return Drawing(tuple(figures), tuple(left_out), tuple(files))


def _check_times(times: PassTimes) -> None:
    """Refuses what is no number of seconds, what takes no time, and what no axis can show."""
    seconds = {
        "--forward": times.forward_s,
        "--input-gradient": times.input_s,
        "--weight-gradient": times.weight_s,
        "--message": times.send_s,
    }
    for option, one in seconds.items():
        if not (isfinite(one) and 0 <= one <= LONGEST_S):
            raise UsageError(
                f"a pass or message of {one:g} s cannot be drawn", where=option, fix=f"give 0 to {LONGEST_S:g}"
            )
    if times.work_s < SHORTEST_S:
        message = f"the passes of a microbatch take {times.work_s:g} s, so there is nothing to draw"
        raise UsageError(message, where="--forward", fix=f"give passes that take {SHORTEST_S:g} s or more together")


def _check_passes(p: int, m: int) -> None:
    """Refuses pictures of more bars than anybody could see."""
    chunks = {key[0]: key[3] for key in schedule_keys(p, m)}
    a_microbatch = p * max(
        sum((3 if name in SPLIT else 2) * (1 if name == "dualpipe" else chunks[name]) for name in names)
        for _, names in GROUPS
    )
    if a_microbatch * m > MOST_BARS:
        most = MOST_BARS // a_microbatch
        raise UsageError(
            f"{p} stages and {m} microbatches are {a_microbatch * m} passes in one picture, too fine to see",
            where="-m",
            fix=f"use -m {most} or less, or a smaller --pp",
        )


def formula_in_range_s(key: ScheduleKey, times: PassTimes) -> float | None:
    """The paper's formula where it holds; None outside its range.

    Pipelines that fill before they drain need a microbatch for each stage (looped breadth-first, ZB-H1), those that
    fill twice as far 2 p - 1 of them (ZB-H2, ZB-V); a split backward hides behind F and I while W is no longer than
    they are (Qi et al. 2023, section 2.3; DeepSeek-V3 Technical Report, Table 2).
    """
    name, p, m, _ = key
    least = {"looped-bfs": p, "zb-h1": p, "zb-h2": 2 * p - 1, "zb-v": 2 * p - 1}.get(name, 1)
    too_long = name in SPLIT and times.weight_s > min(times.forward_s, times.input_s)
    return None if m < least or too_long else bubble_s(key, times)


def _figures(key: ScheduleKey, panel: Panel, times: PassTimes) -> ScheduleFigures:
    name, _, m, v = key
    share = min(1.0, 32 / 34)  # of a layer's activations its W needs (Qi et al. 2023, Table 1)
    parts = 1 if name == "dualpipe" else v
    return ScheduleFigures(
        schedule=name,
        chunks=v,
        step_s=panel.result.step_time_s,
        idle_s=panel.result.step_time_s - m * times.work_s,
        formula_s=formula_in_range_s(key, times),
        held=max(held(panel.program.schedule, share)) / parts,
        bound=max(in_flight_bound(key)) / parts,
    )


def schedules_table(drawing: Drawing) -> Table:
    """The figures as a table; what is left out stands at the end with its reason."""
    rows: list[tuple[object, ...]] = [
        (
            one.schedule,
            one.chunks,
            Cell(one.step_s, f"{one.step_s:.3f}"),
            Cell(one.idle_s, f"{one.idle_s:.3f}"),
            None if one.formula_s is None else Cell(one.formula_s, f"{one.formula_s:.3f}"),
            Cell(one.held, f"{one.held:.2f}"),
            Cell(one.bound, f"{one.bound:.2f}"),
            None,
        )
        for one in drawing.figures
    ]
    rows += [(one.schedule, one.chunks, *(None,) * 5, f"left out: {one.reason}") for one in drawing.left_out]
    columns = ("schedule", "chunks", "step s", "idle s", "formula s", "held", "bound", "remark")
    title = "Schedules: uniform stages, formula without messages; held and bound in microbatches of one stage"
    return Table(title, columns, tuple(rows))


def as_dict(drawing: Drawing) -> dict[str, Any]:
    """The figures as JSON shows them."""
    return {
        "schedules": [asdict(one) for one in drawing.figures],
        "left_out": [asdict(one) for one in drawing.left_out],
    }
