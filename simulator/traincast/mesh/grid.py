"""Ranks laid over named axes: the arithmetic that every group of every mesh comes from."""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Grid:
    """A rank is the linearised coordinate over `names`, of which the first has stride 1.

    `names` and `sizes` run from the fastest axis to the slowest; axes of size 1 may be among them.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def world(self) -> int:
        """Number of ranks."""
        return math.prod(self.sizes)

    def size(self, name: str) -> int:
        """Ranks along one axis."""
        return self.sizes[self.names.index(name)]

    def stride(self, name: str) -> int:
        """Distance in ranks of two neighbours along one axis: the product of the sizes of all faster axes."""
        return math.prod(self.sizes[: self.names.index(name)])

    def coordinate(self, ranks: Ints | int, name: str) -> Ints:
        """Coordinates of `ranks` along one axis, in the shape of `ranks`."""
        return np.asarray(ranks, dtype=np.int64) // self.stride(name) % self.size(name)

    def coordinates(self) -> dict[str, Ints]:
        """Axis -> coordinate of every rank, each of shape (world,)."""
        ranks = np.arange(self.world, dtype=np.int64)
        return {name: self.coordinate(ranks, name) for name in self.names}

    def offsets(self, names: Collection[str]) -> Ints:
        """The group of rank 0 along `names`, ascending; shape (product of the sizes,)."""
        ranks = np.zeros(1, dtype=np.int64)
        for name, size in reversed(tuple(zip(self.names, self.sizes, strict=True))):
            if name in names and size > 1:
                steps = np.arange(size, dtype=np.int64) * self.stride(name)
                ranks = (ranks[:, np.newaxis] + steps).ravel()
        return ranks

    def groups(self, names: Collection[str]) -> Ints:
        """All groups along `names`, shape (count, size): ranks ascend, groups follow their first rank.

        The ranks of a group differ only along `names`; without names every rank is alone.
        """
        others = [name for name in self.names if name not in names]
        return self.offsets(others)[:, np.newaxis] + self.offsets(names)

    def group_of(self, rank: int, names: Collection[str]) -> Ints:
        """The one group along `names` that holds `rank`, ascending."""
        here = sum(int(self.coordinate(rank, name)) * self.stride(name) for name in self.names if name in names)
        return self.offsets(names) + (rank - here)
