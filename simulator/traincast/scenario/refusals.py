"""What no forecast can be made of, refused at the key that asks for it, with its file and line or the option."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from traincast.errors import ShapeError, UserError, combined
from traincast.lower.unmodelled import UNMODELLED_PRECISIONS, unmodelled
from traincast.mesh.problems import Problem
from traincast.recipe import BYTES_PER_ELEMENT
from traincast.scenario.text import Places
from traincast.scenario.types import Scenario
from traincast.scenario.wording import dotted, keys_of, place_of

if TYPE_CHECKING:
    from traincast.catalog import Gpu
    from traincast.lower.job import Job


def refuse_unmodelled(scenario: Scenario, job: "Job") -> None:
    """Raises a UserError for a job of a scenario that no cost stands behind; `job` may be on another shape."""
    _refuse(
        [*_precision(job), *(one for one in unmodelled(job.mesh, job.recipe) if one.names != ("precision",))], scenario
    )


def refuse_precision(scenario: Scenario, job: "Job") -> None:
    """The same for what no other shape changes: a precision that is not modelled, or that the GPUs do not have."""
    _refuse(_precision(job), scenario)


def _precision(job: "Job") -> list[Problem]:
    asked, gpus = job.recipe.precision, _gpus(job)
    lacking = [gpu.name for gpu in gpus if asked not in gpu.peaks_flops_per_s]
    if asked in UNMODELLED_PRECISIONS:
        message = f"training in {asked} is not modelled yet"
    elif lacking:
        message = f"{' and '.join(lacking)} has no {asked} peak"
    else:
        return []
    fits = [
        name
        for name in BYTES_PER_ELEMENT
        if name not in UNMODELLED_PRECISIONS and all(name in gpu.peaks_flops_per_s for gpu in gpus)
    ]
    return [Problem(message, f"precision {' or '.join(fits)}" if fits else "another cluster.gpu", names=("precision",))]


def _gpus(job: "Job") -> "tuple[Gpu, ...]":
    return (job.gpu, *(part.gpu for part in job.others))


def _refuse(problems: Iterable[Problem], scenario: Scenario) -> None:
    found: list[UserError] = [_placed(one, scenario.places or Places("")) for one in problems]
    if found:
        raise combined(found)


def _placed(found: Problem, places: Places) -> UserError:
    """The finding with the key that it is about in front: the first of its names that is stated."""
    stated = [name for name in found.names if keys_of(name) in places.marks]
    key = dotted((stated or list(found.names))[0])
    where = place_of(found.names, places)
    fix = _typed(found.fix, where)
    return ShapeError(f"{key}: {found.message}", where=where or None, fix=fix)


def _typed(fix: str, where: str) -> str:
    """`precision bf16 or fp16` as it is to be written, in the file or as an option; other words as they are."""
    name, _, values = fix.partition(" ")
    if name != "precision":
        return fix
    return f"--set training.precision={values}" if where.startswith("--set ") else f"set training.precision: {values}"
