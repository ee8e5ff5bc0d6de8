"""Which jobs can be at all: what shape, context parallelism and schedule ask of model, mesh and recipe."""

from collections.abc import Iterator

from traincast.mesh import Mesh, Problem, ShapeRequest, check_shape
from traincast.mesh.contextchecks import context_problems
from traincast.model import ModelShape
from traincast.recipe import Recipe
from traincast.schedule import chunks_of_model, in_groups
from traincast.schedule.limits import ScheduleRequest, schedule_problems


def job_problems(model: ModelShape, mesh: Mesh, recipe: Recipe) -> Iterator[Problem]:
    """All that forbids a job, with the two numbers that clash and a fix each; none: a forecast takes it.

    The checks that a scenario passes, for jobs that are made of one.
    """
    found = (*check_shape(shape_request(model, mesh, recipe)), *context_problems(model, mesh, recipe))
    yield from (one for one in found if one.severity == "error")
    each = recipe.microbatch * mesh.dp
    ask = ScheduleRequest(recipe.schedule, mesh.pp, recipe.vpp, -(-recipe.global_batch // each), each)
    yield from schedule_problems(ask)


def shape_request(model: ModelShape, mesh: Mesh, recipe: Recipe) -> ShapeRequest:
    """A job's shape with what it has to agree with."""
    return ShapeRequest(
        tp=mesh.tp,
        cp=mesh.cp,
        pp=mesh.pp,
        dp=mesh.dp,
        vpp=recipe.vpp,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        global_batch=recipe.global_batch,
        microbatch=recipe.microbatch,
        sequence=recipe.sequence,
        sequence_parallel=recipe.sequence_parallel,
        model_chunks=chunks_of_model(recipe.schedule, recipe.vpp),
        in_groups=in_groups(recipe.schedule, recipe.vpp),
    )
