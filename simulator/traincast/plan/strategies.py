"""Strategies of training one model on one cluster, each in its fastest layout that fits, side by side.

Of each strategy every layout is tried with microbatches of up to eight sequences and the least recomputation that fits:
less recomputation is never slower, as it only takes operators away. The recurrence ranks them, and the event engine
confirms the fastest. PTD-P is swept as SC21's second takeaway has it: no more than `SPARE` times the model parallelism
with which the model fits at all, and with interleaved stages where their smaller bubble promises the fastest step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from traincast.analytic import evaluate
from traincast.errors import ShapeError, UsageError, UserError
from traincast.forecast import Prepared, divisors, forecast_prepared, memory_of, prepare
from traincast.lower import Job, lower
from traincast.lower.recompute import repeated
from traincast.lower.seats import stage_memory_bytes
from traincast.memory import MemoryEstimate, nearest_that_fits, overheads_of
from traincast.mesh import Mesh
from traincast.model.flops import step_flops
from traincast.plan.checkpoint import Storage, bytes_per_parameter, checkpoint
from traincast.plan.compared import NOT_APPLICABLE, Comparison, StrategyRow, layout_of, over_limit
from traincast.plan.layouts import STRATEGIES, Setting, Strategy, overrides, plain, problems
from traincast.scenario import ClusterSpec, Scenario
from traincast.scenario.refusals import refuse_unmodelled
from traincast.units import format_bandwidth, format_size

MOST_MICROBATCH: Final = 8
SPARE: Final = 4
_MODES: Final = ("none", "selective", "full")
_CHUNKS: Final = (2, 3, 4, 5)
_INTERLEAVED: Final = 6
"""How many layouts with interleaved stages are tried."""

_NEAREST: Final = "nearest that fits"
_KEPT: Final = tuple(
    f"training.{key} not stated"
    for key in ("precision", "attention", "gradient_dtype", "p2p", "scatter_gather", "sequence")
)
"""Assumptions of the scenario that hold for every strategy."""


@dataclass(frozen=True)
class Ask:
    """What to compare on: GPUs (None: the scenario's), ranks of a shard group (None: as each strategy says), the
    file system for checkpoints."""

    gpus: int | None = None
    shard: int | None = None
    storage: Storage = field(default_factory=Storage)


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A layout with its memory; `step_time_s` by the recurrence, once it is known."""

    job: Job
    memory: MemoryEstimate
    step_time_s: float = 0.0

    @property
    def parts(self) -> int:
        """Parts that the model is cut into."""
        return self.job.mesh.tp * self.job.mesh.pp

    @property
    def rank(self) -> tuple[Any, ...]:
        """The order of candidates: above the limit last, then fast before slow, then few parts before many."""
        sizes = (self.parts, self.job.mesh.pp, self.job.recipe.vpp, self.job.recipe.microbatch)
        return over_limit(self.memory), self.step_time_s, sizes


def compare(
    scenario: Scenario, ask: Ask | None = None, advance: Callable[[int], object] = lambda done: None
) -> Comparison:
    """Compares the strategies for a scenario's model, cluster, batch and sequence; `advance` counts those done.

    Raises UserError where the scenario asks for what is not modelled, where the cluster has no such number of GPUs, and
    where no strategy has a layout on it.
    """
    wish = ask or Ask()
    given = prepared, setting = setting_of(scenario, wish)
    refuse_unmodelled(scenario, replace(setting.job, mesh=scenario.mesh, recipe=scenario.recipe))
    rows: list[StrategyRow] = []
    for strategy in STRATEGIES:
        rows.append(consider(given, strategy, wish))
        advance(1)
    _refuse_all(rows, setting, wish)
    return Comparison(
        scenario=scenario.name,
        model=scenario.model.name,
        cluster=setting.job.cluster.name,
        gpus=setting.world,
        rows=tuple(_with_alternative(row, rows) for row in rows),
        assumptions=(*_assumptions(setting, wish), *prepared.notes),
    )


def _refuse_all(rows: Sequence[StrategyRow], setting: Setting, ask: Ask) -> None:
    """Raises ShapeError where no strategy has a layout, and where none runs and all that are refused are for one
    reason."""
    where = "--gpus" if ask.gpus else None
    refused = [row for row in rows if row.verdict == NOT_APPLICABLE]
    if len(refused) == len(rows):
        message = f"no strategy has a layout on {setting.world} GPUs; {rows[0].strategy}: {rows[0].reason}"
        raise ShapeError(message, where=where, fix=rows[0].fix)
    if len({row.reason for row in refused}) == 1 and not any(row.forecast for row in rows):
        big = ", ".join(row.strategy for row in rows if row not in refused)
        message = f"no strategy runs on {setting.world} GPUs: {refused[0].reason}; {big}: too large for the memory"
        raise ShapeError(message, where=where, fix=refused[0].fix)


def setting_of(scenario: Scenario, ask: Ask) -> tuple[Prepared, Setting]:
    """The scenario with all its GPUs as replicas. Raises UserError for GPUs and groups that cannot be."""
    given = scenario.mesh
    world = given.world if ask.gpus is None else ask.gpus
    _check_groups(world, given.cp, ask)
    spec = scenario.cluster if ask.gpus is None else _holding(scenario.cluster, world)
    placement = given.placement if world == given.world else None
    notes = [text for text in scenario.assumptions if text.startswith(_KEPT)]
    if spec != scenario.cluster:
        notes.append(f"the cluster is taken with {spec.nodes} nodes; the scenario has {scenario.cluster.nodes}")
    if placement != given.placement:
        notes.append(f"the scenario's placement, of {given.world} ranks, is left out")
    mesh = Mesh(cp=given.cp, dp=world // given.cp, placement=placement)
    common = replace(scenario, mesh=mesh, cluster=spec, published=None, assumptions=tuple(notes))
    try:
        prepared = prepare(common)
    except UserError as error:
        if ask.gpus is None:
            raise
        raise type(error)(error.message, where=error.where or "--gpus", fix=error.fix) from error
    profile = prepared.job.profile
    stack = {name: one.value for name, one in profile.defaults.items()} if scenario.profile_name else {}
    job = replace(prepared.job, recipe=plain(scenario.recipe, stack))
    nodes = None if spec == scenario.cluster else spec.nodes
    return prepared, Setting(job, given, scenario.recipe, ask.shard, nodes, stack)


def _check_groups(world: int, cp: int, ask: Ask) -> None:
    """Raises UsageError for GPUs that cp does not divide, and for shard groups that do not divide the GPUs."""
    if world % cp:
        fix = f"--gpus {max(world // cp, 1) * cp}"
        raise UsageError(f"{world} GPUs do not divide over the scenario's cp {cp}", where="--gpus", fix=fix)
    if ask.shard is None or (world % ask.shard == 0 and ask.shard % cp == 0):
        return
    fits = [n for n in divisors(world) if n % cp == 0]
    near = max((n for n in fits if n <= ask.shard), default=fits[0])
    whole = f" of whole groups of cp {cp}" if cp > 1 else ""
    message = f"{world} GPUs do not divide into shard groups of {ask.shard}{whole}"
    raise UsageError(message, where="--shard", fix=f"--shard {near}")


def _holding(spec: ClusterSpec, world: int) -> ClusterSpec:
    """A described cluster with just the nodes that hold so many GPUs, as a cluster file is cut."""
    if not spec.described or spec.gpus_per_node is None:
        return spec
    nodes = -(-world // spec.gpus_per_node)
    name = f"{nodes} x {spec.gpus_per_node} x {spec.gpu}"
    return spec if nodes == spec.nodes else replace(spec, nodes=nodes, name=name)


def consider(given: tuple[Prepared, Setting], strategy: Strategy, ask: Ask) -> StrategyRow:
    """One strategy in its fastest layout that fits, or why there is none; `given` is what `setting_of` gives."""
    prepared, setting = given
    row = StrategyRow(strategy.name, strategy.meaning, NOT_APPLICABLE, "")
    try:
        sized, too_big = _sized(setting, strategy.layouts(setting))
        timed = _timed(setting, sized, strategy)
    except ShapeError as error:
        return replace(row, reason=error.message, fix=error.fix)
    if not timed:
        least = min(too_big, key=lambda one: one.memory.worst.total_bytes / one.memory.limit_bytes)
        return replace(
            row,
            verdict=least.memory.verdict,
            reason=_refusal(least),
            tried=len(too_big),
            layout=layout_of(least.job),
            memory=least.memory,
        )
    best = min(timed, key=lambda one: one.rank)
    return replace(
        row,
        verdict=best.memory.verdict,
        reason=best.memory.reason,
        tried=len(timed) + len(too_big),
        layout=layout_of(best.job),
        memory=best.memory,
        forecast=forecast_prepared(replace(prepared, job=best.job)),
        checkpoint=checkpoint(best.job, ask.storage),
        sets=overrides(setting, best.job),
    )


def _sized(setting: Setting, jobs: Sequence[Job]) -> tuple[list[_Candidate], list[_Candidate]]:
    """Each layout and microbatch with the least recomputation that fits, and those that do not fit with any.

    Raises ShapeError, with the first reason, where no layout is legal.
    """
    fit: list[_Candidate] = []
    too_big: list[_Candidate] = []
    errors: list[ShapeError] = []
    for job in jobs:
        for microbatch in _microbatches(job):
            one = replace(job, recipe=replace(job.recipe, microbatch=microbatch))
            wrong = next(problems(one), None)
            if wrong is not None:
                errors.append(ShapeError(wrong.message, fix=wrong.fix))
                continue
            found = _lightest(setting, one)
            (too_big if found.memory.verdict == "does not fit" else fit).append(found)
    if not fit and not too_big:
        raise errors[0]
    return fit, too_big


def _microbatches(job: Job) -> Sequence[int]:
    """Divisors of a replica's sequences up to `MOST_MICROBATCH`; 1 where the batch does not divide at all."""
    each, rest = divmod(job.recipe.global_batch, job.mesh.dp)
    return (1,) if rest or not each else [size for size in divisors(each) if size <= MOST_MICROBATCH]


def _lightest(setting: Setting, job: Job) -> _Candidate:
    """The job with the least recomputation that fits; else that needs least."""
    own = setting.recipe.recompute
    modes = _MODES if own in _MODES else (*_MODES[:-1], own, _MODES[-1])
    tried = []
    for mode in modes:
        one = replace(job, recipe=replace(job.recipe, recompute=mode))
        tried.append(_Candidate(one, memory_of(one)))
        if not over_limit(tried[-1].memory):
            return tried[-1]
    above = [one for one in tried if one.memory.verdict != "does not fit"]
    return above[0] if above else min(tried, key=lambda one: one.memory.worst.total_bytes)


def _timed(setting: Setting, fit: Sequence[_Candidate], strategy: Strategy) -> list[_Candidate]:
    """The candidates with their step times. Raises ShapeError where they are refused one and all."""
    errors: list[UserError] = []
    if not strategy.sweeps:
        timed = list(_evaluated(fit, errors))
    else:
        timed = list(_evaluated(_spare(fit), errors))
        timed += _evaluated(_interleaved(setting, timed), errors)
    if errors and not timed:
        raise ShapeError(errors[0].message, fix=errors[0].fix)
    return timed


def _evaluated(candidates: Sequence[_Candidate], errors: list[UserError]) -> Iterator[_Candidate]:
    for one in candidates:
        try:
            yield replace(one, step_time_s=evaluate(lower(one.job).program).step_time_s)
        except UserError as error:
            errors.append(error)


def _spare(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Those with at most `SPARE` times the model parallelism that the model needs to fit."""
    needed = min(((over_limit(one.memory), one.parts) for one in candidates), default=(False, 0))[1]
    return [one for one in candidates if one.parts <= SPARE * needed]


def _interleaved(setting: Setting, timed: Sequence[_Candidate]) -> list[_Candidate]:
    """The most promising of the splits with several chunks a stage: those that fit, and whose estimate is the fastest.

    Notes
    -----
    Of a step of 1F1B a share (p - 1) / (m + p - 1) is bubble, and 1 / v of that is left with v chunks (SC21 §2.2.2);
    more recomputation lengthens it as the FLOPs that are executed.
    """
    best = min(timed, key=lambda one: one.rank, default=None)
    found = []
    for one in timed:
        for chunks in _CHUNKS if one.job.mesh.pp > 1 else ():
            job = setting.chunked(one.job, chunks)
            if next(problems(job), None) is None:
                other = _lightest(setting, job)
                m, p = job.microbatches, job.mesh.pp
                left = (m + (p - 1) / chunks) / (m + p - 1) * _executed(other.job) / _executed(one.job)
                found.append(replace(other, step_time_s=left * one.step_time_s))
    fit = [one for one in found if best and not over_limit(one.memory) and one.step_time_s < best.step_time_s]
    return sorted(fit, key=lambda one: one.rank)[:_INTERLEAVED]


def _executed(job: Job) -> float:
    """FLOPs that a step executes."""
    recipe = job.recipe
    return step_flops(job.model, recipe.global_batch, recipe.sequence, "hardware", repeated(job))


def _refusal(one: _Candidate) -> str:
    """What is too large, where and by which item; the nearest layout that fits, where one is near."""
    job, memory = one.job, one.memory
    worst = memory.worst
    item = worst.largest_item
    need, limit = format_size(worst.total_bytes), format_size(memory.limit_bytes)
    largest = f"largest item {item} ({format_size(worst.items[item])})"
    told = f"does not fit: {need} of {limit} on stage {worst.stage}, {largest}"
    remedy = nearest_that_fits(job.model, job.mesh, job.recipe, min(stage_memory_bytes(job)), overheads_of(job.profile))
    return told if remedy is None else f"{told}; {_NEAREST}: {', '.join(remedy.changes)}"


def _with_alternative(row: StrategyRow, rows: Sequence[StrategyRow]) -> StrategyRow:
    """A refused row without a layout near it that fits names the first strategy that does."""
    if row.verdict != "does not fit" or _NEAREST in row.reason:
        return row
    fits = [(one.strategy, one.memory) for one in rows if one.forecast and one.memory and not over_limit(one.memory)]
    if not fits:
        return replace(row, reason=f"{row.reason}; nothing near it fits, and no strategy here")
    name, memory = fits[0]
    return replace(row, reason=f"{row.reason}; {_NEAREST}: {name} ({format_size(memory.worst.total_bytes)})")


def _assumptions(setting: Setting, ask: Ask) -> Iterator[str]:
    """What the comparison takes for granted."""
    recipe, store = setting.job.recipe, ask.storage
    yield (
        f"each strategy in the fastest layout that fits: microbatches up to {MOST_MICROBATCH}, the least recomputation"
        " that fits; ranked by the recurrence, the fastest confirmed by the event engine"
    )
    yield f"PTD-P: model parallelism up to {SPARE} times what the model needs to fit, TP inside a node"
    yield (
        "gradients are reduced beside the backward pass where the stack can; batch, precision, attention and types are"
        " the scenario's, and so is the software stack of its profile, for every strategy"
    )
    if setting.recipe.zero_stage == 3:
        yield "parameters are prefetched and dropped as under the scenario's own ZeRO-3"
    each = bytes_per_parameter(setting.job)
    yield (
        f"checkpoints hold parameters and optimiser states, {each} bytes a parameter ({recipe.precision}), and no"
        " gradients; a stack that saves only the single-precision copy and the moments writes 12"
    )
    yield (
        f"file system: {format_bandwidth(store.bytes_per_s)} in all, {format_bandwidth(store.node_bytes_per_s)} a node,"
        " writing as fast as reading; a node reads what its ranks share once"
    )
    if setting.given.tp == 1:
        yield "the scenario has no TP: where a strategy has it, sequence parallelism is on"
