"""Seconds of one chunk: a max-plus recurrence over its operators on the host, compute and communication streams.

The host issues operators in order and runs ahead; an operator starts when it has been issued, when its stream is free
(one for compute, one for the collectives of each family of groups, one for copies to and from the host) and when what
it waits for has ended. Nothing here is a ratio: hidden communication, exposed communication and a host-bound chunk all
come out of the recurrence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from traincast.costs import Machine, host_seconds, operator_seconds
from traincast.lower.program import Label
from traincast.model.operators import Collective, HostCopy, Operator
from traincast.topology import Span

Phase = Literal["compute", "recompute"]


@dataclass(frozen=True)
class Segment:
    """Operators that share a label; `mark` asks for the time at which its weight gradients are complete.

    `autograd`: its calls are those of a backward pass, which autograd's C++ issues; what is computed again in front of
    one is issued by Python, as in a forward pass.
    """

    operators: tuple[Operator, ...]
    phase: Phase = "compute"
    mark: bool = False
    autograd: bool = False


@dataclass(frozen=True)
class ChunkTime:
    """Duration [s], its split by label, and the marked times in the order of their segments."""

    duration_s: float
    labels_s: Mapping[Label, float]
    marks_s: tuple[float, ...]


@dataclass
class _Clocks:
    """Running state of the recurrence: when each stream is free, and collectives still under way."""

    host: float = 0.0
    compute: float = 0.0
    streams: dict[str, float] = field(default_factory=dict)
    """End of the last collective on the stream of each family of groups."""
    copies: dict[str, float] = field(default_factory=dict)
    """End of the last copy to the host and back."""
    waits: tuple[tuple[int, float, float, Label], ...] = ()
    """(compute operators that may still start before it, start, end, label) of each pending collective."""
    launched: float = 0.0
    """Start of the last operator, where all streams share one connection; no later one starts before it."""


def chunk_time(segments: Sequence[Segment], machine: Machine, spans: Mapping[str, Span]) -> ChunkTime:
    """Run the recurrence over the segments of one chunk.

    Returns the duration, the seconds per label (`compute`, `recompute`, `host`, and the axis of each collective that
    compute waited for; they sum to the duration) and the marks.
    """
    clocks = _Clocks()
    labels: dict[Label, float] = {}
    marks: list[float] = []
    blocking, in_order = machine.profile.traits.launch_blocking, machine.profile.traits.one_connection
    priced: dict[int, list[tuple[Operator, float, float]]] = {}  # alike layers are one object
    for segment in segments:
        if id(segment) not in priced:
            priced[id(segment)] = _priced(segment, machine, spans)
        for op, host_s, seconds in priced[id(segment)]:
            clocks.host += host_s
            if isinstance(op, Collective):
                started = _communicate(replace(op, behind=0) if blocking else op, seconds, clocks)
                clocks.launched = started if in_order else 0.0
            elif isinstance(op, HostCopy):
                clocks.copies[op.way] = max(clocks.host, clocks.copies.get(op.way, 0.0)) + seconds
            else:
                started = _compute(seconds, segment.phase, machine, clocks, labels)
                clocks.launched = started if in_order else 0.0
            if blocking:
                clocks.host = max([clocks.compute, *(w[2] for w in clocks.waits)])
        if segment.mark:
            marks.append(clocks.compute)
    end = max([clocks.compute, *(w[2] for w in clocks.waits), *clocks.copies.values()])
    _label_gap(end, clocks.waits, clocks, labels)
    return ChunkTime(end, labels, tuple(marks))


def _priced(segment: Segment, machine: Machine, spans: Mapping[str, Span]) -> list[tuple[Operator, float, float]]:
    """Operators with the time of the host and of the device [s]."""
    by = segment.autograd
    return [
        (op, host_seconds(op, machine, autograd=by), operator_seconds(op, machine, spans)) for op in segment.operators
    ]


def _communicate(op: Collective, seconds: float, clocks: _Clocks) -> float:
    """Start a collective after the last one of its family and, where it needs them, after the results before it.

    Returns when it starts.
    """
    if seconds == 0.0:
        return clocks.launched
    start = max(clocks.host, clocks.launched, clocks.streams.get(op.family, 0.0))
    if op.axis == "replica":
        start = max(start, clocks.streams.get("dp", 0.0))
    if op.after_copies:
        start = max(start, clocks.copies.get("in", 0.0))
    if op.needs:
        blocking_end = max((w[2] for w in clocks.waits if w[0] == 0), default=0.0)
        start = max(start, clocks.compute, blocking_end)
    end = clocks.streams[op.family] = start + seconds
    label: Label = "dp" if op.axis == "replica" else op.axis
    clocks.waits = (*clocks.waits, (op.behind, start, end, label))
    return start


def _compute(seconds: float, phase: Phase, machine: Machine, clocks: _Clocks, labels: dict[Label, float]) -> float:
    """Start a compute operator when it is issued and the collectives that it waits for have ended.

    Returns when it starts.
    """
    if not clocks.waits:
        start = max(clocks.host, clocks.launched, clocks.compute)
        if start > clocks.compute:
            labels["host"] = labels.get("host", 0.0) + start - clocks.compute
        clocks.compute = start + seconds
        labels[phase] = labels.get(phase, 0.0) + seconds
        return start
    due = tuple(w for w in clocks.waits if w[0] == 0)
    start = max([clocks.host, clocks.launched, clocks.compute, *(w[2] for w in due)])
    _label_gap(start, due if start > clocks.launched else clocks.waits, clocks, labels)
    # what has ended cannot hold anything up any more
    beside = tuple((w[0] - 1, w[1], w[2], w[3]) for w in clocks.waits if w[0] > 0 and w[2] > start)
    overlap = max((min(w[2], start + seconds) - start for w in beside), default=0.0)
    seconds += max(overlap, 0.0) * machine.profile["overlap.slowdown"]
    clocks.waits = beside
    clocks.compute = start + seconds
    labels[phase] = labels.get(phase, 0.0) + seconds
    return start


def _label_gap(
    until: float, due: Sequence[tuple[int, float, float, Label]], clocks: _Clocks, labels: dict[Label, float]
) -> None:
    """Label the time in which the compute stream stands still: a collective under way, else the host."""
    at = clocks.compute
    for _, start, end, label in sorted(due, key=lambda w: w[1]):
        waited = min(end, until) - max(start, at)
        if waited > 0:
            before = max(start - at, 0.0)
            if before > 0:
                labels["host"] = labels.get("host", 0.0) + before
            labels[label] = labels.get(label, 0.0) + waited
            at = min(end, until)
    if until > at:
        labels["host"] = labels.get("host", 0.0) + until - at
