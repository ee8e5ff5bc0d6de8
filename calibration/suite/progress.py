"""What is known of a run while it goes on: the time that is left, and what the next item will need of it."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from suite.groups import Groups
from suite.plan import Item
from suite.startup import Creation, fit
from suite.store import measured_us

RUN, BUDGET, INTERRUPTED, FAILED = range(4)
_BEFORE, _SAMPLES = 4, 3
"""Repetitions before the first sample (one is checked, three warm up), and samples of the shortest sampling."""
_CREATIONS = 3
"""How often the creation of groups is repeated."""
_LEAST_S = 0.02
"""Nothing begins with less than this left."""


@dataclass(frozen=True)
class Took:
    """What an item took [s]: one repetition, and all that was not repetitions (buffers, the check of the result)."""

    size_bytes: int
    one_s: float
    fixed_s: float

    def at(self, size_bytes: int) -> "Took":
        """The same at another size: larger ones in proportion."""
        share = max(1.0, size_bytes / self.size_bytes) if self.size_bytes else 1.0
        return Took(size_bytes, share * self.one_s, share * self.fixed_s)

    @property
    def before_s(self) -> float:
        """Seconds before the first sample."""
        return self.fixed_s + _BEFORE * self.one_s

    @property
    def least_s(self) -> float:
        """Seconds of the shortest measurement."""
        return self.before_s + _SAMPLES * self.one_s


@dataclass
class Progress:
    """What rank 0 knows about the run so far; `end_s` is what the end of the run will take.

    `lately`: items without their size and shape -> what the last one took; `creations`: what groups took to create.
    """

    budget_s: float
    begin_s: float = field(default_factory=time.perf_counter)
    interrupted: bool = False
    failed: bool = False
    end_s: float = 0.0
    lately: dict[str, Took] = field(default_factory=dict)
    creations: list[Creation] = field(default_factory=list)
    families: tuple[Groups, ...] = ()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.begin_s

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, less what the end of the run needs."""
        return self.budget_s - min(2.0, 0.05 * self.budget_s) - self.end_s - self.elapsed_s

    def verdict(self, item: Item, wanted_s: float) -> tuple[int, float]:
        """What to do with an item, and how long to sample it: `wanted_s`, or what is left.

        One whose shortest measurement would not end in time is left out before it begins.
        """
        if self.failed:
            return FAILED, 0.0
        if self.interrupted:
            return INTERRUPTED, 0.0
        least_s, left_s = self.least_s(item), self.left_s
        if left_s <= max(least_s, _LEAST_S):
            return BUDGET, 0.0
        took = self.lately.get(item.reduced)
        before_s = took.at(item.size_bytes).before_s if took is not None else 0.0
        return RUN, max(_LEAST_S, min(wanted_s, left_s - before_s))

    def least_s(self, item: Item) -> float:
        """Seconds of the shortest measurement of an item, by what the same took before; 0 where nothing is known."""
        if item.part == "setup":
            model = fit(self.creations)
            if model is None:
                return 0.0
            if item.op == "mesh_startup":
                return _CREATIONS * model.startup_s(self.families)
            return _CREATIONS * model.creation_s(item.get("size"), item.get("count"))
        took = self.lately.get(item.reduced)
        return took.at(item.size_bytes).least_s if took is not None else 0.0

    def learn(self, item: Item, entries: Sequence[Mapping[str, Any]]) -> None:
        """Takes note of what an item took, from its lines."""
        for entry in entries:
            took_s = float(entry.get("took_s", 0.0))
            one_us = measured_us(entry)
            if one_us is None or item.part == "setup":
                continue
            one_s, samples = one_us * 1e-6, entry.get("samples")
            if samples is None:  # two things at once: nothing tells its rounds apart
                self.lately[item.reduced] = Took(item.size_bytes, 0.0, took_s)
                continue
            sampled_s = one_s * samples * entry.get("params", {}).get("inner", 1)
            self.lately[item.reduced] = Took(item.size_bytes, one_s, max(0.0, took_s - sampled_s))

    def remember(self, items: Iterable[Item], before: Iterable[Mapping[str, Any]]) -> None:
        """Takes note of what earlier runs of the same machine took."""
        known = {item.key: item for item in items}
        for entry in before:
            item = known.get(str(entry.get("item")))
            if item is not None:
                self.learn(item, [entry])
