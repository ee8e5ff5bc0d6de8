"""Readers of the logs that people already have, one module a form, and the rules that all of them share."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from traincast.calibration.importers.csv_tables import import_csv
from traincast.calibration.importers.gemm import import_gemm
from traincast.calibration.importers.json_forms import import_json, json_fault
from traincast.calibration.importers.lines import Line, decode, read_lines
from traincast.calibration.importers.nccl_sweep import FAILURE, failure_text
from traincast.calibration.importers.nccl_text import import_nccl_text
from traincast.calibration.importers.nvbandwidth import import_nvbandwidth
from traincast.calibration.importers.record_lines import import_records
from traincast.calibration.importers.torch_tables import import_torch
from traincast.calibration.jsonl import is_record_line
from traincast.calibration.ops import OPS
from traincast.calibration.records import Imported, Problem
from traincast.errors import DataError, UsageError

_TEXT_FORMS: Final[tuple[Callable[[tuple[Line, ...], str | None], Imported], ...]] = (
    import_nccl_text,
    import_csv,
    import_torch,
    import_nvbandwidth,
    import_gemm,
)


def import_file(path: Path, op: str | None = None) -> Imported:
    """Records and problems of a file in any known form; `op` says which collective it is, where it does not.

    Raises DataError where the file cannot be read or is no text; whatever is wrong inside it is a problem.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"cannot read: {reason}", fix="name a file that exists", where=str(path)) from error
    return import_text(decode(data, str(path)), path.name, op)


def import_text(text: str, name: str = "text", op: str | None = None) -> Imported:
    """Records and problems of the text of a file; see `import_file`."""
    if op is not None and op not in OPS:
        raise UsageError(f"{op!r} is no collective", fix=f"one of {', '.join(sorted(OPS))}", where="--op")
    text = text.replace("\r\n", "\n")
    first = text.lstrip()[:200]
    if is_record_line(first):
        return import_records(text, name)
    lines = read_lines(text)
    found = import_json(text, op) if "{" in text else Imported()
    if not found.tables:
        for form in _TEXT_FORMS:
            found = found.joined(form(lines, op))
    return found if found.tables else found.joined(_nothing(lines))


def _nothing(lines: tuple[Line, ...]) -> Imported:
    """The refusal of a file without a table: it names the first failure in it, if there is one."""
    failure = next((line for line in lines if FAILURE.search(line.raw)), None)
    if failure is not None:
        what = f"no table of measurements; the run failed: {failure_text(failure)}"
        return Imported((), (Problem(failure.number, what, "refused"),))
    first = next((line for line in lines if line.text.strip()), None)
    if first is None:
        return Imported((), (Problem(1, "the file is empty", "refused"),))
    if first.text.lstrip()[:1] in "{[":
        line, what = json_fault("\n".join(line.raw for line in lines))
        return Imported((), (Problem(line, what, "refused"),))
    return Imported((), (Problem(first.number, "no table of measurements in a known form", "refused"),))
