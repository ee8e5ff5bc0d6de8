"""Files that `calibrate` writes: looked at before any work is done, and whole or not there at all."""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.report.tables import Table


def check_not_read(output: Path, files: Iterable[Path]) -> None:
    """Raises UsageError where the result would take the place of a file that it is made from."""
    for file in files:
        if output.exists() and file.exists() and output.samefile(file):
            raise UsageError(f"{output} is one of the files that are read", where="-o", fix="name another file")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to; it takes the place of `path` when the block ends well, and goes when it does
    not.

    What is no plain file (a pipe, a terminal) is written to directly. Raises UsageError where that fails.
    """
    target = path.resolve()
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        yield target
        return
    beside = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        yield beside
        if target.exists():
            beside.chmod(stat.S_IMODE(target.stat().st_mode))
        beside.replace(target)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write {path}: {reason}", where="-o", fix="name a file that can be written") from error
    finally:
        beside.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes UTF-8 text; raises UsageError where that fails, and leaves what was there."""
    with whole(path) as beside:
        beside.write_text(text, encoding="utf-8")


def emit_whole(payload: Mapping[str, Any], tables: "Sequence[Table]", form: str, output: Path | None) -> None:
    """A result on standard output, or as a whole file."""
    from traincast.cli.output import emit
    from traincast.report.tables import render

    if output is None:
        emit(payload, tables, form, None)
    else:
        write_whole(output, render(payload, tables, form) + "\n")
