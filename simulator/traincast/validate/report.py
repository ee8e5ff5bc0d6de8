"""Forecasts of published rows, by the recurrence, many at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.errors import TraincastError, UsageError
from traincast.validate.build import RECOMPUTE_MODES, Candidate, Case, build_case, refuse_unmodelled
from traincast.validate.layer import ONE_LAYER, layer_time
from traincast.validate.measured import printed_time, time_from_rate
from traincast.validate.place import Place, fitted_profiles, place_of
from traincast.validate.rows import PublishedRow, RowSkippedError, UnreadableCellError, expand, read_rows
from traincast.validate.score import FamilyScore, RowScore, Status, family_scores
from traincast.validate.studies import studies_of, with_regret

if TYPE_CHECKING:
    from traincast.lower.job import Job
    from traincast.lower.program import Program
    from traincast.memory import MemoryEstimate

_BATCH = 256
_SHARE = 64
"""Rows that a process takes at a time."""
_INTERNAL = "the program failed"


@dataclass(frozen=True)
class ValidationReport:
    """All rows and the scores of their families. A line each: `failures`, errors of the program itself; `twice`, rows
    that repeat another's id; `unreadable`, cells that say something else than their column asks for."""

    rows: tuple[RowScore, ...]
    families: tuple[FamilyScore, ...]
    failures: tuple[str, ...]
    twice: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON shows it."""
        return {
            "rows": [row.as_dict() for row in self.rows],
            "families": [asdict(one) for one in self.families],
        }


@dataclass(frozen=True)
class Option:
    """One candidate of a row, ready to run: its job and program, and what was chosen and assumed for it."""

    job: "Job"
    program: "Program"
    chosen: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Prepared:
    """A row before its programs have run. Without options it cannot be forecast; `notes` say why."""

    row: PublishedRow
    measured_s: float | None
    status: Status
    notes: tuple[str, ...]
    options: tuple[Option, ...] = ()
    told: str = ""


def published_files() -> tuple[Path, ...]:
    """Where the measured rows lie that come along."""
    from traincast.catalog import data_dir

    return (data_dir() / "scenarios" / "published",)


def read_published(paths: Iterable[Path], families: Sequence[str] = ()) -> tuple[PublishedRow, ...]:
    """The rows of all files, of `families` only where any are named. Raises DataError, UsageError."""
    rows = tuple(row for path in expand(tuple(paths)) for row in read_rows(path))
    known = dict.fromkeys(row.family for row in rows)
    for family in families:
        if family not in known:
            raise UsageError(f"no row of family {family!r}", where="--family", fix=f"use one of {', '.join(known)}")
    return tuple(row for row in rows if not families or row.family in families)


def validate_rows(
    rows: Sequence[PublishedRow], advance: Callable[[int], object] = lambda done: None, *, processes: int = 1
) -> ValidationReport:
    """Forecasts every row that can be, and scores families. `advance` is told how many more rows are done.

    With more than one process the rows are shared out; the report is the same.
    """
    first: dict[str, PublishedRow] = {}
    once = [first.setdefault(row.id, row) is row for row in rows]
    new = [row for row, is_new in zip(rows, once, strict=True) if is_new]
    advance(len(rows) - len(new))
    found = iter(_shared_out(new, advance, processes) if processes > 1 else _forecast(new, advance))
    scores = [
        next(found) if is_new else _without_forecast(_twice(row, first[row.id]), ())
        for row, is_new in zip(rows, once, strict=True)
    ]
    failures = tuple(f"{score.id}: {score.reason}" for score in scores if score.reason.startswith(_INTERNAL))
    families = with_regret(family_scores(scores), studies_of(scores, rows))
    twice = tuple(
        f"{row.file}:{row.line}: id {row.id} stands already in {first[row.id].file}:{first[row.id].line}; scored once"
        for row, is_new in zip(rows, once, strict=True)
        if not is_new
    )
    return ValidationReport(tuple(scores), families, failures, twice, tuple(one.told for one in scores if one.told))


def _forecast(rows: Sequence[PublishedRow], advance: Callable[[int], object] = lambda done: None) -> list[RowScore]:
    """Scores of rows, in their order; programs of many rows run together."""
    scores: list[RowScore] = []
    waiting: list[Prepared] = []
    for row in rows:
        waiting.append(prepare_row(row))
        advance(1)
        if sum(len(one.options) for one in waiting) >= _BATCH:
            scores += _finish(waiting)
            waiting = []
    return scores + _finish(waiting)


def _shared_out(rows: Sequence[PublishedRow], advance: Callable[[int], object], processes: int) -> list[RowScore]:
    """As `_forecast`, over processes: neighbouring rows, which share schedules and clusters, stay together."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    parts = [rows[i : i + _SHARE] for i in range(0, len(rows), _SHARE)]
    scores: list[RowScore] = []
    with ProcessPoolExecutor(min(processes, max(len(parts), 1)), get_context("spawn")) as pool:
        for found in pool.map(_forecast, parts):
            scores += found
            advance(len(found))
    return scores


def _twice(row: PublishedRow, before: PublishedRow) -> Prepared:
    """A row whose id was there already: one measurement must not count twice."""
    return Prepared(row, None, "skipped", (f"the id stands already in {before.file}:{before.line}",))


def prepare_row(row: PublishedRow) -> Prepared:
    """Reads a row and lowers its candidates; whatever stands in the way is the reason that it is skipped."""
    measured: float | None = None
    notes: tuple[str, ...] = ()
    try:
        measured, note = printed_time(row)
        notes = (note,) if note else ()
        refuse_unmodelled(row)
        place = place_of(row)
        case = build_case(row, place.profile)
        if measured is None:
            measured, note = time_from_rate(row, case.model)
            notes = (note,) if note else ()
        return _prepared(case, place, measured, notes)
    except (RowSkippedError, TraincastError) as error:
        told = f"{row.file}:{row.line}: {_reason(error)}" if isinstance(error, UnreadableCellError) else ""
        return Prepared(row, measured, "skipped", (*_not_scored(row), _reason(error)), told=told)
    except Exception as error:  # one row must not take the others along; the command reports it and fails
        return Prepared(row, measured, "skipped", (_reason(error),))


def _prepared(case: Case, place: Place, measured_s: float | None, notes: tuple[str, ...]) -> Prepared:
    row = case.row
    why_not = _not_scored(row) + (() if measured_s else ("no time, tokens/s or TFLOP/s of a known convention",))
    status: Status = "skipped" if why_not else "scored"
    fitted_by = fitted_profiles().get(row.id)
    if fitted_by:
        status, why_not = "fitted", (*why_not, f"profile {fitted_by} was fitted on this row")
    options = tuple(_options(case, place))
    return Prepared(row, measured_s, status, (*why_not, *notes, *case.notes, *place.notes), options)


def _not_scored(row: PublishedRow) -> tuple[str, ...]:
    """Why a row is shown but not scored; empty where it counts."""
    reasons = []
    if row.text("unusual"):
        reasons.append(f"unusual ({row.text('unusual')}): shown, not scored")
    if row.text("grade").upper() not in ("A", "B"):
        reasons.append(f"grade {row.text('grade') or 'not stated'}: shown, not scored")
    return tuple(reasons)


def _options(case: Case, place: Place) -> Iterator[Option]:
    """The candidates to run: those that fit into memory, else those that come nearest.

    Raises the first refusal where every candidate is refused.
    """
    from traincast.lower import lower
    from traincast.lower.job import Job

    sized: list[tuple[Candidate, MemoryEstimate]] = []
    refusals: list[TraincastError] = []
    for candidate in case.candidates:
        try:
            sized.append((candidate, _memory(case, candidate, place)))
        except TraincastError as error:
            refusals.append(error)
    fitting = [one for one in sized if one[1].verdict != "does not fit"]
    kept = _least_recomputation(fitting) or _nearest(sized)
    lowered = 0
    for candidate, memory in kept:
        recipe = candidate.recipe
        job = Job(case.model, case.mesh, recipe, place.profile, place.cluster, place.gpu)
        warning = () if fitting else (f"does not fit by the memory estimate: {memory.reason}",)
        try:
            yield Option(job, lower(job).program, candidate.chosen, (*candidate.notes, *warning))
            lowered += 1
        except TraincastError as error:
            refusals.append(error)
    if not lowered:
        raise refusals[0]


def _nearest(sized: Sequence[tuple[Candidate, "MemoryEstimate"]]) -> "list[tuple[Candidate, MemoryEstimate]]":
    """The candidates that need least; all of them where several need as little."""
    least = min((memory.worst.total_bytes for _, memory in sized), default=0.0)
    return [(candidate, memory) for candidate, memory in sized if memory.worst.total_bytes <= least]


def _least_recomputation(
    fitting: Sequence[tuple[Candidate, "MemoryEstimate"]],
) -> "list[tuple[Candidate, MemoryEstimate]]":
    """Of candidates that differ in recomputation only, the one that recomputes least: it is never slower."""
    best: dict[object, tuple[Candidate, MemoryEstimate]] = {}
    for candidate, memory in fitting:
        rank = _amount(candidate)
        alike = replace(candidate.recipe, recompute="none")
        if alike not in best or rank < _amount(best[alike][0]):
            best[alike] = (candidate, memory)
    return list(best.values())


def _amount(candidate: Candidate) -> int:
    """Place of a recomputation among those that a row may leave open; what a row states has no other beside it."""
    mode = candidate.recipe.recompute
    return RECOMPUTE_MODES.index(mode) if mode in RECOMPUTE_MODES else 0


def _memory(case: Case, candidate: Candidate, place: Place) -> "MemoryEstimate":
    from traincast.memory import MemoryJob, estimate_job, overheads_of

    job = MemoryJob(case.model, case.mesh, candidate.recipe, overheads_of(place.profile))
    return estimate_job(job, place.gpu.memory_bytes)


def _finish(prepared: Sequence[Prepared]) -> list[RowScore]:
    """Runs all programs of these rows at once, and takes the fastest option of each row."""
    outcomes = iter(_step_times([option.program for one in prepared for option in one.options]))
    scores = []
    for one in prepared:
        timed = [(next(outcomes), option) for option in one.options]
        errors = [outcome for outcome, _ in timed if isinstance(outcome, Exception)]
        times = [(outcome, option) for outcome, option in timed if not isinstance(outcome, Exception)]
        scores.append(_without_forecast(one, errors) if not times else _score(one, times))
    return scores


def _step_times(programs: Sequence["Program"]) -> list[float | Exception]:
    """Step time of each program, or what went wrong; programs of one schedule run together."""
    by_schedule: dict[tuple[str, int, int, int], list[int]] = {}
    for index, program in enumerate(programs):
        by_schedule.setdefault(program.schedule_key, []).append(index)
    outcomes: list[float | Exception] = [0.0] * len(programs)
    for members in by_schedule.values():
        for index, outcome in zip(members, _together([programs[i] for i in members]), strict=True):
            outcomes[index] = outcome
    return outcomes


def _together(programs: Sequence["Program"]) -> list[float | Exception]:
    from traincast.analytic import evaluate_batch

    try:
        return [float(seconds) for seconds in evaluate_batch(programs)]
    except Exception as error:
        if len(programs) == 1:
            return [error]
        return [outcome for program in programs for outcome in _together([program])]


def _without_forecast(one: Prepared, errors: Sequence[Exception]) -> RowScore:
    """The score of a row that could not be forecast: lowered in vain, or not at all."""
    reasons = one.notes if not errors else (_reason(errors[0]), *one.notes)
    return RowScore(one.row.id, one.row.family, one.measured_s, None, "skipped", "; ".join(reasons), told=one.told)


def _reason(error: Exception) -> str:
    """An error as the reason of a row: the user's in its own words, the program's own as such."""
    if isinstance(error, RowSkippedError | TraincastError):
        words = error.message if isinstance(error, TraincastError) else str(error)
        return " ".join(words.split())
    return " ".join(f"{_INTERNAL}: {type(error).__name__}: {error}".split())


def _score(one: Prepared, timed: Sequence[tuple[float, Option]]) -> RowScore:
    from traincast.lower.recompute import repeated
    from traincast.model.flops import executed_flops

    seconds, best = min(timed, key=lambda pair: pair[0])
    job = best.job
    one_layer = one.row.text("unusual") == ONE_LAYER
    if one_layer:
        seconds = layer_time(job)
    chosen = f"{', '.join(best.chosen)}: the best that fits" if best.chosen else ""
    batch = one.row.count("global_batch") or job.recipe.global_batch
    flops = executed_flops(job.model, batch, job.recipe.sequence, repeated(job))
    return RowScore(
        id=one.row.id,
        family=one.row.family,
        measured_s=one.measured_s,
        predicted_s=seconds,
        status=one.status,
        reason="; ".join(note for note in (*one.notes, chosen, *best.notes) if note),
        # a layer's time is no step: it says nothing about the family's rate
        executed_flops_per_gpu=None if one_layer else flops / job.mesh.world,
    )
