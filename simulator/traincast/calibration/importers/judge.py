"""Rows as printed -> records, or the reason why a row is not used. The rules hold for every source alike."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from traincast.calibration.importers.evidence import Settled, factor_span, settle
from traincast.calibration.importers.rows import RawTable, Row, Side
from traincast.calibration.ops import WRONG_ABOVE
from traincast.calibration.printed import Printed
from traincast.calibration.records import Imported, Problem, Record, RunInfo

TOLERANCE: Final = 0.03
_SPIKE: Final = 1.3
_GIGA: Final = 1e9


def judge_tables(tables: Sequence[RawTable], given_op: str | None = None) -> Imported:
    """Records and problems of all tables of a file, tables that are runs of single ranks refused."""
    judged = Imported()
    settled = [settle(table, given_op) for table in tables]
    refusals = _refusals(tables, settled)
    for index, (table, what) in enumerate(zip(tables, settled, strict=True)):
        refusal = refusals.get(index)
        if refusal is not None:
            one = Imported((), (*table.problems, refusal), 1)
        else:
            one = judge_table(table.numbered(index), what)
        judged = judged.joined(one)
    return judged


def judge_table(table: RawTable, settled: Settled) -> Imported:
    """Records of one table and what became of its other rows."""
    run = replace(table.run, ranks_source=settled.ranks_source, op_source=settled.op_source)
    problems = [*table.problems, *settled.problems]
    judged = [(row, row_problem(row, settled)) for row in table.rows]
    good = [row for row, what in judged if what is None]
    problems += [Problem(row.line, what, "dropped") for row, what in judged if what is not None]
    bad = next((row for row, what in judged if row.size > 0 and what is not None), None)
    if good:
        problems += _open_questions(good[0].line, settled)
    elif bad is not None:
        problems.append(Problem(bad.line, "no row of this table can be used; see the problems of its rows", "refused"))
    spikes = _spikes(good)
    repeats: Counter[tuple[object, ...]] = Counter()
    records = []
    for row in good:
        key = (row.size, row.dtype, row.redop, row.root)
        record = _record(row, settled, run, table.evidence.nodes)
        flags = (*(("one_rank",) if settled.ranks == 1 else ()), *(("spike",) if row.line in spikes else ()))
        records.append(replace(record, repeat=repeats[key], flags=flags + record.flags))
        repeats[key] += 1
    return Imported(tuple(records), tuple(problems), 1)


def row_problem(row: Row, settled: Settled) -> str | None:
    """Why a row is not used, or None: nothing sent, wrong results, figures that contradict each other."""
    if row.size == 0:
        return "size 0: nothing is communicated, row skipped"
    for place, side in (("", row.out), (" in place", row.inside)):
        if side is None:
            continue
        if side.wrong is not None and side.wrong > WRONG_ABOVE.get(row.dtype or "", 1e-2):
            return f"{side.wrong:g} wrong{place}: the results of this row are wrong, dropped"
        if _time_unknown(side, row.size):
            return f"no time of the collective{place}, and algbw has too few digits to give it; dropped"
        what = _rate_clash(side, row.size) or _factor_clash(side, row.size, settled)
        if what is not None:
            return f"the row contradicts itself{place}: {what}; not used"
    return None


def _time_unknown(side: Side, size: int) -> bool:
    """Whether the time of the collective is neither printed nor known within 3 % from algbw."""
    if printed_time(side, size) is not None:
        return False
    return side.algbw is None or side.algbw.half > TOLERANCE * abs(side.algbw.value)


def _rate_clash(side: Side, size: int) -> str | None:
    """What speaks against algbw = size / time (3 % and the printed digits allowed), or None."""
    if side.time is not None and side.time.value <= 0:
        return f"a time of {side.time.value:g} us"
    rate = side.rate(size)
    if side.algbw is None or rate is None or side.host_time:
        return None
    if (
        side.algbw.value < 0
        or rate[0] > side.algbw.high * (1 + TOLERANCE)
        or rate[1] * (1 + TOLERANCE) < side.algbw.low
    ):
        return f"size / time is {(rate[0] * rate[1]) ** 0.5:.4g} GB/s, algbw {side.algbw.value:g} GB/s"
    return None


def _factor_clash(side: Side, size: int, settled: Settled) -> str | None:
    """What speaks against busbw = factor x algbw at the table's ranks, or None."""
    span = factor_span(side, size)
    if span is None or not settled.factors or side.busbw is None:
        return None
    for _, low, high in settled.factors:
        if span.low <= high * (1 + TOLERANCE) and span.high * (1 + TOLERANCE) >= low:
            return None
    over = f" over {settled.ranks} ranks" if settled.ranks is not None else ""
    wanted = ", ".join(
        f"{op} has {low:.4g}" + (f" to {high:.4g}" if high > low else "") for op, low, high in settled.factors
    )
    return f"busbw / algbw is {span.low:.4g} to {span.high:.4g}, but {wanted}{over}"


def _open_questions(line: int, settled: Settled) -> list[Problem]:
    """Notes on what the file does not tell."""
    notes = []
    if settled.op is None:
        names = " or ".join(settled.ops)
        notes.append(Problem(line, f"the collective is not told: {names}; name it with --op", "note"))
    if settled.ranks is None:
        notes.append(Problem(line, "the number of ranks is not stated, and the rows leave it open", "note"))
    elif settled.ranks_source == "inferred":
        notes.append(Problem(line, f"ranks are not stated; {settled.ranks} follow from the rows", "note"))
    if settled.ranks == 1:
        what = "one rank: nothing is communicated; the records are of no use for a bandwidth fit"
        notes.append(Problem(line, what, "note"))
    return notes


def _refusals(tables: Sequence[RawTable], settled: Sequence[Settled]) -> dict[int, Problem]:
    """The tables that are not used as a whole, by number: runs of single ranks, or several runs mixed."""
    found = {
        index: problem
        for index, (table, what) in enumerate(zip(tables, settled, strict=True))
        if (problem := _mixed(table, what)) is not None
    }
    found |= {index: problem for index, problem in _twins(tables, settled).items() if index not in found}
    for index, (table, what) in enumerate(zip(tables, settled, strict=True)):
        if found and what.ranks == 1 and index not in found:
            text = "a one-rank run beside others in this file: nccl-tests was built without MPI; build it with MPI=1"
            found[index] = Problem(table.line, text, "refused")
    return found


def _mixed(table: RawTable, settled: Settled) -> Problem | None:
    """The refusal of a table in which several runs are mixed, or None."""
    sizes = Counter(row.size for row in table.rows if row.size > 0)
    repeated = next((row for row in table.rows if sizes[row.size] > 1), None)
    again = table.evidence.same_rank_lines
    alone = settled.ranks == 1
    if (repeated is None and not (alone and again)) or not (alone or again):
        return None
    runs = len(again) + 1 if again else max(sizes.values())
    sign = "rank 0 is listed again" if again or repeated is None else f"size {repeated.size} appears again"
    what = (
        f"{runs} independent {'one-rank ' if alone else ''}runs are mixed here ({sign}): "
        f"{'busbw is 0.00 in every row; ' if alone else ''}"
        "nccl-tests was built without MPI; build it with MPI=1 and run again"
    )
    return Problem(again[0] if again else _second(table.rows, sizes), what, "refused")


def _second(rows: Sequence[Row], sizes: Counter[int]) -> int:
    seen: set[int] = set()
    for row in rows:
        if row.size in seen:
            return row.line
        if sizes[row.size] > 1:
            seen.add(row.size)
    return rows[0].line


def _twins(tables: Sequence[RawTable], settled: Sequence[Settled]) -> dict[int, Problem]:
    """Refusals of one-rank tables that a file holds more than once: processes that never found each other."""
    keys = {
        index: (what.ops, tuple(row.size for row in table.rows))
        for index, (table, what) in enumerate(zip(tables, settled, strict=True))
        if what.ranks == 1
    }
    times = Counter(keys.values())
    return {
        index: Problem(
            tables[index].line,
            f"{times[key]} tables of the same sizes with one rank each: independent one-rank runs "
            "(nccl-tests built without MPI); build it with MPI=1 and run again",
            "refused",
        )
        for index, key in keys.items()
        if times[key] > 1
    }


def _spikes(rows: Sequence[Row]) -> set[int]:
    """Lines of rows that took longer than 1.3 times the next larger size of the same kind."""
    kinds: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.dtype, row.redop, row.root), []).append(row)
    flagged = set()
    for kind in kinds.values():
        for row, larger in pairwise(sorted(kind, key=lambda row: row.size)):
            mine, next_time = _time(row.out), _time(larger.out)
            if larger.size > row.size and mine is not None and next_time is not None and mine > _SPIKE * next_time:
                flagged.add(row.line)
    return flagged


def _time(side: Side | None) -> float | None:
    return None if side is None or side.time is None else side.time.value


def _record(row: Row, settled: Settled, run: RunInfo, nodes: int | None) -> Record:
    time, algbw, busbw, wrong = _figures(row.out, row.size)
    in_time, in_algbw, in_busbw, in_wrong = _figures(row.inside, row.size)
    derived = any(side is not None and printed_time(side, row.size) is None for side in (row.out, row.inside))
    return Record(
        op=settled.op,
        run=run,
        line=row.line,
        algo=row.algo or _set(run, "NCCL_ALGO"),
        proto=row.proto or _set(run, "NCCL_PROTO"),
        dtype=row.dtype,
        redop=None if row.redop == "none" else row.redop,
        root=row.root if row.root is not None and row.root >= 0 else None,
        ranks=settled.ranks,
        nodes=nodes,
        size_bytes=row.size,
        time_us=time,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
        wrong=wrong,
        in_place_time_us=in_time,
        in_place_algbw_bytes_per_s=in_algbw,
        in_place_busbw_bytes_per_s=in_busbw,
        in_place_wrong=in_wrong,
        flags=("time_from_algbw",) if derived else (),
    )


def _figures(side: Side | None, size: int) -> tuple[float | None, float | None, float | None, float | None]:
    """Time in us, algbw and busbw in bytes/s, and the wrong count of one side."""
    if side is None:
        return None, None, None, None
    algbw = _bytes_per_s(side.algbw) if side.algbw else _middle(side.rate(size))
    time = printed_time(side, size)
    if time is None and algbw:
        time = size / algbw * 1e6
    return time, algbw, _bytes_per_s(side.busbw) if side.busbw else None, side.wrong


def printed_time(side: Side, size: int) -> float | None:
    """The collective's time in us as printed; None where the table has none, or the host's that algbw denies."""
    if side.time is None:
        return None
    if side.host_time and _rate_clash(replace(side, host_time=False), size) is not None:
        return None
    return side.time.value


def _bytes_per_s(printed: Printed) -> float:
    """Bytes/s of printed GB/s; rounded, so that 33.51 GB/s are 33510000000 bytes/s."""
    return round(printed.value * _GIGA, 3)


def _middle(rate: tuple[float, float] | None) -> float | None:
    return None if rate is None else 2.0 / (1.0 / rate[0] + 1.0 / rate[1]) * _GIGA


def _set(run: RunInfo, name: str) -> str | None:
    """A single algorithm or protocol that the environment fixed."""
    value = dict(run.environment).get(name, "")
    return value.lower() if value.isalnum() else None
