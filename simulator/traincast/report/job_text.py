"""What was asked of a forecast: model, cluster, shape, batch and recipe of its job, as rows and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

from traincast.recipe import Recipe
from traincast.units import counted, format_size

if TYPE_CHECKING:
    from traincast.scenario import Scenario

_TOLD: Final = (
    *("global_batch", "microbatch", "sequence", "precision", "recompute", "schedule", "vpp"),
    *("sequence_parallel", "attention", "zero_stage"),
)
"""Fields of the recipe that have a place of their own in the table."""


def job_of(scenario: "Scenario") -> dict[str, Any]:
    """The job of a scenario with all defaults filled in, as JSON shows it: whatever two scenarios differ in that can
    change their steps. Null: as the profile's stack does, or as `Recipe` says."""
    mesh, recipe = scenario.mesh, scenario.recipe
    sizes = {axis: getattr(mesh, axis) for axis in ("tp", "cp", "ep", "etp", "pp", "dp")}
    return {
        **sizes,
        "order": "-".join(mesh.axes),
        "placement": None if mesh.placement is None else list(mesh.placement),
        **{field.name: getattr(recipe, field.name) for field in fields(recipe)},
        "stage_layers": None if recipe.stage_layers is None else list(recipe.stage_layers),
        "microbatches": recipe.microbatches(mesh.dp),
        "model": asdict(scenario.model),
        "cluster": asdict(scenario.cluster),
        "profile": scenario.profile_name,
    }


def job_rows(scenario: "Scenario") -> Iterator[tuple[object, ...]]:
    """The same as rows (figure, value, unit, remark), without what is as usual."""
    job = job_of(scenario)
    axes = [name for name in ("tp", "cp", "ep", "pp", "dp", "vpp") if name != "ep" or job["ep"] > 1]
    remark = "sequence parallel" if job["sequence_parallel"] else None
    yield "parallelism", ", ".join(f"{axis} {job[axis]}" for axis in axes), None, remark
    batch = f"{counted(job['global_batch'], 'sequence')} of {counted(job['sequence'], 'token')}"
    each = f"{counted(job['microbatches'], 'microbatch', 'microbatches')} of {job['microbatch']} on each replica"
    yield "batch", batch, None, each
    how = f"schedule {job['schedule']}, recompute {job['recompute']}, ZeRO stage {job['zero_stage']}"
    yield "recipe", f"{job['precision']}, {how}", None, f"{job['attention']} attention"
    unusual = ", ".join(_unusual(scenario.recipe))
    if unusual:
        yield "recipe, further", unusual, None, None


def _unusual(recipe: Recipe) -> Iterator[str]:
    """Fields of the recipe without a place of their own that are not as `Recipe` has them."""
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        if field.name not in _TOLD and value != field.default:
            yield f"{field.name} {_text(field.name, value)}"


def _text(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, float):
        return format_size(value)
    if isinstance(value, tuple):
        return "-".join(map(str, value))
    return str(value).lower()
