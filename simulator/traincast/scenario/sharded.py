"""How replicas share their states, as a scenario says it: keys that need others, defaults, groups that cannot be."""

from typing import Any, Final

from traincast.errors import ScenarioError, ShapeError, UserError
from traincast.memory import sharding
from traincast.mesh import Mesh
from traincast.recipe import Recipe
from traincast.scenario.schema import TrainingSection
from traincast.scenario.text import Places
from traincast.scenario.wording import scenario_fix

_LEAST_STAGE: Final = {"fsdp_shard": 1, "reshard_after_forward": 3, "prefetch": 3, "prefetch_bucket": 3}
"""Keys that say nothing below a ZeRO stage."""


def sharding_problems(training: TrainingSection, places: Places) -> list[UserError]:
    """Keys about what the ZeRO stage does not shard."""
    found: list[UserError] = []
    if training.offload_states == "parameters" and training.zero_stage < 3:
        message = f"parameters on the host are fetched for each pass, but zero_stage {training.zero_stage} fetches none"
        where = places.where(("training", "offload_states"))
        fix = scenario_fix("zero_stage 3, or offload_states optimizer", where)
        found.append(ScenarioError(message, where=where, fix=fix))
    for key, least in _LEAST_STAGE.items():
        if getattr(training, key) is not None and training.zero_stage < least:
            where = places.where(("training", key))
            fix = f"zero_stage {least}{' or more' if least < 3 else ''}, or leave training.{key} out"
            message = f"training.{key} says nothing with zero_stage {training.zero_stage}"
            found.append(ScenarioError(message, where=where, fix=scenario_fix(fix, where)))
    return found


def sharding_fields(training: TrainingSection) -> dict[str, Any]:
    """Fields of the recipe; None is what `Recipe` makes of it."""
    return {
        "zero_stage": training.zero_stage,
        "reshard_after_forward": training.reshard_after_forward,
        "prefetch": training.prefetch,
        "prefetch_bytes": training.prefetch_bucket,
        "fsdp_shard": training.fsdp_shard,
        "reduce_dtype": training.reduce_dtype,
        "no_sync": training.no_sync,
        "offload_states": training.offload_states or "none",
    }


def sharding_assumptions(training: TrainingSection, mesh: Mesh, recipe: Recipe) -> list[str]:
    """What is taken for granted where the scenario leaves it open."""
    how, found = sharding(mesh, recipe), []
    if how.copies == 1 or recipe.zero_stage < 2:
        return []
    if training.no_sync is None:
        found.append(f"training.no_sync not stated: gradients are reduced behind {_behind(how.reduces_each)}")
    if recipe.zero_stage == 3 and training.reshard_after_forward is None:
        kept = "gathered again in each backward pass" if how.again else "gathered once a step and kept"
        found.append(f"training.reshard_after_forward not stated: parameters are {kept}")
    return found


def _behind(each: bool) -> str:
    return "each microbatch" if each else "the last microbatch"


def check_shard_groups(mesh: Mesh, recipe: Recipe, places: Places) -> None:
    """Raises ShapeError, with its place, for groups that the replicas do not divide into."""
    try:
        sharding(mesh, recipe)
    except ShapeError as error:
        where = places.where(("training", "fsdp_shard"))
        raise ShapeError(error.message, where=where, fix=scenario_fix(error.fix or "", where)) from error
