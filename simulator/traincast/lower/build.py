"""From a job to the program that the evaluators run: spans, classes, costs, wiring."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from traincast.lower.classes import ClassCosts, CostBooks
from traincast.lower.context import context_labels, ring_positions
from traincast.lower.flows import Contention, lay_out, with_sharing
from traincast.lower.fold import ClassWiring, RankGroups, class_wiring, refine
from traincast.lower.job import Job
from traincast.lower.offload import host_seats
from traincast.lower.pace import refine_by_layout
from traincast.lower.program import Label, Program, RankClass
from traincast.lower.rings import split_of
from traincast.lower.seats import Seats, take_seats
from traincast.lower.sharded import in_passes, shard_group, sharding_of
from traincast.lower.spans import RankSpans, rank_spans
from traincast.lower.split import stage_times
from traincast.lower.stages import chunk_parts
from traincast.lower.traffic import AxisTraffic, traffic
from traincast.lower.unmodelled import refuse_too_many, refuse_unmodelled
from traincast.memory import MemoryJob, overheads_of, weight_share
from traincast.mesh.contextchecks import context_problems
from traincast.mesh.problems import refuse
from traincast.schedule import AUTOMATIC, Schedule, ScheduleKey, build_timed
from traincast.schedule import build as build_schedule

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Lowered:
    """A program, with the spans of all groups and, once asked for, the traffic per axis."""

    job: Job
    program: Program
    books: CostBooks
    spans: RankSpans
    paced: bool = False
    """Whether ranks that only hashed links tell apart share a class (`lower.pace`)."""

    @cached_property
    def traffic(self) -> dict[str, AxisTraffic]:
        """Calls and bytes per axis; a tenth of the work of lowering, which tables of many steps do not need."""
        return traffic(self.job, self.books, self.spans)


def lower(job: Job, *, fold: bool = True, contention: bool | Contention = False) -> Lowered:
    """Lower a job to a program.

    With `fold`, ranks that cannot be told apart share a class (exact for deterministic durations); without, every rank
    is its own class, which is the oracle for small worlds. With `contention` messages and gradient buckets share links
    in the engine, as `lower.flows` says; without, all groups of a family share them statically and families do not
    meet.
    """
    refuse_unmodelled(job.mesh, job.recipe)
    refuse_too_many(job.mesh, job.recipe)
    refuse(tuple(context_problems(job.model, job.mesh, job.recipe)))
    shard = shard_group(job, sharing=bool(contention))
    spans = rank_spans(job.mesh, job.cluster, job.recipe.schedule, shard, split_of(job.mesh, job.recipe))
    seats = take_seats(job, spans)
    books = CostBooks(job, chunk_parts(job), seats)
    groups = _rank_groups(job, spans)
    chosen = Contention() if contention is True else contention
    layout, paced = lay_out(job, spans, chosen) if chosen else None, False
    if not fold:
        classes = np.arange(job.mesh.world)
        wiring = class_wiring(classes, groups)
    else:
        classes, wiring = _folded(job, spans, seats, groups, None if layout is None else layout.cohorts.ids)
        if layout is not None:
            classes, paced = refine_by_layout(classes, groups, layout, job, spans)
            wiring = class_wiring(classes, groups)
    stages = job.mesh.coordinates()["pp"]
    rank_classes = tuple(
        _rank_class(
            int(stages[wire.example_rank]), wire, books, spans, context_labels(job.mesh, classes, wire.example_rank)
        )
        for wire in wiring
    )
    key, schedule = _schedule(job, rank_classes)
    rolling = job.recipe.post_validation
    program = Program(schedule, key, job.recipe.p2p, rank_classes, rolling=rolling)
    if layout is not None:
        program = with_sharing(program, classes, layout, books)
    return Lowered(job, program, books, spans, paced)


def _folded(
    job: Job, spans: RankSpans, seats: Seats, groups: RankGroups, cohorts: Ints | None
) -> tuple[Ints, tuple[ClassWiring, ...]]:
    """The class of every rank, and the wiring of the classes; once for jobs that nothing tells apart but what their
    ranks run."""
    further = [one for one in (cohorts, ring_positions(job), host_seats(job)) if one is not None]
    key = (tuple(groups.tail_meets), seats.of_rank.tobytes(), *(one.tobytes() for one in further))
    if key not in spans.folded:
        colours = np.column_stack([job.mesh.coordinates()["pp"], seats.of_rank, spans.ids, *further])
        classes = refine(np.unique(colours, axis=0, return_inverse=True)[1], groups.families())
        spans.folded[key] = classes, class_wiring(classes, groups)
    found: tuple[Ints, tuple[ClassWiring, ...]] = spans.folded[key]
    return found


def _schedule(job: Job, classes: Sequence[RankClass]) -> tuple[ScheduleKey, Schedule]:
    """The order of a job's passes; the automatic ones are searched for the times of the first class of each stage.

    A microbatch whose W is due counts as the share of its activations that W needs, but as no more than one: where
    layers recompute, W needs up to 16 times what they keep, and a limit of p would leave no order at all for small p.
    The limit is one of microbatches then; what they hold is counted in full in the memory of the order that is found.
    """
    recipe, mesh = job.recipe, job.mesh
    key = (recipe.schedule, mesh.pp, job.microbatches, job.chunks)
    if recipe.schedule not in AUTOMATIC:
        return key, build_schedule(*key)
    first = {cls.stage: cls for cls in reversed(classes)}
    times = [stage_times(first[stage].chunks) for stage in range(mesh.pp)]
    share = weight_share(MemoryJob(job.model, mesh, recipe, overheads_of(job.profile)))
    return build_timed(key, times, min(1.0, share))


def _rank_groups(job: Job, spans: RankSpans) -> RankGroups:
    """Groups of ranks that act together: barriers of TP, of the gradients, and of the tail."""
    groups = spans.groups
    tail = {}
    if groups["embedding"].shape[1] > 1 and job.model.tied_embeddings:
        tail["embedding"] = groups["embedding"]
    if groups["model"].shape[1] > 1 and not job.recipe.post_validation:
        tail["gradient norm"] = groups["model"]
    if job.recipe.zero_stage >= 2 and sharding_of(job).shards > 1:
        tail["gradient norm of shards"] = groups["shard" if "shard" in groups else "dp"]
    if job.recipe.zero_stage == 1 and groups["dp"].shape[1] > 1:
        tail["parameters"] = groups["dp"]
    return RankGroups(
        pipeline=job.mesh.groups("pp"),
        meets=tuple(found for found in (groups["tp"], job.mesh.groups("cp")) if found.shape[1] > 1),
        dp_meets=(groups["dp"],) if groups["dp"].shape[1] > 1 else (),
        tail_meets=tail,
    )


def _rank_class(
    stage: int, wire: ClassWiring, books: CostBooks, spans: RankSpans, met: Mapping[int, Label]
) -> RankClass:
    costs: ClassCosts = books.at(wire.example_rank).costs(stage, spans.of(wire.example_rank))
    tail = tuple(replace(op, meets=wire.tail_meets[op.name]) if op.name in wire.tail_meets else op for op in costs.tail)
    # replicas that communicate inside passes wait for each other at each of them
    beside = set(wire.dp_meets) - set(wire.meets) if in_passes(books.job) else set()
    return RankClass(
        stage=stage,
        ranks=wire.ranks,
        example_rank=wire.example_rank,
        chunks=costs.chunks,
        previous=wire.previous,
        next=wire.next,
        meets=tuple(sorted({*wire.meets, *beside})),
        meet_labels={**dict.fromkeys(sorted(beside), "dp"), **met},
        dp_meets=wire.dp_meets,
        buckets=costs.buckets,
        tail=tail,
    )
