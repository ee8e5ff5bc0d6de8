"""Where the time of a step went: one label for every instant of every class."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.lower.program import LABELS, ClassResult, Floats, Label, Program, RankClass, Result
from traincast.schedule.types import Instruction

Seconds = Mapping[Label, float]


@dataclass(frozen=True)
class Breakdown:
    """Seconds per label; every entry sums to the step time.

    `classes_s` and `stages_s` are in order of class and stage, `mean_s` is over the ranks. `exposed_dp_s` is
    the part of `mean_s` in which ranks wait for running gradient communication. `bubble_share_of_ideal` is
    taken on the busiest stage, whose work is the ideal time of the pipeline: its waiting for other stages
    (transfers left out) beside its work, (p - 1) / (m v) for uniform stages (SC21 §2.2). Lighter stages wait more,
    which is imbalance, not the schedule's bubble.
    """

    classes_s: tuple[Seconds, ...]
    stages_s: tuple[Seconds, ...]
    mean_s: Seconds
    exposed_dp_s: float
    bubble_share_of_ideal: float


def breakdown(program: Program, result: Result) -> Breakdown:
    """The breakdown of a result of `program`.

    A class is labelled by what its compute stream does: an instruction by its `labels_s`, a tail operation by
    its label. While it waits, by the communication that it waits for and that is running: `pp` for the input
    of the next instruction (with blocking p2p: any transfer of the exchange), `dp` for a gradient bucket. All
    other waiting, for a neighbour to compute, for those it meets, for the end of the step, is `bubble`. Where steps are
    rolling, a class's step begins with its first instruction.
    """
    asynchronous = program.p2p == "async"
    tables = []
    for cls, times in zip(program.classes, result.classes, strict=True):
        order = program.schedule[cls.stage]
        begin_s = times.begin_s * program.rolling
        tables.append(_label(cls, order, times, asynchronous, begin_s))
        tables[-1]["bubble"] += result.step_time_s - (times.finish_s - begin_s)
    weights = np.array([cls.ranks for cls in program.classes], dtype=np.float64)
    seconds = np.array([[table[label] for label in LABELS] for table in tables])
    stages, p = np.array([cls.stage for cls in program.classes]), len(program.schedule)
    mean_s = _mean(seconds, weights)
    return Breakdown(
        classes_s=tuple(tables),
        stages_s=tuple(_mean(seconds[on], weights[on]) for on in (stages == s for s in range(p))),
        mean_s=mean_s,
        exposed_dp_s=mean_s["dp"],
        bubble_share_of_ideal=_measured_bubble(program, result),
    )


def _label(
    cls: RankClass, order: Sequence[Instruction], times: ClassResult, asynchronous: bool, begin_s: float
) -> dict[Label, float]:
    """Seconds per label of one class from `begin_s` up to its own end."""
    seconds: dict[Label, float] = dict.fromkeys(LABELS, 0.0)
    for key, count in Counter((i.kind, i.chunk) for i in order).items():
        for label, part_s in cls.chunks[key].labels_s.items():
            seconds[label] += count * part_s
    gap_begin_s = _gap_begin_s(order, times, begin_s)
    waited_s = float(np.sum(times.start_s - gap_begin_s))
    transfer_s = _transfer_s(order, times, asynchronous, begin_s)
    done_s = pipeline_end_s(times)
    if not asynchronous:
        done_s = max(pipeline_end_s(times), float(np.max(_present(times.output_end_s), initial=0.0)))
        waited_s += done_s - pipeline_end_s(times)
    seconds["pp"] += transfer_s
    seconds["bubble"] += waited_s - transfer_s
    reduced_s = max(done_s, float(np.max(times.bucket_end_s, initial=0.0)))
    exposed_s = _overlap(times.bucket_start_s, times.bucket_end_s, done_s, reduced_s)
    seconds["dp"] += exposed_s
    seconds["bubble"] += reduced_s - done_s - exposed_s
    for op, begin_s, end_s in zip(cls.tail, times.tail_start_s, times.tail_end_s, strict=True):
        seconds["bubble"] += float(begin_s) - reduced_s
        seconds[op.label] += float(end_s - begin_s)
        reduced_s = float(end_s)
    return seconds


def _gap_begin_s(order: Sequence[Instruction], times: ClassResult, begin_s: float) -> Floats:
    """When the wait before each instruction begins: at the end of the one before it, first at `begin_s`."""
    begin: Floats = np.append(begin_s, times.end_s[:-1])[: len(order)]
    return begin


def _transfer_s(order: Sequence[Instruction], times: ClassResult, asynchronous: bool, begin_s: float) -> float:
    """Time that a class waits, from `begin_s` on, while a message of its own is under way."""
    if asynchronous:
        return _overlap(times.input_start_s, times.input_end_s, _gap_begin_s(order, times, begin_s), times.start_s)
    return _union(times, begin_s)


def pipeline_end_s(times: ClassResult) -> float:
    """When the class has computed its last instruction."""
    return float(times.end_s[-1]) if len(times.end_s) else 0.0


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


def _mean(seconds: Floats, weights: Floats) -> Seconds:
    """Mean over rows, by weight; zero where there are none."""
    total = weights.sum()
    means = weights @ seconds / total if total else np.zeros(len(LABELS))
    return dict(zip(LABELS, means.tolist(), strict=True))


def _measured_bubble(program: Program, result: Result) -> float:
    """Waiting of the busiest class in the pipeline phase, transfers left out, by its work."""
    begins_s = [times.begin_s * program.rolling for times in result.classes]
    ends_s = [pipeline_end_s(times) for times in result.classes]
    span_s = max((end - begin for begin, end in zip(begins_s, ends_s, strict=True)), default=0.0)
    work_s = [float(np.sum(times.end_s - times.start_s)) for times in result.classes]
    busiest = int(np.argmax(work_s))
    cls, times = program.classes[busiest], result.classes[busiest]
    if work_s[busiest] == 0.0:
        return 0.0
    transfer_s = _transfer_s(program.schedule[cls.stage], times, program.p2p == "async", begins_s[busiest])
    return max(span_s - work_s[busiest] - transfer_s, 0.0) / work_s[busiest]
