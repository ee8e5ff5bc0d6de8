"""Where the time of a step went: one label for every instant of every class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.lower.program import LABELS, ClassResult, Floats, Label, Program, Result
from traincast.lower.waits import OwnTimes, met_at_buckets_s, met_at_tail_s, met_s, own_times

Seconds = Mapping[Label, float]

ROUNDING: Final = 1e-13
"""Share of a step that rounding of its sums may leave."""


@dataclass(frozen=True)
class Breakdown:
    """Seconds per label; every entry sums to the step time.

    `classes_s` and `stages_s` are in order of class and stage, `mean_s` is over the ranks. `exposed_dp_s` is
    the part of `mean_s` in which ranks wait for gradient communication, or for others to join it.
    `bubble_share_of_ideal` is taken on the busiest stage, whose work is the ideal time of the pipeline: its waiting for
    other stages (transfers and meetings left out) beside its work, (p - 1) / (m v) for uniform stages (SC21 §2.2).
    Lighter stages wait more, which is imbalance, not the schedule's bubble.
    """

    classes_s: tuple[Seconds, ...]
    stages_s: tuple[Seconds, ...]
    mean_s: Seconds
    exposed_dp_s: float
    bubble_share_of_ideal: float


def breakdown(program: Program, result: Result) -> Breakdown:
    """The breakdown of a result of `program`.

    A class is labelled by what its compute stream does: an instruction by its `labels_s`, a tail operation by
    its label. While it waits, by the communication that it waits for:

    - `pp` while the input of its next instruction is under way (with blocking p2p: any transfer of the exchange);
    - the axis of the group, tp above all, once it is ready itself but another class that it meets at the instruction is
      not: it stands in that group's collective;
    - `dp` from when it has arrived at a gradient bucket, whether others arrive later or it is being reduced; but the
      axis of the group while those are not there that it meets at instructions too (`cp`, where parts of a sequence are
      unequal);
    - in the tail likewise the axis of the group, or the operation's label, while others of its own stage are not ready.

    All other waiting, for another stage to compute, for its own gradients, for the end of the step, is `bubble`. Where
    steps are rolling, a class's step begins with its first instruction.
    """
    owns = own_times(program, result)
    tables = []
    for index, own in enumerate(owns):
        begin_s = own.times.begin_s * program.rolling
        tables.append(_label(program, index, owns, begin_s))
        tables[-1]["bubble"] += result.step_time_s - (own.times.finish_s - begin_s)
    weights = np.array([cls.ranks for cls in program.classes], dtype=np.float64)
    seconds = settled(np.array([[table[label] for label in LABELS] for table in tables]), result.step_time_s)
    tables = [dict(zip(LABELS, row, strict=True)) for row in seconds.tolist()]
    stages, p = np.array([cls.stage for cls in program.classes]), len(program.schedule)
    mean_s = _mean(seconds, weights)
    return Breakdown(
        classes_s=tuple(tables),
        stages_s=tuple(_mean(seconds[on], weights[on]) for on in (stages == s for s in range(p))),
        mean_s=mean_s,
        exposed_dp_s=mean_s["dp"],
        bubble_share_of_ideal=_measured_bubble(program, owns),
    )


def _label(program: Program, index: int, owns: Sequence[OwnTimes], begin_s: float) -> dict[Label, float]:
    """Seconds per label of one class from `begin_s` up to its own end."""
    own = owns[index]
    cls, times = own.cls, own.times
    seconds: dict[Label, float] = dict.fromkeys(LABELS, 0.0)
    for key, count in Counter((i.kind, i.chunk) for i in own.links.instructions).items():
        for label, part_s in cls.chunks[key].labels_s.items():
            seconds[label] += count * part_s
    idle_s = float(np.sum(times.start_s - _gap_begin_s(times, begin_s))) + own.done_s - own.computed_s
    transfer_s = _transfer_s(own, begin_s)
    seconds["pp"] += transfer_s
    met = met_s(own, owns, begin_s)
    for label, waited_s in met.items():
        seconds[label] += waited_s
    seconds["bubble"] += idle_s - transfer_s - sum(met.values())
    exposed_s = _overlap(own.arrived_s, times.bucket_end_s, own.done_s, own.reduced_s)
    met = met_at_buckets_s(own, owns)
    for label, waited_s in met.items():
        seconds[label] += waited_s
    seconds["dp"] += exposed_s - sum(met.values())
    seconds["bubble"] += own.reduced_s - own.done_s - exposed_s
    for position, op in enumerate(cls.tail):
        ready_s, start_s = own.tail_ready_s(position), float(times.tail_start_s[position])
        met = met_at_tail_s(program, index, position, owns) if start_s > ready_s else {}
        for label, waited_s in met.items():
            seconds[label] += waited_s
        seconds[op.label] += float(times.tail_end_s[position]) - start_s
        seconds["bubble"] += start_s - ready_s - sum(met.values())
    return seconds


def _gap_begin_s(times: ClassResult, begin_s: float) -> Floats:
    """When the wait before each instruction begins: at the end of the one before it, first at `begin_s`."""
    begin: Floats = np.append(begin_s, times.end_s[:-1])[: len(times.start_s)]
    return begin


def _transfer_s(own: OwnTimes, begin_s: float) -> float:
    """Time that a class waits, from `begin_s` on, while a message of its own is under way."""
    times = own.times
    if own.asynchronous:
        return _overlap(times.input_start_s, times.input_end_s, _gap_begin_s(times, begin_s), times.start_s)
    return _union(times, begin_s)


def _present(seconds: Floats) -> Floats:
    return seconds[~np.isnan(seconds)]


def _overlap(begin_s: Floats, end_s: Floats, from_s: npt.ArrayLike, to_s: npt.ArrayLike) -> float:
    """Total of the intervals [begin, end] inside [from, to], pair by pair; NaN pairs count nothing."""
    inside = np.minimum(end_s, to_s) - np.maximum(begin_s, from_s)
    return float(np.sum(np.maximum(_present(inside), 0.0)))


def _union(times: ClassResult, from_s: float) -> float:
    """Time from `from_s` on in which any transfer of a blocking class runs; it never computes meanwhile."""
    begin_s = _present(np.concatenate((times.input_start_s, times.output_start_s)))
    end_s = _present(np.concatenate((times.input_end_s, times.output_end_s)))
    order = np.argsort(begin_s)
    begin_s, end_s = begin_s[order], end_s[order]
    covered_s = np.append(from_s, np.maximum(np.maximum.accumulate(end_s), from_s))[: len(end_s)]
    return float(np.sum(np.maximum(end_s - np.maximum(begin_s, covered_s), 0.0)))


def settled(seconds: Floats, step_time_s: float) -> Floats:
    """Without what rounding leaves of a label that has no time: sums of a step's times are exact to some 1e-16 of it.

    Anything larger stays, a negative above all.
    """
    return np.where(np.abs(seconds) <= ROUNDING * step_time_s, 0.0, seconds)


def _mean(seconds: Floats, weights: Floats) -> Seconds:
    """Mean over rows, by weight; zero where there are none."""
    total = weights.sum()
    means = weights @ seconds / total if total else np.zeros(len(LABELS))
    return dict(zip(LABELS, means.tolist(), strict=True))


def _measured_bubble(program: Program, owns: Sequence[OwnTimes]) -> float:
    """Waiting of the busiest class in the pipeline phase, transfers and meetings left out, by its work."""
    begins_s = [own.times.begin_s * program.rolling for own in owns]
    span_s = max((own.computed_s - begin for own, begin in zip(owns, begins_s, strict=True)), default=0.0)
    work_s = [float(np.sum(own.times.end_s - own.times.start_s)) for own in owns]
    busiest = int(np.argmax(work_s))
    if work_s[busiest] == 0.0:
        return 0.0
    own, begin_s = owns[busiest], begins_s[busiest]
    communication_s = _transfer_s(own, begin_s) + sum(met_s(own, owns, begin_s).values())
    return max(span_s - work_s[busiest] - communication_s, 0.0) / work_s[busiest]
