"""What traincast does not forecast yet, refused in one place, so that nothing is computed as if it were not there."""

from collections.abc import Iterator
from typing import Final

from traincast.errors import ShapeError
from traincast.memory.sharding import sharding
from traincast.mesh import Mesh
from traincast.mesh.problems import Problem
from traincast.recipe import Recipe
from traincast.schedule import SPLIT

MOST_PASSES = 4_000_000
"""Passes of one pipeline that a forecast takes on: some minutes and 3 GB. The longest of large jobs have thousands."""

UNMODELLED_PRECISIONS: Final = ("fp32", "tf32")


def unmodelled(mesh: Mesh, recipe: Recipe) -> Iterator[Problem]:
    """What is asked for and the way round it, for each part of a job that no cost stands behind yet; the names are keys
    of a scenario."""
    if mesh.ep > 1 or mesh.etp > 1:
        yield Problem(
            f"expert parallelism is not modelled yet (ep {mesh.ep}, etp {mesh.etp})",
            "set parallelism.ep: 1 and parallelism.etp: 1",
            names=("ep", "etp"),
        )
    if recipe.schedule in SPLIT and _communicates_in_passes(mesh, recipe):
        what = f"gathers or reductions in each pass of schedule {recipe.schedule}"
        fix = "leave training.reshard_after_forward and training.no_sync out, or set training.schedule: 1f1b"
        names = ("reshard_after_forward", "no_sync", "schedule", "zero_stage")
        yield Problem(f"{what} are not modelled yet", fix, names=names)
    if recipe.precision in UNMODELLED_PRECISIONS:
        message = f"training in {recipe.precision} is not modelled yet"
        yield Problem(message, "set training.precision: bf16 or fp16", names=("precision",))


def _communicates_in_passes(mesh: Mesh, recipe: Recipe) -> bool:
    how = sharding(mesh, recipe)
    return how.gathers == "pass" or how.reduces_each


def refuse_unmodelled(mesh: Mesh, recipe: Recipe) -> None:
    """Raises ShapeError that names all of them."""
    found = list(unmodelled(mesh, recipe))
    if found:
        raise ShapeError("; ".join(one.message for one in found), fix="; ".join(one.fix for one in found))


def refuse_too_many(mesh: Mesh, recipe: Recipe) -> None:
    """Raises ShapeError for a step of more passes than a forecast can hold."""
    microbatches = recipe.microbatches(mesh.dp)
    passes = 2 * microbatches * mesh.pp * recipe.vpp
    if passes > MOST_PASSES:
        raise ShapeError(
            f"{microbatches} microbatches forward and backward on pp {mesh.pp} * vpp {recipe.vpp} chunks are {passes} "
            f"passes, above the limit of {MOST_PASSES}",
            fix="lower training.global_batch, or raise training.microbatch or parallelism.dp",
        )
