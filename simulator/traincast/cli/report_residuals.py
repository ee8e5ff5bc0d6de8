"""`traincast report residuals`: where the error stays, and what it goes with."""

from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.output import FormatOption, chosen_format, emit, progress, remark


def residuals(
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the page, its CSV and the pictures.")
    ] = Path("reports/validation"),
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Only rows of this family. Repeatable."),
    ] = None,
    fmt: FormatOption = None,
) -> None:
    """Study the errors of published rows: against every axis, a picture a family, with what is known to be missing.

    Writes residuals.md, residuals.csv and a picture of every family that has scored rows.
    """
    from traincast.report.residuals import ready_folder, rows_table, study_residuals, write_residuals
    from traincast.report.residuals_notes import load_notes, notes_file
    from traincast.report.residuals_page import summary_table
    from traincast.validate import published_files, read_published, validate_rows

    published = read_published(published_files())
    notes = load_notes(notes_file(), dict.fromkeys(row.family for row in published))
    rows = read_published(published_files(), families=family) if family else published
    ready_folder(folder)
    with progress("rows", len(rows)) as advance:
        report = validate_rows(rows, advance)
    families = study_residuals(report, rows, notes)
    for path in write_residuals(families, folder):
        remark(f"wrote {path}")
    tables = [rows_table(families)] if chosen_format(fmt, None) == "csv" else [summary_table(families)]
    emit({"families": [one.as_dict() for one in families]}, tables, fmt)
    for line in report.failures:
        remark(line)
    if report.failures:
        raise typer.Exit(1)
