"""Keys that a scenario states although they cannot change its step: told, not refused."""

from collections.abc import Iterator
from typing import Any

from traincast.errors import DataError
from traincast.memory import leaving, sharding
from traincast.mesh import Mesh
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.scenario.schema import ScenarioSection
from traincast.schedule import SPLIT, ScheduleKey


def idle_keys(section: ScenarioSection, mesh: Mesh, recipe: Recipe, layers: int) -> tuple[str, ...]:
    """An assumption for each key stated in the file, or by an option, that has no effect.

    `section` is as stated, before defaults fill it. Values that ask for nothing (false, none) are passed over.
    """
    parts: tuple[tuple[str, Any], ...] = (("parallelism", section.parallelism), ("training", section.training))
    stated = {
        key: f"{name}.{key}"
        for name, part in parts
        for key in part.model_fields_set
        if getattr(part, key) is not None and getattr(part, key) != "none"
    }
    rules = [*_of_tensors(mesh, recipe), *_of_replicas(mesh, recipe), *_of_pipeline(mesh, recipe), *_of_fp8(recipe)]
    rules += [*_of_context(mesh, recipe), *_of_activations(mesh, recipe, layers)]
    said: dict[str, str] = {}
    for key, why in rules:
        if key in stated and not (key in _OFF_SAYS_NOTHING and not getattr(recipe, key)):
            said.setdefault(key, f"{stated[key]} has no effect: {why}")
    if "overlap_tp" in stated and recipe.overlap_tp == "async" and mesh.tp > 1:
        no_copies = _nothing_copied(section, recipe)
        if no_copies is not None:
            said["overlap_tp"] = f"{stated['overlap_tp']}: async is as none, {no_copies}"
    return (*said.values(), *_without_purpose(stated, mesh, recipe))


def _without_purpose(stated: dict[str, str], mesh: Mesh, recipe: Recipe) -> Iterator[str]:
    """Keys that change the step although what they are for is not there."""
    if mesh.pp > 1:
        return
    if "schedule" in stated and recipe.schedule in SPLIT:
        yield f"{stated['schedule']} {recipe.schedule} fills no bubble: pp is 1; backward passes are split all the same"
    if "post_validation" in stated and recipe.post_validation and mesh.tp > 1:
        yield (
            f"{stated['post_validation']} spares no stage a wait: pp is 1; the gradient norm of the tp ranks is not"
            " waited for"
        )


def _nothing_copied(section: ScenarioSection, recipe: Recipe) -> str | None:
    """Why a run that overlaps asynchronously has no copies to save (`lower.stages`); None where it has."""
    if not recipe.sequence_parallel:
        return "without sequence_parallel nothing is gathered or scattered along sequences"
    if recipe.microbatch == 1:
        return "a single sequence is gathered and scattered in place"
    try:
        copies = section.profile is not None and load_profile(section.profile).traits.copies_sequence
    except DataError:  # told where the profile is used
        return None
    return None if copies else "the stack copies nothing along sequences"


_OFF_SAYS_NOTHING = (
    "sequence_parallel",
    "overlap_dp",
    "overlap_params",
    "post_validation",
    "offload_activations",
    "fp8_gather",
)

Reasons = Iterator[tuple[str, str]]
"""(key, why it has no effect)"""


def _of_tensors(mesh: Mesh, recipe: Recipe) -> Reasons:
    if mesh.tp == 1:
        yield "overlap_tp", "tp is 1"
        yield "sequence_parallel", "tp is 1"
    elif recipe.overlap_tp == "split" and not recipe.sequence_parallel:
        yield "overlap_tp", "without sequence_parallel no collective is split, they overlap as with bulk"


def _of_replicas(mesh: Mesh, recipe: Recipe) -> Reasons:
    how = sharding(mesh, recipe)
    if how.copies == 1:
        why = "one replica reduces and gathers nothing"
        yield from ((key, why) for key in ("overlap_dp", "overlap_params", "bucket", "reduce_dtype", "no_sync"))
    if how.gathers == "pass" and how.reduces_each:
        yield "bucket", "ZeRO-3 gathers and reduces layer by layer (prefetch_bucket sets another size)"
    if recipe.zero_stage == 3:
        yield "overlap_params", "ZeRO-3 gathers parameters before they are used, not behind the update"
    elif how.gathers != "update":
        yield "overlap_params", f"zero_stage {recipe.zero_stage} leaves no parameters to gather"


def _of_pipeline(mesh: Mesh, recipe: Recipe) -> Reasons:
    if mesh.pp == 1:
        yield from ((key, "pp is 1") for key in ("p2p", "scatter_gather"))
        if mesh.tp == 1:
            yield "post_validation", "pp is 1"
    elif mesh.tp == 1:
        yield "scatter_gather", "tp is 1"
    elif recipe.sequence_parallel:
        yield "scatter_gather", "with sequence_parallel each rank holds and sends its own part"


def _of_fp8(recipe: Recipe) -> Reasons:
    if recipe.precision != "fp8":
        yield "fp8_scaling", f"precision is {recipe.precision}"
    if not recipe.in_fp8:
        yield "fp8_gather", f"precision is {recipe.precision}"
    elif recipe.zero_stage < 3:
        yield "fp8_gather", f"zero_stage {recipe.zero_stage} gathers no parameters for the passes"


def _of_context(mesh: Mesh, recipe: Recipe) -> Reasons:
    if mesh.cp > 1 and recipe.ulysses(mesh.cp) == 1:
        yield "cp_inner", "cp_ulysses is 1, so no rank exchanges heads"


def _of_activations(mesh: Mesh, recipe: Recipe, layers: int) -> Reasons:
    every = recipe.recomputed.full_every
    split = recipe.stage_layers
    of_rank = max(sum(split[s :: mesh.pp]) for s in range(mesh.pp)) if split else -(-layers // mesh.pp)
    if every > of_rank:
        yield "recompute", f"a GPU holds {of_rank} layers, of which none is the {every}th"
    if recipe.offload_activations == 0.0:
        return
    key: ScheduleKey = (recipe.schedule, mesh.pp, recipe.microbatches(mesh.dp), recipe.vpp)
    if not any(any(stage) for stage in leaving(key)):
        few = "no more than two passes run between a forward and its backward"
        why = f"with pp {mesh.pp}, schedule {recipe.schedule}, {few}, so nothing is copied"
        yield "offload_activations", why
