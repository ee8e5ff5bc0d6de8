"""When a class could have gone on by itself: what it waits for beyond that, it waits for others at a collective.

Everything is read off the times of a result, so it is the same for all evaluators.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traincast.lower.check import tail_parties
from traincast.lower.program import LABELS, ClassResult, Floats, Label, Program, RankClass, Result
from traincast.schedule.links import StageLinks, links


@dataclass(frozen=True, eq=False)
class OwnTimes:
    """A class of a program with its times; arrays are in order of its instructions, buckets or tail operations."""

    cls: RankClass
    times: ClassResult
    links: StageLinks
    asynchronous: bool

    @property
    def computed_s(self) -> float:
        """When it has computed its last instruction."""
        return float(self.times.end_s[-1]) if len(self.times.end_s) else 0.0

    @property
    def done_s(self) -> float:
        """When it has ended all instructions: with blocking p2p, when its last exchange is done too."""
        if self.asynchronous:
            return self.computed_s
        return max(self.computed_s, float(np.max(_or_never(self.times.output_end_s), initial=0.0)))

    @property
    def reduced_s(self) -> float:
        """When it has ended its instructions and its last bucket."""
        return max(self.done_s, float(np.max(self.times.bucket_end_s, initial=0.0)))

    @cached_property
    def ready_s(self) -> Floats:
        """When it was ready for each instruction: the one before had ended, and its inputs had arrived.

        With blocking p2p, when the exchange before it was done. Instructions that run as one need all their inputs.
        """
        size = len(self.times.start_s)
        before: Floats = np.append(0.0, self.times.end_s[:-1])[:size]
        if not size:
            return before
        ends = self.links.leave if self.asynchronous else self.links.block_end
        first = np.flatnonzero(np.append(True, ends[1:] != ends[:-1]))
        ready = before.copy()
        received = np.maximum.reduceat(_or_never(self.times.input_end_s), first)
        ready[first] = np.maximum(before[first], received)
        if not self.asynchronous:
            sent = np.maximum.reduceat(_or_never(self.times.output_end_s), first)
            ready[first[1:]] = np.maximum(ready[first[1:]], sent[:-1])
        return ready

    @cached_property
    def arrived_s(self) -> Floats:
        """When it had arrived at each gradient bucket: it was ready, and the bucket before had ended."""
        last = self.links.last_gradient
        ready = [
            (self.done_s if bucket.chunk is None else float(self.times.start_s[last[bucket.chunk]])) + bucket.ready_s
            for bucket in self.cls.buckets
        ]
        before = np.append(0.0, self.times.bucket_end_s[:-1])[: len(ready)]
        arrived: Floats = np.maximum(np.array(ready, dtype=np.float64), before)
        return arrived

    def tail_ready_s(self, position: int) -> float:
        """When it was ready for a tail operation."""
        return float(self.times.tail_end_s[position - 1]) if position else self.reduced_s


def own_times(program: Program, result: Result) -> tuple[OwnTimes, ...]:
    """One for each class; nothing is worked out yet."""
    found = links(program.schedule_key, program.schedule)
    asynchronous = program.p2p == "async"
    return tuple(
        OwnTimes(cls, times, found[cls.stage], asynchronous)
        for cls, times in zip(program.classes, result.classes, strict=True)
    )


def met_s(own: OwnTimes, owns: Sequence[OwnTimes], begin_s: float = 0.0) -> dict[Label, float]:
    """Seconds from `begin_s` on for which a class was ready for its instructions but those that it `meets` were not.

    By the axis of the group in which it met them. Where it waits in groups of several axes at once, the axis that comes
    first in `LABELS` counts.
    """
    peers = [(axis_of(own.cls, other), owns[other].ready_s) for other in own.cls.meets]
    return _waited_s(np.maximum(own.ready_s, begin_s), peers, own.times.start_s)


def met_at_buckets_s(own: OwnTimes, owns: Sequence[OwnTimes]) -> dict[Label, float]:
    """Seconds, behind its instructions, for which a class had arrived at a gradient bucket but those of the bucket that
    it also meets at instructions had not.

    By the axis of the group in which it meets those: a rank of an unbalanced context-parallel group that waits here for
    one with more attention to do waits for the split of the sequence (`cp`), not for gradients.
    """
    peers = [
        (axis, owns[other].arrived_s)
        for other in own.cls.dp_meets
        if other in own.cls.meets and (axis := axis_of(own.cls, other)) != "dp"
    ]
    at = np.maximum(own.arrived_s, own.done_s)
    return _waited_s(at, peers, np.maximum(at, own.times.bucket_start_s))


def met_at_tail_s(program: Program, index: int, position: int, owns: Sequence[OwnTimes]) -> dict[Label, float]:
    """Seconds for which class `index` was ready for a tail operation but others of its own stage were not.

    By the axis of the group that they form; for others than those that it `meets`, by the label of the operation. What
    it waits for other stages is left out: that is the pipeline's draining.
    """
    own, label = owns[index], owns[index].cls.tail[position].label
    peers = [
        (axis_of(own.cls, other) if other in own.cls.meets else label, np.array([owns[other].tail_ready_s(at)]))
        for other, at in tail_parties(program, index, position).items()
        if other != index and owns[other].cls.stage == own.cls.stage
    ]
    start_s = own.times.tail_start_s[position : position + 1]
    return _waited_s(np.array([own.tail_ready_s(position)]), peers, start_s)


def axis_of(cls: RankClass, other: int) -> Label:
    """Axis of the group in which a class meets another one at its instructions."""
    return cls.meet_labels.get(other, "tp")


def _waited_s(at: Floats, peers: Sequence[tuple[Label, Floats]], until: Floats) -> dict[Label, float]:
    """Seconds between `at` and when the peers of each label were ready, at most `until`; no second counts twice."""
    seconds: dict[Label, float] = {}
    for label in sorted({label for label, _ in peers}, key=LABELS.index):
        ready = np.max([ready for name, ready in peers if name == label], axis=0)
        met = np.minimum(np.maximum(at, ready), until)
        seconds[label] = float(np.sum(met - at))
        at = met
    return seconds


def _or_never(seconds: Floats) -> Floats:
    """The times with minus infinity where there is no message."""
    return np.where(np.isnan(seconds), -np.inf, seconds)
