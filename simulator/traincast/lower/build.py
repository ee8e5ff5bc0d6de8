"""From a job to the program that the evaluators run: spans, classes, costs, wiring."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.lower.classes import ClassCosts, CostBooks
from traincast.lower.flows import Contention, lay_out, with_sharing
from traincast.lower.fold import ClassWiring, RankGroups, class_wiring, refine
from traincast.lower.job import Job
from traincast.lower.program import Program, RankClass
from traincast.lower.seats import take_seats
from traincast.lower.spans import RankSpans, rank_spans
from traincast.lower.split import stage_times
from traincast.lower.stages import chunk_parts
from traincast.lower.traffic import AxisTraffic, traffic
from traincast.lower.unmodelled import refuse_too_many, refuse_unmodelled
from traincast.lower.wires import refine_by_links
from traincast.memory import weight_gradient_share
from traincast.schedule import AUTOMATIC, Schedule, ScheduleKey, build_timed
from traincast.schedule import build as build_schedule


@dataclass(frozen=True)
class Lowered:
    """A program with what else was computed on the way: traffic per axis, and the spans of all groups."""

    program: Program
    traffic: dict[str, AxisTraffic]
    spans: RankSpans


def lower(job: Job, *, fold: bool = True, contention: bool | Contention = False) -> Lowered:
    """Lower a job to a program.

    With `fold`, ranks that cannot be told apart share a class (exact for deterministic durations); without, every rank
    is its own class, which is the oracle for small worlds. With `contention` messages and gradient buckets share links
    in the engine, as `lower.flows` says; without, all groups of a family share them statically and families do not
    meet.
    """
    refuse_unmodelled(job.mesh, job.recipe)
    refuse_too_many(job.mesh, job.recipe)
    spans = rank_spans(job.mesh, job.cluster, job.recipe.schedule)
    seats = take_seats(job, spans)
    books = CostBooks(job, chunk_parts(job), seats)
    groups = _rank_groups(job, spans)
    stages = job.mesh.coordinates()["pp"]
    chosen = Contention() if contention is True else contention
    layout = lay_out(job, spans, chosen) if chosen else None
    if fold:
        ids = spans.ids if layout is None else np.column_stack([spans.ids, layout.cohorts.ids])
        colours = np.column_stack([stages, seats.of_rank, ids])
        classes = refine(np.unique(colours, axis=0, return_inverse=True)[1], groups.families())
        if layout is not None:
            classes = refine_by_links(classes, groups, layout.wires)
    else:
        classes = np.arange(job.mesh.world)
    rank_classes = tuple(
        _rank_class(wire, int(stages[wire.example_rank]), books, spans) for wire in class_wiring(classes, groups)
    )
    key, schedule = _schedule(job, rank_classes)
    rolling = job.recipe.post_validation
    program = Program(schedule, key, job.recipe.p2p, rank_classes, rolling=rolling)
    if layout is not None:
        program = with_sharing(program, classes, layout, books)
    return Lowered(program, traffic(job, books, spans), spans)


def _schedule(job: Job, classes: Sequence[RankClass]) -> tuple[ScheduleKey, Schedule]:
    """The order of a job's passes; the automatic ones are searched for the times of the first class of each stage."""
    recipe, mesh = job.recipe, job.mesh
    key = (recipe.schedule, mesh.pp, job.microbatches, job.chunks)
    if recipe.schedule not in AUTOMATIC:
        return key, build_schedule(*key)
    first = {cls.stage: cls for cls in reversed(classes)}
    times = [stage_times(first[stage].chunks) for stage in range(mesh.pp)]
    return build_timed(key, times, min(1.0, weight_gradient_share(job.model, mesh, recipe)))


def _rank_groups(job: Job, spans: RankSpans) -> RankGroups:
    """Groups of ranks that act together: barriers of TP, of the gradients, and of the tail."""
    groups = spans.groups
    tail = {}
    if groups["embedding"].shape[1] > 1 and job.model.tied_embeddings:
        tail["embedding"] = groups["embedding"]
    if groups["model"].shape[1] > 1 and not job.recipe.post_validation:
        tail["gradient norm"] = groups["model"]
    return RankGroups(
        pipeline=job.mesh.groups("pp"),
        meets=(groups["tp"],) if groups["tp"].shape[1] > 1 else (),
        dp_meets=(groups["dp"],) if groups["dp"].shape[1] > 1 else (),
        tail_meets=tail,
    )


def _rank_class(wire: ClassWiring, stage: int, books: CostBooks, spans: RankSpans) -> RankClass:
    costs: ClassCosts = books.at(wire.example_rank).costs(stage, spans.of(wire.example_rank))
    tail = tuple(replace(op, meets=wire.tail_meets.get(op.name, ())) for op in costs.tail)
    return RankClass(
        stage=stage,
        ranks=wire.ranks,
        example_rank=wire.example_rank,
        chunks=costs.chunks,
        previous=wire.previous,
        next=wire.next,
        meets=wire.meets,
        dp_meets=wire.dp_meets,
        buckets=costs.buckets,
        tail=tail,
    )
