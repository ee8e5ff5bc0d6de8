"""`traincast compare`: DDP, FSDP, HSDP, TP with FSDP and PTD-P for one model on one cluster."""

from typing import Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, progress
from traincast.cli.predict import ScenarioArgument, SetOption, parse_overrides
from traincast.errors import UsageError, UserError


def compare(
    scenario: ScenarioArgument,
    gpus: Annotated[int | None, typer.Option("--gpus", min=1, help="GPUs to use; by default the scenario's.")] = None,
    shard: Annotated[
        int | None,
        typer.Option(
            "--shard",
            min=2,
            metavar="N",
            help="Ranks of a shard group in HSDP and in FSDP on a sub-mesh; by default a node, or whole nodes.",
        ),
    ] = None,
    storage_rate: Annotated[
        str,
        typer.Option("--storage-rate", metavar="RATE", help="Rate of the file system that checkpoints go to."),
    ] = "100 GB/s",
    node_rate: Annotated[
        str,
        typer.Option("--node-storage-rate", metavar="RATE", help="Rate between one node and the file system."),
    ] = "25 GB/s",
    overrides: SetOption = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Compare strategies of training: step time, rates, memory, traffic and checkpoints, each in its fastest layout
    that fits."""
    from traincast.plan.checkpoint import Storage
    from traincast.plan.layouts import STRATEGIES
    from traincast.plan.strategies import Ask
    from traincast.plan.strategies import compare as weigh
    from traincast.report.strategy_tables import strategy_tables, wide_table
    from traincast.scenario import load_scenario

    storage = Storage(_rate(storage_rate, "--storage-rate"), _rate(node_rate, "--node-storage-rate"))
    loaded = load_scenario(scenario, parse_overrides(overrides or ()))
    with progress("strategies", len(STRATEGIES)) as advance:
        found = weigh(loaded, Ask(gpus, shard, storage), advance)
    tables = [wide_table(found)] if chosen_format(fmt, output) == "csv" else strategy_tables(found)
    emit(found.as_dict(), tables, fmt, output)


def _rate(text: str, option: str) -> float:
    """Bytes per second above 0. Raises UsageError, with the option, for anything else."""
    from traincast.units import parse_bandwidth

    try:
        rate = parse_bandwidth(text)
    except UserError as error:
        raise UsageError(error.message, where=option, fix=error.fix) from error
    if rate <= 0.0:
        raise UsageError(f"{text!r} is not above 0", where=option, fix="write it like 100 GB/s")
    return rate
