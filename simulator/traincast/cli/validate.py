"""`traincast validate`: published measurements against forecasts."""

import os
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, progress, remark
from traincast.errors import UsageError
from traincast.units import counted

if TYPE_CHECKING:
    from traincast.validate import ValidationReport

_MANY = 200
"""Rows from which on more than one process pays."""
_SHOWN = 5
"""Rows of a kind that are told by name."""


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
        typer.Option(
            "--max-mape",
            metavar="PERCENT",
            help="Exit with 1 when a family's mean error is above this, when none of its rows is scored (of FILES or"
            " families that are named), and when a cell cannot be read.",
        ),
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
    for lines in (report.failures, report.unreadable, report.twice):
        _tell(lines)
    missed = () if max_mape is None else tuple(_missed(report, max_mape, named=bool(files or family)))
    for line in missed:
        remark(line)
    if report.failures or missed:
        raise typer.Exit(1)


def _tell(lines: Sequence[str]) -> None:
    """The first of some rows, and how many more there are."""
    for line in lines[:_SHOWN]:
        remark(line)
    if len(lines) > _SHOWN:
        remark(f"{len(lines) - _SHOWN} more such rows; --format json lists all")


def _missed(report: "ValidationReport", max_mape: float, named: bool) -> Iterator[str]:
    """Why a report does not stay below a mean error: nothing that could be above it is no success.

    Of all tables that come along some have no row that can be scored; only where they were `named` is that a failure.
    """
    if not report.rows:
        yield "no row to score"
    for one in report.families:
        if one.mape_pct is None and named:
            yield f"family {one.family}: none of its {one.n} rows is scored, so no error is below {max_mape:g} %"
        elif one.mape_pct is not None and one.mape_pct > max_mape:
            yield f"family {one.family}: mean error {one.mape_pct:.1f} % is above {max_mape:g} %"
    if report.unreadable:
        yield f"{counted(len(report.unreadable), 'row')} left out: cells that cannot be read"


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
