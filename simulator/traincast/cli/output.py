"""Where results go: standard output or a file, in the form that was asked for.

Standard output is the result and nothing else; progress and remarks go to standard error.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from traincast.errors import UsageError
from traincast.report.tables import Table, render

_SUFFIXES = (".json", ".csv", ".txt")


class OutputFormat(StrEnum):
    """The forms of a result."""

    table = "table"
    json = "json"
    csv = "csv"


FormatOption = Annotated[
    OutputFormat | None,
    typer.Option(
        "--format", is_eager=True, help="Form of the result; by default that of the file's suffix, else a table."
    ),
]


def refuse_suffix(path: Path, further: Sequence[str] = ()) -> None:
    """Raises UsageError where a file's suffix promises a form that would not be written."""
    known = (*_SUFFIXES, *further)
    if path.suffix and path.suffix.lower() not in known:
        raise UsageError(
            f"{path} ends like no form that can be written",
            where="-o",
            fix=f"end it in {', '.join(known)}, or add --format",
        )


def refuse_unwritable(path: Path, option: str) -> None:
    """Raises UsageError, with the option, where a file could not be written: a folder, no folder, no permission."""
    folder = path.parent
    if path.is_dir():
        what, fix = "it is a folder", "name a file in it"
    elif path.exists():
        what, fix = "no permission", "name another file"
        if os.access(path, os.W_OK):
            return
    elif not folder.is_dir():
        what, fix = f"{folder} is no folder" if folder.exists() else "no such folder", "name a folder that exists"
    else:
        what, fix = f"no permission to write in {folder}", "name a folder that can be written"
        if os.access(folder, os.W_OK | os.X_OK):
            return
    raise UsageError(f"cannot write {path}: {what}", where=option, fix=fix)


def _checked(ctx: typer.Context, path: Path | None) -> Path | None:
    """Looks at suffix and folder before any work is done; --format, which is eager, is known by then."""
    if path is not None:
        if ctx.params.get("fmt") is None:
            refuse_suffix(path)
        refuse_unwritable(path, "-o")
    return path


OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="FILE", callback=_checked, help="Write the result to FILE (.json, .csv or .txt)."
    ),
]


class Advance(Protocol):
    """Tells that `done` more units of work are finished."""

    def __call__(self, done: int = 1) -> None: ...


def emit(
    payload: Mapping[str, Any], tables: Sequence[Table], fmt: str | None = None, output: Path | None = None
) -> None:
    """Writes the result to `output`, or to stdout, in the form `fmt` (None: by the file's suffix, else a
    table).

    Raises UsageError where the file cannot be written.
    """
    form = chosen_format(fmt, output)
    if output is not None:
        write_file(output, render(payload, tables, form) + "\n")
        return
    if sys.stdout is None:
        raise UsageError("standard output is closed", fix="write to a file with -o FILE")
    if form == "table" and sys.stdout.isatty():
        _print_rich(tables)
        return
    try:
        sys.stdout.write(render(payload, tables, form) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write to standard output: {reason}", fix="write to another place with -o") from error


def chosen_format(fmt: str | None, output: Path | None) -> str:
    """`fmt` where it is given; else json or csv where the file's suffix says so; else table."""
    if fmt is not None:
        return str(fmt)
    suffix = output.suffix.lower().lstrip(".") if output is not None else ""
    return suffix if suffix in ("json", "csv") else "table"


def write_file(path: Path, text: str) -> None:
    """Writes UTF-8 text; raises UsageError with the reason where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritten(path, error) from error


def replace_file(path: Path, text: str) -> None:
    """As `write_file`, by way of a file beside it: `path` is never half written."""
    beside = path.with_name(f"{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> UsageError:
    reason = error.strerror or type(error).__name__
    return UsageError(f"cannot write {path}: {reason}", fix="name a file in a folder that exists and is writable")


def remark(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """A progress bar on standard error, if that is a terminal; it goes when the work is done."""
    if not sys.stderr.isatty():

        def silent(done: int = 1) -> None:
            return None

        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def advance(done: int = 1) -> None:
            bar.advance(task, done)

        yield advance


@contextmanager
def working(title: str) -> Iterator[None]:
    """A spinner on standard error, if that is a terminal, for work whose length is not known."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield


def _print_rich(tables: Sequence[Table]) -> None:
    """Tables for a terminal: same cells as the plain form, folded (never cut) to the terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    from traincast.report.tables import is_numeric_column, text_cells

    console = Console()
    for number, table in enumerate(tables):
        if number:
            console.print()
        shown = RichTable(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
        for index, column in enumerate(table.columns):
            justify = "right" if is_numeric_column(table, index) else "left"
            shown.add_column(Text(column), justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in text_cells(table):
            shown.add_row(*(Text(text) for text in row))
        console.print(shown)
