"""`traincast validate`: published measurements against forecasts."""

import os
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, progress, remark
from traincast.errors import UsageError

_MANY = 200
"""Rows from which on more than one process pays."""


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[CSV ...]", help="Files of measured rows; by default those that come along."),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Only rows of this family. Repeatable."),
    ] = None,
    max_mape: Annotated[
        float | None,
        typer.Option("--max-mape", metavar="PERCENT", help="Exit with 1 when a family's mean error is above this."),
    ] = None,
    collectives: Annotated[
        bool,
        typer.Option("--collectives", help="Measured collectives in place of training steps (curves of nccl-tests)."),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", min=1, help="Processes that share the rows; by default one a core, up to eight."),
    ] = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Forecast published rows and compare: per row, and per family beside the null forecast.

    With --collectives the files hold measured collectives, and the comparison is by point, curve and hardware.
    """
    if max_mape is not None and not (isfinite(max_mape) and max_mape >= 0):
        raise UsageError(f"{max_mape} is no error to stay below", where="--max-mape", fix="give percent from 0 up")
    if collectives:
        if family:
            raise UsageError("collectives have no families", where="--family", fix="leave it out with --collectives")
        _collectives(files, max_mape, fmt, output)
        return
    from traincast.report.validation_tables import validation_tables
    from traincast.validate import published_files, read_published, validate_rows

    rows = read_published(files or published_files(), families=tuple(family or ()))
    with progress("rows", len(rows)) as advance:
        report = validate_rows(rows, advance, processes=_processes(jobs, len(rows)))
    emit(report.as_dict(), validation_tables(report, chosen_format(fmt, output)), fmt, output)
    for line in report.failures:
        remark(line)
    above = [one for one in report.families if max_mape is not None and (one.mape_pct or 0.0) > max_mape]
    for one in above:
        remark(f"family {one.family}: mean error {one.mape_pct:.1f} % is above {max_mape:g} %")
    if report.failures or above:
        raise typer.Exit(1)


def _processes(asked: int | None, rows: int) -> int:
    """As many as asked for; else one a core for tables that take longer than a process takes to start."""
    if asked is not None:
        return asked
    return min(os.cpu_count() or 1, 8) if rows >= _MANY else 1


def _collectives(files: list[Path] | None, max_mape: float | None, fmt: str | None, output: Path | None) -> None:
    """Measured collectives against forecasts; ends with 1 where the scored curves' median error is above `max_mape`."""
    from traincast.report.collective_tables import collective_tables
    from traincast.validate.collectives import collective_files, read_collectives, validate_collectives

    curves = read_collectives(files or collective_files())
    with progress("curves", len(curves)) as advance:
        report = validate_collectives(curves, advance)
    emit(report.as_dict(), collective_tables(report, chosen_format(fmt, output)), fmt, output)
    above = [one for one in report.hardware if max_mape is not None and (one.scored_median_pct or 0.0) > max_mape]
    for one in above:
        remark(f"{one.profile}: median error of scored curves {one.scored_median_pct:.1f} % is above {max_mape:g} %")
    if above:
        raise typer.Exit(1)
