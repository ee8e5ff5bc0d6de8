"""The backward of a chunk in two passes: I, which another stage waits for, and W, which only the optimiser needs.

What the zero-bubble schedules call B and W (Qi et al. 2023, section 2). W has the weight gradients of the matrix
products, what only they read (gathers of inputs, transposes), their casts and their sums into the main gradients, and
all of the embedding's backward: what the model marks as `for_weights`. I has everything else: recomputation, gradients
of the inputs with their casts, attention core, norms (with their own small weight gradients), residuals.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.lower.program import ChunkCost, ChunkKey
from traincast.lower.stages import ChunkPart, backward_segments, forward_segments
from traincast.model.operators import Collective, Gemm, HostCopy, MemoryBound, Operator
from traincast.schedule import Pass, PassTimes


def input_segments(job: Job, part: ChunkPart) -> tuple[Segment, ...]:
    """Operators of the input part of a chunk's backward, recomputation included; no marks."""
    found = (
        one if one.phase == "recompute" else replace(one, operators=_input_part(one.operators), mark=False)
        for one in backward_segments(job, part)
    )
    return tuple(one for one in found if one.operators)


def weight_segments(job: Job, part: ChunkPart) -> tuple[Segment, ...]:
    """Operators of the weight part of a chunk's backward, marked as the whole backward is."""
    found = (one for one in backward_segments(job, part) if one.phase != "recompute")
    parts = (replace(one, operators=_weight_part(one.operators)) for one in found)
    return tuple(one for one in parts if one.operators or one.mark)


SEGMENTS: Mapping[Pass, Callable[[Job, ChunkPart], tuple[Segment, ...]]] = MappingProxyType(
    {"F": forward_segments, "B": backward_segments, "I": input_segments, "W": weight_segments}
)
"""Segments of each kind of pass."""


def stage_times(chunks: Mapping[ChunkKey, ChunkCost], copies: int = 1) -> PassTimes:
    """Seconds of one microbatch on a stage, all its chunks together: what the automatic schedules are searched for.

    A backward in one piece counts as input part. Of `copies` of the model on a stage a microbatch passes one.
    """

    def total(kind: Pass) -> float:
        return sum(cost.duration_s for key, cost in chunks.items() if key[0] == kind) / copies

    send_s = max((cost.send_s for cost in chunks.values()), default=0.0)
    split = any(key[0] == "I" for key in chunks)
    return PassTimes(total("F"), total("I" if split else "B"), total("W"), send_s)


def _input_part(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """What is not for weights. A collective that ran beside weight gradients has nothing to run beside any more."""
    found: list[Operator] = []
    for place, op in enumerate(operators):
        if _for_weights(op):
            continue
        if isinstance(op, Collective) and op.behind:
            computing = [one for one in operators[place + 1 :] if not isinstance(one, Collective | HostCopy)]
            op = replace(op, behind=op.behind - sum(map(_for_weights, computing[: op.behind])))
        found.append(op)
    return tuple(found)


def _weight_part(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """What is for weights. A gather that ran beside an input gradient comes right before its product."""
    found = (op for op in operators if _for_weights(op))
    return tuple(replace(op, behind=0) if isinstance(op, Collective) else op for op in found)


def _for_weights(op: Operator) -> bool:
    return isinstance(op, Gemm | MemoryBound | Collective) and op.for_weights
