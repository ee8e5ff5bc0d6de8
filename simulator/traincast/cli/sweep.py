"""`traincast sweep`: every legal shape of a scenario, ranked."""

from typing import Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, progress, remark
from traincast.cli.predict import ScenarioArgument, SetOption, parse_overrides

_SHOWN_ON_SCREEN = 20
_SHOWN_REFUSALS = 5


def sweep(
    scenario: ScenarioArgument,
    axis: Annotated[
        list[str] | None,
        typer.Option(
            "--axis",
            metavar="NAME=A,B,...",
            help="Only these values of tp, pp, dp, vpp or microbatch. Others: all legal ones. Repeatable.",
        ),
    ] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, metavar="K", help="Only the K fastest shapes.")] = None,
    overrides: SetOption = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Evaluate every legal shape of a scenario that fits into memory; the fastest first."""
    from traincast.report.sweep_tables import sweep_table
    from traincast.scenario import load_scenario
    from traincast.sweep import enumerate_shapes, evaluate_shapes, parse_axes

    loaded = load_scenario(scenario, parse_overrides(overrides or ()))
    shapes = enumerate_shapes(loaded, parse_axes(axis or ()))
    remark(f"{len(shapes)} legal shapes on {loaded.mesh.world} GPUs")
    with progress("shapes", len(shapes)) as advance:
        outcome = evaluate_shapes(loaded, shapes, advance)
    counts = f"{len(outcome.ranked)} evaluated, {outcome.too_big} do not fit into memory"
    remark(f"{counts}, {outcome.refused} refused")
    for line in outcome.refusals[:_SHOWN_REFUSALS]:
        remark(f"refused: {line}")
    if outcome.refused > _SHOWN_REFUSALS:
        remark(f"refused: {outcome.refused - _SHOWN_REFUSALS} more; --format json lists all")
    shown = top or (_SHOWN_ON_SCREEN if chosen_format(fmt, output) == "table" else None)
    emit(outcome.as_dict(top), [sweep_table(outcome, shown)], fmt, output)
