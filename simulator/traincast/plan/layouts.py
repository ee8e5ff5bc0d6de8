"""The strategies of training that are compared, and the layouts that each may take on a number of GPUs.

References
----------
[1] Li et al. 2020, "PyTorch Distributed" (arXiv:2006.15704), §3.2 (DDP: buckets of 25 MiB beside the backward pass).
[2] Zhao et al. 2023, "PyTorch FSDP" (arXiv:2304.11277), §3.2 (full and hybrid sharding).
[3] Llama Team 2024, "The Llama 3 Herd of Models", §3.3.2 (FSDP inside each stage of a pipeline).
[4] Narayanan et al. 2021 (SC21), §3 (PTD-P; Takeaway 1: TP inside a node; Takeaway 2: no more model parallelism than
    the model needs to fit).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from traincast.errors import ShapeError
from traincast.forecast import divisors
from traincast.lower import Job
from traincast.memory import job_problems
from traincast.mesh import Mesh, Problem
from traincast.recipe import Recipe, ScheduleName

DDP_BUCKET_BYTES: Final = 25 * 2.0**20
"""PyTorch DDP's bucket_cap_mb ([1])."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What layouts are cut from: a `job` whose ranks are all replicas, the scenario's own mesh and recipe (`given`,
    `recipe`), the ranks of a shard group where that is asked for, the `nodes` of a cluster that was cut or extended,
    and what the `stack` of a named profile does by default (`Profile.stack_defaults`)."""

    job: Job
    given: Mesh
    recipe: Recipe
    shard: int | None = None
    nodes: int | None = None
    stack: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world(self) -> int:
        """Ranks."""
        return self.job.mesh.world

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights where neither TP nor PP cuts the model: dp x cp."""
        return self.job.mesh.dp * self.job.mesh.cp

    @property
    def node(self) -> int:
        """Ranks of a node."""
        return min(self.world, self.job.cluster.gpus_per_node)

    def on(self, tp: int = 1, pp: int = 1, **fields: Any) -> Job:
        """The job with TP and PP, the rest data parallel, under a recipe with these fields."""
        mesh = replace(self.job.mesh, tp=tp, pp=pp, dp=self.world // (self.job.mesh.cp * tp * pp))
        schedule: ScheduleName = "none" if pp == 1 else "1f1b"
        if tp > 1 and self.given.tp > 1:
            fields["sequence_parallel"] = self.recipe.sequence_parallel
        elif tp > 1:
            fields["sequence_parallel"] = self.stack.get("sequence_parallel", True)
            fields["overlap_tp"] = self.stack.get("overlap_tp", self.recipe.overlap_tp)
        return replace(self.job, mesh=mesh, recipe=replace(self.job.recipe, schedule=schedule, **fields))

    def chunked(self, job: Job, chunks: int) -> Job:
        """The job with interleaved stages; its messages overlap where those of the stack do."""
        p2p = self.recipe.p2p if self.recipe.vpp > 1 else self.stack.get("p2p", job.recipe.p2p)
        return replace(job, recipe=replace(job.recipe, vpp=chunks, schedule="interleaved", p2p=p2p))

    def bucket_bytes(self, stages: Collection[int], default: float) -> float:
        """The scenario's gradient bucket where its own ZeRO stage is one of these."""
        return self.recipe.bucket_bytes if self.recipe.zero_stage in stages else default

    def fsdp(self, tp: int = 1, pp: int = 1, **fields: Any) -> Job:
        """The same under ZeRO-3, which gathers and drops as the scenario says where that is ZeRO-3 itself."""
        if self.recipe.zero_stage == 3:
            kept = ("prefetch", "prefetch_bytes", *(("reshard_after_forward", "no_sync") if pp == 1 else ()))
            fields = {name: getattr(self.recipe, name) for name in kept} | fields
        return self.on(tp, pp, zero_stage=3, **fields)


@dataclass(frozen=True)
class Strategy:
    """A way to train: its name, what it is, and the layouts that it may take.

    `layouts` raises ShapeError, with the reason and a fix, where it does not apply. `sweeps`: no more model parallelism
    than the model needs, and interleaved stages where they help ([4]).
    """

    name: str
    meaning: str
    layouts: Callable[[Setting], tuple[Job, ...]]
    sweeps: bool = False


def plain(recipe: Recipe, stack: Mapping[str, Any]) -> Recipe:
    """A recipe without all that a strategy decides; batch, types and kernels stay.

    A `stack` that overlaps messages does so where chunks interleave.
    """
    return replace(
        recipe,
        microbatch=1,
        vpp=1,
        schedule="none",
        stage_layers=None,
        sequence_parallel=False,
        post_validation=False,
        zero_stage=0,
        fsdp_shard=None,
        overlap_dp=True,
        overlap_params=False,
        bucket_bytes=Recipe.bucket_bytes,
        p2p=recipe.p2p if recipe.vpp == 1 or "p2p" not in stack else Recipe.p2p,
        prefetch=Recipe.prefetch,
        prefetch_bytes=None,
        reshard_after_forward=None,
        no_sync=None,
    )


def _ddp(setting: Setting) -> tuple[Job, ...]:
    stated = setting.bucket_bytes((0,), Recipe.bucket_bytes)
    return (setting.on(bucket_bytes=DDP_BUCKET_BYTES if stated == Recipe.bucket_bytes else stated),)


def _fsdp(setting: Setting) -> tuple[Job, ...]:
    if setting.replicas == 1:
        raise ShapeError("one rank has nobody to share with", fix="--gpus 2 or more")
    return (setting.fsdp(),)


def _submesh(setting: Setting) -> tuple[Job, ...]:
    """Groups of whole nodes, or of the size asked for, that hold one stage each ([3])."""
    world, cp, layers = setting.world, setting.job.mesh.cp, setting.job.model.layers
    sizes = [setting.shard] if setting.shard else [n for n in divisors(world) if n % setting.node == 0]
    cut = [n for n in sizes if n < world and world % n == 0 and n % cp == 0]
    if not cut:
        raise _one_group(setting)
    even = [n for n in cut if layers % (world // n) == 0]
    if not even:
        counts = " or ".join(str(world // n) for n in reversed(cut[-3:]))
        fits = [n for n in divisors(world) if 1 < n < world and n % cp == 0 and layers % (world // n) == 0]
        fix = f"--shard {fits[-1]}" if fits else "a model whose layers divide over stages"
        what = "1 layer cannot be cut" if layers == 1 else f"{layers} layers do not divide"
        raise ShapeError(f"{what} into {counts} stages", fix=fix)
    return tuple(setting.fsdp(pp=world // n) for n in even)


def _hsdp(setting: Setting) -> tuple[Job, ...]:
    size, ranks = setting.shard or setting.node, setting.replicas
    if size >= ranks:
        raise _one_group(setting)
    if size == 1:
        raise ShapeError("groups of 1 rank share nothing: that is DDP", fix="--shard 2 or more")
    if ranks % size:
        fits = max(n for n in divisors(ranks) if n <= size)
        raise ShapeError(f"{ranks} ranks do not divide into groups of {size}", fix=f"--shard {fits}")
    return (setting.fsdp(fsdp_shard=size),)


def _one_group(setting: Setting) -> ShapeError:
    size = setting.shard or setting.node
    fits = [n for n in divisors(setting.replicas) if 1 < n < min(size, setting.replicas)]
    fix = f"--shard {fits[-1]}" if fits else "more GPUs"
    return ShapeError(f"groups of {size} ranks leave none outside {setting.world} GPUs: that is FSDP", fix=fix)


def _tensor_fsdp(setting: Setting) -> tuple[Job, ...]:
    cp = setting.job.mesh.cp
    sizes = [tp for tp in divisors(setting.node) if tp > 1 and setting.world % (tp * cp) == 0]
    sizes = [tp for tp in sizes if setting.world // tp > 1]
    if not sizes:
        message = f"no tp of 2 or more inside a node of {setting.node} GPUs leaves ranks to shard over"
        raise ShapeError(message, fix="more GPUs")
    return tuple(setting.fsdp(tp=tp) for tp in sizes)


def _ptdp(setting: Setting) -> tuple[Job, ...]:
    layers, left = setting.job.model.layers, setting.world // setting.job.mesh.cp
    alike = setting.recipe.zero_stage in (1, 2)
    fields = {
        "zero_stage": 1,
        "overlap_params": setting.recipe.overlap_params if alike else bool(setting.stack.get("overlap_params")),
        "bucket_bytes": setting.bucket_bytes((1, 2), setting.stack.get("bucket", Recipe.bucket_bytes)),
    }
    return tuple(
        setting.on(tp, pp, **fields)
        for tp in divisors(setting.node)
        if left % tp == 0
        for pp in divisors(left // tp)
        if layers % pp == 0
    )


STRATEGIES: Final = (
    Strategy("DDP", "every rank holds everything; gradient buckets are all-reduced beside the backward pass", _ddp),
    Strategy("FSDP", "parameters, gradients and optimiser states are shared by all ranks (ZeRO-3)", _fsdp),
    Strategy(
        "FSDP on a sub-mesh",
        "FSDP over the dp axis cut from a (pp, dp) mesh: each shard group holds one pipeline stage, by default of whole"
        " nodes, and nothing is replicated outside it",
        _submesh,
    ),
    Strategy(
        "HSDP",
        "a (replicate, shard) mesh: states are shared inside a group, by default a node, and the groups are replicas",
        _hsdp,
    ),
    Strategy("TP+FSDP", "TP inside a node; each TP rank's dp axis is an FSDP group of its own", _tensor_fsdp),
    Strategy("PTD-P", "TP inside a node x PP x DP with ZeRO-1, 1F1B or interleaved, as Megatron runs", _ptdp, True),
)


def problems(job: Job) -> Iterator[Problem]:
    """All that forbids a job's shape, with two numbers and a fix each."""
    return job_problems(job.model, job.mesh, job.recipe)


_KEYS: Final = (
    *((f"parallelism.{axis}", "mesh", axis) for axis in ("tp", "pp", "dp", "order")),
    *((f"parallelism.{name}", "recipe", name) for name in ("vpp", "sequence_parallel")),
    *(
        (f"training.{name}", "recipe", name)
        for name in (
            "microbatch",
            "recompute",
            "zero_stage",
            "fsdp_shard",
            "prefetch",
            "reshard_after_forward",
            "no_sync",
        )
    ),
    ("training.prefetch_bucket", "recipe", "prefetch_bytes"),
    ("training.bucket", "recipe", "bucket_bytes"),
    *((f"training.{name}", "recipe", name) for name in ("overlap_params", "overlap_tp", "stage_layers")),
    *((f"training.{name}", "recipe", name) for name in ("post_validation", "schedule", "overlap_dp", "p2p")),
)
"""Key of a scenario file, and the field of mesh or recipe that it fills."""

_ALWAYS: Final = ("parallelism.dp", "training.schedule", "training.overlap_dp", "training.p2p")
_OF_STACK: Final = (
    "parallelism.sequence_parallel",
    *(f"training.{name}" for name in ("zero_stage", "bucket", "overlap_params", "overlap_tp")),
)
"""Keys whose default depends on others; on others and on the stack."""


def overrides(setting: Setting, job: Job) -> tuple[tuple[str, str], ...]:
    """What to lay over the scenario (`--set KEY=VALUE`) so that it has a job's layout."""
    wanted, given = _values(job.mesh, job.recipe), _values(setting.given, setting.recipe)
    above = [] if setting.nodes is None else [("cluster.nodes", str(setting.nodes))]
    if setting.given.placement != job.mesh.placement:
        above.append(("parallelism.placement", "null"))
    always = (*_ALWAYS, *_OF_STACK) if setting.stack else _ALWAYS
    changed = [(key, value) for key, value in wanted.items() if key in always or value != given[key]]
    return (*above, *((key, _text(key, value)) for key, value in changed))


def _values(mesh: Mesh, recipe: Recipe) -> dict[str, Any]:
    """What a scenario file would say; `prefetch` below ZeRO-3 nothing."""
    found = {key: getattr(mesh if part == "mesh" else recipe, name) for key, part, name in _KEYS}
    return found if recipe.zero_stage == 3 else found | {"training.prefetch": None}


def _text(key: str, value: Any) -> str:
    if value is None:
        return "null"
    if key.endswith("bucket"):
        return f"{float(value):.17g} B"
    return str(value).lower() if isinstance(value, bool) else str(value)
