"""Which shapes there are: axes, the arithmetic of a world, and what schedule and model forbid."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from traincast.errors import ShapeError, UsageError
from traincast.forecast import divisors
from traincast.recipe import ScheduleName
from traincast.sweep.wording import NUMBERED, axis_fix

if TYPE_CHECKING:
    from traincast.mesh import Mesh, ShapeRequest
    from traincast.mesh.problems import Problem
    from traincast.recipe import Recipe
    from traincast.scenario import Scenario

AXES = (*NUMBERED, "schedule")
Axes = Mapping[str, Sequence[Any]]
"""Axis -> its values: whole numbers, of `schedule` names."""


@dataclass(frozen=True, order=True)
class Shape:
    """One point of a sweep: ranks along the axes, chunks a stage, sequences a microbatch.

    Without a `schedule` it is the scenario's, or what stands in for it (`schedule_of`).
    """

    tp: int
    pp: int
    dp: int
    vpp: int
    microbatch: int
    cp: int = 1
    schedule: ScheduleName | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """The numbered axes."""
        return {axis: getattr(self, axis) for axis in NUMBERED}

    def __str__(self) -> str:
        """ "tp 2, pp 4, dp 1, vpp 1, microbatch 1", and what is not left to the scenario."""
        told = {key: value for key, value in asdict(self).items() if (key, value) != ("cp", 1) and value is not None}
        return ", ".join(f"{axis} {size}" for axis, size in told.items())


def parse_axes(texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """`tp=1,2,4` as {"tp": (1, 2, 4)}. Raises UsageError for an unknown axis, no whole numbers or no schedules."""
    axes: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        name = name.strip().lower()
        if name not in AXES:
            raise UsageError(f"no axis {name!r} to sweep", where="--axis", fix=f"use one of {', '.join(AXES)}")
        axes[name] = _schedules(text, values) if name == "schedule" else _numbers(text, values)
    return axes


def _numbers(text: str, values: str) -> tuple[int, ...]:
    try:
        numbers = tuple(dict.fromkeys(int(value) for value in values.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise UsageError(f"{text!r} lists no whole numbers from 1 up", where="--axis", fix="write it like tp=1,2,4")
    return numbers


def _schedules(text: str, values: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(value.strip().lower() for value in values.split(",")))
    unknown = [name for name in names if name not in get_args(ScheduleName)]
    if unknown:
        fix = f"use some of {', '.join(get_args(ScheduleName))}"
        raise UsageError(f"{text!r} lists {unknown[0]!r}, which is no schedule", where="--axis", fix=fix)
    return names


def enumerate_shapes(scenario: "Scenario", axes: Axes | None = None) -> tuple[Shape, ...]:
    """Every shape of the scenario's world that its model and batch allow, in ascending order.

    `axes` restricts axes to values; the others take every divisor, but cp and the schedule stay as the scenario has
    them. What the schedule and the split of the sequence make of a shape is found by `evaluate_shapes`. Raises
    ShapeError, with the refusal of one of them, where no shape is left, or none that these two allow.
    """
    wanted = axes or {}
    possible = dict.fromkeys(_arithmetic_shapes(scenario, wanted))
    shapes = [shape for shape in possible if not any(_shape_errors(scenario, shape))]
    if not shapes:
        raise _refusal(scenario, wanted)
    if all(any(recipe_errors(scenario, shape)) for shape in shapes):
        raise _refused(scenario, wanted, recipe_errors(scenario, shapes[0]))
    return tuple(sorted(shapes))


def schedule_of(scenario: "Scenario", shape: Shape) -> ScheduleName:
    """The shape's schedule: the kind that is asked for, or what comes nearest to it on these stages and chunks."""
    from traincast.schedule import ANY_CHUNKS, TWO_CHUNKS

    kind = shape.schedule or scenario.recipe.schedule
    if shape.pp == 1:
        return "none"
    if shape.vpp > 1:
        return kind if kind in (*ANY_CHUNKS, *TWO_CHUNKS) else "interleaved"
    return "1f1b" if kind in ("none", "interleaved", *TWO_CHUNKS) else kind


def recipe_of(scenario: "Scenario", shape: Shape) -> "Recipe":
    """The scenario's recipe on a shape, with the defaults of its stack for that shape."""
    from traincast.scenario.reshape import Change, recipe_on

    return recipe_on(scenario, Change(shape.tp, shape.vpp, shape.microbatch, schedule_of(scenario, shape)))


def mesh_of(scenario: "Scenario", shape: Shape) -> "Mesh":
    """The scenario's mesh on a shape."""
    return replace(scenario.mesh, tp=shape.tp, cp=shape.cp, pp=shape.pp, dp=shape.dp)


def sets_of(scenario: "Scenario", shape: Shape) -> tuple[tuple[str, str], ...]:
    """What to lay over the scenario so that it has this shape (`--set KEY=VALUE`)."""
    stated = scenario.stated or {}
    found = [(f"parallelism.{axis}", str(getattr(shape, axis))) for axis in NUMBERED if axis != "microbatch"]
    found += [("training.microbatch", str(shape.microbatch)), ("training.schedule", schedule_of(scenario, shape))]
    silent = [key for key in stated if key.startswith("training.cp_")] if shape.cp == 1 else []
    silent += ["training.stage_layers"] if scenario.recipe.stage_layers is not None else []
    return (*found, *((key, "null") for key in silent))


def _shape_errors(scenario: "Scenario", shape: Shape) -> "Iterator[Problem]":
    """What forbids a shape by its numbers alone."""
    from traincast.mesh import check_shape

    return (found for found in check_shape(_request(scenario, shape)) if found.severity == "error")


def recipe_errors(scenario: "Scenario", shape: Shape) -> "Iterator[Problem]":
    """What schedule, messages and context parallelism of the scenario forbid on a shape."""
    from traincast.mesh.contextchecks import context_problems
    from traincast.scenario.checks import blocking_problems
    from traincast.schedule.limits import ScheduleRequest, schedule_problems

    recipe = recipe_of(scenario, shape)
    microbatches, step = recipe.microbatches(shape.dp), shape.microbatch * shape.dp
    ask = ScheduleRequest(recipe.schedule, shape.pp, shape.vpp, microbatches, step)
    yield from schedule_problems(ask)
    yield from blocking_problems(ask, recipe.p2p)
    split = context_problems(scenario.model, mesh_of(scenario, shape), recipe)
    yield from (found for found in split if found.severity == "error")


def _refusal(scenario: "Scenario", wanted: Axes) -> ShapeError:
    """Why the first shape that was asked for cannot be; what was not asked for is as in the scenario."""
    from traincast.schedule import SPLIT
    from traincast.schedule.limits import ScheduleRequest, schedule_problems

    mesh, recipe = scenario.mesh, scenario.recipe
    stated = {axis: getattr(mesh, axis) for axis in ("tp", "cp", "pp", "dp")}
    stated |= {"vpp": recipe.vpp, "microbatch": recipe.microbatch}
    shape = Shape(**(stated | {axis: values[0] for axis, values in wanted.items()}))
    if "dp" not in wanted:
        shape = replace(shape, dp=max(1, mesh.world // (shape.tp * shape.pp * shape.cp)))
    errors = [*_shape_errors(scenario, shape)]
    kind = shape.schedule or recipe.schedule
    if not errors and (shape.schedule or (shape.pp > 1 and kind in SPLIT)):  # no other stands in for it
        errors += schedule_problems(ScheduleRequest(kind, shape.pp, shape.vpp))
    return _refused(scenario, wanted, errors)


def _refused(scenario: "Scenario", wanted: Axes, errors: "Iterable[Problem]" = ()) -> ShapeError:
    """The error of a sweep without a shape, with the first of what forbids one of them."""
    asked = ", ".join(f"{name}={','.join(map(str, values))}" for name, values in wanted.items()) or "any axis"
    message = f"no legal shape of {scenario.mesh.world} GPUs with {asked}"
    found = next(iter(errors), None)
    if found is None:
        return ShapeError(message, where="--axis", fix="allow more values, or change the world or the batch")
    axis = next((name for name in found.names if name in wanted), "")
    where = f"--axis {axis}={','.join(map(str, wanted[axis]))}" if axis else "--axis"
    return ShapeError(f"{message}: {found.message}", where=where, fix=axis_fix(found.fix))


def _arithmetic_shapes(scenario: "Scenario", wanted: Axes) -> Iterator[Shape]:
    """Shapes whose numbers divide: a screen before the full check, so that few are checked in vain."""
    world, batch = scenario.mesh.world, scenario.recipe.global_batch
    kinds = wanted.get("schedule", (None,))
    for cp in wanted.get("cp", (scenario.mesh.cp,)):
        if world % cp:
            continue
        for tp in _values(wanted, "tp", divisors(world // cp)):
            for pp in _values(wanted, "pp", divisors(world // (cp * tp))):
                dp = world // (cp * tp * pp)
                if dp not in _values(wanted, "dp", (dp,)) or batch % dp:
                    continue
                chunks = [(kind, vpp) for kind in kinds for vpp in _values(wanted, "vpp", _chunks(scenario, kind, pp))]
                for kind, vpp in chunks:
                    for microbatch in _values(wanted, "microbatch", divisors(batch // dp)):
                        shape = Shape(tp, pp, dp, vpp, microbatch, cp, kind)
                        named = None if kind is None else schedule_of(scenario, shape)
                        if named == kind or named == "none":  # no other schedule under the name that was asked for
                            yield replace(shape, schedule=named)


def _values(wanted: Axes, axis: str, legal: Sequence[int]) -> Sequence[int]:
    return [value for value in wanted[axis] if value in legal] if axis in wanted else legal


def _chunks(scenario: "Scenario", kind: str | None, pp: int) -> Sequence[int]:
    """Chunks a stage that layers and schedule allow."""
    from traincast.schedule import ANY_CHUNKS, SPLIT, TWO_CHUNKS

    name, layers = kind or scenario.recipe.schedule, scenario.model.layers
    if name in SPLIT and pp > 1 and name not in ANY_CHUNKS:
        return (2,) if name in TWO_CHUNKS else (1,)
    return divisors(layers // pp) if pp > 1 and layers % pp == 0 else (1,)


def _request(scenario: "Scenario", shape: Shape) -> "ShapeRequest":
    from traincast.mesh import ShapeRequest
    from traincast.schedule import chunks_of_model, in_groups

    model, recipe = scenario.model, recipe_of(scenario, shape)
    return ShapeRequest(
        tp=shape.tp,
        cp=shape.cp,
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
        model_chunks=chunks_of_model(recipe.schedule, shape.vpp),
        in_groups=in_groups(recipe.schedule, shape.vpp),
    )
