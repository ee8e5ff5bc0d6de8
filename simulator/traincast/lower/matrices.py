"""Gathers and reductions matrix by matrix, as DeepSpeed's ZeRO-3 runs them.

A matrix is gathered where the pass first uses it. While the matrix before it computes, no more than so many bytes of it
are gathered ahead (stage3_prefetch_bucket_size); the rest is exposed. Its gradient is reduced as soon as it is there.
What a layer has beside matrices (norms, biases) goes with its first matrix.

Reference: DeepSpeed, runtime/zero/partitioned_param_coordinator.py and stage3.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from traincast.lower.chunk import Segment
from traincast.model.operators import Collective, Gemm, HostCopy, Operator

Lower = Callable[[int, int], Iterator[Operator]]
"""(parameters, compute operators that they may run beside) -> operators."""


@dataclass(frozen=True)
class Use:
    """Where a pass first uses a matrix: place of the compute operator in it, and parameters that come with it."""

    place: int
    parameters: int


def matrix_of(op: Operator) -> tuple[str, int]:
    """Name of the linear layer that a product belongs to and the elements of its weight; ("", 0) for anything else."""
    if not isinstance(op, Gemm) or op.batch != 1:
        return "", 0
    name = op.name.removesuffix(".dgrad").removesuffix(".wgrad")
    sizes = {"fwd": op.n * op.k, "dgrad": op.n * op.k, "wgrad": op.m * op.n}
    return name, sizes[op.role]


def uses(layers: Sequence[tuple[tuple[Segment, ...], bool]], parameters: int) -> list[Use]:
    """First uses of the matrices of a pass in order; `layers` are its units, True for those that are layers."""
    found: list[Use] = []
    place = 0
    for segments, layer in layers:
        sizes: dict[str, tuple[int, int]] = {}
        for op in (op for segment in segments for op in segment.operators):
            name, size = matrix_of(op)
            if layer and size:
                sizes.setdefault(name, (place, size))
            place += not isinstance(op, Collective | HostCopy)
        rest = parameters - sum(size for _, size in sizes.values()) if layer else 0
        for at, size in sizes.values():
            found.append(Use(at, size + rest))
            rest = 0
    return found


def fetched(segments: Sequence[Segment], found: Sequence[Use], most: int, gather: Lower) -> Iterator[Segment]:
    """The segments of a pass with the gathers of its matrices; `most` parameters of each run ahead."""
    due: dict[int, list[Operator]] = {}
    for number, use in enumerate(found):
        ahead = min(use.parameters, most)
        before = found[number - 1].place if number else 0
        due.setdefault(before, []).extend(gather(ahead, use.place - before))
        due.setdefault(use.place, [])[:0] = gather(use.parameters - ahead, 0)
    place = 0
    for segment in segments:
        operators: list[Operator] = []
        for op in segment.operators:
            if not isinstance(op, Collective | HostCopy):
                operators += due.pop(place, [])
                place += 1
            operators.append(op)
        yield replace(segment, operators=tuple(operators))


def collected(
    segments: Sequence[Segment], reduce: Callable[[int], Iterator[Operator]]
) -> tuple[tuple[Segment, ...], int]:
    """The segments of a layer with each weight's reduction behind its product, and the parameters so reduced."""
    total, found = 0, []
    for segment in segments:
        operators: list[Operator] = []
        for op in segment.operators:
            operators.append(op)
            if isinstance(op, Gemm) and op.role == "wgrad" and (size := matrix_of(op)[1]):
                operators += reduce(size)
                total += size
        found.append(replace(segment, operators=tuple(operators)))
    return tuple(found), total
