"""The command `traincast`: registers the commands and turns errors into one line and an exit code.

Exit codes: 0 fine, 1 a failure of the program, 2 an error that the user can mend. Modules imported here stay
light; what a command needs is imported when it runs, so that `traincast --help` answers at once.
"""

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from traincast import __version__
from traincast.cli import (
    calibrate,
    calibrate_fit,
    calibrate_run,
    compare,
    mesh,
    plan,
    predict,
    report,
    report_residuals,
    report_schedules,
    sweep,
    topology,
    topology_check,
    topology_import,
    validate,
)
from traincast.errors import TraincastError

_GLOBAL_FLAGS = ("--debug",)
_GLOBAL_VALUES = ("--catalog",)

app = typer.Typer(
    name="traincast",
    help="Forecasts one training step of a large transformer on a GPU cluster that nobody has booked yet.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
topology_app = typer.Typer(help="Clusters: list them, show and draw one, check its wiring.", rich_markup_mode=None)
mesh_app = typer.Typer(rich_markup_mode=None)
calibrate_app = typer.Typer(
    help="Calibration: measure, read what exists, fit a profile, compare.", rich_markup_mode=None
)
report_app = typer.Typer(help="Tables, figures and timelines.", rich_markup_mode=None)

app.command("predict")(predict.predict)
app.command("sweep")(sweep.sweep)
app.command("compare")(compare.compare)
app.command("validate")(validate.validate)
app.command("plan")(plan.plan)
mesh_app.callback(invoke_without_command=True)(mesh.mesh)
mesh_app.command("suggest")(plan.suggest)
mesh_app.command("check")(plan.check)
topology_app.command("list")(topology.list_)
topology_app.command("show")(topology.show)
topology_app.command("check")(topology_check.check)
topology_app.command("import")(topology_import.import_)
report_app.command("sc21")(report.sc21)
report_app.command("timeline")(report.timeline)
report_app.command("schedules")(report_schedules.schedules)
report_app.command("residuals")(report_residuals.residuals)
app.add_typer(mesh_app, name="mesh")
calibrate_app.command("run")(calibrate_run.run)
calibrate_app.command("import")(calibrate.import_)
calibrate_app.command("fit")(calibrate_fit.fit)
calibrate_app.command("show")(calibrate_fit.show)
calibrate_app.command("check")(calibrate_fit.check)
app.add_typer(report_app, name="report")
app.add_typer(calibrate_app, name="calibrate")
app.add_typer(topology_app, name="topology")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"traincast {__version__}")
        raise typer.Exit


@app.callback()
def common(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    catalog: Annotated[
        Path | None,
        typer.Option("--catalog", metavar="DIR", help="A folder with parts and clusters of your own, searched first."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command; they may stand before or after the command's name."""
    if catalog is not None:
        from traincast.catalog import EXTRA_VARIABLE

        os.environ[EXTRA_VARIABLE] = str(catalog)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    arguments = globals_first(sys.argv[1:] if argv is None else list(argv))
    debug = "--debug" in arguments
    if sys.stderr is None:  # closed by whoever started us
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    try:
        code = app(arguments or ["--help"], prog_name="traincast", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        _discard_stdout()
        return 1
    except Exception as error:
        if isinstance(error.__cause__ or error, OSError):
            _discard_unwritten()
        if debug:
            traceback.print_exc()
        # a line for each problem where somebody reads along, one line for all of them in a log
        line, code = describe(error, separator="\n  " if sys.stderr.isatty() else "; ")
        sys.stderr.write(f"traincast: {line}\n")
        return code


def globals_first(arguments: Sequence[str]) -> list[str]:
    """The arguments with the options of every command moved to the front, wherever they were written."""
    front: list[str] = []
    rest: list[str] = []
    pending = list(arguments)
    while pending:
        word = pending.pop(0)
        if word == "--":
            rest += [word, *pending]
            break
        if word in _GLOBAL_VALUES:
            front += [word, *pending[:1]]
            pending = pending[1:]
        elif word in _GLOBAL_FLAGS or word.startswith(tuple(f"{name}=" for name in _GLOBAL_VALUES)):
            front.append(word)
        else:
            rest.append(word)
    return front + rest


def describe(error: Exception, separator: str = "; ") -> tuple[str, int]:
    """What to say about an error, and the exit code that belongs to it.

    A file with several problems is reported with all of them, `separator` between.
    """
    if isinstance(error, TraincastError):
        head, *others = map(_one_line, str(error).splitlines() or [type(error).__name__])
        return (f"{head}: {separator.join(others)}" if others else head), error.exit_code
    if isinstance(error, typer.Abort):
        return "stopped", 1
    format_message = getattr(error, "format_message", None)
    if callable(format_message):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "traincast"
        words = _one_line(str(format_message()).replace("Value error, ", "")).rstrip(".")
        return f"{words} (fix: see '{command} --help')", 2
    detail = _one_line(str(error))
    name = type(error).__name__
    return f"unexpected {name}{': ' if detail else ''}{detail} (run with --debug for the traceback)", 1


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _discard_unwritten() -> None:
    """Points stdout at nothing where it can take no more; what it holds would be tried again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _discard_stdout()


def _discard_stdout() -> None:
    """Points stdout at nothing, so that the interpreter's own flush at exit stays quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
