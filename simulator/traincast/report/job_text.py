"""What was asked of a forecast: shape, batch and recipe of its job, as rows and as JSON."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from traincast.units import counted

if TYPE_CHECKING:
    from traincast.scenario import Scenario


def job_of(scenario: "Scenario") -> dict[str, Any]:
    """The job of a scenario with all defaults filled in, as JSON shows it."""
    mesh, recipe = scenario.mesh, scenario.recipe
    sizes = {axis: getattr(mesh, axis) for axis in ("tp", "cp", "ep", "etp", "pp", "dp")}
    return {
        **sizes,
        "vpp": recipe.vpp,
        "sequence_parallel": recipe.sequence_parallel,
        "order": "-".join(mesh.axes),
        "global_batch": recipe.global_batch,
        "microbatch": recipe.microbatch,
        "microbatches": recipe.microbatches(mesh.dp),
        "sequence": recipe.sequence,
        "precision": recipe.precision,
        "schedule": recipe.schedule,
        "recompute": recipe.recompute,
        "zero_stage": recipe.zero_stage,
        "attention": recipe.attention,
    }


def job_rows(scenario: "Scenario") -> Iterator[tuple[object, ...]]:
    """The same as rows (figure, value, unit, remark)."""
    job = job_of(scenario)
    axes = [name for name in ("tp", "cp", "ep", "pp", "dp", "vpp") if name != "ep" or job["ep"] > 1]
    remark = "sequence parallel" if job["sequence_parallel"] else None
    yield "parallelism", ", ".join(f"{axis} {job[axis]}" for axis in axes), None, remark
    batch = f"{counted(job['global_batch'], 'sequence')} of {counted(job['sequence'], 'token')}"
    each = f"{counted(job['microbatches'], 'microbatch', 'microbatches')} of {job['microbatch']} on each replica"
    yield "batch", batch, None, each
    how = f"schedule {job['schedule']}, recompute {job['recompute']}, ZeRO stage {job['zero_stage']}"
    yield "recipe", f"{job['precision']}, {how}", None, f"{job['attention']} attention"
