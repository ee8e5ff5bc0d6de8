"""Rank 0's file and what went into it in this run; the other ranks only keep the records."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from suite import meta, rows
from suite.judge import OneRun
from suite.startup import Creation
from suite.store import Store

NEW, DONE, AGAIN = range(3)
_CREATED = ("create_us", "first_us")


class Log:
    """Lines of this run; `error` is what the disk said when one could not be written.

    That is printed at once, and nothing more is written.
    """

    def __init__(self, store: Store | None, run_entry: rows.Entry) -> None:
        self.store = store
        self.index = store.index if store is not None else 0
        self.entries: list[rows.Entry] = []
        self.error: OSError | None = None
        self._pending: list[rows.Entry] = []
        self._write([run_entry])

    def add(self, entries: Sequence[rows.Entry]) -> None:
        """Writes lines of this run; what was left out is written with the next line that is more."""
        self.entries += entries
        self._pending += [rows.finished(entry, self.index) for entry in entries]
        if any(entry["kind"] != "skipped" for entry in entries):
            self._write(self._pending)
            self._pending = []

    def states(self, keys: Sequence[str], stability: float) -> list[int]:
        """What earlier runs know of each item: `NEW` nothing, `DONE` enough, `AGAIN` less than is asked for now."""
        if self.store is None:
            return [NEW] * len(keys)
        done, loose = self.store.done, self.store.unsettled(stability)
        return [AGAIN if key in loose else DONE if key in done else NEW for key in keys]

    def times(self, key: str) -> int:
        """How often an item was measured before."""
        runs = {
            entry.get("run") for entry in self.before if entry.get("item") == key and entry.get("kind") != "skipped"
        }
        return len(runs)

    @property
    def before(self) -> list[dict[str, Any]]:
        """Lines of earlier runs."""
        return self.store.before if self.store is not None else []

    def creations(self) -> list[Creation]:
        """What earlier runs found for the creation of groups."""
        return [
            Creation(one["params"]["size"], one["params"]["count"], *(one["params"][name] * 1e-6 for name in _CREATED))
            for one in self.before
            if one.get("op") == "new_group" and "time_us" in one
        ]

    def runs(self) -> tuple[list[OneRun], list[dict[str, Any]]]:
        """Earlier runs that were ended before they could judge themselves, with hosts of their own, no states; and the
        lines of all others.
        """
        found, judged = [], []
        starts = [place for place, entry in enumerate(self.before) if entry.get("kind") == "run"]
        for place, end in pairwise([*starts, len(self.before)]):
            lines = self.before[place:end]
            if not any(entry.get("kind") == "end" for entry in lines):
                found.append(OneRun(lines[1:], meta.hosts_of(lines[0]), index=int(lines[0].get("index", 0))))
            else:
                judged += lines
        return found, judged

    def _write(self, entries: Sequence[rows.Entry]) -> None:
        if self.store is None or self.error is not None:
            return
        try:
            self.store.write(entries)
        except OSError as error:
            self.error = error
            words = f"cannot write {self.store.path.name}: {error.strerror}"
            print(f"run.py: {words}; make room there and go on with --resume", file=sys.stderr, flush=True)
