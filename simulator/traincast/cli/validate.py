"""`traincast validate`: published measurements against forecasts."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, progress, remark
from traincast.errors import UsageError


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
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Forecast published rows and compare: per row, and per family beside the null forecast."""
    if max_mape is not None and not (isfinite(max_mape) and max_mape >= 0):
        raise UsageError(f"{max_mape} is no error to stay below", where="--max-mape", fix="give percent from 0 up")
    from traincast.report.validation_tables import validation_tables
    from traincast.validate import published_files, read_published, validate_rows

    rows = read_published(files or published_files(), families=tuple(family or ()))
    with progress("rows", len(rows)) as advance:
        report = validate_rows(rows, advance)
    emit(report.as_dict(), validation_tables(report, chosen_format(fmt, output)), fmt, output)
    for line in report.failures:
        remark(line)
    above = [one for one in report.families if max_mape is not None and (one.mape_pct or 0.0) > max_mape]
    for one in above:
        remark(f"family {one.family}: mean error {one.mape_pct:.1f} % is above {max_mape:g} %")
    if report.failures or above:
        raise typer.Exit(1)
