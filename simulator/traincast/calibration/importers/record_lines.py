"""Files of records: what `write_records` and the microbenchmark suite write, with what the suite says about its run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from traincast.calibration.jsonl import REMARKS, parse_line, read_records
from traincast.calibration.ops import WRONG_ABOVE
from traincast.calibration.printed import printable
from traincast.calibration.records import Imported, Problem, Record
from traincast.errors import DataError

_SUITE: Final = "traincast suite"
_TIMES: Final = ("time_us", "in_place_time_us")
_AMOUNTS: Final = (
    "size_bytes",
    "algbw_bytes_per_s",
    "busbw_bytes_per_s",
    "in_place_algbw_bytes_per_s",
    "in_place_busbw_bytes_per_s",
    "bandwidth_bytes_per_s",
    "flops_per_s",
    "quartile_1_us",
    "quartile_3_us",
    "min_us",
    "max_us",
    "half_width",
)
_AGREE: Final = ("gpu", "nccl", "cuda", "torch", "driver", "backend", "world", "nodes", "mesh")


def import_records(text: str, name: str) -> Imported:
    """Records of JSON lines; wrong results are dropped, what a run left out or says about itself is a note.

    A last line that was cut off (the run was ended while it wrote) is dropped. Raises DataError with the file's
    lines for all others that are no records.
    """
    lines, problems = _whole(text)
    records = read_records("\n".join(lines), name)
    entries = [(number, parse_line(line)) for number, line in enumerate(lines, start=1) if line.strip()]
    numbers = [number for number, entry in entries if entry["kind"] not in ("run", *REMARKS)]
    kept: list[Record] = []
    for number, record in zip(numbers, records, strict=True):
        what = _wrong(record)
        if what is None:
            kept.append(record)
        else:
            problems.append(Problem(number, what))
    problems += _remarks(entries)
    if records and not kept:
        first = next(one for one in problems if one.line == numbers[0])
        problems.append(Problem(numbers[0], f"no record of this file can be used: {first.what}", "refused"))
    problems.sort(key=lambda one: one.line)
    return Imported(tuple(kept), tuple(problems), len({id(record.run) for record in records}))


def _whole(text: str) -> tuple[list[str], list[Problem]]:
    """The lines without a last one that was cut off, and the problem that says so."""
    lines = text.split("\n")
    if lines[-1].strip() and len(lines) > 1:
        try:
            parse_line(lines[-1])
        except DataError:
            return lines[:-1], [Problem(len(lines), "the last line was cut off: the run was ended while it wrote")]
    return lines, []


def _wrong(record: Record) -> str | None:
    """Why a record is not used, or None."""
    limit = WRONG_ABOVE.get(record.dtype or "", 1e-2)
    for count in (record.wrong, record.in_place_wrong):
        if count is not None and count > limit:
            return f"{count:g} wrong: the results of this {record.op or 'record'} are wrong, dropped"
    for name in (*_TIMES, *_AMOUNTS):
        value = getattr(record, name)
        if value is not None and (value < 0 or (value == 0 and name in _TIMES)):
            wanted = "is above 0" if name in _TIMES else "is not negative"
            return f"'{name}' cannot be {value:g}: what was measured {wanted}; dropped"
    return None


def _remarks(entries: Sequence[tuple[int, Mapping[str, Any]]]) -> list[Problem]:
    """Notes from the lines that are no records: reasons for what was left out (counted), and judgements.

    What a run left out and one that went on in its file (`--resume`) has measured is not left out.
    """
    notes: list[Problem] = []
    measured = _measured(entries)
    run: Mapping[str, Any] = {}
    skipped: Counter[str] = Counter()
    first: dict[str, int] = {}
    open_run: int | None = None
    for number, entry in entries:
        if entry["kind"] == "skipped":
            if measured.get((_machine(run), str(entry.get("item"))), 0) > number:
                continue
            why = printable(str(entry.get("why", "no reason given")), 160)
            skipped[why] += 1
            first.setdefault(why, number)
        elif entry["kind"] == "end":
            open_run = None
            found = entry.get("problems", [])
            for one in found if isinstance(found, list) else []:
                what = one.get("what", "") if isinstance(one, dict) else one
                notes.append(Problem(number, printable(str(what), 300), "note"))
        elif entry["kind"] == "run":
            run = entry
            open_run = number if str(entry.get("tool", "")).startswith(_SUITE) else None
    notes += [Problem(first[why], f"{count} left out: {why}", "note") for why, count in skipped.items()]
    if open_run is not None:
        notes.append(Problem(open_run, "this run has no end: it was interrupted; --resume goes on", "note"))
    return notes


def _measured(entries: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[tuple[str, str], int]:
    """The last line on which an item was measured, by machine."""
    found: dict[tuple[str, str], int] = {}
    run: Mapping[str, Any] = {}
    for number, entry in entries:
        if entry["kind"] == "run":
            run = entry
        elif entry["kind"] not in REMARKS and "item" in entry:
            found[_machine(run), str(entry["item"])] = number
    return found


def _machine(run: Mapping[str, Any]) -> str:
    """What a run and one that goes on in its file have in common (`calibration/suite/store.py`, AGREE)."""
    return repr([run.get(name) for name in _AGREE])
