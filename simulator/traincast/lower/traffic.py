"""Bytes that one GPU sends per step on each axis, counted from the same operators that are timed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from traincast.lower.ahead import updated_bytes
from traincast.lower.classes import CostBook, CostBooks, way_out
from traincast.lower.job import Job
from traincast.lower.program import ReduceBucket
from traincast.lower.rings import RINGS
from traincast.lower.sharded import family_of
from traincast.lower.spans import RankSpans
from traincast.lower.stages import backward_segments, forward_segments
from traincast.model.context import ACROSS, HEADS, NEXT
from traincast.model.operators import Collective
from traincast.schedule import model_parts, neighbours
from traincast.topology import Span

SENT = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "broadcast": 1.0}
"""Bytes that a rank of n sends in a ring, in units of size * (n-1)/n (SC21 §3.2: 8 b s h (t-1)/t a layer)."""

AXIS_OF = {
    **{"next": "pp", "previous": "pp", "embedding": "dp", "shard": "dp", "replica": "dp"},
    **dict.fromkeys((NEXT, ACROSS, HEADS), "cp"),
}
"""Axis of a family where it is not the family itself."""


@dataclass(frozen=True)
class AxisTraffic:
    """Per GPU and step, mean over ranks: collective or message calls, bytes sent, bytes of them that leave a node."""

    calls: float
    bytes_per_gpu: float
    cross_node_bytes: float


@dataclass(frozen=True)
class Sent:
    """What one rank of a stage sends in a step in its group of a family (a name of `spans.FAMILIES`)."""

    family: str
    calls: float
    bytes_sent: float


def traffic(job: Job, books: CostBooks, spans: RankSpans) -> dict[str, AxisTraffic]:
    """Traffic of the tp, cp, pp and dp axes, mean over all ranks.

    Ranks of a stage with equal spans send alike. Others do not where nodes are uneven, ranks are placed or a dead GPU
    moved them on: some groups then leave their node while others stay inside.
    """
    totals: dict[str, list[float]] = {axis: [0, 0, 0] for axis in ("tp", "cp", "pp", "dp")}
    stages, pp = job.mesh.coordinates()["pp"], job.mesh.pp
    alike = np.unique(np.column_stack([stages, spans.ids]), axis=0, return_index=True, return_counts=True)
    for rank, count in zip(alike[1].tolist(), alike[2].tolist(), strict=True):
        own, share = spans.of(rank), count / (job.mesh.world // pp)
        for sent in stage_traffic(books.at(rank), int(stages[rank]), own):
            entry = totals[AXIS_OF.get(sent.family, sent.family)]
            entry[0] += share * sent.calls
            entry[1] += share * sent.bytes_sent
            entry[2] += share * sent.bytes_sent * _cross_share(sent.family, own)
    return {axis: AxisTraffic(a / pp, b / pp, c / pp) for axis, (a, b, c) in totals.items() if a > 0}


def _cross_share(family: str, own: Mapping[str, Span]) -> float:
    """Share of a rank's bytes that leave the node.

    A ring over N nodes of n ranks crosses on N of n hops, and on none where there is a ring across nodes as well; an
    exchange of heads goes to all other ranks alike.
    """
    if family == NEXT and ACROSS in own:
        return 0.0
    span = own[RINGS if family == NEXT else family]
    if span.nodes <= 1:
        return 0.0
    if family == HEADS:
        return (span.ranks - span.ranks_per_node) / (span.ranks - 1)
    return min(1.0, span.nodes / span.ranks)


def stage_traffic(book: CostBook, stage: int, own: Mapping[str, Span]) -> Iterator[Sent]:
    """Everything that one rank of a stage sends in a step; `own` are its spans by family."""
    alike = book.job.microbatches - (book.last is not None)
    yield from _passes(book, stage, own, alike)
    if book.last is not None:
        yield from _passes(book.last, stage, own, 1)
    yield from _gradients(book, stage, own)


def _passes(book: CostBook, stage: int, own: Mapping[str, Span], microbatches: int) -> Iterator[Sent]:
    """What the passes of so many alike microbatches send."""
    job = book.job
    name, pp, v = job.recipe.schedule, job.mesh.pp, job.chunks
    around = neighbours(name, pp, v)
    # where the model runs both ways, each copy sees half of the microbatches
    m = float(microbatches) * model_parts(name, pp, v) / (pp * v)
    for chunk, index in enumerate(book.held(stage)):
        for segment in (*forward_segments(job, book.parts[index]), *backward_segments(job, book.parts[index])):
            for op in segment.operators:
                if isinstance(op, Collective) and (family := family_of(op.family, own)) in own:
                    yield Sent(family, m, m * _sent(op.op, op.size_bytes, own[family]))
        for way in (way_out("F", around[stage, chunk]), way_out("B", around[stage, chunk])):
            if way is not None:
                yield Sent(way, m, m * _message_bytes(job))


def _message_bytes(job: Job) -> float:
    """Bytes of one message between stages that one rank sends."""
    recipe, size = job.recipe, job.hidden_bytes
    return size / job.mesh.tp if recipe.scatter_gather or recipe.sequence_parallel else size


def _gradients(book: CostBook, stage: int, own: Mapping[str, Span]) -> Iterator[Sent]:
    job = book.job
    how, family = book.sharding, family_of("dp", own)
    buckets: tuple[ReduceBucket, ...] = book.buckets(stage, own)
    for bucket in buckets:
        if how.sums_whole or how.shards == 1:
            yield Sent("dp", 1.0, _sent("all_reduce", bucket.bytes_per_rank, own["dp"]))
            continue
        yield Sent(family, 1.0, _sent("reduce_scatter", bucket.bytes_per_rank, own[family]))
        if "replica" in own:
            yield Sent("replica", 1.0, _sent("all_reduce", bucket.bytes_per_rank / how.shards, own["replica"]))
    if how.gathers in ("update", "step") and "dp" in own:
        parameters = book.stage_parameters(stage)
        # what is gathered in front of a pass is in the type of the pass; only what an update leaves may be in fp8
        size = updated_bytes(job, parameters, book.layers(stage) if how.gathers == "update" else 0)
        yield Sent(family, 1.0, _sent("all_gather", size, own[family]))
    if "embedding" in own and job.model.tied_embeddings:
        yield Sent("embedding", 1.0, _sent("all_reduce", book.embedding_bytes(), own["embedding"]))


def _sent(op: str, size: float, span: Span) -> float:
    return size if op == "send_recv" else SENT[op] * size * (span.ranks - 1) / span.ranks
