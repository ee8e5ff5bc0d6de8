"""The use case: a scenario in, a forecast of one training step out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.lower.breakdown import Breakdown
    from traincast.lower.job import Job
    from traincast.lower.program import Program, Result
    from traincast.memory import MemoryEstimate
    from traincast.scenario import Scenario

Engine = Literal["des", "analytic"]
Axis = Literal["tp", "cp", "ep", "pp", "dp"]
ENGINES: tuple[Engine, ...] = ("des", "analytic")

AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "pp", "dp")
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
    """Rates of one step, TFLOP/s by convention; `mfu` counts `model` FLOPs, `hfu` those of `hardware`."""

    tokens_per_s_per_gpu: float
    tflops_per_gpu: Mapping[str, float]
    aggregate_pflops: float
    mfu: float
    hfu: float


@dataclass(frozen=True)
class Bubble:
    """Idle time of the pipeline under its two definitions, as found in this step and by the schedule's
    formula.

    Found are the waiting of the busiest stage beside its own work (the ideal time), and the label `bubble` as a
    mean over stages beside the step.
    """

    share_of_ideal: float
    share_of_step: float
    formula_share_of_ideal: float
    formula_share_of_step: float


@dataclass(frozen=True)
class AxisTraffic:
    """What one GPU sends along an axis in one step; `exposed_s` is the time that the step waits for it."""

    calls: float
    bytes_per_gpu: float
    exposed_s: float
    cross_node_share: float


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
    published: Mapping[str, Any] | None
    source: str | None
    run: Run = field(repr=False, compare=False)

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
            "interval": {"low_s": None, "high_s": None, "level": None},
            "assumptions": list(self.assumptions),
            "mesh_signature": self.mesh_signature,
            "published": dict(self.published) if self.published else None,
            "source": self.source,
        }


def forecast(scenario: "Scenario", *, engine: Engine = "des", fold: bool = True) -> Forecast:
    """Forecasts one step of a scenario.

    `engine` is `des` (SimPy, the reference) or `analytic` (the recurrence: same numbers, faster). With `fold`
    False every rank is simulated. Raises UserError where the scenario asks for what cannot be.
    """
    return forecast_prepared(prepare(scenario), engine=engine, fold=fold)


def prepare(scenario: "Scenario") -> Prepared:
    """Finds the cluster and the profile of a scenario. Raises UserError where one is not to be had."""
    from traincast.catalog import load_catalog
    from traincast.lower import Job
    from traincast.profile import find_profile, load_profile
    from traincast.scenario import open_cluster

    cluster = open_cluster(scenario.cluster, scenario.mesh.world)
    gpu = load_catalog().gpu(cluster.gpu_model[0])
    note: str | None = None
    if scenario.profile_name:
        profile = load_profile(scenario.profile_name)
        if profile.gpu != gpu.name:
            note = f"profile {profile.name} was calibrated on {profile.gpu}, the cluster has {gpu.name}"
    else:
        profile, note = find_profile(gpu.name, None)
    job = Job(scenario.model, scenario.mesh, scenario.recipe, profile, cluster, gpu)
    notes = (*scenario.assumptions, *cluster.assumptions, *((note,) if note else ()))
    if job.recipe.overlap_dp and not job.overlaps_gradients:
        notes = (*notes, f"{profile.name}: gradients are reduced after the last backward where pp > 1")
    return Prepared(scenario, job, notes)


def forecast_prepared(prepared: Prepared, *, engine: Engine = "des", fold: bool = True) -> Forecast:
    """Forecasts one step of a scenario whose cluster and profile are at hand."""
    from traincast.lower import lower
    from traincast.lower.breakdown import breakdown

    scenario, job = prepared.scenario, prepared.job
    lowered = lower(job, fold=fold)
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
    memory = memory_of(job)
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
        bubble=_bubble(job, parts, result.step_time_s),
        traffic=traffic,
        memory=memory,
        nearest_that_fits=_nearest_that_fits(job, memory),
        assumptions=(*prepared.notes, *ALWAYS_ASSUMED),
        mesh_signature=job.mesh.signature(),
        published=scenario.published,
        source=scenario.source,
        run=Run(lowered.program, result),
    )


def _bubble(job: "Job", parts: "Breakdown", step_time_s: float) -> Bubble:
    from traincast.schedule import bubble_share_of_ideal, bubble_share_of_step

    shape = (job.recipe.schedule, job.mesh.pp, job.microbatches, job.chunks)
    return Bubble(
        share_of_ideal=parts.bubble_share_of_ideal,
        share_of_step=parts.mean_s["bubble"] / step_time_s,
        formula_share_of_ideal=bubble_share_of_ideal(*shape),
        formula_share_of_step=bubble_share_of_step(*shape),
    )


def _nearest_that_fits(job: "Job", memory: "MemoryEstimate") -> tuple[str, ...] | None:
    """The fewest changes that make a job fit, in words; None where it fits already or nothing helps."""
    from traincast.memory import nearest_that_fits

    if memory.verdict != "does not fit":
        return None
    remedy = nearest_that_fits(job.model, job.mesh, job.recipe, job.gpu.memory_bytes)
    return None if remedy is None else remedy.changes


def evaluate(program: "Program", engine: Engine) -> "Result":
    """Runs a program on one of the two evaluators."""
    if engine == "des":
        from traincast.engine import simulate

        return simulate(program)
    if engine == "analytic":
        from traincast.analytic import evaluate as recurrence

        return recurrence(program)
    raise UsageError(f"no engine {engine!r}", fix=f"use {' or '.join(ENGINES)}")


def memory_of(job: "Job") -> "MemoryEstimate":
    """Memory of every stage of a job on its GPU."""
    from traincast.memory import estimate

    return estimate(job.model, job.mesh, job.recipe, job.gpu.memory_bytes)


def rates_of(job: "Job", step_time_s: float) -> Rates:
    """Rates of a step that takes `step_time_s`. Raises DataError where they would exceed the dense peak."""
    from traincast.model.flops import CONVENTIONS, mfu, step_flops

    recipe, world = job.recipe, job.mesh.world
    flops = {
        name: step_flops(job.model, recipe.global_batch, recipe.sequence, name, recipe.recompute)
        for name in CONVENTIONS
    }
    peak = job.gpu.peak(recipe.precision)
    return Rates(
        tokens_per_s_per_gpu=recipe.global_batch * recipe.sequence / (step_time_s * world),
        tflops_per_gpu={name: value / (step_time_s * world * _TERA) for name, value in flops.items()},
        aggregate_pflops=flops["hardware"] / (step_time_s * _PETA),
        mfu=mfu(flops["model"], step_time_s, world, peak),
        hfu=mfu(flops["hardware"], step_time_s, world, peak),
    )


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(value for value in range(1, number + 1) if number % value == 0)
