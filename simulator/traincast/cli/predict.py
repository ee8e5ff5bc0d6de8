"""`traincast predict`: one scenario, one forecast."""

import json
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.hashes import FlowsOption, SeedOption, hashed, refuse_without_ecmp
from traincast.cli.output import FormatOption, OutputOption, emit, refuse_unwritable, remark, working, write_file
from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.forecast import Run


class EngineName(StrEnum):
    """The evaluators of a program."""

    des = "des"
    analytic = "analytic"


ScenarioArgument = Annotated[
    str,
    typer.Argument(metavar="SCENARIO", help="A scenario file, or the name of one that comes along (sc21/t1_1008b)."),
]


class SharingName(StrEnum):
    """How flows of different kinds share links."""

    static = "static"
    adaptive = "adaptive"
    ecmp = "ecmp"


SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Overrides one key, such as parallelism.tp=4. Repeatable."),
]


def predict(
    scenario: ScenarioArgument,
    overrides: SetOption = None,
    engine: Annotated[
        EngineName, typer.Option("--engine", help="des: the discrete-event engine; analytic: the recurrence.")
    ] = EngineName.des,
    sharing: Annotated[
        SharingName,
        typer.Option(
            "--sharing",
            help="How messages and gradient buckets share links: static (the default), each kind by itself; adaptive or"
            " ecmp, max-min in the event engine over ideal bundles or by hash.",
        ),
    ] = SharingName.static,
    ecmp_flows: FlowsOption = None,
    ecmp_seed: SeedOption = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Also write the step as a Chrome trace.")
    ] = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Forecast one training step: time, rates, breakdown, traffic, memory."""
    from traincast.degraded import forecast_with_losses
    from traincast.report.forecast_tables import forecast_tables
    from traincast.report.hash_table import hash_table
    from traincast.report.job_text import job_of
    from traincast.scenario import load_scenario

    refuse_without_ecmp(sharing.value, ecmp_flows, ecmp_seed)
    if trace is not None and output is not None and trace.resolve() == output.resolve():
        raise UsageError(f"{trace} is also the file of -o", where="--trace", fix="give the two files two names")
    if trace is not None:
        refuse_unwritable(trace, "--trace")
    loaded = load_scenario(scenario, parse_overrides(overrides or ()))
    if overrides and loaded.published:
        note = "the published figure is left out: --set asks for another job than the one that was measured"
        loaded = replace(loaded, published=None, assumptions=(*loaded.assumptions, note))
    spread = None
    with working(f"forecasting {loaded.name}"):
        if sharing is SharingName.ecmp:
            spread = hashed(loaded, ecmp_flows, ecmp_seed, engine.value)
            outcome = spread.chosen()["median"][1]
        else:
            outcome = forecast_with_losses(
                loaded, engine=engine.value, sharing="adaptive" if sharing is SharingName.adaptive else "static"
            )
    if trace is not None:
        _write_trace(trace, outcome.run, outcome.scenario)
    tables = forecast_tables(outcome, loaded)
    if spread is not None and len(spread.seeds) > 1:
        tables = (tables[0], hash_table(spread), *tables[1:])
    payload = outcome.as_dict() | {
        "job": job_of(loaded) | {"sharing": sharing.value},
        "ecmp": spread.as_dict() if spread else None,
    }
    emit(payload, tables, fmt, output)


def parse_overrides(texts: Sequence[str]) -> list[tuple[str, str]]:
    """`a.b=c` as (a.b, c). Raises UsageError for anything else."""
    pairs = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{text!r} is not KEY=VALUE", where="--set", fix="write it like --set parallelism.tp=4")
        pairs.append((key.strip(), value.strip()))
    return pairs


def _write_trace(path: Path, run: "Run", title: str) -> None:
    from traincast.report.trace import chrome_trace

    write_file(path, json.dumps(chrome_trace(run.program, run.result, title), separators=(",", ":")))
    remark(f"wrote {path}: open it in Perfetto or chrome://tracing")
