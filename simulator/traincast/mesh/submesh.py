"""Sub-meshes: what FSDP and HSDP take out of a mesh of more axes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traincast.errors import ShapeError
from traincast.mesh.grid import Ints
from traincast.mesh.mesh import DENSE_AXES, Mesh

_SHARDABLE = (("dp",), ("cp", "dp"), ("edp",))


@dataclass(frozen=True, eq=False)
class SubMesh:
    """Copies of a small mesh that together hold every rank of the large one once.

    `dims` names its dimensions, `ranks` has shape (copies, *sizes). The last dimension has the nearest
    neighbours.
    """

    dims: tuple[str, ...]
    axes: tuple[str, ...]
    """The axes of the large mesh that it is cut from."""
    ranks: Ints

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self.ranks.shape[1:]

    def groups(self, dim: str) -> Ints:
        """Groups along one dimension, shape (count, size): ascending, by their first rank."""
        if dim not in self.dims:
            raise ShapeError(f"the sub-mesh has no dimension {dim!r}", fix=f"one of {', '.join(self.dims)}")
        along = np.moveaxis(self.ranks, self.dims.index(dim) + 1, -1)
        groups = along.reshape(-1, along.shape[-1])
        return groups[np.argsort(groups[:, 0])]


def fsdp_mesh(mesh: Mesh, axes: Sequence[str] | None = None) -> SubMesh:
    """The one-dimensional meshes ("shard",) over which FSDP shards.

    `axes` names the data axes of `mesh`: dp, dp with cp, or edp for experts. None hands over the mesh as it
    is, which is right only if it has no other axis; a mesh of two axes would be taken for a (replicate,
    shard) pair, so ShapeError asks for the data axes by name.
    """
    names = _data_axes(mesh, axes)
    return SubMesh(("shard",), names, _groups(mesh, names))


def hsdp_mesh(mesh: Mesh, replicate: int, shard: int, axes: Sequence[str] | None = None) -> SubMesh:
    """The two-dimensional meshes ("replicate", "shard") of HSDP: dimension 0 replicates, dimension 1 shards.

    Both are cut from the same data axes of `mesh`, shards from the nearest ranks. Raises ShapeError unless
    replicate*shard is the size of the data axes.
    """
    names = _data_axes(mesh, axes)
    groups = _groups(mesh, names)
    size = groups.shape[1]
    if replicate < 1 or shard < 1 or replicate * shard != size:
        fitting = max((d for d in range(1, min(max(shard, 1), size) + 1) if size % d == 0), default=1)
        raise ShapeError(
            f"HSDP: replicate {replicate} * shard {shard} = {replicate * shard} is not {size}, "
            f"the ranks along {' and '.join(names)}",
            fix=f"replicate {size // fitting} and shard {fitting}",
        )
    return SubMesh(("replicate", "shard"), names, groups.reshape(-1, replicate, shard))


def _data_axes(mesh: Mesh, axes: Sequence[str] | None) -> tuple[str, ...]:
    if axes is None:
        others = [axis for axis in DENSE_AXES if axis != "dp" and mesh.size(axis) > 1]
        if others:
            spelled = ", ".join(f"{axis} {mesh.size(axis)}" for axis in DENSE_AXES if axis == "dp" or axis in others)
            raise ShapeError(
                f"FSDP takes the data axes of a mesh, not all {len(others) + 1} of its axes ({spelled})",
                fix="name them: dp or dp-cp",
            )
        return ("dp",)
    if tuple(sorted(axes)) not in _SHARDABLE:
        raise ShapeError(
            f"FSDP cannot shard over {', '.join(axes) or 'no axis'}: its ranks do not hold the same weights",
            fix="name data axes: dp, dp-cp, or edp for experts",
        )
    return tuple(axes)


def _groups(mesh: Mesh, names: Sequence[str]) -> Ints:
    return mesh.expert_groups(*names) if "edp" in names else mesh.groups(*names)
