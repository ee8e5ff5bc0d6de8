"""How a sequence is split over context-parallel ranks, as a scenario says it."""

from typing import Any, Final

from traincast.errors import ScenarioError, UserError, combined
from traincast.mesh import Mesh
from traincast.mesh.contextchecks import WITHOUT_HEADS, context_problems
from traincast.model import ModelShape
from traincast.recipe import Recipe
from traincast.scenario.schema import ParallelismSection, TrainingSection
from traincast.scenario.text import Places
from traincast.scenario.wording import place_of, placed, scenario_fix, warning_text

_DEFAULTS: Final = {"cp_kind": "ring", "cp_ulysses": 1, "cp_inner": "ulysses", "cp_balance": True, "cp_keep_kv": False}
_ASSUMED: Final = ("cp_kind", "cp_balance")
"""Keys whose default is worth naming."""


def splits_blocks(training: TrainingSection, shape: ParallelismSection) -> bool:
    """Whether the sequence is cut into 2 cp blocks, to balance causal attention."""
    return shape.cp > 1 and training.cp_kind != "ulysses" and training.cp_balance is not False


def context_key_problems(training: TrainingSection, shape: ParallelismSection, places: Places) -> list[UserError]:
    """Keys about a split that there is not, or not of this kind."""
    found: list[UserError] = []

    def refuse(key: str, message: str, fix: str) -> None:
        where = places.where(("training", key))
        found.append(ScenarioError(message, where=where, fix=scenario_fix(fix, where)))

    kind = training.cp_kind or "ring"
    if shape.cp == 1:
        for key in _DEFAULTS:
            if getattr(training, key) is not None:
                refuse(key, f"training.{key} says nothing with cp 1", f"leave training.{key} out, or cp 2 or more")
        return found + _core_problems(training, shape, places)
    if training.cp_keep_kv and kind != "allgather":
        message = f"training.cp_keep_kv says nothing with cp_kind {kind}, which gathers nothing"
        refuse("cp_keep_kv", message, "cp_kind allgather, or leave training.cp_keep_kv out")
    if kind == "ulysses" and training.cp_balance is not None:
        message = "training.cp_balance says nothing with cp_kind ulysses, where every rank has whole sequences"
        refuse("cp_balance", message, "leave training.cp_balance out")
    if training.cp_inner is not None and (kind == "ulysses" or kind in WITHOUT_HEADS):
        why = "every rank has whole sequences" if kind == "ulysses" else "no rank exchanges heads"
        message = f"training.cp_inner says nothing with cp_kind {kind}, where {why}"
        refuse("cp_inner", message, "cp_kind usp, or leave training.cp_inner out")
    return found + _core_problems(training, shape, places)


def _core_problems(training: TrainingSection, shape: ParallelismSection, places: Places) -> list[UserError]:
    """What is kept of attention, against how it is computed."""
    found: list[UserError] = []
    where = places.where(("training", "recompute"))
    if training.recompute == "full_but_late_attention" and training.cp_balance is False and shape.cp > 1:
        message = "full_but_late_attention needs a part of both halves of the sequence on every rank"
        fix = scenario_fix("leave training.cp_balance out, or recompute full_but_attention", where)
        found.append(ScenarioError(message, where=where, fix=fix))
    if training.attention == "unfused" and training.recompute in ("full_but_attention", "full_but_late_attention"):
        message = f"recompute {training.recompute} keeps no scores, which unfused attention needs backward"
        fix = scenario_fix("attention flash, or recompute full", where)
        found.append(ScenarioError(message, where=where, fix=fix))
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
    errors = [placed(one, place_of(one.names, places)) for one in found if one.severity == "error"]
    if errors:
        raise combined(errors)
    return tuple(warning_text(one) for one in found)
