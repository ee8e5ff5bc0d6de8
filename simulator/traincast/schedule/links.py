"""What a schedule implies: which instruction feeds which, and where a blocking stack exchanges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

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
_Kind = tuple[str, int]
"""(F, B or W; chunk). An I stands where the B would: both hand on the input gradient."""
_Position = dict[_Kind, dict[int, int]]
"""Kind of chunk -> microbatch -> index."""


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
    nothing: dict[int, int] = {}
    for index, instruction in enumerate(order):
        kind, microbatch, chunk = _handed_on(instruction.kind), instruction.microbatch, instruction.chunk
        row = found.get((kind, chunk))
        if row is None:
            row = found[kind, chunk] = {}
        if microbatch in row:
            raise TraincastError(f"stage {stage} runs {name_of(instruction)} twice")
        before = None if kind == "F" else "F" if kind == "B" else "B"
        if before is not None and microbatch not in found.get((before, chunk), nothing):
            raise TraincastError(f"stage {stage} runs {name_of(instruction)} before its {before}")
        row[microbatch] = index
    return found


def _handed_on(kind: Pass) -> str:
    return "B" if kind == "I" else kind


def _stage_links(
    stage: int, positions: tuple[_Position, ...], order: tuple[Instruction, ...], near: Mapping[Place, Neighbours]
) -> StageLinks:
    keys = tuple(sorted({(i.kind, i.chunk) for i in order}))
    peers = [_peers(stage, positions, key, near) for key in keys]
    place = {key: index for index, key in enumerate(keys)}
    key = tuple([place[i.kind, i.chunk] for i in order])
    microbatch, kind = np.array([i.microbatch for i in order], dtype=np.int64), np.array(key, dtype=np.int64)
    found = np.full((2, len(order)), NONE)
    for k, ends in enumerate(peers):
        mine = np.flatnonzero(kind == k)
        for side, peer in zip(found, ends, strict=True):
            side[mine] = peer.indices(microbatch[mine])
    ways = np.array([[peer.way for peer in ends] for ends in peers], dtype=np.int64).reshape(-1, 2).T[:, kind]
    needs = np.array([[peer.hop is not None for peer in ends] for ends in peers], dtype=bool).reshape(-1, 2).T[:, kind]
    late = needs[0] & (ways[0] == 0) & (found[0] > np.arange(len(order)))
    if late.any() or (needs & (found == NONE)).any():
        raise _wrong(stage, order, [peers[k] for k in key])
    found[ways == 0] = NONE
    return StageLinks(
        instructions=order,
        source=tuple(found[0].tolist()),
        target=tuple(found[1].tolist()),
        source_way=tuple(ways[0].tolist()),
        target_way=tuple(ways[1].tolist()),
        block_end=_run_ends([i.fused for i in order]),
        leave=_run_ends([i.joint for i in order]),
        last_gradient=_last_gradients(order, positions[stage]),
        keys=keys,
        key=key,
    )


@dataclass(frozen=True, slots=True)
class _Peer:
    """The other end of the messages of one kind of chunk: the same pass on the chunk `hop` leads to, by microbatch.

    Without a hop there is none: the model ends. Where both ends lie on one stage (way 0) the output is handed on in
    place: the order alone has to satisfy the need.
    """

    hop: Hop | None
    row: Mapping[int, int]

    @property
    def way(self) -> Way:
        """Way to the other end."""
        return 0 if self.hop is None else self.hop.way

    def indices(self, microbatch: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of the same pass of each microbatch at the other end; NONE where there is none."""
        last = int(max(microbatch.max(initial=0), max(self.row, default=0)))
        table = np.full(last + 1, NONE)
        table[list(self.row)] = list(self.row.values())
        return table[microbatch]


def _wrong(stage: int, order: Sequence[Instruction], peers: Sequence[tuple[_Peer, _Peer]]) -> TraincastError:
    """The error of the first instruction whose other end is not there, or comes too late on the same stage."""
    for index, (instruction, ends) in enumerate(zip(order, peers, strict=True)):
        for hop, row in ((peer.hop, peer.row) for peer in ends):
            found = row.get(instruction.microbatch)
            if hop is not None and found is None:
                wanted = name_of(Instruction(instruction.kind, instruction.microbatch, hop.place[1]))
                what = f"but stage {hop.place[0]} never runs {wanted}"
                return TraincastError(f"stage {stage} runs {name_of(instruction)}, {what}")
            if hop is not None and found is not None and hop.way == 0 and row is ends[0].row and found > index:
                return TraincastError(f"stage {stage} runs {name_of(instruction)} before {name_of(order[found])}")
    raise AssertionError(f"stage {stage}: no instruction is wrong")


def _peers(
    stage: int, positions: tuple[_Position, ...], key: tuple[Pass, int], near: Mapping[Place, Neighbours]
) -> tuple[_Peer, _Peer]:
    """Where one kind of chunk gets its input from, and where its output goes."""
    kind, chunk = key
    if kind == "W":
        return _Peer(None, {}), _Peer(None, {})
    around = near[stage, chunk]
    ends = (around.before, around.after) if kind == "F" else (around.after, around.before)

    def peer(hop: Hop | None) -> _Peer:
        return _Peer(hop, {} if hop is None else positions[hop.place[0]].get((_handed_on(kind), hop.place[1]), {}))

    return peer(ends[0]), peer(ends[1])


def _last_gradients(order: tuple[Instruction, ...], positions: _Position) -> dict[int, int]:
    """Chunk -> its last W, or its last B that no W follows up."""
    found: dict[int, int] = {}
    nothing: dict[int, int] = {}
    for index, i in enumerate(order):
        if i.kind == "W" or (i.kind == "B" and i.microbatch not in positions.get(("W", i.chunk), nothing)):
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
