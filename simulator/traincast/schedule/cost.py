"""When a schedule runs what, if stages take given times and messages are asynchronous: for schedules that search.

The evaluators do this for whole programs; this is the part of it that depends on passes alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from traincast.errors import TraincastError
from traincast.schedule.times import PassTimes
from traincast.schedule.types import Instruction, Schedule


@dataclass(frozen=True)
class Cost:
    """Seconds of one step of a schedule.

    `rolling_s` is the longest time from the begin of a stage's first pass to the end of its last one: the step time
    where no barrier parts the steps. `whole_s` is the time from the first begin to the last end.
    """

    rolling_s: float
    whole_s: float


def cost(schedule: Schedule, times: Sequence[PassTimes]) -> Cost:
    """Cost of a schedule with one chunk a stage, nothing joint, messages of one direction one after the other.

    Raises TraincastError for an order that never ends.
    """
    p = len(schedule)
    ends: dict[tuple[int, int, int], float] = {}
    arrived = [[0.0, 0.0] for _ in range(p)]
    place, now, begin = [0] * p, [0.0] * p, [-1.0] * p
    waiting = list(range(p))
    while waiting:
        stage = waiting.pop()
        order = schedule[stage]
        while place[stage] < len(order):
            i = order[place[stage]]
            ready_s = _ready_s(i, stage, p, ends)
            if ready_s is None:
                break
            start_s = max(now[stage], ready_s)
            begin[stage] = start_s if begin[stage] < 0 else begin[stage]
            now[stage] = start_s + _seconds(i, times[stage])
            place[stage] += 1
            if i.kind != "W":
                way = 1 if i.kind == "F" else -1
                sent_s = max(now[stage], arrived[stage][way > 0]) + times[stage].send_s
                arrived[stage][way > 0] = sent_s
                ends[way, stage, i.microbatch] = sent_s
                if 0 <= stage + way < p:
                    waiting.append(stage + way)
    if any(at < len(order) for at, order in zip(place, schedule, strict=True)):
        raise TraincastError("the order of a schedule never ends")
    spans = [end - start for start, end in zip(begin, now, strict=True)]
    return Cost(max(spans), max(now))


def _ready_s(i: Instruction, stage: int, p: int, ends: dict[tuple[int, int, int], float]) -> float | None:
    """Arrival of the input of a pass; None while its sender has not run."""
    if i.kind == "F":
        return ends.get((1, stage - 1, i.microbatch)) if stage else 0.0
    if i.kind == "W":
        return 0.0
    return ends.get((-1, stage + 1, i.microbatch)) if stage < p - 1 else 0.0


def _seconds(i: Instruction, times: PassTimes) -> float:
    return {"F": times.forward_s, "B": times.backward_s, "I": times.input_s, "W": times.weight_s}[i.kind]
