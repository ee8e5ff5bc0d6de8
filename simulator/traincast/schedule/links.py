"""What a schedule implies: which instruction feeds which, and where a blocking stack exchanges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from traincast.errors import TraincastError
from traincast.schedule.placement import Hop, Neighbours, Place, Way, neighbours
from traincast.schedule.types import Instruction, Pass, Schedule, ScheduleKey

NONE = -1
"""Index that stands for "no such instruction"."""


@dataclass(frozen=True)
class StageLinks:
    """Links of one stage; the tuples are indexed by instruction.

    `source[k]` is the index, on the neighbouring stage, of the instruction whose output k needs (NONE: no
    message); `target[k]` the index of the one that needs k's output. `source_way` and `target_way` say which
    neighbour that is: 1 the next stage, -1 the previous one, 0 none. In a looped model F comes from the previous
    stage and B from the next one; `placement.py` has the others. `block_end[k]` is the last instruction of k's
    block: the run of instructions up to one that is not fused; `leave[k]` the instruction at whose end k's output may
    leave: k itself, or the last one of those that run as one with it. `last_gradient[chunk]` is the last instruction
    that makes weight gradients of the chunk. `keys` are the kinds of chunk that occur, in a fixed order; `key[k]` the
    position of k's among them.
    """

    instructions: tuple[Instruction, ...]
    source: tuple[int, ...]
    target: tuple[int, ...]
    source_way: tuple[Way, ...]
    target_way: tuple[Way, ...]
    block_end: tuple[int, ...]
    leave: tuple[int, ...]
    last_gradient: Mapping[int, int]
    keys: tuple[tuple[Pass, int], ...]
    key: tuple[int, ...]


Links = tuple[StageLinks, ...]
_Position = dict[tuple[str, int, int], int]
"""(F, B or W; microbatch; chunk) -> index. An I stands where the B would: both hand on the input gradient."""


@dataclass(frozen=True)
class _Keyed:
    """A schedule that is hashed by its key alone."""

    key: ScheduleKey
    schedule: Schedule = field(compare=False)


def links(key: ScheduleKey, schedule: Schedule) -> Links:
    """Links of every stage, cached by `key` (equal keys mean equal instruction lists).

    Raises TraincastError where an instruction needs one that the schedule lacks or runs too late.
    """
    return _links(_Keyed(key, schedule))


@lru_cache(maxsize=32)
def _links(keyed: _Keyed) -> Links:
    schedule = keyed.schedule
    chunks = 1 + max((i.chunk for order in schedule for i in order), default=0)
    near = neighbours(keyed.key[0], len(schedule), chunks)
    positions = tuple(_positions(stage, order) for stage, order in enumerate(schedule))
    return tuple(_stage_links(stage, positions, order, near) for stage, order in enumerate(schedule))


def _positions(stage: int, order: tuple[Instruction, ...]) -> _Position:
    """Index of every instruction of a stage, once it is known that F, B (or I) and W come in that order."""
    found: _Position = {}
    for index, instruction in enumerate(order):
        kind, microbatch, chunk = _handed_on(instruction.kind), instruction.microbatch, instruction.chunk
        if (kind, microbatch, chunk) in found:
            raise TraincastError(f"stage {stage} runs {name_of(instruction)} twice")
        before = None if kind == "F" else "F" if kind == "B" else "B"
        if before is not None and (before, microbatch, chunk) not in found:
            raise TraincastError(f"stage {stage} runs {name_of(instruction)} before its {before}")
        found[kind, microbatch, chunk] = index
    return found


def _handed_on(kind: Pass) -> str:
    return "B" if kind == "I" else kind


def _stage_links(
    stage: int, positions: tuple[_Position, ...], order: tuple[Instruction, ...], near: Mapping[Place, Neighbours]
) -> StageLinks:
    sources: list[tuple[int, Way]] = []
    targets: list[tuple[int, Way]] = []
    for index, instruction in enumerate(order):
        if instruction.kind == "W":
            source = target = None
        else:
            around = near[stage, instruction.chunk]
            ends = (around.before, around.after)
            source, target = ends if instruction.kind == "F" else ends[::-1]
        sources.append(_peer(stage, positions, instruction, source))
        targets.append(_peer(stage, positions, instruction, target))
        if source is not None and source.way == 0 and sources[-1][0] > index:
            needed = order[sources[-1][0]]
            raise TraincastError(f"stage {stage} runs {name_of(instruction)} before {name_of(needed)}")
    keys = tuple(sorted({(i.kind, i.chunk) for i in order}))
    place = {key: index for index, key in enumerate(keys)}
    return StageLinks(
        instructions=order,
        source=tuple(index if way else NONE for index, way in sources),
        target=tuple(index if way else NONE for index, way in targets),
        source_way=tuple(way for _, way in sources),
        target_way=tuple(way for _, way in targets),
        block_end=_run_ends([i.fused for i in order]),
        leave=_run_ends([i.joint for i in order]),
        last_gradient=_last_gradients(order, positions[stage]),
        keys=keys,
        key=tuple(place[i.kind, i.chunk] for i in order),
    )


def _peer(stage: int, positions: tuple[_Position, ...], instruction: Instruction, hop: Hop | None) -> tuple[int, Way]:
    """Index of the same pass of the microbatch at the hop's end, and the way there; NONE outside the model.

    Where both ends lie on one stage the output is handed on in place: the order alone has to satisfy the need.
    """
    if hop is None:
        return NONE, 0
    other, chunk = hop.place
    try:
        return positions[other][_handed_on(instruction.kind), instruction.microbatch, chunk], hop.way
    except KeyError:
        wanted = Instruction(instruction.kind, instruction.microbatch, chunk)
        raise TraincastError(
            f"stage {stage} runs {name_of(instruction)}, but stage {other} never runs {name_of(wanted)}"
        ) from None


def _last_gradients(order: tuple[Instruction, ...], positions: _Position) -> dict[int, int]:
    """Chunk -> its last W, or its last B that no W follows up."""
    found: dict[int, int] = {}
    for index, i in enumerate(order):
        if i.kind == "W" or (i.kind == "B" and ("W", i.microbatch, i.chunk) not in positions):
            found[i.chunk] = index
    return found


def _run_ends(onward: Sequence[bool]) -> tuple[int, ...]:
    """Last index of the run that each index belongs to, where a run goes `onward` from one index to the next."""
    ends, end = [NONE] * len(onward), len(onward) - 1
    for index in reversed(range(len(onward))):
        if not onward[index]:
            end = index
        ends[index] = end
    return tuple(ends)


def name_of(instruction: Instruction) -> str:
    """An instruction in words, for messages."""
    return f"{instruction.kind} of microbatch {instruction.microbatch}, chunk {instruction.chunk}"
