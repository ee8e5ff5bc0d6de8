"""What the stack of a scenario's profile does where the scenario is silent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from traincast.errors import DataError, UserError
from traincast.profile import load_profile
from traincast.scenario.files import SUFFIXES
from traincast.scenario.schema import ScenarioSection
from traincast.scenario.text import Places

_SHARDED: Final = ("overlap_params", "bucket")
"""Keys that say something of a sharded optimiser only."""


def profile_problems(name: str | None, places: Places) -> Iterator[UserError]:
    """A profile by its path where no file is, or that is not to be had by its name."""
    if name is None:
        return
    where = places.where(("profile",))
    if name.endswith(SUFFIXES) and not Path(name).is_file():
        fix = "give the path of a profile file as seen from the working folder, or the name of one that comes along"
        yield DataError(f"no profile file {name!r}", where=where, fix=fix)
        return
    try:
        load_profile(name)
    except DataError as error:
        yield DataError(error.message, where=error.where or where, fix=error.fix)


def with_stack_defaults(section: ScenarioSection, assumptions: list[str]) -> ScenarioSection:
    """The section with the defaults of its profile in place of what it does not state, each an assumption.

    A scenario that names no profile leaves its own defaults as they are; a profile that cannot be read is reported
    where it is used.
    """
    if section.profile is None:
        return section
    try:
        profile = load_profile(section.profile)
    except DataError:
        return section
    shape, training = section.parallelism, section.training
    stack = profile.stack_defaults(shape.tp, shape.vpp)
    stage = training.zero_stage if "zero_stage" in training.model_fields_set else stack.get("zero_stage", 0)
    silent = {"gradient_dtype": training.precision == "fp16", **dict.fromkeys(_SHARDED, stage not in (1, 2))}
    filled: dict[str, dict[str, Any]] = {"parallelism": {}, "training": {}}
    for name, value in stack.items():
        part, own = ("parallelism", shape) if name == "sequence_parallel" else ("training", training)
        if name not in own.model_fields_set and not silent.get(name, False):
            filled[part][name] = value
            said = f"{value / 1e6:.0f} MB" if name == "bucket" else str(value).lower()
            assumptions.append(f"{part}.{name} not stated: {said}, as the stack of {profile.name} does")
    return section.model_copy(
        update={
            "parallelism": shape.model_copy(update=filled["parallelism"]),
            "training": training.model_copy(update=filled["training"]),
        }
    )
