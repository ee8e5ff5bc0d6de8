"""What a schedule implies: which instruction feeds which, and where a blocking stack exchanges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from typing import cast

import numpy as np

from traincast.errors import TraincastError
from traincast.schedule.columns import Bools, Columns, Ints, columns, last_where
from traincast.schedule.placement import neighbours
from traincast.schedule.types import Instruction, Pass, Schedule, ScheduleKey

NONE = -1
"""Index that stands for "no such instruction"."""


@dataclass(frozen=True, eq=False)
class StageLinks:
    """Links of one stage; the arrays are indexed by instruction.

    `source[k]` is the index, on the neighbouring stage, of the instruction whose output k needs (NONE: no
    message); `target[k]` the index of the one that needs k's output. `source_way` and `target_way` say which
    neighbour that is: 1 the next stage, -1 the previous one, 0 none. In a looped model F comes from the previous
    stage and B from the next one; `placement.py` has the others. `block_end[k]` is the last instruction of k's
    block: the run of instructions up to one that is not fused; `leave[k]` the instruction at whose end k's output may
    leave: k itself, or the last one of those that run as one with it. `last_gradient[chunk]` is the last instruction
    that makes weight gradients of the chunk. `keys` are the kinds of chunk that occur, in a fixed order, `counts` how
    often; `key[k]` the position of k's among them.
    """

    instructions: tuple[Instruction, ...]
    source: Ints
    target: Ints
    source_way: Ints
    target_way: Ints
    block_end: Ints
    leave: Ints
    last_gradient: Mapping[int, int]
    keys: tuple[tuple[Pass, int], ...]
    counts: tuple[int, ...]
    key: Ints


Links = tuple[StageLinks, ...]


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


@dataclass(frozen=True, eq=False)
class _Every:
    """The instructions of all stages, one after the other: each with its stage and its index there.

    `handed` is what its neighbours see of it: 0 a forward, 1 a backward (B or I: both hand on the input gradient),
    2 a W.
    """

    of: Columns
    stage: Ints
    index: Ints
    handed: Ints


@dataclass(frozen=True, eq=False)
class _Ends:
    """The other end of every instruction's input, or of its output: the same pass on another place of the model.

    `there` says whether there is one, `stage` and `chunk` where, `index` which instruction of that stage it is (NONE:
    it is never run). On the same stage (way 0) the output is handed on in place: the order alone has to satisfy the
    need.
    """

    there: Bools
    stage: Ints
    chunk: Ints
    way: Ints
    index: Ints

    def part(self, own: slice) -> "_Ends":
        """Those of some instructions in a row."""
        return _Ends(self.there[own], self.stage[own], self.chunk[own], self.way[own], self.index[own])


@lru_cache(maxsize=32)
def _links(keyed: _Keyed) -> Links:
    schedule = keyed.schedule
    every = _every(schedule)
    hops = _hops(keyed.key[0], len(schedule), 1 + int(every.of.chunk.max(initial=0)))
    position = _positions(schedule, every, hops.shape[2])
    both = [_ends(every, position, hops, side) for side in (0, 1)]
    _check_ends(schedule, every, *both)
    bounds = pairwise(accumulate(map(len, schedule), initial=0))
    return tuple(
        _stage_links(order, every.of.part(slice(*bound)), position[stage], [ends.part(slice(*bound)) for ends in both])
        for stage, (order, bound) in enumerate(zip(schedule, bounds, strict=True))
    )


def _every(schedule: Schedule) -> _Every:
    of = columns(tuple(chain.from_iterable(schedule)))
    sizes = [len(order) for order in schedule]
    index = np.concatenate([np.arange(size) for size in sizes]) if sizes else np.zeros(0, np.int64)
    return _Every(of, np.repeat(np.arange(len(sizes)), sizes), index, np.where(of.are("F"), 0, 1 + of.are("W")))


@lru_cache(maxsize=64)
def _hops(name: str, p: int, chunks: int) -> Ints:
    """(stage, chunk, way) of what lies before and after every place of the model, by [before or after, stage, chunk].

    The stage is NONE where the model ends.
    """
    near = neighbours(name, p, chunks)
    hops = np.full((2, p, 1 + max((chunk for _, chunk in near), default=0), 3), NONE)
    for place, around in near.items():
        for side, hop in enumerate((around.before, around.after)):
            if hop is not None:
                hops[side, *place] = *hop.place, hop.way
    return hops


def _positions(schedule: Schedule, every: _Every, chunks: int) -> Ints:
    """Index of every pass by [stage, what it hands on, chunk, microbatch], NONE where there is none.

    Raises TraincastError unless F, B (or I) and W come in that order, each once.
    """
    of = every.of
    found = np.full((len(schedule), 3, chunks, 1 + int(of.microbatch.max(initial=0))), NONE)
    found[every.stage, every.handed, of.chunk, of.microbatch] = every.index
    own = found[every.stage, every.handed, of.chunk, of.microbatch]
    before = found[every.stage, np.maximum(every.handed - 1, 0), of.chunk, of.microbatch]
    early = (every.handed > 0) & ((before == NONE) | (before > every.index))
    if early.any() or (own != every.index).any():
        raise _disorder(schedule)
    return found


def _disorder(schedule: Schedule) -> TraincastError:
    """The error of the first instruction that runs twice, or before the one whose results it needs."""
    for stage, order in enumerate(schedule):
        done: set[tuple[str, int, int]] = set()
        for one in order:
            kind = "B" if one.kind == "I" else one.kind
            before = {"B": "F", "W": "B"}.get(kind)
            if (kind, one.microbatch, one.chunk) in done:
                return TraincastError(f"stage {stage} runs {name_of(one)} twice")
            if before and (before, one.microbatch, one.chunk) not in done:
                return TraincastError(f"stage {stage} runs {name_of(one)} before its {before}")
            done.add((kind, one.microbatch, one.chunk))
    raise AssertionError("every instruction is in order")


def _ends(every: _Every, position: Ints, hops: Ints, side: int) -> _Ends:
    """The other ends of inputs (side 0) or outputs (1): a forward's input comes from before it in the model."""
    of = every.of
    stage, chunk, way = hops[np.where(every.handed == 0, side, 1 - side), every.stage, of.chunk].T
    there = (stage != NONE) & ~of.are("W")
    index = np.where(there, position[stage, every.handed, chunk, of.microbatch], NONE)
    return _Ends(there, stage, chunk, np.where(there, way, 0), index)


def _check_ends(schedule: Schedule, every: _Every, source: _Ends, target: _Ends) -> None:
    """Raises TraincastError for the first instruction whose other end is not there, or too late on the same stage."""
    late = source.there & (source.way == 0) & (source.index > every.index)
    lost = [ends.there & (ends.index == NONE) for ends in (source, target)]
    for wrong in np.flatnonzero(late | lost[0] | lost[1])[:1]:
        stage, order = every.stage[wrong], schedule[every.stage[wrong]]
        this = order[every.index[wrong]]
        if late[wrong]:
            raise TraincastError(f"stage {stage} runs {name_of(this)} before {name_of(order[source.index[wrong]])}")
        ends = source if lost[0][wrong] else target
        what = f"but stage {ends.stage[wrong]} never runs {name_of(this._replace(chunk=int(ends.chunk[wrong])))}"
        raise TraincastError(f"stage {stage} runs {name_of(this)}, {what}")


def _stage_links(order: tuple[Instruction, ...], of: Columns, position: Ints, both: Sequence[_Ends]) -> StageLinks:
    """Links of a stage, from its columns, the positions of its passes, and the ends of its inputs and its outputs."""
    chunks = position.shape[1]
    kind = of.kind * chunks + of.chunk
    counts = np.bincount(kind)
    occurs = counts > 0
    source, target = (np.where(ends.way == 0, NONE, ends.index) for ends in both)
    gradients = of.are("W") | (of.are("B") & (position[2, of.chunk, of.microbatch] == NONE))
    return StageLinks(
        instructions=order,
        source=source,
        target=target,
        source_way=both[0].way,
        target_way=both[1].way,
        block_end=last_where(of.fused),
        leave=last_where(of.joint),
        last_gradient=dict(zip(of.chunk[gradients].tolist(), np.flatnonzero(gradients).tolist(), strict=True)),
        keys=tuple((cast(Pass, chr(one // chunks)), one % chunks) for one in np.flatnonzero(occurs).tolist()),
        counts=tuple(counts[occurs].tolist()),
        key=np.cumsum(occurs)[kind] - 1,
    )


def name_of(instruction: Instruction) -> str:
    """An instruction in words, for messages."""
    return f"{instruction.kind} of microbatch {instruction.microbatch}, chunk {instruction.chunk}"
