"""What a schedule implies: which instruction feeds which, and where a blocking stack exchanges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from traincast.errors import TraincastError
from traincast.schedule.types import Instruction, Pass, Schedule

NONE = -1
"""Index that stands for "no such instruction"."""


@dataclass(frozen=True)
class StageLinks:
    """Links of one stage; the tuples are indexed by instruction.

    `source[k]` is the index, on the neighbouring stage, of the instruction whose output k needs (NONE: no
    message); `target[k]` the index of the one that needs k's output. F goes to the next stage, B to the
    previous one. `block_end[k]` is the last instruction of k's block: the run of instructions up to one that
    is not fused. `last_gradient[chunk]` is the last instruction that makes weight gradients of the chunk.
    `keys` are the kinds of chunk that occur, in a fixed order; `key[k]` the position of k's among them.
    """

    instructions: tuple[Instruction, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]
    block_end: tuple[int, ...]
    last_gradient: Mapping[int, int]
    keys: tuple[tuple[Pass, int], ...]
    key: tuple[int, ...]


Links = tuple[StageLinks, ...]
_Position = dict[tuple[Pass, int, int], int]


@dataclass(frozen=True)
class _Keyed:
    """A schedule that is hashed by its key alone."""

    key: tuple[str, int, int, int]
    schedule: Schedule = field(compare=False)


def links(key: tuple[str, int, int, int], schedule: Schedule) -> Links:
    """Links of every stage, cached by `key` (equal keys mean equal instruction lists).

    Raises TraincastError where an instruction needs one that the schedule lacks or runs too late.
    """
    return _links(_Keyed(key, schedule))


@lru_cache(maxsize=32)
def _links(keyed: _Keyed) -> Links:
    schedule = keyed.schedule
    positions = tuple(_positions(stage, order) for stage, order in enumerate(schedule))
    model_chunks = len(schedule) * (1 + max((i.chunk for order in schedule for i in order), default=0))
    return tuple(_stage_links(stage, positions, order, model_chunks) for stage, order in enumerate(schedule))


def _positions(stage: int, order: tuple[Instruction, ...]) -> _Position:
    """Index of every instruction of a stage, once it is known that F, B and W come in that order."""
    found: _Position = {}
    for index, instruction in enumerate(order):
        kind, microbatch, chunk = instruction.kind, instruction.microbatch, instruction.chunk
        if (kind, microbatch, chunk) in found:
            raise TraincastError(f"stage {stage} runs {name_of(instruction)} twice")
        before: Pass | None = None if kind == "F" else "F" if kind == "B" else "B"
        if before is not None and (before, microbatch, chunk) not in found:
            raise TraincastError(f"stage {stage} runs {name_of(instruction)} before its {before}")
        found[kind, microbatch, chunk] = index
    return found


def _stage_links(
    stage: int, positions: tuple[_Position, ...], order: tuple[Instruction, ...], model_chunks: int
) -> StageLinks:
    source, target = [], []
    for instruction in order:
        step = {"F": 1, "B": -1, "W": 0}[instruction.kind]
        source.append(_peer(stage, positions, instruction, -step, model_chunks))
        target.append(_peer(stage, positions, instruction, step, model_chunks))
    if len(positions) == 1:
        _check_single(order, source)
        source = target = [NONE] * len(order)
    last_gradient: dict[int, int] = {}
    for kind in ("B", "W"):  # W after B: where a schedule splits them, W makes the weight gradients
        last_gradient |= {i.chunk: index for index, i in enumerate(order) if i.kind == kind}
    keys = tuple(sorted({(i.kind, i.chunk) for i in order}))
    place = {key: index for index, key in enumerate(keys)}
    return StageLinks(
        instructions=order,
        source=tuple(source),
        target=tuple(target),
        block_end=_block_ends(order),
        last_gradient=last_gradient,
        keys=keys,
        key=tuple(place[i.kind, i.chunk] for i in order),
    )


def _peer(stage: int, positions: tuple[_Position, ...], instruction: Instruction, step: int, model_chunks: int) -> int:
    """Index of the same pass of the microbatch on the model chunk `step` further; NONE outside the model."""
    p = len(positions)
    peer = instruction.chunk * p + stage + step
    if step == 0 or not 0 <= peer < model_chunks:
        return NONE
    try:
        return positions[peer % p][instruction.kind, instruction.microbatch, peer // p]
    except KeyError:
        wanted = Instruction(instruction.kind, instruction.microbatch, peer // p)
        raise TraincastError(
            f"stage {stage} runs {name_of(instruction)}, but stage {peer % p} never runs {name_of(wanted)}"
        ) from None


def _check_single(order: tuple[Instruction, ...], source: list[int]) -> None:
    """A single stage passes its outputs on to itself, so the order alone must satisfy the dependencies."""
    for index, needed in enumerate(source):
        if needed > index:
            raise TraincastError(f"stage 0 runs {name_of(order[index])} before {name_of(order[needed])}")


def _block_ends(order: tuple[Instruction, ...]) -> tuple[int, ...]:
    ends, end = [NONE] * len(order), len(order) - 1
    for index in reversed(range(len(order))):
        if not order[index].fused:
            end = index
        ends[index] = end
    return tuple(ends)


def name_of(instruction: Instruction) -> str:
    """An instruction in words, for messages."""
    return f"{instruction.kind} of microbatch {instruction.microbatch}, chunk {instruction.chunk}"
