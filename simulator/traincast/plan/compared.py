"""The outcome of a comparison of strategies: layouts, rows and all of them together."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from traincast.forecast import AXES, Forecast
from traincast.lower import Job
from traincast.memory import MemoryEstimate, sharding
from traincast.plan.checkpoint import Checkpoint

NOT_APPLICABLE: Final = "not applicable"


@dataclass(frozen=True)
class Layout:
    """Ranks along the axes, how they share states, and how a microbatch passes: `shard` ranks share among themselves,
    and there are `replicate` such groups."""

    tp: int
    cp: int
    pp: int
    dp: int
    vpp: int
    zero_stage: int
    shard: int
    replicate: int
    microbatch: int
    microbatches: int
    recompute: str
    schedule: str
    sequence_parallel: bool


@dataclass(frozen=True)
class StrategyRow:
    """What became of one strategy.

    `verdict` is that of memory, or `not applicable`; `reason` names the fullest stage and its largest item, or says why
    the strategy is refused, with a `fix` where it does not apply. Where it fits there are a forecast and a checkpoint,
    and `sets` is what to lay over the scenario so that `predict` forecasts the same.
    """

    strategy: str
    meaning: str
    verdict: str
    reason: str
    fix: str | None = None
    tried: int = 0
    layout: Layout | None = None
    memory: MemoryEstimate | None = None
    forecast: Forecast | None = None
    checkpoint: Checkpoint | None = None
    sets: tuple[tuple[str, str], ...] = ()

    @property
    def cross_node_bytes(self) -> float | None:
        """Bytes that a GPU sends out of its node in one step."""
        if self.forecast is None:
            return None
        return sum(row.bytes_per_gpu * row.cross_node_share for row in self.forecast.traffic.values())

    @property
    def exposed_s(self) -> dict[str, float] | None:
        """Time that a stage waits for each axis in one step, as a mean over stages; the pipeline's bubble is no part of
        it."""
        if self.forecast is None:
            return None
        return {axis: seconds for axis in AXES if (seconds := self.forecast.breakdown.mean_s[axis]) > 0.0}

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON shows it; null where a strategy does not run."""
        run, exposed, memory = self.forecast, self.exposed_s, self.memory
        worst = memory.worst if memory else None
        return {
            "strategy": self.strategy,
            "meaning": self.meaning,
            "layout": asdict(self.layout) if self.layout else None,
            "step_time_s": run.step_time_s if run else None,
            "tokens_per_s_per_gpu": run.rates.tokens_per_s_per_gpu if run else None,
            "tflops_per_gpu": dict(run.rates.tflops_per_gpu) if run else None,
            "mfu": run.rates.mfu if run else None,
            "hfu": run.rates.hfu if run else None,
            "memory_bytes": worst.total_bytes if worst else None,
            "memory_limit_bytes": memory.limit_bytes if memory else None,
            "fullest_stage": worst.stage if worst else None,
            "largest_item": worst.largest_item if worst else None,
            "verdict": self.verdict,
            "reason": self.reason,
            "fix": self.fix,
            "cross_node_share": run.cross_node_share if run else None,
            "cross_node_bytes_per_gpu": self.cross_node_bytes,
            "exposed_s": sum(exposed.values()) if exposed is not None else None,
            "exposed_by_axis_s": exposed,
            "bubble_s": run.breakdown.mean_s["bubble"] if run else None,
            "checkpoint": self.checkpoint.as_dict() if self.checkpoint else None,
            "layouts_tried": self.tried,
            "set": [f"{key}={value}" for key, value in self.sets],
        }


@dataclass(frozen=True)
class Comparison:
    """All strategies in a fixed order, with what they have in common."""

    scenario: str
    model: str
    cluster: str
    gpus: int
    rows: tuple[StrategyRow, ...]
    assumptions: tuple[str, ...]

    @property
    def fastest(self) -> StrategyRow | None:
        """The strategy with the shortest step of those that do not need more than a GPU has, where there are any."""
        run = [(row, row.memory, row.forecast) for row in self.rows]
        ranked = [(over_limit(has), seen.step_time_s, row) for row, has, seen in run if has is not None and seen]
        return min(ranked, key=lambda one: one[:2])[2] if ranked else None

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON shows it."""
        return {
            "scenario": self.scenario,
            "model": self.model,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "fastest": self.fastest.strategy if self.fastest else None,
            "strategies": [row.as_dict() for row in self.rows],
            "assumptions": list(self.assumptions),
        }


def over_limit(memory: MemoryEstimate) -> bool:
    """Whether a layout needs more than a GPU has (borderline, above)."""
    return memory.worst.total_bytes > memory.limit_bytes


def layout_of(job: Job) -> Layout:
    """The layout of a job."""
    mesh, recipe = job.mesh, job.recipe
    how = sharding(mesh, recipe)
    return Layout(
        tp=mesh.tp,
        cp=mesh.cp,
        pp=mesh.pp,
        dp=mesh.dp,
        vpp=recipe.vpp,
        zero_stage=recipe.zero_stage,
        shard=how.shards,
        replicate=how.replicas,
        microbatch=recipe.microbatch,
        microbatches=job.microbatches,
        recompute=recipe.recompute,
        schedule=recipe.schedule,
        sequence_parallel=recipe.sequence_parallel,
    )
