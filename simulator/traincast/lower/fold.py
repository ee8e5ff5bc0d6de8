"""Symmetry folding: which ranks run the same program at the same times.

Colour refinement (one-dimensional Weisfeiler-Leman) over ranks and their groups gives the coarsest partition
in which every member of a class sees the same classes in each of its groups. With deterministic durations all
members of a class then do everything at the same times, so one representative stands for all, exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ranks = npt.NDArray[np.int64]


@dataclass(frozen=True)
class GroupFamily:
    """Groups of one kind: `groups` (count, size) holds ranks, each in at most one group of the family.

    `ordered`: the position in the group matters (pipeline neighbours); else only who else is in it
    (barriers).
    """

    groups: Ranks
    ordered: bool = False


def refine(colours: npt.ArrayLike, families: Sequence[GroupFamily]) -> Ranks:
    """Class of every rank, shape (ranks,); classes are numbered by their first rank.

    `colours` (ranks,) are integers that differ where the ranks' own costs differ. Two ranks share a class in
    the end if no group of any family, seen through the classes of its members, tells them apart.
    """
    classes = _renumber(np.asarray(colours, dtype=np.int64))
    while True:
        refined = classes
        for family in families:
            if family.groups.size:
                refined = _pair(refined, _signature(classes, family))
        refined = _renumber(refined)
        if refined.max(initial=-1) == classes.max(initial=-1):
            return classes
        classes = refined


def _signature(classes: Ranks, family: GroupFamily) -> Ranks:
    """What each rank sees in its group of the family, as an integer; zero for ranks in no group."""
    seen = classes[family.groups]
    size = seen.shape[1]
    if not family.ordered:
        seen = np.sort(seen, axis=1)
    kinds = seen[:, 0]
    for position in range(1, size):
        kinds = _pair(kinds, seen[:, position])
    signature = np.zeros(len(classes), dtype=np.int64)
    positions = np.arange(size) if family.ordered else np.zeros(size, dtype=np.int64)
    signature[family.groups] = 1 + kinds[:, None] * size + positions[None, :]
    return signature


def _pair(first: Ranks, second: Ranks) -> Ranks:
    """Integers from 0 that are equal where both inputs are equal."""
    paired: Ranks = np.unique(first * (second.max(initial=0) + 1) + second, return_inverse=True)[1]
    return paired


def _renumber(classes: Ranks) -> Ranks:
    """The same partition with classes numbered by their first member."""
    _, first, inverse = np.unique(classes, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    renumbered: Ranks = number[inverse]
    return renumbered


@dataclass(frozen=True)
class RankGroups:
    """Groups of ranks (count, size) by what they do together.

    `pipeline` holds the ranks of each pipeline in stage order; `meets` are barriers at every instruction (the
    TP and CP groups), `dp_meets` at gradient buckets, `tail_meets` at the tail operation of that name.
    """

    pipeline: Ranks
    meets: tuple[Ranks, ...] = ()
    dp_meets: tuple[Ranks, ...] = ()
    tail_meets: Mapping[str, Ranks] = field(default_factory=dict)

    def families(self) -> tuple[GroupFamily, ...]:
        """All of them, for `refine`."""
        barriers = (*self.meets, *self.dp_meets, *self.tail_meets.values())
        return GroupFamily(self.pipeline, ordered=True), *(GroupFamily(groups) for groups in barriers)


@dataclass(frozen=True)
class ClassWiring:
    """One rank class as `RankClass` wants it: its neighbours and whom it meets, as numbers of classes."""

    ranks: int
    example_rank: int
    previous: int
    next: int
    meets: tuple[int, ...]
    dp_meets: tuple[int, ...]
    tail_meets: Mapping[str, tuple[int, ...]]


def class_wiring(classes: Ranks, groups: RankGroups) -> tuple[ClassWiring, ...]:
    """Wiring of every class, from the class of every rank (as `refine` gives it).

    It is read off each class's first rank; the partition makes it the same for all others. A rank in no
    pipeline group is its own neighbour.
    """
    _, examples, counts = np.unique(classes, return_index=True, return_counts=True)
    previous = np.arange(len(classes))
    after = previous.copy()
    previous[groups.pipeline] = np.roll(groups.pipeline, 1, axis=1)
    after[groups.pipeline] = np.roll(groups.pipeline, -1, axis=1)
    meets = _together(classes, examples, groups.meets)
    dp_meets = _together(classes, examples, groups.dp_meets)
    tails = {name: _together(classes, examples, (found,)) for name, found in groups.tail_meets.items()}
    return tuple(
        ClassWiring(
            ranks=int(counts[index]),
            example_rank=int(rank),
            previous=int(classes[previous[rank]]),
            next=int(classes[after[rank]]),
            meets=meets[index],
            dp_meets=dp_meets[index],
            tail_meets={name: found[index] for name, found in tails.items()},
        )
        for index, rank in enumerate(examples)
    )


def _together(classes: Ranks, examples: Ranks, families: Sequence[Ranks]) -> list[tuple[int, ...]]:
    """The other classes in the groups of each example rank, ascending."""
    found: list[set[int]] = [set() for _ in examples]
    for groups in families:
        group_of = np.full(len(classes), -1, dtype=np.int64)
        group_of[groups] = np.arange(len(groups))[:, None]
        for index, rank in enumerate(examples):
            if group_of[rank] >= 0:
                found[index].update(classes[groups[group_of[rank]]].tolist())
    return [tuple(sorted(others - {index})) for index, others in enumerate(found)]
