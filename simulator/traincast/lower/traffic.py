"""Bytes that one GPU sends per step on each axis, counted from the same operators that are timed."""

from collections.abc import Mapping
from dataclasses import dataclass

from traincast.lower.classes import CostBook
from traincast.lower.job import Job
from traincast.lower.spans import RankSpans
from traincast.lower.stages import backward_segments, forward_segments
from traincast.model.operators import ACTIVATION_BYTES, Collective
from traincast.topology import Span

SENT = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "broadcast": 1.0}
"""Bytes that a rank of n sends in a ring, in units of size * (n-1)/n (SC21 §3.2: 8 b s h (t-1)/t a layer)."""


@dataclass(frozen=True)
class AxisTraffic:
    """Per GPU and step, mean over ranks: collective or message calls, bytes sent, bytes of them that leave a node."""

    calls: float
    bytes_per_gpu: float
    cross_node_bytes: float


def traffic(job: Job, book: CostBook, spans: RankSpans) -> dict[str, AxisTraffic]:
    """Traffic of the tp, pp and dp axes, averaged over the ranks of one replica column (one rank per stage)."""
    totals: dict[str, list[float]] = {"tp": [0, 0, 0], "pp": [0, 0, 0], "dp": [0, 0, 0]}
    representatives = job.mesh.groups("pp")[0]
    for stage, rank in enumerate(representatives):
        own = spans.of(int(rank))
        for axis, calls, size, span in _stage_calls(job, book, stage, own):
            entry = totals[axis]
            entry[0] += calls
            entry[1] += size
            entry[2] += size * _cross_share(span)
    n = len(representatives)
    return {axis: AxisTraffic(a / n, b / n, c / n) for axis, (a, b, c) in totals.items() if a > 0}


def _cross_share(span: Span) -> float:
    """Share of a rank's bytes that leave the node: a ring over N nodes of n ranks crosses on N of n hops."""
    if span.nodes <= 1:
        return 0.0
    return min(1.0, span.nodes / span.ranks)


def _stage_calls(job: Job, book: CostBook, stage: int, own: Mapping[str, Span]) -> list[tuple[str, float, float, Span]]:
    """(axis, calls, bytes sent, span) of everything one rank of a stage sends in a step."""
    found: list[tuple[str, float, float, Span]] = []
    m, pp = job.microbatches, job.mesh.pp
    for chunk in range(job.chunks):
        index = chunk * pp + stage
        part = book.parts[index]
        if "tp" in own:
            for segment in (*forward_segments(job, part), *backward_segments(job, part)):
                found += [
                    ("tp", m, m * _sent(op.op, op.size_bytes, own["tp"]), own["tp"])
                    for op in segment.operators
                    if isinstance(op, Collective)
                ]
        found += _messages(job, index, len(book.parts), own)
    found += [
        (
            "dp",
            1,
            _sent("reduce_scatter" if job.recipe.zero_stage else "all_reduce", b.bytes_per_rank, own["dp"]),
            own["dp"],
        )
        for b in book.buckets(stage, own)
    ]
    if job.recipe.zero_stage and "dp" in own:
        size = book.stage_parameters(stage) * float(ACTIVATION_BYTES)
        found.append(("dp", 1, _sent("all_gather", size, own["dp"]), own["dp"]))
    return found


def _sent(op: str, size: float, span: Span) -> float:
    return SENT[op] * size * (span.ranks - 1) / span.ranks


def _messages(job: Job, index: int, total: int, own: Mapping[str, Span]) -> list[tuple[str, float, float, Span]]:
    recipe = job.recipe
    size = float(recipe.microbatch * recipe.sequence * job.model.hidden * ACTIVATION_BYTES)
    if recipe.scatter_gather or recipe.sequence_parallel:
        size /= job.mesh.tp
    m = job.microbatches
    sends = []
    if index < total - 1:
        sends.append(("pp", m, m * size, own["next"]))
    if index > 0:
        sends.append(("pp", m, m * size, own["previous"]))
    return [(axis, float(calls), sent, span) for axis, calls, sent, span in sends]
