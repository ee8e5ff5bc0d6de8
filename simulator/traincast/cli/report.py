"""`traincast report`: tables and figures of published studies, regenerated."""

from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.output import FormatOption, emit, progress, remark


def sc21(
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the table and its figure.")
    ] = Path("reports/sc21"),
    fmt: FormatOption = None,
) -> None:
    """Regenerate Table 1 of Narayanan et al. 2021 (SC21) beside its published numbers."""
    from traincast.report.sc21 import forecast_table1, sc21_scenarios, table1, write_sc21

    scenarios = sc21_scenarios()
    with progress("forecasts", len(scenarios)) as advance:
        rows = forecast_table1(scenarios, advance)
    for path in write_sc21(rows, folder):
        remark(f"wrote {path}")
    emit({"rows": rows}, [table1(rows)], fmt)
