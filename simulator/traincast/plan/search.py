"""Orders of the axes, placements of the ranks and splits of the layers, evaluated by the recurrence and ranked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any

from traincast.analytic import evaluate
from traincast.errors import UserError
from traincast.forecast import Prepared, memory_of
from traincast.lower import Job, lower
from traincast.lower.breakdown import breakdown
from traincast.mesh import AXES, Mesh
from traincast.plan.limits import Limit, limit_of
from traincast.plan.placements import GIVEN, node_blocks, placements, swaps
from traincast.plan.split import balanced_stage_layers

GIVEN_SPLIT, BALANCED_SPLIT = "as given", "by GPU"


@dataclass(frozen=True)
class Wish:
    """What to vary. `swaps` tries so many swaps of two nodes on the best candidate, drawn from `seed`."""

    orders: bool = True
    placements: bool = False
    splits: bool = False
    swaps: int = 0
    seed: int = 0


@dataclass(frozen=True)
class PlanRow:
    """One candidate. `order` names the axes of size above 1, the fastest first; `present` marks the scenario's own.

    `placed` and `stage_layers` are what the scenario would have to say, None where nothing.
    """

    order: str
    placement: str
    split: str
    step_time_s: float
    limit: Limit
    verdict: str
    present: bool
    signature: str
    placed: tuple[int, ...] | None = field(repr=False, default=None)
    stage_layers: tuple[int, ...] | None = field(repr=False, default=None)

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON shows it."""
        return vars(self) | {"limit": {**vars(self.limit), "text": str(self.limit)}}


@dataclass(frozen=True)
class Plan:
    """All candidates, the fastest first, and the ones that could not be evaluated, with the reason."""

    scenario: str
    world: int
    rows: tuple[PlanRow, ...]
    refusals: tuple[str, ...]

    @property
    def present(self) -> PlanRow:
        """The scenario as it is."""
        return next(row for row in self.rows if row.present)

    @property
    def best(self) -> PlanRow:
        """The fastest."""
        return self.rows[0]

    def as_dict(self, top: int | None = None) -> dict[str, Any]:
        """The plan as JSON shows it; `top` keeps that many rows, and the present one."""
        kept = [
            {"rank": rank, **row.as_dict()}
            for rank, row in enumerate(self.rows, start=1)
            if top is None or rank <= top or row.present
        ]
        return {
            "scenario": self.scenario,
            "world": self.world,
            "evaluated": len(self.rows),
            "present_step_time_s": self.present.step_time_s,
            "best_step_time_s": self.best.step_time_s,
            "candidates": kept,
            "refusals": list(self.refusals),
        }


@dataclass(frozen=True)
class Candidate:
    """A job, and what it is called."""

    job: Job
    placement: str = GIVEN
    split: str = GIVEN_SPLIT


def distinct_orders(mesh: Mesh) -> tuple[str, ...]:
    """Every order of the axes of size above 1, the fastest first; orders that give the same ranks once."""
    sized = [axis for axis in AXES if mesh.size(axis) > 1 or (axis == "ep" and mesh.has_expert_mesh)]
    return tuple("-".join(order) for order in permutations(sized))


def order_of(mesh: Mesh) -> str:
    """The order of a mesh's axes of size above 1."""
    return "-".join(axis for axis in mesh.axes if mesh.size(axis) > 1) or mesh.axes[0]


def candidates(job: Job, wish: Wish, refusals: list[str]) -> Iterator[Candidate]:
    """All combinations of what is to be varied, the present one first; what cannot be is added to `refusals`."""
    seen: set[tuple[object, ...]] = set()
    placed = placements(job.mesh, job.cluster) if wish.placements else {GIVEN: None}
    for order in (job.mesh.order, *(distinct_orders(job.mesh) if wish.orders else ())):
        for name, gpus in placed.items():
            try:
                mesh = replace(job.mesh, order=order, placement=job.mesh.placement if name == GIVEN else gpus)
            except UserError as error:
                refusals.append(f"{order}: {error}")
                continue
            one = replace(job, mesh=mesh)
            for split, layers in _splits(one, wish):
                key = (*_layout(mesh), layers)
                if key not in seen:
                    seen.add(key)
                    yield Candidate(replace(one, recipe=replace(job.recipe, stage_layers=layers)), name, split)


def _layout(mesh: Mesh) -> tuple[object, ...]:
    """What two meshes share that put the same ranks into the same groups on the same GPUs."""
    grids = (mesh.dense, mesh.expert) if mesh.has_expert_mesh else (mesh.dense,)
    strides = tuple((name, grid.stride(name)) for grid in grids for name in sorted(grid.names) if grid.size(name) > 1)
    identity = mesh.placement is None or mesh.placement == tuple(range(mesh.world))
    return strides, None if identity else mesh.placement


def _splits(job: Job, wish: Wish) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    yield GIVEN_SPLIT, job.recipe.stage_layers
    if wish.splits and job.mesh.pp > 1 and job.model.layers >= job.mesh.pp * job.chunks:
        layers = balanced_stage_layers(job)
        if layers != (job.recipe.stage_layers or _even(job)):
            yield BALANCED_SPLIT, layers


def _even(job: Job) -> tuple[int, ...] | None:
    each, rest = divmod(job.model.layers, job.mesh.pp * job.chunks)
    return None if rest else (each,) * (job.mesh.pp * job.chunks)


def plan(prepared: Prepared, wish: Wish | None = None, advance: Callable[[int], object] = lambda done: None) -> Plan:
    """Evaluates all that is wished for and ranks it; `advance` is told how many more are done.

    Step times come from the recurrence: exact where nothing is contended beyond the static shares. Raises UserError
    where the scenario itself cannot be lowered.
    """
    wish, job = wish or Wish(), prepared.job
    refusals: list[str] = []
    rows: list[PlanRow] = []
    for number, candidate in enumerate(candidates(job, wish, refusals)):
        try:
            rows.append(_evaluated(candidate, present=number == 0))
        except UserError as error:
            if number == 0:
                raise
            refusals.append(f"{order_of(candidate.job.mesh)}, {candidate.placement}: {error}")
        advance(1)
    rows.sort(key=lambda row: (row.step_time_s, not row.present))
    if wish.swaps:
        best = _improved(job, rows[0], wish, advance)
        if best is not None:
            rows.insert(0, best)
    return Plan(prepared.scenario.name, job.mesh.world, tuple(rows), tuple(refusals))


def _evaluated(candidate: Candidate, present: bool = False) -> PlanRow:
    job = candidate.job
    lowered = lower(job)
    result = evaluate(lowered.program)
    parts = breakdown(lowered.program, result)
    return PlanRow(
        order=order_of(job.mesh),
        placement=candidate.placement,
        split=candidate.split,
        step_time_s=result.step_time_s,
        limit=limit_of(job, lowered.spans, parts.mean_s, result.step_time_s),
        verdict=memory_of(job, lowered.program.schedule).verdict,
        present=present,
        signature=job.mesh.signature(),
        placed=job.mesh.placement,
        stage_layers=job.recipe.stage_layers,
    )


def _improved(job: Job, best: PlanRow, wish: Wish, advance: Callable[[int], object]) -> PlanRow | None:
    """The best row with pairs of nodes swapped as long as that helps; None where no swap does."""
    mesh = replace(job.mesh, order=best.order, placement=best.placed)
    base = replace(job, mesh=mesh, recipe=replace(job.recipe, stage_layers=best.stage_layers))
    blocks = node_blocks(mesh, job.cluster)
    fastest, done = best.step_time_s, 0
    for one, other in swaps(blocks, wish.swaps, wish.seed):
        tried = list(blocks)
        tried[one], tried[other] = tried[other], tried[one]
        placed = tuple(gpu for block in tried for gpu in block)
        moved = replace(base, mesh=replace(mesh, placement=placed))
        seconds = evaluate(lower(moved).program).step_time_s
        if seconds < fastest:
            blocks, fastest, done, base = tried, seconds, done + 1, moved
        advance(1)
    name = f"{best.placement}, {done} swaps of nodes"
    return _evaluated(Candidate(base, name, best.split)) if done else None
