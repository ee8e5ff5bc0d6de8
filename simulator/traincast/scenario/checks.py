"""Do shape, schedule and recipe of a scenario agree? Every finding at the key that clashes, with the key to set."""

import re
from typing import Final

from traincast.errors import ScenarioError, ShapeError, UserError
from traincast.mesh import ShapeRequest, balanced_layers, check_shape
from traincast.mesh.problems import either
from traincast.scenario import placement
from traincast.scenario.context import context_key_problems
from traincast.scenario.schema import BALANCED, ParallelismSection, ScenarioSection
from traincast.scenario.sharded import sharding_problems
from traincast.scenario.text import Keys, Places
from traincast.scenario.wording import place_of, placed, scenario_fix
from traincast.schedule import SPLIT, TWO_CHUNKS
from traincast.schedule.limits import ScheduleRequest, schedule_problems

LONGEST_SPLIT: Final = 16
NEED_ASYNC: Final = tuple(name for name in SPLIT if name != "zb-h1")
"""Schedules that run ahead of what a blocking exchange lets them."""

# message of a shape problem -> the key it is about
_KEYS: tuple[tuple[str, Keys], ...] = (
    (r"world|.*mesh would|tp \d|cp \d|pp \d", ("parallelism",)),
    (r"\d+ heads do not divide over tp|kv_heads|ffn_hidden", ("parallelism", "tp")),
    (r"stage_layers", ("training", "stage_layers")),
    (r"\d+ layers do not divide", ("parallelism", "pp")),
    (r"interleaving", ("parallelism", "vpp")),
    (r"global batch", ("training", "global_batch")),
    (r"order", ("parallelism", "order")),
    (r"the placement", placement.KEYS),
    (r"ep \d|\d+ experts", ("parallelism", "ep")),
    (r"\d+ heads", ("model", "heads")),
    (r"dp \d", ("parallelism", "dp")),
)


def shape_problems(request: ShapeRequest, schedule: str | None, places: Places) -> list[UserError]:
    """What the shape of a scenario cannot be."""
    found: list[UserError] = []
    for one in check_shape(request):
        if one.severity == "error":
            where = _place(one.message, places)
            fix = one.fix
            if "layers do not divide" in one.message and schedule in TWO_CHUNKS:
                fix = _depths(request, schedule) + fix[fix.find("uneven") :]
            found.append(ShapeError(one.message, where=where, fix=_shape_fix(fix, request, where)))
    return found


def _depths(request: ShapeRequest, schedule: str | None) -> str:
    """The next numbers of stages over which the layers divide in the chunks that the schedule asks for; none: empty."""
    chunks, layers, pp = request.parts // request.pp, request.layers or 0, request.pp
    step = 2 if schedule == "dualpipe" else 1
    fits = [depth for depth in range(2, layers // chunks + 1, step) if layers % (depth * chunks) == 0]
    near = [depth for depth in fits if depth < pp][-1:] + [depth for depth in fits if depth > pp][:1]
    return f"pp {either(near)}, or " if near else ""


def _place(message: str, places: Places) -> str:
    """The key that a shape problem is about."""
    if message.startswith("sequence"):
        return place_of(("sequence", "cp"), places)
    return places.where(next((keys for pattern, keys in _KEYS if re.match(pattern, message)), ("parallelism",)))


def _shape_fix(fix: str, request: ShapeRequest, where: str) -> str:
    """A fix in the words of a scenario file."""
    before, asked, _ = fix.partition("uneven stages if you ask for them")
    if asked and request.layers is not None:
        split = list(balanced_layers(request.layers, request.pp, request.parts // request.pp))
        stages = f"set training.stage_layers: {split if len(split) <= LONGEST_SPLIT else BALANCED}"
        return scenario_fix(before, where) + stages
    return scenario_fix(fix, where)


def schedule_errors(name: str | None, request: ShapeRequest, places: Places) -> list[UserError]:
    """Microbatches that a schedule does not take; `request` is known to be right."""
    dp, batch = request.dp_or_left, request.global_batch
    if name is None or dp is None or batch is None:
        return []
    step = request.microbatch * dp
    ask = ScheduleRequest(name, request.pp, request.vpp, -(-batch // step), step)
    return [placed(one, place_of(one.names, places)) for one in schedule_problems(ask)]


def recipe_problems(section: ScenarioSection, shape: ParallelismSection, places: Places) -> list[UserError]:
    """A schedule that the stages and chunks do not allow; keys that contradict each other; a rate without its
    convention. `shape` has the chunks filled in."""
    training, found = section.training, sharding_problems(section.training, places)
    found += context_key_problems(training, shape, places)
    if training.schedule is not None:
        ask = ScheduleRequest(training.schedule, shape.pp, shape.vpp)
        found += [placed(one, place_of(one.names, places)) for one in schedule_problems(ask)]
    if training.p2p == "blocking" and training.schedule in NEED_ASYNC:
        message = f"schedule {training.schedule} deadlocks where every message is waited for"
        where = places.where(("training", "p2p"))
        found.append(ShapeError(message, where=where, fix=scenario_fix("p2p async, or leave training.p2p out", where)))
    if section.published and section.published.tflops_per_gpu and not section.published.convention:
        where = places.where(("published", "tflops_per_gpu"))
        fix = "add convention: model, model_causal or hardware"
        found.append(ScenarioError("a TFLOP/s figure needs its FLOP convention", where=where, fix=fix))
    return found
