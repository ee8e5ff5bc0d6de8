"""The file of records: one line at a time, each on the disk before the next measurement begins."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suite.meta import stack

SCHEMA = 1
AGREE = ("gpu", "nccl", "cuda", "torch", "driver", "backend", "world", "nodes", "mesh")
"""Facts of a run that a resumed one must share, beside the variables of `meta.stack`: else the records do not mix."""
RETRIED = ("budget", "interrupted")
"""Reasons for which something was left out that a resumed run tries again."""

Entry = Mapping[str, Any]


class StoreError(Exception):
    """The file cannot be used as asked; the text says why and what to do."""


@dataclass
class Store:
    """Writes to `path`; `before` are the lines of earlier runs."""

    path: Path
    before: list[dict[str, Any]] = field(default_factory=list)

    @property
    def index(self) -> int:
        """Number of earlier runs."""
        return sum(entry.get("kind") == "run" for entry in self.before)

    @property
    def done(self) -> set[str]:
        """Keys of what was measured, or cannot be."""
        return {str(entry["item"]) for entry in self.before if "item" in entry and entry.get("reason") not in RETRIED}

    def unsettled(self, stability: float) -> set[str]:
        """Keys of what was measured, but not as well as is asked for now."""
        return {key for key, width in best_widths(self.before).items() if width > stability}

    def write(self, entries: Iterable[Entry]) -> None:
        """Appends lines in one go and waits until they are on the disk."""
        lines = [json.dumps({"schema": SCHEMA, **entry}, allow_nan=False, separators=(",", ":")) for entry in entries]
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())


def open_store(path: Path, resume: bool, facts: Entry) -> Store:
    """A store for a new run, or for one that goes on in a file that is there.

    Raises StoreError where the file exists and was not meant to, is no file of records, or is of another machine.
    """
    if path.exists() and not path.is_file():
        raise StoreError(f"{path.name} is no file; name another one with -o")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return Store(path)
    if not resume:
        raise StoreError(f"{path.name} exists; add --resume to go on in it, or name another file with -o")
    entries = _read(path)
    runs = [entry for entry in entries if entry.get("kind") == "run"]
    for run in runs[-1:]:
        there = {name: run.get(name) for name in AGREE} | stack(run.get("environment") or {})
        here = {name: facts.get(name) for name in AGREE} | stack(facts.get("environment") or {})
        differ = [name for name in here | there if there.get(name) != here.get(name)]
        if differ:
            words = ", ".join(f"{name} {there.get(name)!r} there, {here.get(name)!r} here" for name in differ)
            raise StoreError(f"{path.name} is of another run: {words}; name another file with -o")
    return Store(path, entries)


def measured_us(entry: Entry) -> float | None:
    """The measured time of a line [us], out of place or in place; None: it is no measurement."""
    value = entry.get("time_us", entry.get("in_place_time_us"))
    return None if value is None else float(value)


def best_widths(entries: Iterable[Entry]) -> dict[str, float]:
    """How well the median of each item is known by the best of its measurements: its half width.

    Infinite where the median means nothing; items whose lines state no samples are not in it.
    """
    found: dict[str, float] = {}
    for entry in entries:
        if measured_us(entry) is None or "item" not in entry or not ("half_width" in entry or "flags" in entry):
            continue
        width = math.inf if "too_short" in entry.get("flags", ()) else entry.get("half_width", math.inf)
        key = str(entry["item"])
        found[key] = min(width, found.get(key, math.inf))
    return found


def _read(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file; a last one that was cut off is taken off the file."""
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(whole.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise StoreError(f"{path.name}:{number} is no line of JSON; name another file with -o") from error
        if not isinstance(entry, dict) or entry.get("schema") != SCHEMA:
            raise StoreError(f"{path.name}:{number} is no record of schema {SCHEMA}; name another file with -o")
        entries.append(entry)
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return entries
