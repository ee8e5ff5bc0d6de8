"""`traincast report`: tables and figures of published studies, regenerated."""

from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.output import FormatOption, emit, progress, remark
from traincast.cli.predict import SetOption, parse_overrides

OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="NAME[,NAME ...]", help="Only these: table1, table2, fig11 to fig18. Repeatable."),
]


def sc21(
    folder: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for tables, figures and their index.")
    ] = Path("reports/sc21"),
    only: OnlyOption = None,
    fmt: FormatOption = None,
) -> None:
    """Regenerate Tables 1 and 2 and Figures 11 to 18 of Narayanan et al. 2021 (SC21) beside the published points."""
    from traincast.report.sc21 import (
        chosen_studies,
        forecast_studies,
        index_table,
        ready_folder,
        study_rows,
        study_table,
        write_studies,
    )

    names = [name.strip() for text in only or () for name in text.split(",")]
    studies = chosen_studies(names)
    rows = study_rows(studies)
    ready_folder(folder)
    with progress("rows", len(rows)) as advance:
        results = forecast_studies(studies, rows, advance)
    for path in write_studies(results, folder):
        remark(f"wrote {path}")
    tables = [study_table(results[0])] if len(results) == 1 else [index_table(results)]
    emit({"studies": [one.as_dict() for one in results]}, tables, fmt)


def timeline(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO...", help="Scenarios to draw, one above the other.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="The picture: .png, .svg or .pdf.")
    ] = Path("timeline.png"),
    overrides: SetOption = None,
) -> None:
    """Draw what every pipeline stage does in one step: passes, messages, reductions, idle time."""
    from traincast.forecast import forecast
    from traincast.report.timeline import draw_timeline, panel_of
    from traincast.scenario import load_scenario

    pairs = parse_overrides(overrides or ())
    panels = [panel_of(forecast(load_scenario(name, pairs))) for name in scenarios]
    draw_timeline(panels, output)
    remark(f"wrote {output}")
