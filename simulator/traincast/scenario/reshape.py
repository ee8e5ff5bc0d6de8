"""A scenario on another shape: what its file leaves open follows the shape, as if the file asked for that shape."""

from dataclasses import dataclass, replace
from typing import Any

from traincast.errors import DataError
from traincast.profile import load_profile
from traincast.recipe import P2PMode, Recipe, ScheduleName
from traincast.scenario.types import Scenario
from traincast.schedule import SPLIT

_KEYS = {
    "sequence_parallel": "parallelism.sequence_parallel",
    "overlap_tp": "training.overlap_tp",
    "p2p": "training.p2p",
}
"""Fields of a recipe whose default depends on the shape -> their keys in a scenario."""


@dataclass(frozen=True)
class Change:
    """What a recipe is to have on another shape; its mesh has `tp` ranks for tensors."""

    tp: int
    vpp: int
    microbatch: int
    schedule: ScheduleName


def default_p2p(schedule: str | None) -> P2PMode:
    """Messages of a stack that states nothing: asynchronous where the schedule runs ahead of a blocking exchange."""
    return "async" if schedule in (*SPLIT, "looped-bfs") else Recipe.p2p


def recipe_on(scenario: Scenario, change: Change) -> Recipe:
    """The scenario's recipe after a change, with even stages.

    Fields that the file leaves open get what `predict --set` would fill in: the stack's defaults for this shape
    (`Profile.stack_defaults`), else the general ones. A field keeps its value where the file states it, where the
    scenario was not read from a file, or where it is not what its own shape's defaults say (set by code).
    """
    base = scenario.recipe
    recipe = replace(base, microbatch=change.microbatch, vpp=change.vpp, schedule=change.schedule, stage_layers=None)
    if scenario.stated is None:
        return recipe
    own = Change(scenario.mesh.tp, base.vpp, base.microbatch, base.schedule)
    before, after = _defaults(scenario, own), _defaults(scenario, change)
    return replace(
        recipe,
        **{
            name: after[name]
            for name, key in _KEYS.items()
            if scenario.stated.get(key) is None and getattr(base, name) == before[name]
        },
    )


def _defaults(scenario: Scenario, change: Change) -> dict[str, Any]:
    """What stands in for each field of `_KEYS` that the file leaves open; a stated null silences the stack only."""
    found = {"sequence_parallel": False, "overlap_tp": None, "p2p": default_p2p(change.schedule)}
    stated = scenario.stated or {}
    stack = _stack(scenario.profile_name, change.tp, change.vpp)
    return found | {name: value for name, value in stack.items() if name in _KEYS and _KEYS[name] not in stated}


def _stack(profile_name: str | None, tp: int, vpp: int) -> dict[str, Any]:
    if profile_name is None:
        return {}
    try:
        return load_profile(profile_name).stack_defaults(tp, vpp)
    except DataError:  # reported where the profile is used
        return {}
