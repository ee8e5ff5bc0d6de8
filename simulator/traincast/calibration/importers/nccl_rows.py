"""One line of an nccl-tests table -> a row, or the reason why it is none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from traincast.calibration.importers.lines import Line
from traincast.calibration.importers.nccl_columns import (
    Fitted,
    fit_columns,
    is_only_numbers,
    starts_like_a_row,
)
from traincast.calibration.importers.rows import Row, Side
from traincast.calibration.ops import DTYPE_BYTES
from traincast.calibration.printed import (
    Printed,
    is_absent,
    is_not_a_number,
    is_placeholder,
    parse_count,
    parse_printed,
    printable,
)

_TO_MICROSECONDS: Final = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
# a row that an NCCL message without an end of line stands in front of
_ROW_BEHIND: Final = re.compile(r"(?<!\S)(\d[\d_]{0,24}\s+\d{1,20}\s+[A-Za-z]\w{1,12}\s+.*)$")
_BLANK_HALF: Final = re.compile(r"\w {24,}[\d.]")
_LARGEST: Final = 1 << 60


@dataclass(frozen=True)
class Columns:
    """What the header of a table says: its columns (None: lost) and the unit of its times."""

    names: tuple[str, ...] | None = None
    unit: str = "us"


@dataclass(frozen=True)
class NotARow:
    """A line that begins as a row does, or is the rest of one, and why it gives none; `size` where it is told."""

    what: str
    size: int | None = None


def read_row(line: Line, columns: Columns) -> Row | NotARow | None:
    """The row that a line holds; why it is none; None where it does not look like a row."""
    text = line.text
    words = text.split()
    if not words and line.cut:
        found = _ROW_BEHIND.search(line.message)
        words = found.group(1).split() if found else []
        if not starts_like_a_row(words) or fit_columns(words, columns.names) is None:
            return None
    if not words or words[0].startswith("#"):
        return None
    massaged = columns.names is not None and "type" not in columns.names
    if not starts_like_a_row(words) and not massaged:
        return NotARow("figures without a row in front, dropped") if is_only_numbers(words) else None
    if massaged and parse_count(words[0]) is None:
        return None
    fitted = fit_columns(words, columns.names)
    if fitted is None:
        return _unfitted(line, words, massaged)
    return _row(line, fitted, columns)


def _unfitted(line: Line, words: list[str], massaged: bool) -> NotARow | None:
    size = parse_count(words[0])
    if line.cut:
        return NotARow("row interrupted by an NCCL message, dropped", size)
    if massaged:
        return None
    return NotARow(f"row of {len(words)} cells fits no layout of nccl-tests (cut or garbled), dropped", size)


def _row(line: Line, fitted: Fitted, columns: Columns) -> Row | NotARow:
    head = fitted.head
    size = parse_count(head["size"])
    if size is None or size > _LARGEST:
        return NotARow(f"size {printable(head['size'], 30)} cannot be, dropped")
    for side in fitted.sides:
        for name, cell in side.items():
            if is_placeholder(cell):
                return NotARow(
                    f"{name} {printable(cell, 20)} is a placeholder, not a measured value; row dropped", size
                )
    sides = [_side(side, columns.unit) for side in fitted.sides]
    unmeasured = [(name, cell) for side in fitted.sides for name, cell in side.items() if is_not_a_number(cell)]
    if unmeasured:
        name, cell = unmeasured[0]
        return NotARow(f"{name} is printed as {cell}: nothing was measured; row dropped", size)
    out, inside = sides[0], sides[1] if len(sides) > 1 else None
    if len(sides) == 1 and _BLANK_HALF.search(line.text) and columns.names and _halves(columns.names) == 2:
        out, inside = None, sides[0]
    if out is None and inside is None:
        return NotARow("no time in this row, dropped", size)
    dtype = head.get("type", "").lower()
    return Row(
        line.number,
        size,
        out,
        inside,
        count=parse_count(head.get("count", "")),
        dtype=dtype if dtype in DTYPE_BYTES else None,
        redop=head["redop"].lower() if "redop" in head else None,
        root=int(head["root"]) if "root" in head else None,
        algo=_word(head, "algo"),
        proto=_word(head, "proto"),
    )


def _halves(names: tuple[str, ...]) -> int:
    return sum(name in ("time", "cputime") for name in names)


def _word(head: Mapping[str, str], name: str) -> str | None:
    word = head.get(name)
    return None if word is None or is_absent(word) else word.lower()


def _side(cells: Mapping[str, str], unit: str) -> Side | None:
    """The figures of one side; None where its time is blank or N/A."""
    host = "cputime" in cells
    time = _figure(cells.get("cputime" if host else "time"))
    if time is None:
        return None
    wrong = _figure(cells.get("wrong"))
    return Side(
        time.times(_TO_MICROSECONDS[unit]),
        _figure(cells.get("algbw")),
        _figure(cells.get("busbw")),
        None if wrong is None else wrong.value,
        host_time=host,
    )


def _figure(cell: str | None) -> Printed | None:
    return None if cell is None else parse_printed(cell)
