"""Bytes on one GPU of every pipeline stage, itemised, and whether they fit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traincast.errors import ShapeError
from traincast.memory.activations import backward_bytes, chunks_before
from traincast.memory.flight import holds_ends
from traincast.memory.held import stage_held
from traincast.memory.job import MemoryJob
from traincast.memory.states import communicator_bytes, gathered_bytes, held_parameters, state_bytes, step_copy_bytes
from traincast.memory.types import MemoryEstimate, StageMemory, Verdict
from traincast.mesh import Mesh, even_layers
from traincast.model import ModelShape
from traincast.recipe import Recipe
from traincast.schedule import chunks_of_model, parts_of
from traincast.units import format_size

BORDERLINE: Final = 0.07
"""Estimates this close to the limit, on either side, are called borderline."""


def estimate(
    model: ModelShape,
    mesh: Mesh,
    recipe: Recipe,
    gpu_memory_bytes: float | Sequence[float],
    layers_per_stage: Sequence[int] | None = None,
) -> MemoryEstimate:
    """Memory of every stage against a GPU of `gpu_memory_bytes` (one figure, or one a stage), with the usual
    overheads of PyTorch and NCCL.

    `layers_per_stage` counts layers per stage (pp numbers) or per chunk in pipeline order (pp·vpp numbers);
    without it the recipe's `stage_layers`, else an even split. Raises ShapeError when it does not add up to
    the model's layers.
    """
    return estimate_job(MemoryJob(model, mesh, recipe), gpu_memory_bytes, layers_per_stage)


def estimate_job(
    job: MemoryJob, gpu_memory_bytes: float | Sequence[float], layers_per_stage: Sequence[int] | None = None
) -> MemoryEstimate:
    """As `estimate`, for a software stack with overheads of its own, and for the order that is run where a job has it.

    Without an order the estimate of an automatic schedule is an upper bound of all that its search may find: what fits
    by it fits.
    """
    chunks = chunk_layers(job.model, job.mesh, job.recipe, layers_per_stage)
    # every n-th layer is recomputed whole, but a stage may have fewer than n
    none_whole = [job.recipe.recomputed.full_every > 0 and not _whole(job.recipe, own) for own in chunks]
    plain = replace(job, recipe=replace(job.recipe, recompute="none")) if any(none_whole) else job
    backward = {kind: backward_bytes(plain if kind else job) for kind in set(none_whole)}
    stages = tuple(
        _stage_memory(plain if kind else job, stage, own, backward[kind])
        for stage, (own, kind) in enumerate(zip(chunks, none_whole, strict=True))
    )
    limits = gpu_memory_bytes if isinstance(gpu_memory_bytes, Sequence) else [gpu_memory_bytes] * job.mesh.pp
    worst = max(stages, key=lambda one: one.total_bytes / limits[one.stage])
    limit = limits[worst.stage]
    verdict = _verdict(worst.total_bytes, limit)
    item = worst.largest_item
    reason = (
        f"stage {worst.stage} needs {format_size(worst.total_bytes)} of {format_size(limit)}; "
        f"its largest item is {item} ({format_size(worst.items[item])})"
    )
    return MemoryEstimate(stages, verdict, limit, reason, worst.stage)


def chunk_layers(
    model: ModelShape, mesh: Mesh, recipe: Recipe, layers_per_stage: Sequence[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Layers of every chunk of every stage: element [stage][chunk]."""
    name, pp = recipe.schedule, mesh.pp
    vpp = chunks_of_model(name, recipe.vpp)
    given = layers_per_stage if layers_per_stage is not None else recipe.stage_layers
    if given is None:
        given = even_layers(model.layers, pp, vpp)
    if len(given) not in (pp, pp * vpp) or sum(given) != model.layers:
        raise ShapeError(
            f"{len(given)} entries hold {sum(given)} layers: not {model.layers} on pp {pp}, vpp {vpp}",
            fix=f"give {pp} (per stage) or {pp * vpp} (per chunk) numbers that add up to {model.layers}",
        )
    if len(given) == pp * vpp:
        return tuple(tuple(given[part] for part in parts_of(name, pp, recipe.vpp, stage)) for stage in range(pp))
    return tuple(tuple(layers // vpp + (chunk < layers % vpp) for chunk in range(vpp)) for layers in given)


def whole_layers(model: ModelShape, mesh: Mesh, recipe: Recipe) -> tuple[int, int]:
    """How many layers all ranks of a pipeline recompute whole, and how many they hold (twice the model's where two
    copies of it run)."""
    stages = chunk_layers(model, mesh, recipe)
    return sum(_whole(recipe, chunks) for chunks in stages), sum(map(sum, stages))


def _whole(recipe: Recipe, chunks: Sequence[int]) -> int:
    """How many layers of a stage are recomputed whole."""
    pairs = zip(chunks, chunks_before(recipe, chunks), strict=True)
    return sum(recipe.recomputed.full_layers(layers, before) for layers, before in pairs)


def _verdict(total_bytes: float, limit_bytes: float) -> Verdict:
    if total_bytes <= (1 - BORDERLINE) * limit_bytes:
        return "fits"
    return "borderline" if total_bytes <= (1 + BORDERLINE) * limit_bytes else "does not fit"


def _beyond(room: float, parts: Sequence[float]) -> list[float]:
    """What of each part is left when they, one after the other, fill a room."""
    left = []
    for part in parts:
        left.append(max(0.0, part - room))
        room = max(0.0, room - part)
    return left


def _stage_memory(job: MemoryJob, stage: int, chunks: tuple[int, ...], backward: tuple[float, float]) -> StageMemory:
    """Memory of a stage with `chunks` layers, whose `backward` passes add what `backward_bytes` says."""
    first, last = holds_ends(job, stage)
    held = held_parameters(job, sum(chunks), first=first, last=last)
    parameters, gradients, optimizer = state_bytes(job, held)
    gathered, unscattered = gathered_bytes(job, held)
    recompute, workspace = backward
    most = stage_held(job, stage, chunks, recompute + workspace + unscattered)
    activations, logits = most.activations_bytes, most.logits_bytes
    # layers run backward when the logits of their microbatch are gone, and find room there
    workspace, recompute, unscattered = _beyond(most.loss_bytes, (workspace, recompute, unscattered))
    moving = activations + recompute + logits + workspace
    # the optimiser's copies are made where the activations were
    each, flat = step_copy_bytes(job, held.total)
    excess = max(0.0, each - moving) + flat
    return StageMemory(
        stage=stage,
        parameters_bytes=parameters,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=activations,
        recompute_bytes=recompute,
        logits_bytes=logits,
        gathered_bytes=gathered + unscattered,
        communicators_bytes=communicator_bytes(job),
        context_bytes=job.overheads.context_bytes + job.overheads.reserve_bytes,
        workspace_bytes=workspace + excess,
        fragmentation_bytes=job.overheads.fragmentation * moving,
    )
