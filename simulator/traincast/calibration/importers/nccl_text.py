"""nccl-tests and rccl-tests as text: every table of a log with what stands around it.

A table ends at its foot, at the next header or list of ranks after its rows, or with the file. What stands
between two tables belongs to the second; the lines behind the rows tell how the run ended.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from traincast.calibration.importers.banner import (
    Banner,
    Rank,
    count_nodes,
    highest_rank,
    read_banner,
    read_rank,
)
from traincast.calibration.importers.judge import judge_tables
from traincast.calibration.importers.lines import Line
from traincast.calibration.importers.nccl_columns import header_columns, time_unit
from traincast.calibration.importers.nccl_rows import Columns, NotARow, read_row
from traincast.calibration.importers.nccl_sweep import sweep_problems
from traincast.calibration.importers.rows import Evidence, RawTable, Row
from traincast.calibration.records import Imported, Problem

_OPENING: Final = re.compile(r"nThread \d+ nGpus|Using devices|Collective test starting")
_FOOT: Final = "Avg bus bandwidth"
_DOTS: Final = ("...", "…", "[...]")


@dataclass
class _Open:
    """The table that is being read: indices of lines, rows so far."""

    start: int
    first: int = -1
    last: int = -1
    columns: Columns = field(default_factory=Columns)
    rows: list[Row] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    interrupted: bool = False


def import_nccl_text(lines: Sequence[Line], given_op: str | None = None) -> Imported:
    """Records of all nccl-tests tables in the lines of a log."""
    return judge_tables(read_tables(lines), given_op)


def read_tables(lines: Sequence[Line]) -> tuple[RawTable, ...]:
    """All tables of a log, with every row that reads as one."""
    tables: list[RawTable] = []
    table = _Open(0)
    for index, line in enumerate(lines):
        begins = header_columns(line.bare)
        if table.first >= 0 and (begins or _opens(line)):
            tables.append(_closed(lines, table, index))
            table = _Open(table.last + 1)
        if begins:
            table.columns = replace(table.columns, names=begins)
            continue
        unit = time_unit(line.text)
        if unit is not None:
            table.columns = replace(table.columns, unit=unit)
            continue
        found = read_row(line, table.columns)
        if isinstance(found, Row) and table.rows and _other_kind(table.rows[-1], found):
            tables.append(_closed(lines, table, index))
            table = _Open(index, columns=table.columns)
        _add(table, index, line, found)
        if table.first >= 0 and _FOOT in line.text:
            tables.append(_closed(lines, table, index + 1))
            table = _Open(index + 1)
    if table.first >= 0:
        tables.append(_closed(lines, table, len(lines)))
    return tuple(tables)


def _opens(line: Line) -> bool:
    return _OPENING.search(line.text) is not None or read_rank(line) is not None


def _other_kind(row: Row, other: Row) -> bool:
    """Whether two rows cannot be of one collective: only one of them reduces, or only one has the column."""
    return (row.redop in (None, "none"), row.redop is None) != (other.redop in (None, "none"), other.redop is None)


def _add(table: _Open, index: int, line: Line, found: Row | NotARow | None) -> None:
    """Adds a line to the open table, if it is a row or what is left of one."""
    if isinstance(found, Row):
        table.rows.append(found)
        table.sizes.append((line.number, found.size))
    elif isinstance(found, NotARow):
        if found.size is None and not table.interrupted and table.first < 0:
            return
        table.problems.append(Problem(line.number, found.what, "dropped"))
        if found.size is not None:
            table.sizes.append((line.number, found.size))
    elif table.first >= 0 and line.bare in _DOTS:
        after = f" after size {table.sizes[-1][1]}" if table.sizes else ""
        table.problems.append(Problem(line.number, f"rows are left out here{after} ('...')", "note"))
        return
    else:
        return
    table.interrupted = isinstance(found, NotARow)
    table.first = index if table.first < 0 else table.first
    table.last = index


def _closed(lines: Sequence[Line], table: _Open, end: int) -> RawTable:
    """The table with the evidence that stands around it; `end` is the index of the first line of the next."""
    behind = lines[table.last + 1 : end]
    banner = read_banner(lines[table.start : table.first], [*lines[table.first : table.last + 1], *behind])
    again = _listed_again(banner.ranks)
    latest = _latest(banner.ranks)
    dropped = any(one.severity == "dropped" for one in table.problems)
    rows = tuple(table.rows)
    notes = sweep_problems(rows, table.sizes, behind, banner.sweep, complete=not dropped)
    names = table.columns.names
    return RawTable(
        line=lines[table.first].number,
        rows=rows,
        evidence=_evidence(banner, latest, again, None if names is None else frozenset(names)),
        run=banner.run,
        problems=(*table.problems, *notes),
    )


def _evidence(
    banner: Banner, ranks: Sequence[Rank], again: tuple[int, ...], columns: frozenset[str] | None
) -> Evidence:
    listed = highest_rank(ranks)
    return Evidence(
        columns=columns,
        text_op=banner.text_op,
        text_line=banner.text_line,
        listed=listed,
        elided=banner.elided,
        complete=len({one.rank for one in ranks}) == listed,
        told_ranks=banner.told_ranks,
        command_ranks=banner.command_ranks,
        nodes=count_nodes(ranks, listed),
        same_rank_lines=again,
    )


def _listed_again(ranks: Sequence[Rank]) -> tuple[int, ...]:
    """Lines in which rank 0 is listed again as another process."""
    first = [one for one in ranks if one.rank == 0]
    seen = {(one.process, one.host): one.line for one in reversed(first)}
    return tuple(sorted(seen.values()))[1:]


def _latest(ranks: Sequence[Rank]) -> tuple[Rank, ...]:
    """The last of several lists: an earlier one is of a run that printed no rows."""
    again = _listed_again(ranks)
    return tuple(one for one in ranks if not again or one.line >= again[-1])
