"""Tables whose rows name their columns: CSV lines and JSON objects -> the same raw tables as text gives.

In-place figures are a second set of columns, or rows of their own (`inPlace`), which are then joined with
the row of the same size that is out of place.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from traincast.calibration.importers.rows import Evidence, RawTable, Row, Side
from traincast.calibration.ops import DTYPE_BYTES, op_name
from traincast.calibration.printed import (
    Printed,
    is_absent,
    is_not_a_number,
    is_placeholder,
    parse_payload,
    parse_printed,
    printable,
)
from traincast.calibration.records import Problem, RunInfo

# spelling (lower case, letters, digits and # only) -> name used here
NAMES: Final = {
    "size": "size",
    "sizebytes": "size",
    "bytes": "size",
    "messagesize": "size",
    "payload": "size",
    "count": "count",
    "type": "type",
    "dtype": "type",
    "redop": "redop",
    "root": "root",
    "time": "time",
    "latency": "time",
    "algbw": "algbw",
    "busbw": "busbw",
    "wrong": "wrong",
    "#wrong": "wrong",
    "nwrong": "wrong",
    "error": "wrong",
    "inplace": "inplace",
    "name": "op",
    "op": "op",
    "collective": "op",
    "nodes": "nodes",
    "ranks": "ranks",
    "gpus": "ranks",
    "nranks": "ranks",
    "cputime": "cputime",
}
_TIME_UNITS: Final = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}
_RATE_UNITS: Final = {"gb/s": 1.0, "gbps": 1.0, "mb/s": 1e-3, "gbit/s": 0.125}
_FIGURES: Final = ("time", "cputime", "algbw", "busbw", "wrong")


@dataclass(frozen=True)
class FlatRow:
    """One row as text: its line, and the cells by name; the second of a pair of columns ends in `'`."""

    line: int
    cells: Mapping[str, str]


def column_name(text: str) -> tuple[str, float]:
    """The name of a column and the factor to microseconds or GB/s that its unit asks for; empty if unknown.

    ``time(ns)`` -> (``time``, 0.001).
    """
    cleaned = text.strip().strip('"').strip()
    unit = re.search(r"\(([^)]*)\)\s*$", cleaned)
    bare = cleaned[: unit.start()] if unit else cleaned
    name = NAMES.get(re.sub(r"[^a-z0-9#]", "", bare.lower()), "")
    written = unit.group(1).strip().lower() if unit else ""
    scales = _TIME_UNITS if name in ("time", "cputime") else _RATE_UNITS if name in ("algbw", "busbw") else {}
    return name, scales.get(written, 1.0)


def flat_tables(
    rows: Sequence[FlatRow], run: RunInfo, evidence: Evidence | None = None
) -> tuple[tuple[RawTable, ...], tuple[Problem, ...]]:
    """Raw tables of rows that belong to one run, one for each collective and number of ranks; bad rows."""
    evidence = evidence or Evidence()
    parsed: dict[tuple[str | None, int | None, int | None], list[Row]] = {}
    problems: list[Problem] = []
    for flat in rows:
        row = _row(flat)
        if isinstance(row, Problem):
            problems.append(row)
            continue
        op = op_name(flat.cells["op"]) if "op" in flat.cells else evidence.told_op
        key = (op, _whole(flat.cells.get("ranks")), _whole(flat.cells.get("nodes")))
        parsed.setdefault(key, []).append(row)
    tables = []
    for (op, ranks, nodes), found in parsed.items():
        joined = _joined(found)
        told = replace(
            evidence,
            told_op=op,
            told_ranks=ranks or evidence.told_ranks,
            nodes=nodes or evidence.nodes,
        )
        tables.append(RawTable(joined[0].line, tuple(joined), told, run))
    return tuple(tables), tuple(problems)


def _row(flat: FlatRow) -> Row | Problem:
    cells = flat.cells
    size = parse_payload(cells.get("size", ""))
    if size is None or size > 1 << 60:
        return Problem(flat.line, f"size {printable(cells.get('size', ''), 30)!r} is no number of bytes; row dropped")
    bad = next((name for name in cells if name.rstrip("'") in _FIGURES and _unmeasured(cells[name])), None)
    if bad is not None:
        return Problem(
            flat.line, f"{bad.rstrip(chr(39))} {printable(cells[bad], 20)} is not a measured value; row dropped"
        )
    out, inside = _side(cells, ""), _side(cells, "'")
    if out is None and inside is None:
        return Problem(flat.line, "neither a time nor a bandwidth in this row; dropped")
    if cells.get("inplace", "").strip().lower() in ("1", "true"):
        out, inside = None, out
    dtype = cells.get("type", "").lower()
    redop = cells.get("redop", "").strip().lower()
    root = cells.get("root", "").strip()
    return Row(
        flat.line,
        size,
        out,
        inside,
        count=_whole(cells.get("count")),
        dtype=dtype if dtype in DTYPE_BYTES else None,
        redop=redop if (redop and not is_absent(redop)) or redop == "none" else None,
        root=int(root) if re.fullmatch(r"-?\d{1,6}", root) else None,
    )


def _joined(rows: Sequence[Row]) -> list[Row]:
    """Rows of their own for in-place figures joined with the row before them that is of the same size."""
    joined: list[Row] = []
    for row in rows:
        previous = joined[-1] if joined else None
        alike = previous is not None and (previous.size, previous.dtype, previous.redop, previous.root) == (
            row.size,
            row.dtype,
            row.redop,
            row.root,
        )
        if previous is not None and alike and row.out is None and previous.inside is None:
            joined[-1] = replace(previous, inside=row.inside)
        else:
            joined.append(row)
    return joined


def _unmeasured(cell: str) -> bool:
    return is_not_a_number(cell) or (is_placeholder(cell) and not is_absent(cell))


def _side(cells: Mapping[str, str], mark: str) -> Side | None:
    host = f"cputime{mark}" in cells
    time = _figure(cells, f"{'cputime' if host else 'time'}{mark}")
    algbw, busbw = _figure(cells, f"algbw{mark}"), _figure(cells, f"busbw{mark}")
    if time is None and algbw is None:
        return None
    wrong = _figure(cells, f"wrong{mark}")
    return Side(time, algbw, busbw, None if wrong is None else wrong.value, host_time=host)


def _figure(cells: Mapping[str, str], name: str) -> Printed | None:
    text = cells.get(name)
    found = None if text is None else parse_printed(text)
    scale = parse_printed(cells.get(f"{name.rstrip(chr(39))}*", "1"))
    if found is None or scale is None:
        return None
    if text is not None and scale.value != 1 and text.isdecimal():
        # 92790 ns were 92.79 us before somebody converted them: zeros at the end are no digits
        zeros = len(text) - len(text.rstrip("0"))
        found = replace(found, half=found.half * 10.0**zeros)
    return found.times(scale.value)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\s*\d{1,18}\s*", text) else None
