"""`traincast report`: tables and figures of published studies, regenerated."""

from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.output import FormatOption, emit, progress, remark
from traincast.cli.predict import SetOption, parse_overrides


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
