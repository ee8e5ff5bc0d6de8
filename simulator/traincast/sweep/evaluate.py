"""Shapes to rows: memory first, then lowering, the closed-form screen and the recurrence, over one process or several.

Parts of shapes are worked on by themselves, in an order that depends on the shapes alone; so the outcome is the same
for any number of processes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from traincast.errors import TraincastError
from traincast.forecast import Prepared, evaluate, memory_of, prepare, rates_of
from traincast.sweep.bound import lower_bound_s
from traincast.sweep.outcome import Confirmation, SweepOutcome, SweepRow
from traincast.sweep.shapes import Shape, mesh_of, recipe_errors, recipe_of, schedule_of, sets_of
from traincast.sweep.wording import axis_fix

if TYPE_CHECKING:
    from traincast.lower import Job
    from traincast.lower.program import Program
    from traincast.memory import MemoryEstimate
    from traincast.memory.types import Verdict
    from traincast.scenario import Scenario

_SIZED: Final = 64
_TIMED: Final = 16
"""Shapes of a part."""
_AHEAD: Final = 8
"""Parts that run before the rows of the first of them screen the next one: as many as processes that can be busy."""

_T = TypeVar("_T")
Advance = Callable[[int], object]
Refusal = tuple[Shape, str]


@dataclass(frozen=True)
class Options:
    """How to sweep: over how many processes, whether only the `top` fastest are wanted (others may then be screened out
    by their lower bound), rows that are `known` from before, and who is told rows as they come."""

    processes: int = 1
    top: int | None = None
    known: Mapping[Shape, SweepRow] = field(default_factory=dict)
    tell: Callable[[Sequence[SweepRow]], object] = lambda rows: None


class _Memory(NamedTuple):
    """What a row says of a shape's memory."""

    memory_bytes: float
    verdict: "Verdict"
    over_limit: bool


_Fit = tuple[Shape, _Memory]


@dataclass(frozen=True)
class _Sized:
    """Of some shapes: those that may fit and their memory, how many do not, and what is refused."""

    fit: tuple["_Fit", ...]
    too_big: int
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class _Timed:
    """Of some shapes: their rows, how many the screen left out, and what is refused."""

    rows: tuple[SweepRow, ...]
    screened: int
    refusals: tuple[Refusal, ...]


def evaluate_shapes(
    scenario: "Scenario",
    shapes: Sequence[Shape],
    advance: Advance = lambda done: None,
    options: Options | None = None,
) -> SweepOutcome:
    """Evaluates the shapes that fit into memory and ranks them; `advance` is told how many more are done."""
    chosen = options or Options()
    new = [shape for shape in shapes if shape not in chosen.known]
    rows = [chosen.known[shape] for shape in shapes if shape in chosen.known]
    resumed = len(rows)
    advance(resumed)
    refusals: list[Refusal] = []
    fit: list[_Fit] = []
    too_big = screened = 0
    with _workers(scenario, chosen.processes) as run:
        for sized in run(_size, _cut(new, _SIZED)):
            fit += sized.fit
            too_big += sized.too_big
            refusals += sized.refusals
            advance(sized.too_big + len(sized.refusals))
        # neighbours that share a schedule share its graph in the recurrence
        fit.sort(key=partial(_graph, scenario))
        known = [resumed] * _AHEAD
        for timed in run(_time, _screened(_cut(fit, _TIMED), rows, known, chosen.top)):
            rows += timed.rows
            known.append(len(rows))
            screened += timed.screened
            refusals += timed.refusals
            chosen.tell(rows)
            advance(len(timed.rows) + timed.screened + len(timed.refusals))
    return SweepOutcome(
        scenario=scenario.name,
        world=scenario.mesh.world,
        legal=len(shapes),
        too_big=too_big,
        ranked=tuple(sorted(rows, key=lambda row: row.rank)),
        refusals=tuple(text for _, text in sorted(refusals)),
        screened=screened,
        resumed=resumed,
    )


def confirmed(scenario: "Scenario", outcome: SweepOutcome) -> SweepOutcome:
    """The outcome with its fastest shape run in the event engine as well; itself where there is none."""
    from traincast.lower import lower

    if not outcome.ranked:
        return outcome
    first = outcome.ranked[0]
    result = evaluate(lower(job_of(prepare(scenario), first.shape)).program, "des")
    return replace(outcome, confirmation=Confirmation(result.step_time_s, result.events, first.step_time_s))


def job_of(prepared: Prepared, shape: Shape) -> "Job":
    """The job of a shape."""
    scenario = prepared.scenario
    return replace(prepared.job, mesh=mesh_of(scenario, shape), recipe=recipe_of(scenario, shape))


def _cut(shapes: Sequence[_T], size: int) -> list[tuple[_T, ...]]:
    return [tuple(shapes[first : first + size]) for first in range(0, len(shapes), size)]


def _graph(scenario: "Scenario", fit: _Fit) -> tuple[Any, ...]:
    shape, _ = fit
    microbatches = scenario.recipe.global_batch // (shape.dp * shape.microbatch)
    return schedule_of(scenario, shape), shape.pp, microbatches, shape.vpp, shape


def _screened(
    parts: Sequence[tuple[_Fit, ...]], rows: Sequence[SweepRow], known: Sequence[int], top: int | None
) -> Iterator[tuple[tuple[_Fit, ...], int | None, tuple[float, ...]]]:
    """Parts with the fastest steps of all but the `_AHEAD` parts before them, whoever has run already.

    `rows` and `known`, how many of them there were after each part, grow meanwhile.
    """
    for number, part in enumerate(parts):
        yield part, top, _fastest(rows[: known[number]], top)


def _fastest(rows: Sequence[SweepRow], top: int | None) -> tuple[float, ...]:
    """The `top` shortest steps among rows that fit."""
    return () if top is None else tuple(sorted(row.step_time_s for row in rows if not row.over_limit)[:top])


def _size(prepared: Prepared, shapes: tuple[Shape, ...]) -> _Sized:
    """Memory of shapes that schedule and split allow."""
    fit: list[_Fit] = []
    refusals: list[Refusal] = []
    for shape in shapes:
        found = [f"{one.message} (fix: {axis_fix(one.fix)})" for one in recipe_errors(prepared.scenario, shape)]
        if found:
            refusals.append((shape, f"{shape}: {'; '.join(found)}"))
            continue
        try:
            memory = _memory(memory_of(job_of(prepared, shape)))
            if memory.verdict != "does not fit":
                fit.append((shape, memory))
        except TraincastError as error:
            refusals.append((shape, f"{shape}: {error}"))
    return _Sized(tuple(fit), len(shapes) - len(fit) - len(refusals), tuple(refusals))


def _memory(found: "MemoryEstimate") -> _Memory:
    from traincast.plan.compared import over_limit

    return _Memory(found.worst.total_bytes, found.verdict, over_limit(found))


def _time(prepared: Prepared, ask: tuple[tuple[_Fit, ...], int | None, tuple[float, ...]]) -> _Timed:
    """Rows of shapes; with a `top`, not of those whose lower bound is above the slowest of the fastest so far."""
    from traincast.lower import lower

    fit, top, fastest = ask
    lowered: list[_Lowered] = []
    refusals: list[Refusal] = []
    for shape, memory in fit:
        job = job_of(prepared, shape)
        try:
            lowered.append(_Lowered(shape, memory, job, lower(job).program))
        except TraincastError as error:
            refusals.append((shape, f"{shape}: {error}"))
    if top is None:
        return _Timed(tuple(_rows(prepared.scenario, lowered)), 0, tuple(refusals))
    rows: list[SweepRow] = []
    bounded = sorted(((lower_bound_s(one.program), one) for one in lowered), key=lambda pair: (pair[0], pair[1].shape))
    while bounded and not (len(fastest) == top and bounded[0][0] > fastest[-1]):
        now, bounded = bounded[:top], bounded[top:]
        rows += _rows(prepared.scenario, [one for _, one in now])
        fastest = tuple(sorted((*fastest, *_fastest(rows[-len(now) :], top)))[:top])
    return _Timed(tuple(rows), len(bounded), tuple(refusals))


@dataclass(frozen=True, eq=False)
class _Lowered:
    """A shape on its way to a row."""

    shape: Shape
    memory: _Memory
    job: "Job"
    program: "Program"


def _rows(scenario: "Scenario", lowered: Sequence[_Lowered]) -> Iterator[SweepRow]:
    from traincast.analytic import evaluate_batch
    from traincast.schedule import AUTOMATIC

    if not lowered:
        return
    times = evaluate_batch([one.program for one in lowered])
    for one, seconds in zip(lowered, times.tolist(), strict=True):
        # of a search that what it found holds: what was sized before is the most that it may hold
        searched = one.job.recipe.schedule in AUTOMATIC
        memory = _memory(memory_of(one.job, one.program.schedule)) if searched else one.memory
        rates = rates_of(one.job, seconds)
        yield SweepRow(
            shape=one.shape,
            schedule=one.job.recipe.schedule,
            step_time_s=seconds,
            tflops_hardware=rates.tflops_per_gpu["hardware"],
            tflops_model=rates.tflops_per_gpu["model"],
            mfu=rates.mfu,
            hfu=rates.hfu,
            memory_bytes=memory.memory_bytes,
            verdict=memory.verdict,
            over_limit=memory.over_limit,
            sets=sets_of(scenario, one.shape),
        )


_Run = Callable[[Callable[[Prepared, Any], Any], Any], Iterator[Any]]


@contextmanager
def _workers(scenario: "Scenario", processes: int) -> Iterator[_Run]:
    """Runs a function on parts and gives what it finds in their order, never more than `_AHEAD` parts ahead."""
    if processes == 1:
        prepared = prepare(scenario)
        yield lambda work, parts: (work(prepared, part) for part in parts)
        return
    from collections import deque
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(processes, get_context("spawn"), _begin, (scenario,)) as pool:

        def shared(work: Callable[[Prepared, Any], Any], parts: Any) -> Iterator[Any]:
            waiting: deque[Future[Any]] = deque()
            for part in parts:
                waiting.append(pool.submit(_work, work, part))
                if len(waiting) == _AHEAD:
                    yield waiting.popleft().result()
            yield from (one.result() for one in waiting)

        yield shared


_here: list[Prepared] = []
"""Of a worker process: the scenario that it works on."""


def _begin(scenario: "Scenario") -> None:
    _here[:] = [prepare(scenario)]


def _work(work: Callable[[Prepared, Any], Any], part: Any) -> Any:
    return work(_here[0], part)
