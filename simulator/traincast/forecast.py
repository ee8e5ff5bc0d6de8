"""The use case: a scenario in, a forecast of one training step out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import isnan
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from traincast.errors import DataError, UsageError

if TYPE_CHECKING:
    from traincast.lower.breakdown import Breakdown
    from traincast.lower.context_report import ContextReport
    from traincast.lower.flows import Contention
    from traincast.lower.job import Job
    from traincast.lower.program import Program, Result
    from traincast.lower.touched import Degradation
    from traincast.memory import MemoryEstimate
    from traincast.scenario import Scenario
    from traincast.schedule import Schedule
    from traincast.topology import Cluster
    from traincast.topology.links import Spread

Engine = Literal["des", "analytic"]
Axis = Literal["tp", "cp", "ep", "pp", "dp"]
ENGINES: tuple[Engine, ...] = ("des", "analytic")

AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "pp", "dp")
SharingName = Literal["static", "adaptive", "ecmp"]
SHARINGS: tuple[SharingName, ...] = ("static", "adaptive", "ecmp")
"""How flows of different kinds share links: `static`, each family by itself; or max-min in the engine, over ideal
adaptive bundles or by hash."""
Sharing: TypeAlias = "SharingName | Spread"
"""By name, or as a spread with its flows and its seed."""

ALWAYS_ASSUMED = ("reading and preparing data takes no time beside the profile's fixed time of a step",)

_TERA, _PETA = 1e12, 1e15


@dataclass(frozen=True)
class Prepared:
    """A scenario whose cluster and profile are at hand; `notes` says what was chosen on the way."""

    scenario: "Scenario"
    job: "Job"
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """What was evaluated and how it went, for pictures and traces."""

    program: "Program"
    result: "Result"


@dataclass(frozen=True)
class Rates:
    """Rates of one step, TFLOP/s by convention; `mfu` counts `model` FLOPs, `hfu` those of `hardware`; None above 1."""

    tokens_per_s_per_gpu: float
    tflops_per_gpu: Mapping[str, float]
    aggregate_pflops: float
    mfu: float | None
    hfu: float | None


@dataclass(frozen=True)
class Bubble:
    """Idle time of the pipeline under its two definitions, as found in this step and by the schedule's
    formula.

    Found are the waiting of the busiest stage beside its own work (the ideal time), and the label `bubble` as a
    mean over stages beside the step. A formula is None where no paper states one for the schedule and its times.
    """

    share_of_ideal: float
    share_of_step: float
    formula_share_of_ideal: float | None
    formula_share_of_step: float | None


@dataclass(frozen=True)
class AxisTraffic:
    """What one GPU sends along an axis in one step; `exposed_s` is the time that the step waits for it."""

    calls: float
    bytes_per_gpu: float
    exposed_s: float
    cross_node_share: float


@dataclass(frozen=True)
class StepInterval:
    """Where the measured step lies with probability `level`, by the residuals of the profile; `how` says whose."""

    low_s: float
    high_s: float
    level: float
    how: str


@dataclass(frozen=True)
class Forecast:
    """The forecast of one training step: seconds, bytes, and means over stages where nothing else is said."""

    scenario: str
    model: str
    cluster: str
    gpus: int
    profile: str
    engine: str
    events: int
    step_time_s: float
    rates: Rates
    breakdown: "Breakdown"
    bubble: Bubble
    traffic: Mapping[Axis, AxisTraffic]
    memory: "MemoryEstimate"
    nearest_that_fits: tuple[str, ...] | None
    assumptions: tuple[str, ...]
    mesh_signature: str
    link_losses: tuple[str, ...]
    published: Mapping[str, Any] | None
    source: str | None
    run: Run = field(repr=False, compare=False)
    interval: StepInterval | None = None
    context_parallel: "ContextReport | None" = None
    degraded: "Degradation | None" = None
    """What defects of the cluster cost, where that was asked for (`traincast.degraded`) and it has any."""

    @property
    def cross_node_share(self) -> float:
        """Share of all bytes that a GPU sends which leave its node."""
        rows = self.traffic.values()
        total = sum(row.bytes_per_gpu for row in rows)
        crossing = sum(row.bytes_per_gpu * row.cross_node_share for row in rows)
        return crossing / total if total else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The forecast as JSON shows it."""
        from traincast.lower.program import LABELS

        axes = {axis: vars(row).copy() for axis, row in self.traffic.items()}
        return {
            "scenario": self.scenario,
            "model": self.model,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "profile": self.profile,
            "engine": self.engine,
            "events": self.events,
            "step_time_s": self.step_time_s,
            "tokens_per_s_per_gpu": self.rates.tokens_per_s_per_gpu,
            "tflops_per_gpu": dict(self.rates.tflops_per_gpu),
            "aggregate_pflops": self.rates.aggregate_pflops,
            "aggregate_pflops_convention": "hardware",
            "mfu": self.rates.mfu,
            "hfu": self.rates.hfu,
            "breakdown_s": {label: self.breakdown.mean_s[label] for label in LABELS},
            "breakdown_per_stage": [
                {"stage": stage, **{label: row[label] for label in LABELS}}
                for stage, row in enumerate(self.breakdown.stages_s)
            ],
            "bubble": vars(self.bubble).copy(),
            "traffic": {**axes, "cross_node_share": self.cross_node_share},
            "memory": {**self.memory.as_dict(), "nearest_that_fits": self.nearest_that_fits},
            "interval": {name: getattr(self.interval, name, None) for name in ("low_s", "high_s", "level")},
            "context_parallel": self.context_parallel.as_dict() if self.context_parallel else None,
            "link_losses": list(self.link_losses),
            "degraded": self.degraded.as_dict() if self.degraded else None,
            "assumptions": list(self.assumptions),
            "mesh_signature": self.mesh_signature,
            "published": dict(self.published) if self.published else None,
            "source": self.source,
        }


def forecast(
    scenario: "Scenario", *, engine: Engine = "des", fold: bool = True, sharing: Sharing = "static"
) -> Forecast:
    """Forecasts one step of a scenario.

    `engine` is `des` (SimPy, the reference) or `analytic` (the recurrence: same numbers, faster). With `fold`
    False every rank is simulated. Raises UserError where the scenario asks for what cannot be.
    """
    return forecast_prepared(prepare(scenario), engine=engine, fold=fold, sharing=sharing)


def prepare(scenario: "Scenario") -> Prepared:
    """Finds the cluster and the profiles of a scenario. Raises UserError where one is not to be had."""
    from traincast.scenario import open_cluster

    mesh = scenario.mesh
    gpus = mesh.world if mesh.placement is None else 1 + max(mesh.placement)
    return prepare_on(scenario, open_cluster(scenario.cluster, gpus))


def prepare_on(scenario: "Scenario", cluster: "Cluster") -> Prepared:
    """Finds the profiles of a scenario on a cluster that is at hand. Raises UserError where one is not to be had."""
    from traincast.lower import Job
    from traincast.scenario.parts import parts_of

    (first, *others), found = parts_of(scenario, cluster)
    profile = first.profile
    job = Job(scenario.model, scenario.mesh, scenario.recipe, profile, cluster, first.gpu, tuple(others))
    notes = (*scenario.assumptions, *cluster.assumptions, *found)
    if job.recipe.overlap_dp and not job.overlaps_gradients:
        notes = (*notes, f"{profile.name}: gradients are reduced after the last backward where pp > 1")
    return Prepared(scenario, job, (*notes, *_job_notes(job), *profile.assumptions()))


def _job_notes(job: "Job") -> Iterator[str]:
    """What the forecast of a job takes for granted beyond what its scenario says."""
    model, recipe, traits = job.model, job.recipe, job.profile.traits
    if model.positions == "learned" and recipe.sequence > model.max_positions:
        yield f"sequence {recipe.sequence} is beyond the model's {model.max_positions} learned positions"
    does = [
        f"weight gradients {'in the product' if traits.fused_accumulation else 'by a kernel of their own'}",
        f"backward TP collectives {'beside products' if traits.overlap_tp else 'exposed'}",
        f"dropout {'on' if traits.drops(model.positions) else 'off'}",
    ]
    if recipe.in_fp8:
        from traincast.lower.stages import scaling_of

        does.append(f"scales of {recipe.precision} {scaling_of(recipe, traits).replace('_', ' ')}")
    yield f"stack of {job.profile.name}: {', '.join(does)}"


def forecast_prepared(
    prepared: Prepared, *, engine: Engine = "des", fold: bool = True, sharing: Sharing = "static"
) -> Forecast:
    """Forecasts one step of a scenario whose cluster and profile are at hand.

    With `sharing` other than `static`, messages and gradient buckets that overlap on a link share it max-min; that is
    the engine's alone, so the recurrence refuses it.
    """
    from traincast.lower import lower
    from traincast.lower.assumed import sharing_assumed
    from traincast.lower.breakdown import breakdown
    from traincast.lower.context_report import context_report
    from traincast.lower.losses import describe_losses
    from traincast.scenario.refusals import refuse_unmodelled

    scenario, job = prepared.scenario, prepared.job
    refuse_unmodelled(scenario, job)
    contention = _contention(sharing, engine)
    lowered = lower(job, fold=fold, contention=contention)
    result = evaluate(lowered.program, engine)
    parts = breakdown(lowered.program, result)
    traffic = {
        axis: AxisTraffic(
            calls=row.calls,
            bytes_per_gpu=row.bytes_per_gpu,
            exposed_s=parts.mean_s[axis],
            cross_node_share=row.cross_node_bytes / row.bytes_per_gpu if row.bytes_per_gpu else 0.0,
        )
        for axis in AXES
        if (row := lowered.traffic.get(axis)) is not None
    }
    memory = memory_of(job, lowered.program.schedule)
    return Forecast(
        scenario=scenario.name,
        model=scenario.model.name,
        cluster=job.cluster.name,
        gpus=job.mesh.world,
        profile=job.profile.name,
        engine=engine,
        events=result.events,
        step_time_s=result.step_time_s,
        rates=rates_of(job, result.step_time_s),
        breakdown=parts,
        bubble=_bubble(job, lowered.program, parts, result.step_time_s),
        traffic=traffic,
        memory=memory,
        nearest_that_fits=_nearest_that_fits(job, memory),
        assumptions=(*prepared.notes, *sharing_assumed(contention, lowered.paced), *ALWAYS_ASSUMED),
        mesh_signature=job.mesh.signature(),
        link_losses=describe_losses(lowered.program, result),
        published=scenario.published,
        source=scenario.source,
        run=Run(lowered.program, result),
        interval=_interval(job, result.step_time_s),
        context_parallel=context_report(job, lowered.spans),
    )


def _contention(sharing: Sharing, engine: Engine) -> "Contention | Literal[False]":
    """What `lower` takes. Raises UsageError for a sharing that the evaluator cannot do."""
    from traincast.lower.flows import Contention
    from traincast.topology.links import Spread

    if sharing == "static":
        return False
    spread = Spread(sharing) if isinstance(sharing, str) else sharing
    if engine != "des":
        raise UsageError(f"the recurrence cannot share links ({spread.kind})", fix="use --engine des")
    return Contention(spread)


def _interval(job: "Job", step_time_s: float) -> StepInterval | None:
    """The interval of a step by its profile's residuals; None where it has none, or several profiles price the step."""
    found = job.profile.intervals.get("step")
    if found is None or job.others:
        return None
    band = found.band()
    return StepInterval(step_time_s * band.low, step_time_s * band.high, found.level, found.how)


def _bubble(job: "Job", program: "Program", parts: "Breakdown", step_time_s: float) -> Bubble:
    from traincast.lower.split import stage_times
    from traincast.schedule import bubble_share_of_ideal, bubble_share_of_step, chunks_of_model

    shape = (job.recipe.schedule, job.mesh.pp, job.microbatches, job.chunks)
    copies = job.chunks // chunks_of_model(job.recipe.schedule, job.chunks)
    # a formula for uniform stages: the times of the one that works longest
    times = max((stage_times(cls.chunks, copies) for cls in program.classes), key=lambda one: one.work_s)
    formulas = [share(*shape, times) for share in (bubble_share_of_ideal, bubble_share_of_step)]
    known = [None if isnan(share) else share for share in formulas]
    return Bubble(
        share_of_ideal=parts.bubble_share_of_ideal,
        share_of_step=parts.mean_s["bubble"] / step_time_s,
        formula_share_of_ideal=known[0],
        formula_share_of_step=known[1],
    )


def _nearest_that_fits(job: "Job", memory: "MemoryEstimate") -> tuple[str, ...] | None:
    """The fewest changes that make a job fit, as keys to set; None where it fits already or nothing helps."""
    from traincast.lower.seats import stage_memory_bytes
    from traincast.memory import nearest_that_fits, overheads_of
    from traincast.scenario.wording import scenario_fix

    if memory.verdict != "does not fit":
        return None
    limit = min(stage_memory_bytes(job))
    remedy = nearest_that_fits(job.model, job.mesh, job.recipe, limit, overheads_of(job.profile))
    return None if remedy is None else tuple(scenario_fix(change, "") for change in remedy.changes)


def evaluate(program: "Program", engine: Engine) -> "Result":
    """Runs a program on one of the two evaluators."""
    if engine == "des":
        from traincast.engine import simulate

        return simulate(program)
    if engine == "analytic":
        from traincast.analytic import evaluate as recurrence

        return recurrence(program)
    raise UsageError(f"no engine {engine!r}", fix=f"use {' or '.join(ENGINES)}")


def memory_of(job: "Job", order: "Schedule | None" = None) -> "MemoryEstimate":
    """Memory of every stage of a job on the smallest of its GPUs, for the order that is run.

    Without an order a schedule that is searched for counts as the most that its search allows.
    """
    from traincast.lower.seats import stage_memory_bytes
    from traincast.memory import MemoryJob, estimate_job, overheads_of

    overheads = overheads_of(job.profile)
    return estimate_job(MemoryJob(job.model, job.mesh, job.recipe, overheads, order), stage_memory_bytes(job))


def rates_of(job: "Job", step_time_s: float) -> Rates:
    """Rates of a step that takes `step_time_s`. Raises DataError where they would exceed the dense peak."""
    from traincast.lower.recompute import repeated
    from traincast.lower.seats import mean_peak_flops_per_s
    from traincast.model.flops import CONVENTIONS, step_flops

    recipe, world, again = job.recipe, job.mesh.world, repeated(job)
    flops = {name: step_flops(job.model, recipe.global_batch, recipe.sequence, name, again) for name in CONVENTIONS}
    peak = mean_peak_flops_per_s(job)
    shares = {name: _share(flops[name], step_time_s, world, peak) for name in ("model", "hardware")}
    return Rates(
        tokens_per_s_per_gpu=recipe.global_batch * recipe.sequence / (step_time_s * world),
        tflops_per_gpu={name: value / (step_time_s * world * _TERA) for name, value in flops.items()},
        aggregate_pflops=flops["hardware"] / (step_time_s * _PETA),
        mfu=shares["model"],
        hfu=shares["hardware"],
    )


def _share(flops: float, step_time_s: float, gpus: int, peak_flops_per_s: float) -> float | None:
    """Share of peak, or None above 1: both conventions count the full attention matrix, of which causal kernels skip
    half, so that they can exceed what is executed at long sequences."""
    from traincast.model.flops import mfu

    try:
        return mfu(flops, step_time_s, gpus, peak_flops_per_s)
    except DataError:
        return None


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(value for value in range(1, number + 1) if number % value == 0)
