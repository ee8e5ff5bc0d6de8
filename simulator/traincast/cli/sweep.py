"""`traincast sweep`: every legal shape of a scenario, ranked."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, progress, remark, replace_file
from traincast.cli.predict import ScenarioArgument, SetOption, parse_overrides
from traincast.errors import ShapeError, UsageError
from traincast.units import counted

if TYPE_CHECKING:
    from traincast.scenario import Scenario
    from traincast.sweep import SweepOutcome, SweepRow

_SHOWN_ON_SCREEN = 20
_SHOWN_REFUSALS = 5


def sweep(
    scenario: ScenarioArgument,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=A,B,...",
            help="Only these values of tp, pp, dp, vpp or microbatch (others: all legal ones); of cp or schedule these"
            " instead of the scenario's own. Repeatable.",
        ),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(
            "--top",
            min=1,
            metavar="K",
            help="Only the K fastest shapes; those whose lower bound is above them are not evaluated.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, metavar="N", help="Processes that share the shapes.")] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take the rows that a sweep of these shapes left in the file of -o.")
    ] = False,
    overrides: SetOption = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Evaluate every legal shape of a scenario that fits into memory; the fastest first, confirmed by the event
    engine."""
    from traincast.forecast import prepare
    from traincast.report.sweep_tables import sweep_table
    from traincast.scenario.refusals import refuse_precision
    from traincast.sweep import Options, confirmed, enumerate_shapes, evaluate_shapes, load_base, parse_axes
    from traincast.sweep.resume import read_rows

    form = chosen_format(fmt, output)
    if resume and (output is None or form == "table"):
        raise UsageError("there is no file to resume from", where="--resume", fix="name the .csv or .json with -o")
    axes = parse_axes(axis or ())
    loaded, refused = load_base(scenario, parse_overrides(overrides or ()), axes)
    if refused is not None:
        remark(f"the scenario's own shape cannot be, others are swept: {refused}")
    refuse_precision(loaded, prepare(loaded).job)
    shapes = enumerate_shapes(loaded, axes)
    remark(f"{len(shapes)} legal shapes on {loaded.mesh.world} GPUs")
    known = read_rows(output, loaded, shapes) if resume and output is not None else {}
    if resume:
        remark(f"{len(known)} of them taken from {output}")
    tell = _saving(loaded, len(shapes), form, output)
    with progress("shapes", len(shapes)) as advance:
        outcome = evaluate_shapes(loaded, shapes, advance, Options(jobs, top, known, tell))
    _tell_counts(outcome)
    _refuse_all(outcome)
    outcome = confirmed(loaded, outcome)
    _tell_confirmation(outcome)
    shown = top or (_SHOWN_ON_SCREEN if form == "table" else None)
    emit(outcome.as_dict(top), [sweep_table(outcome, shown)], fmt, output)


def _saving(loaded: "Scenario", legal: int, form: str, output: Path | None) -> "Callable[[Sequence[SweepRow]], object]":
    """Writes the rows so far into the file that the result is to have; nothing where it is a table or no plain file."""
    if output is None or form == "table" or (output.exists() and not output.is_file()):
        return lambda rows: None
    from traincast.report.sweep_tables import sweep_table
    from traincast.report.tables import render
    from traincast.sweep import SweepOutcome

    def save(rows: "Sequence[SweepRow]") -> None:
        ranked = tuple(sorted(rows, key=lambda row: row.rank))
        partial = SweepOutcome(loaded.name, loaded.mesh.world, legal, 0, ranked, ())
        replace_file(output, render(partial.as_dict(complete=False), [sweep_table(partial)], form) + "\n")

    return save


def _tell_counts(outcome: "SweepOutcome") -> None:
    counts = f"{len(outcome.ranked)} evaluated, {outcome.too_big} do not fit into memory"
    screened = f", {outcome.screened} screened out by their lower bound" if outcome.screened else ""
    remark(f"{counts}, {outcome.refused} refused{screened}")
    reasons = outcome.reasons
    for reason, shapes in reasons[:_SHOWN_REFUSALS]:
        remark(f"refused: {f'{shapes[0]}: {reason}' if len(shapes) == 1 else f'{reason} ({len(shapes)} shapes)'}")
    more = sum(len(shapes) for _, shapes in reasons[_SHOWN_REFUSALS:])
    if more:
        remark(f"refused: {more} more; --format json lists all")


def _refuse_all(outcome: "SweepOutcome") -> None:
    """Raises ShapeError where no shape runs, and all that would fit are refused for one reason."""
    if outcome.ranked or len(outcome.reasons) != 1:
        return
    (reason, shapes) = outcome.reasons[0]
    message, _, fix = reason.partition(" (fix: ")
    big = f"; the other {outcome.too_big} do not fit into memory" if outcome.too_big else ""
    which = "every shape is" if not outcome.too_big else f"{counted(len(shapes), 'shape')} that may fit are"
    raise ShapeError(f"{which} refused: {message}{big}", fix=fix.removesuffix(")") or None)


def _tell_confirmation(outcome: "SweepOutcome") -> None:
    found = outcome.confirmation
    if found is None:
        return
    beside = "the same to the last bit" if found.equal else f"the recurrence has {found.recurrence_s:.9g} s"
    remark(f"fastest, {outcome.ranked[0].shape}: {found.step_time_s:.6g} s in {found.events:,} events, {beside}")
