"""The smallest change that makes a job fit."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from traincast.errors import ShapeError
from traincast.memory.job import DEFAULT_OVERHEADS, MemoryJob, Overheads
from traincast.memory.legal import job_problems
from traincast.memory.stages import estimate_job
from traincast.memory.types import MemoryEstimate
from traincast.mesh import Mesh
from traincast.model import ModelShape
from traincast.recipe import Recipe

FARTHEST: Final = 12
"""How far from the job a remedy may lie, in the units of `_changes`."""

_ZERO: Final = (0, 1, 3, 4)
"""How far each ZeRO stage lies from stage 0. The first costs next to no time; from the second on gradients are reduced
behind every microbatch, and in the third parameters are gathered in every pass, half as much traffic again."""

_AXES: Final = ("tp", "pp", "dp")
_SETTINGS: Final = ("zero_stage", "sequence_parallel", "recompute", "microbatch", "schedule")


@dataclass(frozen=True)
class Remedy:
    """A changed job that fits on the same number of GPUs, and the changes as settings and values (`mesh.wording`)."""

    changes: tuple[str, ...]
    mesh: Mesh
    recipe: Recipe
    memory: MemoryEstimate


def nearest_that_fits(
    model: ModelShape,
    mesh: Mesh,
    recipe: Recipe,
    gpu_memory_bytes: float,
    overheads: Overheads = DEFAULT_OVERHEADS,
) -> Remedy | None:
    """The nearest job that fits on as many GPUs; None where none does within reach.

    Changes that cost little time are near: sharded optimiser states (ZeRO-1), sequence parallelism, selective
    recomputation. Half the microbatch, sharded gradients and parameters (ZeRO-2, and ZeRO-3 as FSDP has it) and twice
    the TP or PP on half the DP are farther, full recomputation is farthest. A pipeline is offered ZeRO-1 only: its
    gradients and gathered parameters stay whole for the whole step. Stages that were split by hand are split evenly
    again.
    """
    start = MemoryJob(model, mesh, replace(recipe, stage_layers=None), overheads)
    order = count()
    heap: list[tuple[int, int, MemoryJob]] = [(0, next(order), start)]
    seen: set[tuple[Mesh, Recipe]] = set()
    while heap:
        distance, _, job = heapq.heappop(heap)
        if (job.mesh, job.recipe) in seen:
            continue
        seen.add((job.mesh, job.recipe))
        found = _estimate(job, gpu_memory_bytes)
        if found is not None and found.verdict == "fits":
            return Remedy(tuple(_settings(start, job)), job.mesh, job.recipe, found)
        for cost, changed in _changes(job):
            if distance + cost <= FARTHEST:
                heapq.heappush(heap, (distance + cost, next(order), changed))
    return None


def _settings(start: MemoryJob, job: MemoryJob) -> Iterator[str]:
    """What differs between two jobs, each setting once with its last value."""
    for before, after, names in ((start.mesh, job.mesh, _AXES), (start.recipe, job.recipe, _SETTINGS)):
        for name in names:
            value = getattr(after, name)
            if value != getattr(before, name):
                yield f"{name} {str(value).lower()}"


def _estimate(job: MemoryJob, gpu_memory_bytes: float) -> MemoryEstimate | None:
    """Memory of a job; None where the job cannot be, as where shard groups do not divide the replicas."""
    try:
        if any(job_problems(job.model, job.mesh, job.recipe)):
            return None
        return estimate_job(job, gpu_memory_bytes)
    except ShapeError:
        return None


def _changes(job: MemoryJob) -> Iterator[tuple[int, MemoryJob]]:
    """All jobs one change away, each with its distance."""
    mesh, recipe = job.mesh, job.recipe
    if mesh.dp * mesh.cp > 1:
        for stage in range(recipe.zero_stage + 1, 4 if mesh.pp == 1 else 2):
            distance = _ZERO[stage] - _ZERO[recipe.zero_stage]
            yield distance, replace(job, recipe=replace(recipe, zero_stage=stage))
    if mesh.tp > 1 and not recipe.sequence_parallel:
        yield 1, replace(job, recipe=replace(recipe, sequence_parallel=True))
    if recipe.recompute == "none" and recipe.attention == "unfused":
        yield 1, replace(job, recipe=replace(recipe, recompute="selective"))
    if recipe.recompute != "full":
        yield 4, replace(job, recipe=replace(recipe, recompute="full"))
    if recipe.microbatch % 2 == 0:
        half = recipe.microbatch // 2
        yield 2, replace(job, recipe=replace(recipe, microbatch=half))
    if mesh.dp % 2 == 0 and mesh.placement is None and not mesh.has_expert_mesh:
        dp, tp, pp = mesh.dp // 2, 2 * mesh.tp, 2 * mesh.pp
        yield 3, replace(job, mesh=replace(mesh, tp=tp, dp=dp))
        deeper = replace(recipe, schedule="1f1b") if recipe.schedule == "none" else recipe
        yield 3, replace(job, mesh=replace(mesh, pp=pp, dp=dp), recipe=deeper)
