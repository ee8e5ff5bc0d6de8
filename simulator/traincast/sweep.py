"""The use case: every legal shape of a scenario, pruned by memory, evaluated by the recurrence, ranked."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from traincast.errors import ShapeError, TraincastError, UsageError
from traincast.forecast import Prepared, divisors, memory_of, prepare, rates_of

if TYPE_CHECKING:
    from traincast.lower.job import Job
    from traincast.memory import MemoryEstimate
    from traincast.mesh import ShapeRequest
    from traincast.mesh.problems import Problem
    from traincast.recipe import Recipe, ScheduleName
    from traincast.scenario import Scenario

AXES = ("tp", "pp", "dp", "vpp", "microbatch")
_BATCH = 32


@dataclass(frozen=True, order=True)
class Shape:
    """One point of a sweep: ranks along the axes, chunks a stage, sequences a microbatch."""

    tp: int
    pp: int
    dp: int
    vpp: int
    microbatch: int

    def __str__(self) -> str:
        """ "tp 2, pp 4, dp 1, vpp 1, microbatch 1"."""
        return ", ".join(f"{axis} {size}" for axis, size in asdict(self).items())


@dataclass(frozen=True)
class SweepRow:
    """What became of one shape: rates in TFLOP/s per GPU, memory in bytes of the fullest stage."""

    shape: Shape
    step_time_s: float
    tflops_hardware: float
    tflops_model: float
    mfu: float | None
    hfu: float | None
    memory_bytes: float
    verdict: str
    over_limit: bool
    """Borderline, and above the GPU's memory rather than just below it: ranked behind all shapes that are not."""

    def as_dict(self) -> dict[str, Any]:
        """The row without nesting."""
        figures = {key: value for key, value in vars(self).items() if key != "shape"}
        return {**asdict(self.shape), **figures}


@dataclass(frozen=True)
class SweepOutcome:
    """All evaluated shapes, the fastest first; how many memory pruned, and which were refused and why."""

    scenario: str
    world: int
    legal: int
    too_big: int
    ranked: tuple[SweepRow, ...]
    refusals: tuple[str, ...]

    @property
    def refused(self) -> int:
        """Shapes that pass the arithmetic but that the schedule, the split of the sequence or the forecast refuses."""
        return len(self.refusals)

    def as_dict(self, top: int | None = None) -> dict[str, Any]:
        """The outcome as JSON shows it; `top` keeps that many shapes."""
        return {
            "scenario": self.scenario,
            "world": self.world,
            "legal": self.legal,
            "evaluated": len(self.ranked),
            "too_big": self.too_big,
            "refused": self.refused,
            "refusals": list(self.refusals),
            "shapes": [{"rank": rank, **row.as_dict()} for rank, row in enumerate(self.ranked[:top], start=1)],
        }


def parse_axes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`tp=1,2,4` as {"tp": (1, 2, 4)}. Raises UsageError for an unknown axis or no whole numbers."""
    axes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().lower()
        if name not in AXES:
            raise UsageError(f"no axis {name!r} to sweep", where="--axis", fix=f"use one of {', '.join(AXES)}")
        try:
            numbers = tuple(dict.fromkeys(int(value) for value in values.split(",")))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1:
            raise UsageError(f"{text!r} lists no whole numbers from 1 up", where="--axis", fix="write it like tp=1,2,4")
        axes[name] = numbers
    return axes


def enumerate_shapes(scenario: "Scenario", axes: Mapping[str, Sequence[int]] | None = None) -> tuple[Shape, ...]:
    """Every shape of the scenario's world that its model and batch allow, in ascending order.

    `axes` restricts axes to values; the others take every divisor. What the schedule and the split of the sequence
    make of a shape is found by `evaluate_shapes`. Raises ShapeError, with the refusal of one of them, where no shape is
    left, or none that these two allow.
    """
    wanted = axes or {}
    shapes = [shape for shape in _arithmetic_shapes(scenario, wanted) if not any(_shape_errors(scenario, shape))]
    if not shapes:
        raise _refusal(scenario, wanted)
    if all(any(_recipe_errors(scenario, shape)) for shape in shapes):
        raise _refused(scenario, wanted, _recipe_errors(scenario, shapes[0]))
    return tuple(sorted(shapes))


def _shape_errors(scenario: "Scenario", shape: Shape) -> "Iterator[Problem]":
    """What forbids a shape by its numbers alone."""
    from traincast.mesh import check_shape

    return (found for found in check_shape(_request(scenario, shape)) if found.severity == "error")


def _recipe_errors(scenario: "Scenario", shape: Shape) -> "Iterator[Problem]":
    """What schedule and context parallelism of the scenario forbid on a shape."""
    from traincast.mesh.contextchecks import context_problems
    from traincast.schedule.limits import ScheduleRequest, schedule_problems

    mesh = replace(scenario.mesh, tp=shape.tp, pp=shape.pp, dp=shape.dp)
    recipe = _recipe(scenario.recipe, shape)
    microbatches, step = recipe.microbatches(shape.dp), shape.microbatch * shape.dp
    yield from schedule_problems(ScheduleRequest(recipe.schedule, shape.pp, shape.vpp, microbatches, step))
    split = context_problems(scenario.model, mesh, recipe)
    yield from (found for found in split if found.severity == "error")


def _refusal(scenario: "Scenario", wanted: Mapping[str, Sequence[int]]) -> ShapeError:
    """Why the first shape that was asked for cannot be; what was not asked for is as in the scenario."""
    from traincast.schedule import SPLIT
    from traincast.schedule.limits import ScheduleRequest, schedule_problems

    mesh, recipe = scenario.mesh, scenario.recipe
    stated = {"tp": mesh.tp, "pp": mesh.pp, "dp": mesh.dp, "vpp": recipe.vpp, "microbatch": recipe.microbatch}
    shape = Shape(**{axis: wanted[axis][0] if axis in wanted else stated[axis] for axis in AXES})
    if "dp" not in wanted:
        shape = replace(shape, dp=max(1, mesh.world // (shape.tp * shape.pp * mesh.cp)))
    errors = [*_shape_errors(scenario, shape)]
    if not errors and shape.pp > 1 and recipe.schedule in SPLIT:  # no other stands in for it
        errors += schedule_problems(ScheduleRequest(recipe.schedule, shape.pp, shape.vpp))
    return _refused(scenario, wanted, errors)


def _refused(scenario: "Scenario", wanted: Mapping[str, Sequence[int]], errors: "Iterable[Problem]" = ()) -> ShapeError:
    """The error of a sweep without a shape, with the first of what forbids one of them."""
    asked = ", ".join(f"{name}={','.join(map(str, values))}" for name, values in wanted.items()) or "any axis"
    message = f"no legal shape of {scenario.mesh.world} GPUs with {asked}"
    found = next(iter(errors), None)
    if found is None:
        return ShapeError(message, where="--axis", fix="allow more values, or change the world or the batch")
    axis = next((name for name in found.names if name in wanted), "")
    where = f"--axis {axis}={','.join(map(str, wanted[axis]))}" if axis else "--axis"
    return ShapeError(f"{message}: {found.message}", where=where, fix=_axis_fix(found.fix))


def _axis_fix(fix: str) -> str:
    """A fix in axes of the sweep, and in keys of the scenario where it is not about an axis."""
    from traincast.mesh.wording import worded
    from traincast.scenario.wording import dotted

    def typed(name: str, values: str) -> str:
        listed = values.replace(" or ", ",")
        if name in AXES and listed.replace(",", "").isdigit():
            return f"--axis {name}={listed}"
        if not values:
            return f"leave {dotted(name)} out"
        return f"{name} {values}" if name in (*AXES, "world") else f"--set {dotted(name)}={values}"

    return worded(fix, typed)


def _arithmetic_shapes(scenario: "Scenario", wanted: Mapping[str, Sequence[int]]) -> Iterator[Shape]:
    """Shapes whose numbers divide: a screen before the full check, so that few are checked in vain."""
    from traincast.schedule import ANY_CHUNKS, SPLIT, TWO_CHUNKS

    mesh, recipe, layers = scenario.mesh, scenario.recipe, scenario.model.layers
    world = mesh.world // mesh.cp

    def values(axis: str, legal: Sequence[int]) -> Sequence[int]:
        return [value for value in wanted[axis] if value in legal] if axis in wanted else legal

    for tp in values("tp", divisors(world)):
        for pp in values("pp", divisors(world // tp)):
            dp = world // (tp * pp)
            if dp not in values("dp", (dp,)) or recipe.global_batch % dp:
                continue
            chunks = divisors(layers // pp) if pp > 1 and layers % pp == 0 else (1,)
            if recipe.schedule in SPLIT and pp > 1 and recipe.schedule not in ANY_CHUNKS:
                chunks = (2,) if recipe.schedule in TWO_CHUNKS else (1,)
            for vpp in values("vpp", chunks):
                for microbatch in values("microbatch", divisors(recipe.global_batch // dp)):
                    yield Shape(tp, pp, dp, vpp, microbatch)


def _request(scenario: "Scenario", shape: Shape) -> "ShapeRequest":
    from traincast.mesh import ShapeRequest
    from traincast.schedule import chunks_of_model, in_groups

    model, recipe = scenario.model, scenario.recipe
    schedule = _schedule(recipe.schedule, shape)
    return ShapeRequest(
        tp=shape.tp,
        cp=scenario.mesh.cp,
        pp=shape.pp,
        dp=shape.dp,
        world=scenario.mesh.world,
        vpp=shape.vpp,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        global_batch=recipe.global_batch,
        microbatch=shape.microbatch,
        sequence=recipe.sequence,
        sequence_parallel=recipe.sequence_parallel,
        causal=recipe.cp_balance and recipe.cp_kind != "ulysses",
        model_chunks=chunks_of_model(schedule, shape.vpp),
        in_groups=in_groups(schedule, shape.vpp),
    )


def evaluate_shapes(
    scenario: "Scenario", shapes: Sequence[Shape], advance: Callable[[int], object] = lambda done: None
) -> SweepOutcome:
    """Evaluates the shapes that fit into memory and ranks them; `advance` is told how many more are done."""
    prepared = prepare(scenario)
    refusals: list[str] = []
    possible = [shape for shape in shapes if not _listed(scenario, shape, refusals)]
    jobs = (_job(prepared, shape) for shape in possible)
    sized = [(job, memory) for job in jobs if (memory := _sized(job, refusals))]
    kept = [(job, memory) for job, memory in sized if memory.verdict != "does not fit"]
    advance(len(shapes) - len(kept))
    # neighbours that share a schedule share its graph in the recurrence
    kept.sort(key=lambda one: (one[0].recipe.schedule, one[0].mesh.pp, one[0].microbatches, one[0].chunks))
    rows: list[SweepRow] = []
    for begin in range(0, len(kept), _BATCH):
        batch = kept[begin : begin + _BATCH]
        rows += _evaluate(batch, refusals)
        advance(len(batch))
    return SweepOutcome(
        scenario=scenario.name,
        world=scenario.mesh.world,
        legal=len(shapes),
        too_big=len(sized) - len(kept),
        ranked=tuple(sorted(rows, key=lambda row: (row.over_limit, row.step_time_s, row.shape))),
        refusals=tuple(refusals),
    )


def _listed(scenario: "Scenario", shape: Shape, refusals: list[str]) -> bool:
    """Whether a shape cannot be; the reason then stands among the refusals."""
    found = [f"{one.message} (fix: {_axis_fix(one.fix)})" for one in _recipe_errors(scenario, shape)]
    refusals += [f"{shape}: {'; '.join(found)}"] if found else []
    return bool(found)


def _sized(job: "Job", refusals: list[str]) -> "MemoryEstimate | None":
    """Memory of a job; None, with the reason among the refusals, where it cannot be."""
    try:
        return memory_of(job)
    except TraincastError as error:
        refusals.append(f"{_shape(job)}: {error}")
        return None


def _job(prepared: Prepared, shape: Shape) -> "Job":
    base = prepared.job
    mesh = replace(base.mesh, tp=shape.tp, pp=shape.pp, dp=shape.dp)
    return replace(base, mesh=mesh, recipe=_recipe(base.recipe, shape))


def _recipe(base: "Recipe", shape: Shape) -> "Recipe":
    """The scenario's recipe on another shape: its kind of schedule where that can be, even stages."""
    schedule = _schedule(base.schedule, shape)
    return replace(base, microbatch=shape.microbatch, vpp=shape.vpp, schedule=schedule, stage_layers=None)


def _schedule(base: "ScheduleName", shape: Shape) -> "ScheduleName":
    from traincast.schedule import ANY_CHUNKS, TWO_CHUNKS

    if shape.pp == 1:
        return "none"
    if shape.vpp > 1:
        return base if base in (*ANY_CHUNKS, *TWO_CHUNKS) else "interleaved"
    return "1f1b" if base in ("none", "interleaved", *TWO_CHUNKS) else base


def _evaluate(batch: Sequence[tuple["Job", "MemoryEstimate"]], refusals: list[str]) -> Iterator[SweepRow]:
    from traincast.analytic import evaluate_batch
    from traincast.lower import lower
    from traincast.schedule import AUTOMATIC

    lowered = []
    for job, memory in batch:
        try:
            program = lower(job).program
            # memory so far: the most that a search may hold; now: what the order holds that it found
            own = memory_of(job, program.schedule) if job.recipe.schedule in AUTOMATIC else memory
            lowered.append((job, own, program))
        except TraincastError as error:
            refusals.append(f"{_shape(job)}: {error}")
    if not lowered:
        return
    times = evaluate_batch([program for _, _, program in lowered])
    for (job, memory, _), seconds in zip(lowered, times, strict=True):
        rates = rates_of(job, float(seconds))
        yield SweepRow(
            shape=_shape(job),
            step_time_s=float(seconds),
            tflops_hardware=rates.tflops_per_gpu["hardware"],
            tflops_model=rates.tflops_per_gpu["model"],
            mfu=rates.mfu,
            hfu=rates.hfu,
            memory_bytes=memory.worst.total_bytes,
            verdict=memory.verdict,
            over_limit=memory.worst.total_bytes > job.gpu.memory_bytes,
        )


def _shape(job: "Job") -> Shape:
    return Shape(job.mesh.tp, job.mesh.pp, job.mesh.dp, job.recipe.vpp, job.recipe.microbatch)
