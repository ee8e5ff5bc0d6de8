"""One greedy order of F, I and W passes on all stages at once, in the order of time."""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincast.schedule.times import PassTimes
from traincast.schedule.types import Instruction, Pass, Schedule

_EPS = 1e-9


@dataclass(frozen=True)
class Policy:
    """Binary choices of the heuristic.

    `late_first`: run one more warm-up F although it delays the first I. `skip`: leave out an F where the stage is
    more than one F ahead of the next one and an I is ready. `eager`: in the steady state, take whatever is ready where
    the pass whose turn it is has not arrived.
    """

    late_first: bool
    skip: bool
    eager: bool


def greedy(m: int, times: Sequence[PassTimes], memory: tuple[float, float], policy: Policy) -> Schedule:
    """Instructions of all stages; `memory` is the limit in microbatches, and what one counts between its I and its W.

    Every stage decides what it runs next as soon as it is free, the earliest stage first. Warm-up runs F as long as
    memory and the first I allow. Then F and I take turns; a W fills a gap that is at least as long as it, or one that
    would make the largest idle time of all stages larger, or is run to free memory. When F and I have run out, the W
    that are left follow.
    """
    return _Search(m, times, memory, policy).run()


class _Search:
    """The state of the search: what every stage has run, when it is free, and which inputs arrive when."""

    def __init__(self, m: int, times: Sequence[PassTimes], memory: tuple[float, float], policy: Policy) -> None:
        p = len(times)
        self.m, self.p, self.times, self.policy = m, p, times, policy
        self.limit, self.after_input = memory
        self.now = [0.0] * p
        self.idle = [0.0] * p
        self.kept = [0.0] * p
        self.order: list[list[Instruction]] = [[] for _ in range(p)]
        self.count = {kind: [0] * p for kind in "FIW"}
        # arrivals of the inputs; what is missing is not known yet
        self.arrival: dict[str, list[list[float]]] = {kind: [[] for _ in range(p)] for kind in "FI"}
        self.arrival["F"][0] = [0.0] * m
        self.first_i = _first_inputs(times)

    def run(self) -> Schedule:
        """The instructions of all stages."""
        heap = [(0.0, -s) for s in range(self.p)]
        heapq.heapify(heap)
        parked: set[int] = set()
        while heap:
            _, negative = heapq.heappop(heap)
            stage = -negative
            kind = self._next(stage)
            if kind is None:
                if self.count["W"][stage] < self.m:
                    parked.add(stage)
                continue
            self._append(stage, kind)
            heapq.heappush(heap, (self.now[stage], -stage))
            for near in (stage - 1, stage + 1):
                if near in parked:
                    parked.remove(near)
                    heapq.heappush(heap, (self.now[near], -near))
        assert not parked
        return tuple(tuple(order) for order in self.order)

    def _next(self, s: int) -> Pass | None:
        """Kind of pass that stage s runs next; None if that depends on what a neighbour has yet to do."""
        f, i, w = (self.count[kind][s] for kind in "FIW")
        if i == self.m:
            return "W" if w < self.m else None
        at: dict[Pass, float] = {"F": math.inf, "I": math.inf}
        fits = self.kept[s] + 1.0 <= self.limit + _EPS
        if f < self.m and fits:
            at["F"] = _known(self.arrival["F"][s], f)
        if i < f:
            at["I"] = _known(self.arrival["I"][s], i)
        if i == 0:
            return self._warm_up(s, at)
        ahead = f - self.count["F"][s + 1] if s < self.p - 1 else 1
        turn: Pass = "I" if self._last_main(s) == "F" else "F"
        if f == self.m:
            turn = "I"
        elif i == f or ahead < 1:
            turn = "F"
        elif turn == "F" and self.policy.skip and ahead > 1 and at["I"] <= self.now[s] + _EPS:
            turn = "I"
        if turn == "F" and not fits:
            if i > w:
                return "W"
            turn = "I"
        return self._fill(s, turn, at, i > w)

    def _last_main(self, s: int) -> str:
        return next(i.kind for i in reversed(self.order[s]) if i.kind != "W")

    def _warm_up(self, s: int, at: Mapping[Pass, float]) -> Pass | None:
        """F as long as it fits before the first I, or (late_first) begins before it."""
        if at["F"] < math.inf:
            start_s = max(self.now[s], at["F"])
            if self.policy.late_first:
                early = start_s < self.first_i[s] - _EPS
            else:
                early = start_s + self.times[s].forward_s <= self.first_i[s] + _EPS
            if early or not self.order[s]:
                return "F"
        return "I" if at["I"] < math.inf else None

    def _fill(self, s: int, turn: Pass, at: Mapping[Pass, float], pending: bool) -> Pass | None:
        """The pass whose turn it is, or what runs while it has not arrived."""
        times, now = self.times[s], self.now[s]
        other: Pass = "I" if turn == "F" else "F"
        known = at[turn] < math.inf
        sender = (times.forward_s if turn == "F" else times.input_s) + times.send_s
        gap_s = at[turn] - now if known else sender
        if known and gap_s <= _EPS:
            return turn
        if at[other] <= now + _EPS and (self.policy.eager or not known):
            return other
        if pending:
            most = max(idle for stage, idle in enumerate(self.idle) if stage != s) if self.p > 1 else 0.0
            if gap_s >= times.weight_s - _EPS or self.idle[s] + gap_s > most + _EPS:
                return "W"
        if known:
            return turn
        return other if at[other] < math.inf else None

    def _append(self, s: int, kind: Pass) -> None:
        number, times = self.count[kind][s], self.times[s]
        start_s = max(self.now[s], self.arrival[kind][s][number]) if kind != "W" else self.now[s]
        if self.order[s]:
            self.idle[s] += start_s - self.now[s]
        self.order[s].append(Instruction(kind, number, 0))
        self.count[kind][s] += 1
        if kind == "F":
            end_s = start_s + times.forward_s
            self.kept[s] += 1.0
            if s < self.p - 1:
                self.arrival["F"][s + 1].append(end_s + times.send_s)
            else:
                self.arrival["I"][s].append(end_s)
        elif kind == "I":
            end_s = start_s + times.input_s
            self.kept[s] -= 1.0 - self.after_input
            if s:
                self.arrival["I"][s - 1].append(end_s + times.send_s)
        else:
            end_s = start_s + times.weight_s
            self.kept[s] -= self.after_input
        self.now[s] = end_s


def _known(arrivals: Sequence[float], number: int) -> float:
    """Arrival of the input of pass `number`; infinite while it is not known."""
    return arrivals[number] if number < len(arrivals) else math.inf


def _first_inputs(times: Sequence[PassTimes]) -> tuple[float, ...]:
    """Earliest arrival at each stage of what its first I needs: down the pipeline with F, back with I."""
    at_s = sum(one.forward_s for one in times) + sum(one.send_s for one in times[:-1])
    found = [at_s]
    for one in times[:0:-1]:
        at_s += one.input_s + one.send_s
        found.append(at_s)
    return tuple(reversed(found))
