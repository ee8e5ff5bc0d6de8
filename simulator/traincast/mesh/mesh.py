"""The rank grid: axes, order, coordinates, groups, placement.

A global rank is the linearised coordinate over ordered axes, the leftmost of the order with stride 1. The
dense mesh lays tp, cp, dp and pp over the world; the expert mesh lays etp, ep, edp and pp over the same
ranks in the same order (etp takes the place of tp, edp that of dp, and there is no cp), as Megatron-Core's
two rank generators do.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt

from traincast.errors import ShapeError
from traincast.mesh.grid import Grid, Ints
from traincast.mesh.gridchecks import AXES, DEFAULT_ORDER, grid_problems, parse_order
from traincast.mesh.problems import refuse

DENSE_AXES = ("tp", "cp", "dp", "pp")
EXPERT_AXES = ("etp", "ep", "edp", "pp")
ALL_AXES = (*DENSE_AXES, "etp", "ep", "edp")

_EXPERT_NAME = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}


@dataclass(frozen=True)
class Mesh:
    """A parallel shape laid over ranks.

    Sizes are ranks along each axis; `dp` is that of the dense mesh (the expert one is `edp`). `order` is any
    permutation of tp, cp, ep, dp and pp, fastest first; axes of size 1 may be left out. `placement` maps a
    mesh rank to the number of a physical GPU; None is the identity.

    Raises ShapeError, with all that is wrong, for sizes, an order or a placement that cannot be.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    order: str = DEFAULT_ORDER
    placement: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in (*AXES, "etp")}
        refuse(grid_problems(sizes, self.order, self.placement))

    @classmethod
    def from_device_mesh(cls, shape: Sequence[int], names: Sequence[str]) -> Self:
        """The mesh of a row-major rank array, as a DeviceMesh has it: the last dimension has stride 1.

        A shape (dp, tp, pp, cp) is the order cp-pp-tp-dp. Raises ShapeError for names that are not tp, cp,
        dp or pp.
        """
        if len(shape) != len(names) or len(set(names)) < len(names) or not set(names) <= set(DENSE_AXES):
            raise ShapeError(
                f"a device mesh of {len(shape)} dimensions cannot be named {', '.join(names) or 'nothing'}",
                fix=f"one name a dimension, out of {', '.join(DENSE_AXES)}, each once",
            )
        sizes = dict(zip(names, (int(size) for size in shape), strict=True))
        return cls(
            tp=sizes.get("tp", 1),
            cp=sizes.get("cp", 1),
            pp=sizes.get("pp", 1),
            dp=sizes.get("dp", 1),
            order="-".join(reversed(names)),
        )

    @cached_property
    def dense(self) -> Grid:
        """The dense grid."""
        names = tuple(name for name in parse_order(self.order) if name != "ep")
        return Grid(names, tuple(int(getattr(self, name)) for name in names))

    @cached_property
    def expert(self) -> Grid:
        """The expert grid over the same ranks.

        Raises ShapeError where its stages would not be those of the dense grid (an order with pp not last).
        """
        grid = self._expert_unchecked
        if self.pp > 1 and grid.stride("pp") != self.dense.stride("pp"):
            raise ShapeError(
                f"order {self.order} puts pp at stride {self.dense.stride('pp')} in the dense mesh but at "
                f"{grid.stride('pp')} in the expert mesh",
                fix="put pp last in the order",
            )
        return grid

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Expert-data-parallel size: what etp, ep and pp leave of the world."""
        return self.world // (self.etp * self.ep * self.pp)

    @property
    def has_expert_mesh(self) -> bool:
        """Whether an expert mesh was asked for (ep or etp above 1)."""
        return self.ep > 1 or self.etp > 1

    @property
    def axes(self) -> tuple[str, ...]:
        """All five axes, fastest first, with the ones the order left out at the end."""
        return parse_order(self.order)

    def size(self, axis: str) -> int:
        """Ranks along an axis of the dense or of the expert mesh."""
        _known((axis,), ALL_AXES, "dense or the expert")
        return int(getattr(self, axis))

    def stride(self, axis: str) -> int:
        """Distance of two neighbours along an axis of the dense or of the expert mesh."""
        return self._grid(axis).stride(axis)

    def coordinates(self) -> dict[str, Ints]:
        """Dense axis -> coordinate of every rank, each of shape (world,)."""
        return self.dense.coordinates()

    def expert_coordinates(self) -> dict[str, Ints]:
        """Expert axis -> coordinate of every rank, each of shape (world,)."""
        return self.expert.coordinates()

    def rank(self, **coordinates: int) -> int:
        """The rank at dense coordinates; axes that are not named are at 0.

        Raises ShapeError for an axis that the dense mesh lacks or a coordinate outside it.
        """
        _known(coordinates, DENSE_AXES, "dense")
        for axis, coordinate in coordinates.items():
            if not 0 <= coordinate < self.dense.size(axis):
                raise ShapeError(
                    f"coordinate {axis} {coordinate} is outside {axis} {self.dense.size(axis)}",
                    fix=f"0 to {self.dense.size(axis) - 1}",
                )
        return sum(coordinate * self.dense.stride(axis) for axis, coordinate in coordinates.items())

    def groups(self, *axes: str) -> Ints:
        """Groups of the dense mesh along any set of axes, shape (count, size).

        Ranks ascend within a group, groups follow their first rank. Raises ShapeError for an axis of the
        expert mesh.
        """
        _known(axes, DENSE_AXES, "dense")
        return self.dense.groups(axes)

    def expert_groups(self, *axes: str) -> Ints:
        """Groups of the expert mesh along any set of etp, ep, edp and pp, shape (count, size), sorted."""
        _known(axes, EXPERT_AXES, "expert")
        return self.expert.groups(axes)

    def embedding_groups(self) -> Ints:
        """First and last stage of every pipeline, shape (world/pp, 2); (world, 1) without a pipeline."""
        pipelines = self.dense.groups(("pp",))
        return pipelines[:, [0, -1]] if self.pp > 1 else pipelines

    def group_of(self, rank: int, *axes: str) -> Ints:
        """The one group along dense axes that holds `rank`, ascending."""
        _known(axes, DENSE_AXES, "dense")
        return self.dense.group_of(self._checked(rank), axes)

    def expert_group_of(self, rank: int, *axes: str) -> Ints:
        """The one group along expert axes that holds `rank`, ascending."""
        _known(axes, EXPERT_AXES, "expert")
        return self.expert.group_of(self._checked(rank), axes)

    def neighbour(self, rank: int, axis: str, step: int = 1) -> int:
        """The rank `step` further along an axis, round the end: the ring's next, or the next stage."""
        grid = self._grid(axis)
        here = int(grid.coordinate(self._checked(rank), axis))
        return rank + ((here + step) % grid.size(axis) - here) * grid.stride(axis)

    def physical(self, ranks: npt.ArrayLike) -> Ints:
        """Physical GPU numbers of mesh ranks, in the shape of `ranks`."""
        chosen = np.asarray(ranks, dtype=np.int64)
        return chosen if self.placement is None else self._placed[chosen]

    def signature(self) -> str:
        """Twelve hex digits that name this grid: axes, sizes, order (by its strides) and placement.

        The same in every process and release. Axes of size 1 leave no trace, so an order that merely
        mentions them, and a placement that is spelled out but the identity, give the same signature.
        """
        grids = (self.dense, self._expert_unchecked)
        digest = hashlib.sha256(f"mesh 1; {'; '.join(_strides_text(grid) for grid in grids)}".encode())
        if self.placement is not None and not np.array_equal(self._placed, np.arange(self.world)):
            digest.update(self._placed.astype("<i8").tobytes())
        return digest.hexdigest()[:12]

    @cached_property
    def _placed(self) -> Ints:
        return np.asarray(self.placement, dtype=np.int64)

    @cached_property
    def _expert_unchecked(self) -> Grid:
        names = tuple(_EXPERT_NAME[name] for name in self.axes if name != "cp")
        return Grid(names, tuple(int(getattr(self, name)) for name in names))

    def _grid(self, axis: str) -> Grid:
        _known((axis,), ALL_AXES, "dense or the expert")
        return self.dense if axis in DENSE_AXES else self.expert

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.world:
            raise ShapeError(f"rank {rank} is outside a world of {self.world}", fix=f"0 to {self.world - 1}")
        return rank


def _strides_text(grid: Grid) -> str:
    return " ".join(
        f"{name}={grid.size(name)}*{grid.stride(name)}" for name in sorted(grid.names) if grid.size(name) > 1
    )


def _known(axes: Collection[str], known: Sequence[str], which: str) -> None:
    strange = [axis for axis in axes if axis not in known]
    if strange:
        raise ShapeError(
            f"{', '.join(strange)} is no axis of the {which} mesh",
            fix=f"axes of it are {', '.join(known)}; experts have their own mesh (etp, ep, edp, pp)",
        )
