"""How a sequence is split over context-parallel ranks, as a scenario says it."""

from typing import Any, Final

from traincast.errors import ScenarioError, ShapeError, UserError, combined
from traincast.mesh import Mesh
from traincast.mesh.contextchecks import context_problems
from traincast.model import ModelShape
from traincast.recipe import Recipe
from traincast.scenario.schema import ParallelismSection, TrainingSection
from traincast.scenario.text import Places

_DEFAULTS: Final = {"cp_kind": "ring", "cp_ulysses": 1, "cp_inner": "ulysses", "cp_balance": True, "cp_keep_kv": False}
_ASSUMED: Final = ("cp_kind", "cp_balance")
"""Keys whose default is worth naming."""


def splits_blocks(training: TrainingSection, shape: ParallelismSection) -> bool:
    """Whether the sequence is cut into 2 cp blocks, to balance causal attention."""
    return shape.cp > 1 and training.cp_kind != "ulysses" and training.cp_balance is not False


def context_key_problems(training: TrainingSection, shape: ParallelismSection, places: Places) -> list[UserError]:
    """Keys about a split that there is not, or not of this kind."""
    found: list[UserError] = []
    for key in _DEFAULTS if shape.cp == 1 else ():
        if getattr(training, key) is not None:
            where = places.where(("training", key))
            found.append(ScenarioError(f"training.{key} says nothing with cp 1", where=where, fix="leave it out"))
    if training.cp_keep_kv and training.cp_kind != "allgather" and shape.cp > 1:
        where = places.where(("training", "cp_keep_kv"))
        message = f"training.cp_keep_kv says nothing with cp_kind {training.cp_kind or 'ring'}, which gathers nothing"
        found.append(ScenarioError(message, where=where, fix="cp_kind allgather, or leave it out"))
    for key in ("cp_balance", "cp_inner"):
        if shape.cp > 1 and training.cp_kind == "ulysses" and getattr(training, key) is not None:
            message = f"training.{key} says nothing with cp_kind ulysses, where every rank has whole sequences"
            found.append(ScenarioError(message, where=places.where(("training", key)), fix="leave it out"))
    where = places.where(("training", "recompute"))
    if training.recompute == "full_but_late_attention" and training.cp_balance is False and shape.cp > 1:
        message = "full_but_late_attention needs a part of both halves of the sequence on every rank"
        found.append(ScenarioError(message, where=where, fix="leave cp_balance out, or recompute full_but_attention"))
    if training.attention == "unfused" and training.recompute in ("full_but_attention", "full_but_late_attention"):
        message = f"recompute {training.recompute} keeps no scores, which unfused attention needs backward"
        found.append(ScenarioError(message, where=where, fix="attention flash, or recompute full"))
    return found


def context_fields(training: TrainingSection, mesh: Mesh, assumptions: list[str]) -> dict[str, Any]:
    """Fields of the recipe; what is left open is filled, and named where it matters."""
    fields: dict[str, Any] = {"offload_activations": training.offload_activations or 0.0}
    for key, default in _DEFAULTS.items():
        stated = getattr(training, key)
        fields[key] = default if stated is None else stated
        idle = key == "cp_balance" and training.cp_kind == "ulysses"
        if stated is None and mesh.cp > 1 and key in _ASSUMED and not idle:
            assumptions.append(f"training.{key} not stated: {str(default).lower()}")
    return fields


def check_context(model: ModelShape, mesh: Mesh, recipe: Recipe, places: Places) -> tuple[str, ...]:
    """Warnings; raises ShapeError, with its place, for a split that model and mesh do not allow."""
    found = tuple(context_problems(model, mesh, recipe))
    where = places.where(("training", "cp_ulysses" if recipe.cp_ulysses > 1 else "cp_kind"))
    errors = [ShapeError(one.message, where=where, fix=one.fix) for one in found if one.severity == "error"]
    if errors:
        raise combined(errors)
    return tuple(str(one) for one in found)
