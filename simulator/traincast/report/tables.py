"""Tables in three forms: aligned text, JSON, CSV.

A cell is a plain value (text, number, truth value or None), or a `Cell` that says how it reads. Text output
rounds numbers for reading, CSV and JSON keep them in full. Nothing here cuts a cell: a table may be wider
than the screen when it goes to a file or a pipe.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal, cast

Format = Literal["table", "json", "csv"]

_GAP = "  "
_MAX_DECIMALS = 4
_FIXED_SPAN_DECADES = 6.0


@dataclass(frozen=True)
class Cell:
    """A value that reads in its own way: `text` on screen, `value` in CSV."""

    value: object
    text: str


@dataclass(frozen=True)
class Table:
    """A titled table; every row has one cell for each column. A unit belongs in the column's name."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def __post_init__(self) -> None:
        width = len(self.columns)
        assert all(len(row) == width for row in self.rows), f"{self.title}: a row is not {width} cells long"


def render(payload: Mapping[str, Any], tables: Sequence[Table], fmt: str) -> str:
    """The result as text: `json` dumps the payload, `csv` writes the first table, `table` all of them."""
    if fmt == "json":
        return json.dumps(plain(payload), indent=2, ensure_ascii=False, allow_nan=False)
    if fmt == "csv":
        return render_csv(tables[0]) if tables else ""
    return "\n\n".join(render_text(table) for table in tables)


def render_csv(table: Table) -> str:
    """Header and rows, numbers in full; None is an empty cell, truth values are true and false."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_csv_cell(cell) for cell in row] for row in table.rows)
    return buffer.getvalue().rstrip("\n")


def render_text(table: Table) -> str:
    """Aligned plain text: numbers to the right, as many decimals all along a column, words to the left."""
    cells = text_cells(table)
    widths = [max(len(text) for text in column) for column in zip(table.columns, *cells, strict=True)]
    right = [is_numeric_column(table, index) for index in range(len(table.columns))]

    def line(texts: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(texts, widths, right, strict=True)
        ]
        return _GAP.join(padded).rstrip()

    lines = [table.title] if table.title else []
    lines += [line(table.columns), _GAP.join("-" * width for width in widths)]
    lines += [line(row) for row in cells] or ["(none)"]
    return "\n".join(lines)


def render_markdown(table: Table) -> str:
    """A Markdown table (without the title), numbers rounded as in text output."""
    marks = ["---:" if is_numeric_column(table, index) else "---" for index in range(len(table.columns))]
    rows = [list(table.columns), marks, *text_cells(table)]
    return "\n".join("| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in rows)


def text_cells(table: Table) -> list[list[str]]:
    """The cells as text, row by row, numbers rounded column by column."""
    columns = list(zip(*table.rows, strict=True)) if table.rows else []
    texts = [_column_texts(column) for column in columns]
    return [list(row) for row in zip(*texts, strict=True)]


def is_numeric_column(table: Table, index: int) -> bool:
    """Whether a column holds numbers only (empty cells aside) and at least one."""
    cells = [row[index] for row in table.rows if row[index] is not None]
    return bool(cells) and all(_is_number(_value(cell)) for cell in cells)


def plain(value: object) -> Any:
    """The value as JSON can hold it: dataclasses and arrays unpacked, NaN and infinity turned into null."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if hasattr(value, "tolist"):
        return plain(cast(Any, value).tolist())
    return str(value)


def _value(cell: object) -> object:
    return cell.value if isinstance(cell, Cell) else cell


def _is_number(cell: object) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _csv_cell(cell: object) -> object:
    cell = _value(cell)
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    if isinstance(cell, bool):
        return "true" if cell else "false"
    return repr(float(cell)) if isinstance(cell, float) else cell


def _column_texts(column: Sequence[object]) -> list[str]:
    floats = [abs(cell) for cell in column if isinstance(cell, float) and math.isfinite(cell) and cell != 0.0]
    decimals = _decimals(floats)
    return [_cell_text(cell, decimals) for cell in column]


def _decimals(magnitudes: Sequence[float]) -> int | None:
    """Decimals that show three digits of the smallest number; None where one fixed form cannot hold all."""
    if not magnitudes:
        return 1
    smallest, largest = min(magnitudes), max(magnitudes)
    if largest >= 1e9 or largest < 1e-3 or math.log10(largest / smallest) > _FIXED_SPAN_DECADES:
        return None
    return max(0, min(_MAX_DECIMALS, 2 - math.floor(math.log10(smallest))))


def _cell_text(cell: object, decimals: int | None) -> str:
    if isinstance(cell, Cell):
        return " ".join(cell.text.split())
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        if not math.isfinite(cell):
            return "-"
        return f"{cell:.4g}" if decimals is None else f"{cell:.{decimals}f}"
    return " ".join(str(cell).split())
