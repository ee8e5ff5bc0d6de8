"""What one representative pipeline did, as bars on streams: the common source of timelines and traces."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from traincast.lower.program import ClassResult, Label, Program, RankClass, Result
from traincast.schedule.types import Pass

Stream = Literal["compute", "pp-recv", "pp-send", "dp"]
STREAMS: tuple[Stream, ...] = ("compute", "pp-recv", "pp-send", "dp")

PASS_NAMES: dict[Pass, str] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
MESSAGE = "pp"
REDUCTION = "dp"


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
    """When each stage of the representative pipeline waits for communication that is running, as `breakdown` counts it.

    What else a stage does not compute is the bubble. Bars of one stage may overlap where several messages run.
    """
    found: list[Bar] = []
    for index in representative_pipeline(program):
        stage, outcome = program.classes[index].stage, result.classes[index]
        times = [(MESSAGE, *both) for both in _message_waits(program, outcome)]
        times += [(REDUCTION, *both) for both in _reduction_waits(program, outcome)]
        found += [
            Bar(stage, "compute", kind, f"wait for {kind}", start, end) for kind, start, end in times if end > start
        ]
    return tuple(found)


def _message_waits(program: Program, outcome: ClassResult) -> Iterator[tuple[float, float]]:
    """A blocking stage waits for every transfer of its own, another one for the input of its next pass."""
    free_s = outcome.begin_s * program.rolling
    inputs = zip(outcome.input_start_s, outcome.input_end_s, outcome.start_s, outcome.end_s, strict=True)
    for begin_s, arrived_s, start_s, end_s in inputs:
        if program.p2p == "async":
            yield max(float(begin_s), float(free_s)), min(float(arrived_s), float(start_s))
        else:
            yield float(begin_s), float(arrived_s)
        free_s = end_s
    if program.p2p != "async":
        yield from zip(map(float, outcome.output_start_s), map(float, outcome.output_end_s), strict=True)


def _reduction_waits(program: Program, outcome: ClassResult) -> Iterator[tuple[float, float]]:
    """The part of each gradient bucket that runs after the stage's last pass, and its last message if it blocks."""
    done_s = float(outcome.end_s[-1]) if len(outcome.end_s) else 0.0
    if program.p2p != "async":
        done_s = max([done_s, *(float(end_s) for end_s in outcome.output_end_s if not math.isnan(end_s))])
    for start_s, end_s in zip(outcome.bucket_start_s, outcome.bucket_end_s, strict=True):
        yield max(float(start_s), done_s), float(end_s)


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
