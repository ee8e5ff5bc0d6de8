"""Context parallelism of a job: what its blocks need to know, and where ranks differ."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from traincast.lower.job import Job
from traincast.lower.program import Label
from traincast.lower.rings import ring_groups, ring_turn, split_of
from traincast.mesh import Mesh
from traincast.model.block import Context

Ints = npt.NDArray[np.int64]


def context_of(job: Job, position: int | None = None) -> Context:
    """How a rank sees the blocks of the others; of unbalanced ranks that at `position` of its ring (None: the last,
    which has most to do and sets the pace)."""
    mesh, recipe = job.mesh, job.recipe
    if mesh.cp == 1:
        return Context()
    split = split_of(mesh, recipe)
    ring = mesh.cp // split.ulysses
    return Context(
        style=recipe.cp_kind if recipe.cp_kind in ("allgather", "burst") else "ring",
        ulysses=split.ulysses,
        inner=ring_turn(mesh, job.cluster, split),
        balanced=recipe.cp_balance,
        position=ring - 1 if position is None else position,
        keeps_gathered=recipe.cp_keep_kv,
        by_block=job.profile.traits.cp_by_block and recipe.cp_kind == "allgather",
    )


def ring_positions(job: Job) -> Ints | None:
    """Place of every rank in its ring where ranks have unequal work; None where all have the same."""
    mesh, recipe = job.mesh, job.recipe
    if mesh.cp == recipe.ulysses(mesh.cp) or recipe.cp_balance:
        return None
    rings = ring_groups(mesh, split_of(mesh, recipe))
    positions = np.zeros(mesh.world, dtype=np.int64)
    positions[rings] = np.arange(rings.shape[1])
    return positions


def context_labels(mesh: Mesh, classes: Ints, rank: int) -> Mapping[int, Label]:
    """Classes that a rank meets in its context-parallel group and not in its tensor-parallel one."""
    if mesh.cp == 1:
        return {}
    own = {int(classes[rank]), *classes[mesh.group_of(rank, "tp")].tolist()}
    return dict.fromkeys(sorted(set(classes[mesh.group_of(rank, "cp")].tolist()) - own), "cp")
