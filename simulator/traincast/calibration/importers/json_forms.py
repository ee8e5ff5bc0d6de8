"""Collectives and copies as JSON: nccl-tests -J, the dialect of its pull request 318, rccl-tests, nvbandwidth.

Objects are looked for anywhere in a file (banners stand before them, fragments follow each other, a killed
run leaves a document without an end). Numbers keep their digits, so that rounding is known.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from traincast.calibration.importers.banner import environment_of, nccl_version
from traincast.calibration.importers.flat import FlatRow, column_name, flat_tables
from traincast.calibration.importers.judge import judge_tables
from traincast.calibration.importers.nvbandwidth import import_nvbandwidth_json
from traincast.calibration.importers.rows import Evidence, RawTable
from traincast.calibration.ops import op_name
from traincast.calibration.printed import printable
from traincast.calibration.records import Imported, Problem, RunInfo, host_label

# an object with a key, or a list of such: logs are full of other braces
_STARTS: Final = re.compile(r'(?:\[\s*)?\{\s*"')
_SIZE_KEY: Final = re.compile(r'"size"\s*:')
_PERF: Final = re.compile(r"([a-z_]{4,24}?)_perf(?![a-z0-9])")
_MOST_ATTEMPTS: Final = 10_000
_SIDES: Final = (("out_of_place", ""), ("in_place", "'"))
_DIALECT: Final = (("oop_", ""), ("ip_", "'"))
_DECODER: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)


@dataclass(frozen=True)
class _Found:
    """A JSON value in a file: where its text begins and ends."""

    start: int
    end: int
    value: Any


def import_json(text: str, given_op: str | None = None) -> Imported:
    """Records of all known JSON forms in the text of a file; nothing (no table) where there are none."""
    found = list(_values(text))
    tables: list[RawTable] = []
    others = Imported()
    problems: list[Problem] = []
    loose: list[FlatRow] = []
    pieces: list[Mapping[str, Any]] = []
    for one in found:
        for value in one.value if isinstance(one.value, list) else [one.value]:
            if not isinstance(value, dict):
                continue
            if isinstance(value.get("results"), list):
                made, bad = _document(text, one, value)
            elif isinstance(value.get("benchmark"), list):
                made, bad = _dialect(text, one, value)
            elif isinstance(value.get("nvbandwidth"), dict):
                others = others.joined(import_nvbandwidth_json(value["nvbandwidth"], _line(text, one.start)))
                continue
            else:
                loose += _loose(text, one, value)
                pieces.append(value)
                continue
            tables += made
            problems += bad
    made, bad = _fragments(text, loose, pieces)
    judged = judge_tables([*tables, *made], given_op)
    return Imported((), (*problems, *bad), 0).joined(judged).joined(others)


def json_fault(text: str) -> tuple[int, str]:
    """Line and message for a file that begins like JSON and gave no table."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.lineno, f"not valid JSON at column {error.colno}: {error.msg}"
    except (ValueError, RecursionError) as error:
        return 1, f"not readable as JSON: {type(error).__name__}"
    return 1, "JSON in no known form (nccl-tests -J, rccl-tests, nvbandwidth -j)"


def _values(text: str) -> Iterator[_Found]:
    """The JSON objects and lists of objects in a text, from the left, none within another."""
    position = 0
    for _ in range(_MOST_ATTEMPTS):
        start = _STARTS.search(text, position)
        if start is None:
            return
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            position = start.start() + 1
            continue
        yield _Found(start.start(), end, value)
        position = end


def _document(
    text: str, found: _Found, document: Mapping[str, Any]
) -> tuple[tuple[RawTable, ...], tuple[Problem, ...]]:
    """The tables of one document of nccl-tests -J."""
    config = _object(document.get("config"))
    marks = [found.start + one.start() for one in _SIZE_KEY.finditer(text[found.start : found.end])]
    rows = []
    for index, row in enumerate(document["results"]):
        place = marks[index] if index < len(marks) else found.start
        if isinstance(row, dict):
            rows.append(FlatRow(_line(text, place), _cells(row)))
    args = [str(word) for word in _list(document.get("args"))]
    run, evidence = _run(document, config, args)
    tables, problems = flat_tables(rows, run, evidence)
    notes = []
    bounds = _object(document.get("out_of_bounds"))
    if str(bounds.get("okay", "true")).lower() == "false":
        notes.append(
            Problem(_line(text, found.end), f"{printable(str(bounds.get('count')))} values were out of bounds", "note")
        )
    notes += [
        Problem(_line(text, found.end), f"the run reports: {printable(str(error))}", "note")
        for error in _list(document.get("errors"))
        if str(error).strip() not in ("", "no error")
    ]
    return tables, (*problems, *notes)


def _dialect(text: str, found: _Found, document: Mapping[str, Any]) -> tuple[tuple[RawTable, ...], tuple[Problem, ...]]:
    """The table of one document of the dialect whose rows are keyed by their size."""
    rows = []
    for group in document["benchmark"]:
        for size, row in _object(group).items():
            if not isinstance(row, dict):
                continue
            cells = {name: str(row[name]) for name in ("count", "type", "redop", "root") if row.get(name) is not None}
            for prefix, mark in _DIALECT:
                for key in ("time", "algbw", "busbw", "error"):
                    if row.get(prefix + key) is not None:
                        cells[f"{'wrong' if key == 'error' else key}{mark}"] = str(row[prefix + key])
            at = text.find(f'"{size}"', found.start, found.end)
            rows.append(FlatRow(_line(text, max(at, found.start)), {**cells, "size": size}))
    version = str(document.get("version", ""))
    run = RunInfo(tool="nccl-tests", nccl=version if re.fullmatch(r"[\d.]{3,12}", version) else None)
    named = [op_name(word) or op_name(word.removeprefix("nccl_")) for word in _PERF.findall(text[: found.start])]
    evidence = Evidence(columns=frozenset({"redop", "root", "type"}), text_op=next(filter(None, reversed(named)), None))
    return flat_tables(rows, run, evidence)


def _loose(text: str, found: _Found, value: Mapping[str, Any]) -> list[FlatRow]:
    """A row that stands alone: a fragment of rccl-tests, or of a document that has no end."""
    if "size" not in value or not set(value) & {"time", "algBw", "busBw", "out_of_place", "in_place"}:
        return []
    return [FlatRow(_line(text, found.start), _cells(value))]


def _fragments(
    text: str, rows: Sequence[FlatRow], pieces: Sequence[Mapping[str, Any]]
) -> tuple[tuple[RawTable, ...], tuple[Problem, ...]]:
    """Tables of the rows that stand alone; a note where they are what is left of a broken document."""
    if not rows:
        return (), ()
    config = next((piece for piece in pieces if "nthreads" in piece and "ngpus" in piece), None)
    if config is None:
        return flat_tables(rows, RunInfo(tool="rccl-tests"))
    named = [op_name(word) for word in _PERF.findall(text)]
    run, evidence = _run({}, config, [f"{next(filter(None, named), '')}_perf"])
    tables, problems = flat_tables(rows, run, evidence)
    note = Problem(rows[-1].line, "the document has no end (the run was stopped?): rows up to here are used", "note")
    return tables, (*problems, note)


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """The cells of an object that holds one row, flat or with an object for each side."""
    cells: dict[str, str] = {}
    for key, value in row.items():
        name, _ = column_name(key)
        if name and value is not None and not isinstance(value, dict | list):
            cells[name] = str(value)
    for key, mark in _SIDES:
        for inner, value in _object(row.get(key)).items():
            name, _ = column_name(inner)
            if name and value is not None and not isinstance(value, dict | list):
                cells[name + mark] = str(value)
    return cells


def _run(document: Mapping[str, Any], config: Mapping[str, Any], args: Sequence[str]) -> tuple[RunInfo, Evidence]:
    devices = [one for one in _list(config.get("devices")) if isinstance(one, dict)]
    per_process = _int(config.get("nthreads"), 1) * _int(config.get("ngpus"), 1)
    ranks = [_int(one.get("rank"), -1) for one in devices]
    hosts = {str(one["hostname"]) for one in devices if "hostname" in one}
    program = args[0].rsplit("/", 1)[-1] if args else ""
    # only the first device of each process is listed
    strided = bool(ranks) and all(rank % per_process == 0 for rank in ranks)
    listed = max(ranks) + (per_process if strided else 1) if ranks and min(ranks) >= 0 else None
    gpus = sorted({printable(str(one["device_info"])) for one in devices if one.get("device_info")})
    date = document.get("start_time")
    run = RunInfo(
        tool="nccl-tests",
        gpu=" + ".join(gpus) or None,
        nccl=nccl_version(str(document.get("nccl_version", ""))),
        date=str(date) if date and re.fullmatch(r"[\d :T-]{8,25}", str(date)) else None,
        command=" ".join([program, *(word for word in args[1:] if re.fullmatch(r"-{0,2}[\w.]{1,20}", word))]) or None,
        iterations=_int(config.get("iterations"), 0) or None,
        warmup_iterations=_int(config.get("warmup_iters"), 0) or None,
        hosts=tuple(sorted(map(host_label, hosts))),
        environment=environment_of("\n".join(str(one) for one in _list(document.get("env")))),
    )
    evidence = Evidence(
        columns=frozenset({"redop", "root", "type"}),
        told_op=op_name(program),
        listed=listed,
        complete=True,
        nodes=len(hosts) or None,
    )
    return run, evidence


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _int(value: object, default: int) -> int:
    text = str(value)
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else default


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
