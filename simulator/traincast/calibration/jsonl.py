"""Records as JSON lines: a line for each run, then its records. Files of one schema can be concatenated.

Every line is an object with `schema` (the version of this format) and `kind`: `run` or one of the records'
kinds. A record belongs to the nearest run above it with its number. Unknown keys are left alone, so that
later versions may add some. The microbenchmark suite also writes what it left out (`skipped`, with `why`) and, at
the end of a run, how it judges itself (`end`, with `problems`); these are no records.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, get_args

from traincast.calibration.curves import MOST_RANKS
from traincast.calibration.records import Kind, Record, RunInfo, record_entry, run_entry
from traincast.errors import DataError, combined

SCHEMA: Final = 1

REMARKS: Final = ("skipped", "end")

MOST: Final = 2**62
"""Largest number of a field; above it nothing is a count, a size or a time."""

MOST_NAMED: Final = 10
"""Wrong lines of a file that are named one by one."""

_MEND: Final = "mend or delete this line, or import its log again"

_KINDS: Final = get_args(Kind)
_PLAIN: Final = (int, str | None, int | None, float | None)
_RUN_TYPES: Final = {one.name: one.type for one in fields(RunInfo) if one.type in _PLAIN}
_RECORD_TYPES: Final = {one.name: one.type for one in fields(Record) if one.type in _PLAIN}


def write_records(records: Iterable[Record]) -> str:
    """The records as JSON lines, each run written once before its first record."""
    lines: list[str] = []
    current: dict[int, RunInfo] = {}
    for record in records:
        run = record.run
        if current.get(run.index) != run:
            current[run.index] = run
            lines.append(_dump({"schema": SCHEMA, "kind": "run", **_stated(run_entry(run))}))
        entry = _stated(record_entry(record))
        lines.append(_dump({"schema": SCHEMA, "kind": record.kind, "run": run.index, **entry}))
    return "".join(f"{line}\n" for line in lines)


def read_records(text: str, name: str = "records") -> tuple[Record, ...]:
    """Records of JSON lines that `write_records` or the microbenchmark suite wrote.

    A record that does not say in which line of its log it stood gets its line here. Raises DataError with the file's
    line for all lines that are no such record, at once.
    """
    records: list[Record] = []
    problems: list[DataError] = []
    runs: dict[int, RunInfo] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = parse_line(line)
            if entry["kind"] in REMARKS:
                continue
            if entry["kind"] == "run":
                run = _run(entry)
                runs[run.index] = run
            else:
                records.append(_record({"line": number, **entry}, runs))
        except DataError as error:
            problems.append(DataError(error.message, fix=error.fix, where=f"{name}:{number}"))
    if len(problems) > MOST_NAMED:
        left = len(problems) - MOST_NAMED
        problems[MOST_NAMED:] = [DataError(f"{left} more lines are wrong", fix="mend those above first", where=name)]
    if problems:
        raise combined(problems)
    return tuple(records)


def load_records(path: Path) -> tuple[Record, ...]:
    """The records of a file; raises DataError where it cannot be read or is no file of records."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path.name}: {type(error).__name__}", fix="name a file of JSON lines") from error
    return read_records(text, path.name)


def is_record_line(line: str) -> bool:
    """Whether a line looks as if `write_records` had written it."""
    return line.lstrip().startswith('{"schema":')


def parse_line(line: str) -> Mapping[str, Any]:
    """One line as an object of this schema and a known kind; raises DataError."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError("not a line of JSON", fix="one object a line") from error
    if not isinstance(entry, dict) or "schema" not in entry:
        raise DataError("no 'schema' in this line", fix="import the file that it comes from")
    if entry["schema"] != SCHEMA:
        raise DataError(
            f"schema {_shown(entry['schema'])} is not {SCHEMA}", fix="import it with the version that wrote it"
        )
    if entry.get("kind") not in ["run", *_KINDS, *REMARKS]:
        raise DataError(f"kind {_shown(entry.get('kind'))} is unknown", fix=f"run, {', '.join(_KINDS)}")
    return entry


def _run(entry: Mapping[str, Any]) -> RunInfo:
    values = _plain(entry, _RUN_TYPES)
    hosts, environment = entry.get("hosts", []), entry.get("environment", {})
    if not isinstance(hosts, list) or not isinstance(environment, dict):
        raise DataError("'hosts' is a list, 'environment' an object", fix=_MEND)
    values["hosts"] = tuple(map(str, hosts))
    values["environment"] = tuple(sorted((str(key), str(value)) for key, value in environment.items()))
    return RunInfo(**values)


def _record(entry: Mapping[str, Any], runs: Mapping[int, RunInfo]) -> Record:
    values = _plain(entry, _RECORD_TYPES)
    values["kind"] = entry["kind"]
    number = entry.get("run", 0)
    flags, params = entry.get("flags", []), entry.get("params", {})
    if not isinstance(number, int) or not isinstance(flags, list) or not isinstance(params, dict):
        raise DataError("'run' is a number, 'flags' a list, 'params' an object", fix=_MEND)
    values["run"] = runs.get(number, RunInfo(index=number))
    values["flags"] = tuple(map(str, flags))
    for name, value in params.items():
        if isinstance(value, int | float) and not _possible(value):
            raise DataError(f"{name!r} cannot be {_shown(value)}", fix=_MEND)
    for name in ("ranks", "nodes"):
        if not 1 <= values.get(name, 1) <= MOST_RANKS:
            raise DataError(f"{name!r} cannot be {values[name]}", fix=_MEND)
    values["params"] = tuple(sorted((str(k), v) for k, v in params.items() if isinstance(v, str | int | float)))
    values.setdefault("op", None)
    return Record(**values)


def _plain(entry: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """The plain fields of a record or run, checked for their types; raises DataError."""
    values: dict[str, Any] = {}
    for name, kind in types.items():
        value = entry.get(name)
        if isinstance(value, int | float) and not _possible(value):
            raise DataError(f"{name!r} cannot be {_shown(value)}", fix=_MEND)
        if kind == float | None and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, kind | None):
            raise DataError(f"{name!r} cannot be {_shown(value)}", fix=_MEND)
        if value is not None:
            values[name] = value
    return values


def _possible(value: float) -> bool:
    """Whether a number may stand in a field: finite, and within what anything measured can be."""
    return -MOST <= value <= MOST if isinstance(value, int) else math.isfinite(value)


def _shown(value: object) -> str:
    """A value as a message shows it, cut where it is long."""
    if isinstance(value, int) and not -MOST <= value <= MOST:
        return "so large a number"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _stated(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value not in (None, [], {}) and key not in ("run", "kind")}


def _dump(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
