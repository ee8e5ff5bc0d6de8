"""Do shape, schedule and recipe of a scenario agree? Every finding at the key that clashes, with the key to set."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from traincast.errors import ScenarioError, ShapeError, UserError
from traincast.mesh import balanced_layers, check_shape
from traincast.mesh.problems import Problem, either
from traincast.mesh.wording import NUMBERS
from traincast.scenario import placement
from traincast.scenario.context import context_key_problems
from traincast.scenario.fixes import Trials
from traincast.scenario.schema import (
    BALANCED,
    BALANCED_WITH_EMBEDDING,
    ParallelismSection,
    ScenarioSection,
    TrainingSection,
)
from traincast.scenario.sharded import sharding_problems
from traincast.scenario.text import Keys, Places
from traincast.scenario.wording import keys_of, place_of, placed, scenario_fix
from traincast.schedule import SPLIT, TWO_CHUNKS
from traincast.schedule.limits import ScheduleRequest, schedule_problems

LONGEST_SPLIT: Final = 16
NEED_ASYNC: Final = tuple(name for name in SPLIT if name != "zb-h1")
"""Schedules that run ahead of what a blocking exchange lets them; looped-bfs does so from 2 p microbatches on."""

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

_SETTING: Final = re.compile(rf"\b(?:{'|'.join(sorted(NUMBERS, key=len, reverse=True))})\b")


def shape_problems(trials: Trials, places: Places) -> list[UserError]:
    """What the shape of a scenario cannot be."""
    found: list[UserError] = []
    for one in check_shape(trials.request):
        if one.severity == "error":
            where = _place(one.message, places)
            fix = one.fix
            if "layers do not divide" in one.message and trials.schedule in TWO_CHUNKS:
                fix = _depths(trials) + fix[fix.find("uneven") :]
            found.append(ShapeError(one.message, where=where, fix=_shape_fix(fix, trials, where)))
    return found


def _depths(trials: Trials) -> str:
    """The next numbers of stages over which the layers divide in the chunks that the schedule asks for; none: empty."""
    request = trials.request
    chunks, layers, pp = request.parts // request.pp, request.layers or 0, request.pp
    step = 2 if trials.schedule == "dualpipe" else 1
    fits = [depth for depth in range(2, layers // chunks + 1, step) if layers % (depth * chunks) == 0]
    near = [depth for depth in fits if depth < pp][-1:] + [depth for depth in fits if depth > pp][:1]
    return f"pp {either(near)}, or " if near else ""


def _place(message: str, places: Places) -> str:
    """The key that a shape problem is about; of those that clash one that an option changed, where one did."""
    if message.startswith("sequence"):
        return place_of(("sequence", "cp"), places)
    about = next((keys for pattern, keys in _KEYS if re.match(pattern, message)), ("parallelism",))
    clash = [about, *(keys_of(name) for name in _SETTING.findall(message))]
    return places.where(next((keys for keys in clash if places.option(keys)), about))


def _shape_fix(fix: str, trials: Trials, where: str) -> str:
    """A fix in the words of a scenario file, of values that the checks take."""
    request = trials.request
    before, asked, _ = fix.partition("uneven stages if you ask for them")
    if not asked or request.layers is None:
        return scenario_fix(trials.offered(fix), where)
    before = trials.offered(before.removesuffix(", or ")) if before else ""
    if trials.schedule == "dualpipe" and request.pp % 2:
        return scenario_fix(before or "schedule dualpipev", where)
    plain = request.layers >= request.parts
    split = list(balanced_layers(request.layers, request.pp, request.parts // request.pp)) if plain else []
    name = BALANCED if plain else BALANCED_WITH_EMBEDDING
    value = f"{split if plain and len(split) <= LONGEST_SPLIT else name}"
    said = f"set training.stage_layers: {value}"
    return f"{scenario_fix(before, where)}, or {said}" if before else said


def schedule_errors(training: TrainingSection, trials: Trials, places: Places) -> list[UserError]:
    """Microbatches that a schedule does not take; the shape is known to be right."""
    request = trials.request
    name, dp, batch = training.schedule, request.dp_or_left, request.global_batch
    if name is None or dp is None or batch is None:
        return []
    step = request.microbatch * dp
    ask = ScheduleRequest(name, request.pp, request.vpp, -(-batch // step), step)
    found = [replace(one, fix=trials.offered(one.fix)) for one in schedule_problems(ask)]
    found += blocking_problems(ask, training.p2p)
    return [placed(one, place_of(one.names, places)) for one in found]


def blocking_problems(ask: ScheduleRequest, p2p: str | None) -> Iterator[Problem]:
    """A schedule that never ends where every message is waited for.

    Of looped-bfs: the last stage waits for the first one to take its outputs, which it does for chunk 1 only when chunk
    0 of all microbatches is sent; the stages between hold fewer than 2 p of them.
    """
    if p2p != "blocking" or ask.pp == 1:
        return
    looped = ask.name == "looped-bfs" and ask.vpp > 1 and (ask.microbatches or 0) >= 2 * ask.pp
    if looped or ask.name in NEED_ASYNC:
        where = f" with {ask.microbatches} microbatches, 2 * pp {ask.pp} or more," if looped else ""
        names = ("p2p", "schedule")
        message = f"schedule {ask.name}{where} deadlocks where every message is waited for"
        yield Problem(message, "p2p async, or no p2p", names=names)


def recipe_problems(section: ScenarioSection, shape: ParallelismSection, places: Places) -> list[UserError]:
    """A schedule that the stages and chunks do not allow; keys that contradict each other; a rate without its
    convention. `shape` has the chunks filled in."""
    training, found = section.training, sharding_problems(section.training, places)
    found += context_key_problems(training, shape, places)
    if training.schedule is not None:
        ask = ScheduleRequest(training.schedule, shape.pp, shape.vpp)
        problems = [*schedule_problems(ask), *blocking_problems(ask, training.p2p)]
        found += [placed(one, place_of(one.names, places)) for one in problems]
    if section.published and section.published.tflops_per_gpu and not section.published.convention:
        where = places.where(("published", "tflops_per_gpu"))
        fix = "add convention: model, model_causal or hardware"
        found.append(ScenarioError("a TFLOP/s figure needs its FLOP convention", where=where, fix=fix))
    return found
