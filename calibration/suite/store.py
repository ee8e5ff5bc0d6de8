"""The file of records: one line at a time, each on the disk before the next measurement begins."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
AGREE = ("gpu", "nccl", "cuda", "torch", "driver", "backend", "world", "nodes", "mesh")
"""Facts of a run that a resumed one must share: else the records do not belong together."""
RETRIED = ("budget", "interrupted")
"""Reasons for which something was left out that a resumed run tries again."""

Entry = Mapping[str, Any]


class StoreError(Exception):
    """The file cannot be used as asked; the text says why and what to do."""


@dataclass
class Store:
    """Writes to `path`; `done` are the keys that need no measuring, `before` the records of earlier runs."""

    path: Path
    index: int = 0
    done: set[str] = field(default_factory=set)
    before: list[dict[str, Any]] = field(default_factory=list)

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
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return Store(path)
    if not resume:
        raise StoreError(f"{path.name} exists; add --resume to go on in it, or name another file with -o")
    entries = _read(path)
    runs = [entry for entry in entries if entry.get("kind") == "run"]
    for run in runs[-1:]:
        differ = [name for name in AGREE if run.get(name) != facts.get(name)]
        if differ:
            words = ", ".join(f"{name} {run.get(name)!r} there, {facts.get(name)!r} here" for name in differ)
            raise StoreError(f"{path.name} is of another run: {words}; name another file with -o")
    done = {str(entry["item"]) for entry in entries if "item" in entry and entry.get("reason") not in RETRIED}
    return Store(path, len(runs), done, [entry for entry in entries if "item" in entry])


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
