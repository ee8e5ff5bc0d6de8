"""`traincast report schedules`: what each pipeline schedule looks like and costs."""

from pathlib import Path
from typing import Annotated

import typer

from traincast.cli.output import FormatOption, emit, remark

_Seconds = Annotated[float, typer.Option(min=0.0, help="Seconds of one microbatch on one stage.")]


def schedules(
    stages: Annotated[int, typer.Option("--pp", min=2, max=32, help="Pipeline stages.")] = 4,
    microbatches: Annotated[int, typer.Option("-m", "--microbatches", min=1, max=128, help="Microbatches.")] = 8,
    forward: _Seconds = 1.0,
    input_gradient: _Seconds = 1.0,
    weight_gradient: _Seconds = 1.0,
    message: Annotated[float, typer.Option(min=0.0, help="Seconds of one message between stages.")] = 0.0,
    folder: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder for the pictures.")] = Path(
        "reports/schedules"
    ),
    fmt: FormatOption = None,
) -> None:
    """Draw every pipeline schedule as its paper prints it, beside its bubble and the activations it holds."""
    from traincast.report.schedules import as_dict, draw_schedules, schedules_table
    from traincast.schedule import PassTimes

    times = PassTimes(forward, input_gradient, weight_gradient, message)
    drawing = draw_schedules(stages, microbatches, times, folder)
    for path in drawing.files:
        remark(f"wrote {path}")
    emit(as_dict(drawing), [schedules_table(drawing)], fmt)
