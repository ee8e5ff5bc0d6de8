"""Which collective a table is of, and over how many ranks, from everything that the file says.

Columns and counts exclude, text names, and the factor busbw / algbw decides what is left: it is known to the
printed digits, so that each row allows a span of ranks. What stays open stays open.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from traincast.calibration.importers.rows import Evidence, RawTable, Row, Side
from traincast.calibration.ops import (
    COMMON_OPS,
    DTYPE_BYTES,
    PER_RANK_COUNT,
    busbw_factor,
    ranks_of_factor,
)
from traincast.calibration.records import Problem

_NOISE: Final = 1e-6
_MOST_RANKS: Final = 1 << 20
_SILENT_ABOVE_GB_PER_S: Final = 0.04
_ROOTED: Final = frozenset({"broadcast", "gather", "scatter"})
_UNREDUCED: Final = frozenset({"all_gather", "alltoall", "hypercube"})
_REDUCED: Final = frozenset({"all_reduce", "reduce_scatter", "sendrecv"})
_COUNTED: Final = frozenset({"all_gather", "reduce_scatter", "alltoall"})


@dataclass(frozen=True)
class Settled:
    """What a table is: `op` where one is left of `ops`, `ranks` where they are told or follow.

    `factors` holds for each of `ops` the span of busbw / algbw that its ranks allow.
    """

    op: str | None
    op_source: str | None
    ops: tuple[str, ...]
    ranks: int | None
    ranks_source: str | None
    factors: tuple[tuple[str, float, float], ...]
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class _Span:
    """The span of busbw / algbw that the printed digits of one row allow."""

    low: float
    high: float

    def holds(self, factor: float) -> bool:
        """Whether the digits allow this factor."""
        return self.low <= factor <= self.high


def settle(table: RawTable, given_op: str | None = None) -> Settled:
    """Op and ranks of a table; `given_op` is what the user says it is."""
    rows = [row for row in table.rows if row.size > 0]
    spans = [span for row in rows if (span := _span(row)) is not None]
    ranks, ranks_source = _stated_ranks(table.evidence, rows)
    ops, op_source = _by_columns(table.evidence, rows)
    ops = _by_count(ops, rows)
    problems: list[Problem] = []
    told = given_op or table.evidence.told_op
    named, source = (told, "given") if told else (table.evidence.text_op, "text")
    if named is not None and (named in ops or told):
        ops, op_source = frozenset({named}), source
    elif named is not None and rows:
        what = f"the text names {named}, the columns are of {_either(ops)}; the columns count"
        problems.append(Problem(table.evidence.text_line or table.line, what, "note"))
    if ranks is None or (table.evidence.elided and not _fits_any(ops, ranks, spans)):
        found, by_ops = _ranks_by_factor(ops, spans, table.evidence.command_ranks)
        if found is not None and (ranks is None or found[0] > ranks):
            ranks, ranks_source = found
        ops = by_ops if ranks is None else _by_factor(ops, ranks, spans)
    elif len(ops) > 1:
        ops = _by_factor(ops, ranks, spans)
    if ranks is not None and ranks_source != "inferred" and spans and not _fits_any(ops, ranks, spans):
        problems += _other_ranks(table, ops, spans, ranks)
    if len(ops) == 1 and op_source is None:
        op_source = "factor"
    op = next(iter(ops)) if len(ops) == 1 else None
    factors = tuple(_factors(name, ranks, spans) for name in sorted(ops))
    return Settled(op, op_source if op else None, tuple(sorted(ops)), ranks, ranks_source, factors, tuple(problems))


def _other_ranks(table: RawTable, ops: frozenset[str], spans: Sequence[_Span], ranks: int) -> list[Problem]:
    """A note where most rows are those of another number of ranks than the file states."""
    found, _ = _ranks_by_factor(ops, spans, ())
    if found is None:
        return []
    return [Problem(table.line, f"the file states {ranks} ranks, the rows are those of {found[0]}", "note")]


def one_rank(rows: Iterable[Row]) -> bool:
    """Whether busbw is 0 in every row although some move enough to show: a single rank communicates nothing."""
    shown = False
    for row in rows:
        side = row.out or row.inside
        if side is None or side.busbw is None or row.size == 0:
            continue
        if side.busbw.value != 0:
            return False
        rate = side.rate(row.size)
        shown = shown or (rate is not None and rate[0] > _SILENT_ABOVE_GB_PER_S)
    return shown


def _stated_ranks(evidence: Evidence, rows: Sequence[Row]) -> tuple[int | None, str | None]:
    """Ranks that the file states, and where."""
    if evidence.listed:
        return evidence.listed, "listed" if evidence.complete else "highest rank"
    if evidence.told_ranks:  # 0 ranks are no statement
        return evidence.told_ranks, "stated"
    if one_rank(rows):
        return 1, "inferred"
    ratio = _count_ratio(rows)
    return (ratio, "inferred") if ratio is not None and ratio > 1 else (None, None)


def _by_columns(evidence: Evidence, rows: Sequence[Row]) -> tuple[frozenset[str], str | None]:
    """The collectives whose columns look like this table's, and `columns` as source where one is left."""
    redops = {row.redop for row in rows}
    roots = {row.root for row in rows}
    rooted = any(root is not None and root >= 0 for root in roots)
    columns = evidence.columns
    if columns is not None and "redop" in columns and redops == {None} and rows:
        # the old all-to-all announces the column and leaves it blank
        return frozenset({"alltoall"}), "columns"
    if redops == {"none"}:
        ops = _ROOTED if rooted else _by_check(rows)
    elif redops and None not in redops:
        ops = frozenset({"reduce"}) if rooted else _REDUCED
    elif rooted or (columns is not None and "root" in columns):
        ops = frozenset({"broadcast"})
    elif columns is not None and "type" in columns:
        ops = _COUNTED
    else:
        ops = COMMON_OPS
    return ops, "columns" if len(ops) == 1 else None


def _by_check(rows: Sequence[Row]) -> frozenset[str]:
    """All-gather or all-to-all: only the latter is never checked in place, if the check is on."""
    checked_out = any(row.out is not None and row.out.wrong is not None for row in rows)
    inside = [row.inside for row in rows if row.inside is not None]
    checked_inside = any(side.wrong is not None for side in inside)
    if checked_inside:
        return _UNREDUCED - {"alltoall", "hypercube"}
    return frozenset({"alltoall"}) if checked_out and inside else _UNREDUCED - {"hypercube"}


def _by_count(ops: frozenset[str], rows: Sequence[Row]) -> frozenset[str]:
    """Without those whose count column would be another: elements of one rank, or of all."""
    ratio = _count_ratio(rows)
    if ratio is None or len(ops) == 1:
        return ops
    # one rank: both read the same
    if ratio == 1 and one_rank(rows):
        return ops
    left = ops & PER_RANK_COUNT if ratio > 1 else ops - PER_RANK_COUNT
    return left or ops


def _count_ratio(rows: Sequence[Row]) -> int | None:
    """size / (count x bytes of an element) where nearly all rows agree on it, as a whole number."""
    ratios: Counter[int] = Counter()
    counted = 0
    for row in rows:
        if row.count and row.dtype:
            counted += 1
            whole, rest = divmod(row.size, row.count * DTYPE_BYTES[row.dtype])
            if rest == 0:
                ratios[whole] += 1
    if not ratios:
        return None
    ratio, times = ratios.most_common(1)[0]
    return ratio if times * 4 >= counted * 3 and 1 <= ratio <= _MOST_RANKS else None


def _span(row: Row) -> _Span | None:
    side = row.out or row.inside
    return None if side is None else factor_span(side, row.size)


def factor_span(side: Side, size_bytes: int) -> _Span | None:
    """What busbw / algbw may be, given the printed digits of busbw and time; None where a figure lacks."""
    rate = side.rate(size_bytes)
    if rate is None or side.busbw is None or rate[1] <= 0:
        return None
    low, high = max(side.busbw.low, 0.0) / rate[1], max(side.busbw.high, 0.0) / rate[0]
    return _Span(low * (1 - _NOISE), high * (1 + _NOISE))


def _by_factor(ops: frozenset[str], ranks: int, spans: Sequence[_Span]) -> frozenset[str]:
    """Those of `ops` whose factor at `ranks` fits most rows; all of them where none fits half."""
    fits = {op: sum(span.holds(busbw_factor(op, ranks)) for span in spans) for op in ops}
    best = max(fits.values(), default=0)
    return frozenset(op for op in ops if fits[op] == best) if best * 2 > len(spans) else ops


def _fits_any(ops: frozenset[str], ranks: int, spans: Sequence[_Span]) -> bool:
    return any(sum(span.holds(busbw_factor(op, ranks)) for span in spans) * 2 > len(spans) for op in ops)


def _ranks_by_factor(
    ops: frozenset[str], spans: Sequence[_Span], allowed: Sequence[int]
) -> tuple[tuple[int, str] | None, frozenset[str]]:
    """Ranks that follow from the rows (with their source), and the collectives that fit most rows.

    Unique ranks are `inferred`; where several fit, the one that a command started, if that is one.
    """
    votes = {op: _votes(op, spans) for op in ops}
    best = max((most for most, _ in votes.values()), default=0)
    if best * 2 <= len(spans):
        return None, ops
    left = frozenset(op for op, (most, _) in votes.items() if most == best)
    counts = set.intersection(*(set(found) for op, (_, found) in votes.items() if op in left))
    # a neighbour that fits as well leaves the number open
    alone = [n for n in counts if all(_coverage(op, n + step, spans) < best for op in left for step in (-1, 1))]
    if len(counts) == 1 and alone:
        return (alone[0], "inferred"), left
    fitting = [n for n in allowed if any(_coverage(op, n, spans) == best for op in left)]
    return ((fitting[0], "command"), left) if len(fitting) == 1 else (None, left)


def _votes(op: str, spans: Sequence[_Span]) -> tuple[int, tuple[int, ...]]:
    """How many rows the best rank counts fit, and these counts (ends of spans; not all where many fit)."""
    tried: set[int] = set()
    for span in spans:
        ends = ranks_of_factor(op, span.low, span.high)
        if ends is not None and ends[0] < _MOST_RANKS:
            first = math.ceil(ends[0] - _NOISE)
            tried |= {first, first + 1}
            if ends[1] < _MOST_RANKS:
                tried.add(math.floor(ends[1] + _NOISE))
    covered = {n: _coverage(op, n, spans) for n in tried if n >= 2}
    best = max(covered.values(), default=0)
    return best, tuple(sorted(n for n, times in covered.items() if times == best))


def _coverage(op: str, ranks: int, spans: Sequence[_Span]) -> int:
    return sum(span.holds(busbw_factor(op, ranks)) for span in spans) if ranks >= 2 else 0


def _factors(op: str, ranks: int | None, spans: Sequence[_Span]) -> tuple[str, float, float]:
    """The op with the span of its factor: exact at known ranks, else over all ranks that the rows leave."""
    if ranks is not None:
        factor = busbw_factor(op, ranks)
        return op, factor, factor
    best, counts = _votes(op, spans)
    if not counts or best * 2 <= len(spans):
        return op, busbw_factor(op, 2), busbw_factor(op, _MOST_RANKS)
    return op, busbw_factor(op, counts[0]), busbw_factor(op, counts[-1])


def _either(ops: Iterable[str]) -> str:
    return " or ".join(sorted(ops))
