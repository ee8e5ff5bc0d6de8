"""What traincast does not forecast yet, refused in one place, so that nothing is computed as if it were not there."""

from collections.abc import Iterator

from traincast.errors import ShapeError
from traincast.memory.sharding import sharding
from traincast.mesh import Mesh
from traincast.recipe import Recipe
from traincast.schedule import SPLIT

MOST_PASSES = 4_000_000
"""Passes of one pipeline that a forecast takes on: some minutes and 3 GB. The longest of large jobs have thousands."""


def unmodelled(mesh: Mesh, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(what is asked for, the way round it) for each part of a job that no cost stands behind yet."""
    if mesh.ep > 1 or mesh.etp > 1:
        yield (
            f"expert parallelism is not modelled yet (ep {mesh.ep}, etp {mesh.etp})",
            "set parallelism.ep: 1 and parallelism.etp: 1",
        )
    if recipe.schedule in SPLIT and _communicates_in_passes(mesh, recipe):
        what = f"gathers or reductions in each pass of schedule {recipe.schedule}"
        fix = "leave training.reshard_after_forward and training.no_sync out, or set training.schedule: 1f1b"
        yield f"{what} are not modelled yet", fix
    if recipe.precision in ("fp32", "tf32"):
        yield f"training in {recipe.precision} is not modelled yet", "set training.precision: bf16 or fp16"


def _communicates_in_passes(mesh: Mesh, recipe: Recipe) -> bool:
    how = sharding(mesh, recipe)
    return how.gathers == "pass" or how.reduces_each


def refuse_unmodelled(mesh: Mesh, recipe: Recipe) -> None:
    """Raises ShapeError that names all of them."""
    found = list(unmodelled(mesh, recipe))
    if found:
        raise ShapeError("; ".join(what for what, _ in found), fix="; ".join(fix for _, fix in found))


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
