"""Tables of collectives as CSV: rccl-tests, nccl-tests with a CSV option, look-up tables such as vTrain's."""

import csv
import re
from collections.abc import Sequence
from typing import Final

from traincast.calibration.importers.flat import FlatRow, column_name, flat_tables
from traincast.calibration.importers.judge import judge_tables
from traincast.calibration.importers.lines import Line
from traincast.calibration.importers.rows import RawTable
from traincast.calibration.records import Imported, Problem, RunInfo

_UNITS: Final = re.compile(r'["\s]*\((?:B|elements|us|ns|GB/s|%)\)["\s]*')
_DATA: Final = re.compile(r'[\s"]*[\d.]')


def import_csv(lines: Sequence[Line], given_op: str | None = None) -> Imported:
    """Records of all CSV tables in the lines of a file."""
    tables: list[RawTable] = []
    problems: list[Problem] = []
    index = 0
    while index < len(lines):
        names = _header(lines[index].raw)
        index += 1
        if names is None:
            continue
        rows, bad, index = _rows(lines, index, names)
        found, worse = flat_tables(rows, RunInfo(tool="csv"))
        tables += found
        problems += [*bad, *worse]
    if not tables and not problems:
        return Imported()
    return Imported((), tuple(problems), max(1, len(tables)) - len(tables)).joined(judge_tables(tables, given_op))


def _header(raw: str) -> tuple[tuple[str, float], ...] | None:
    """Names and scales of the columns of a header line, the second of a pair marked; None for other lines."""
    if raw.count(",") < 3:
        return None
    names = [column_name(cell) for cell in _cells(raw)]
    known = {name for name, _ in names if name}
    if "size" not in known or not known & {"time", "cputime"} or len(known) < 3:
        return None
    seen: set[str] = set()
    marked = []
    for name, scale in names:
        marked.append((f"{name}'" if name in seen else name, scale))
        seen.add(name)
    return tuple(marked)


def _rows(
    lines: Sequence[Line], start: int, names: Sequence[tuple[str, float]]
) -> tuple[list[FlatRow], list[Problem], int]:
    """The rows below a header, lines that should have been rows, and the index of the first line after them."""
    rows: list[FlatRow] = []
    problems: list[Problem] = []
    index = start
    while index < len(lines):
        raw = lines[index].raw
        cells = _cells(raw)
        if index == start and any(_UNITS.fullmatch(cell) for cell in cells):
            index += 1
            continue
        if not raw.strip() or raw.count(",") < 2 or _header(raw) is not None:
            break
        if len(cells) == len(names):
            rows.append(FlatRow(lines[index].number, _named(names, cells)))
        elif _DATA.match(raw):
            what = f"{len(cells)} cells under {len(names)} columns; row dropped"
            problems.append(Problem(lines[index].number, what))
        else:
            break
        index += 1
    return rows, problems, index


def _named(names: Sequence[tuple[str, float]], cells: Sequence[str]) -> dict[str, str]:
    named = {name: cell.strip() for (name, _), cell in zip(names, cells, strict=True) if name.strip("'")}
    return named | {f"{name.rstrip(chr(39))}*": repr(scale) for name, scale in names if name and scale != 1.0}


def _cells(raw: str) -> list[str]:
    try:
        return next(csv.reader([raw], skipinitialspace=True), [])
    except csv.Error:
        return []
