"""What one representative pipeline did, as bars on streams: the common source of timelines and traces."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from traincast.lower.program import ClassResult, Label, Program, RankClass, Result
from traincast.lower.waits import OwnTimes, met_at_tail_s, own_times
from traincast.schedule.types import Pass

Stream = Literal["compute", "pp-recv", "pp-send", "dp"]
STREAMS: tuple[Stream, ...] = ("compute", "pp-recv", "pp-send", "dp")

PASS_NAMES: dict[Pass, str] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
MESSAGE = "pp"
REDUCTION = "dp"
GROUP = "tp"


@dataclass(frozen=True)
class Bar:
    """One thing that one stage did without a break.

    `kind` is forward, backward, input or weight gradient for instructions, pp for a message, dp for a gradient
    bucket, and the label of the operation after that. `microbatch` and `chunk` are None where they mean
    nothing; `joint_until_s` is the end of the passes that run as one from this one on.
    """

    stage: int
    stream: Stream
    kind: str
    name: str
    start_s: float
    end_s: float
    microbatch: int | None = None
    chunk: int | None = None
    joint_until_s: float | None = None


def representative_pipeline(program: Program) -> tuple[int, ...]:
    """Class of each stage along one pipeline: the first class of stage 0 and those it sends to."""
    index = next(index for index, rank_class in enumerate(program.classes) if rank_class.stage == 0)
    chain = [index]
    while len(chain) < len(program.schedule):
        chain.append(program.classes[chain[-1]].next)
    return tuple(chain)


def bars(program: Program, result: Result) -> tuple[Bar, ...]:
    """All bars of the representative pipeline, stage by stage, in order of begin."""
    found: list[Bar] = []
    for index in representative_pipeline(program):
        rank_class, outcome = program.classes[index], result.classes[index]
        of_stage = [*_instructions(program, rank_class, outcome), *_buckets(rank_class, outcome)]
        of_stage += _tail(rank_class, outcome)
        found += sorted(of_stage, key=lambda bar: (bar.start_s, STREAMS.index(bar.stream)))
    return tuple(found)


def waits(program: Program, result: Result) -> tuple[Bar, ...]:
    """When each stage of the representative pipeline waits for communication, as `breakdown` counts it.

    What else a stage does not compute is the bubble. Bars of one stage may overlap where several messages run.
    """
    owns = own_times(program, result)
    found: list[Bar] = []
    for index in representative_pipeline(program):
        own = owns[index]
        begin_s = own.times.begin_s * program.rolling
        times = [(MESSAGE, *both) for both in _message_waits(own, begin_s)]
        times += [(GROUP, *both) for both in _group_waits(program, index, owns, begin_s)]
        times += [(REDUCTION, *both) for both in _reduction_waits(own)]
        found += [
            Bar(own.cls.stage, "compute", kind, f"wait for {kind}", start, end)
            for kind, start, end in times
            if end > start
        ]
    return tuple(found)


def _message_waits(own: OwnTimes, begin_s: float) -> Iterator[tuple[float, float]]:
    """A blocking stage waits for every transfer of its own, another one for the input of its next pass."""
    outcome, free_s = own.times, begin_s
    inputs = zip(outcome.input_start_s, outcome.input_end_s, outcome.start_s, outcome.end_s, strict=True)
    for sent_s, arrived_s, start_s, end_s in inputs:
        if own.asynchronous:
            yield max(float(sent_s), float(free_s)), min(float(arrived_s), float(start_s))
        else:
            yield float(sent_s), float(arrived_s)
        free_s = end_s
    if not own.asynchronous:
        yield from zip(map(float, outcome.output_start_s), map(float, outcome.output_end_s), strict=True)


def _group_waits(
    program: Program, index: int, owns: Sequence[OwnTimes], begin_s: float
) -> Iterator[tuple[float, float]]:
    """When the stage was ready and others of its groups were not: for a pass, or for an operation of the tail."""
    own = owns[index]
    if own.cls.meets:
        yield from zip(np.maximum(own.ready_s, begin_s).tolist(), own.times.start_s.tolist(), strict=True)
    for position in range(len(own.cls.tail)):
        ready_s = own.tail_ready_s(position)
        yield ready_s, ready_s + sum(met_at_tail_s(program, index, position, owns).values())


def _reduction_waits(own: OwnTimes) -> Iterator[tuple[float, float]]:
    """The part of each gradient bucket, from when the stage had arrived at it, that is after its last pass.

    Or after its last message if it blocks.
    """
    for arrived_s, end_s in zip(own.arrived_s.tolist(), own.times.bucket_end_s.tolist(), strict=True):
        yield max(arrived_s, own.done_s), end_s


def _instructions(program: Program, rank_class: RankClass, outcome: ClassResult) -> Iterator[Bar]:
    stage = rank_class.stage
    for index, step in enumerate(program.schedule[stage]):
        where = (step.microbatch, step.chunk)
        name = PASS_NAMES[step.kind]
        joint_until_s = float(outcome.end_s[index + 1]) if step.joint else None
        times = (float(outcome.start_s[index]), float(outcome.end_s[index]))
        yield Bar(stage, "compute", name, name, *times, *where, joint_until_s)
        messages: tuple[tuple[Stream, str, float, float], ...] = (
            ("pp-recv", f"receive for {name}", outcome.input_start_s[index], outcome.input_end_s[index]),
            ("pp-send", f"send {name}", outcome.output_start_s[index], outcome.output_end_s[index]),
        )
        for stream, title, start, end in messages:
            if not math.isnan(start) and end > start:
                yield Bar(stage, stream, MESSAGE, title, float(start), float(end), *where)


def _buckets(rank_class: RankClass, outcome: ClassResult) -> Iterator[Bar]:
    times = zip(outcome.bucket_start_s, outcome.bucket_end_s, strict=True)
    for number, (start, end) in enumerate(times):
        if end > start:
            yield Bar(rank_class.stage, "dp", REDUCTION, f"gradient bucket {number}", float(start), float(end))


def _tail(rank_class: RankClass, outcome: ClassResult) -> Iterator[Bar]:
    times = zip(rank_class.tail, outcome.tail_start_s, outcome.tail_end_s, strict=True)
    for operation, start, end in times:
        if end > start:
            kind: Label = operation.label
            yield Bar(rank_class.stage, "compute", kind, operation.name, float(start), float(end))
