"""Stages on GPUs of different speed: the split of layers that balances them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.errors import ShapeError
from traincast.lower import Job
from traincast.lower.classes import CostBook, CostBooks
from traincast.lower.seats import take_seats
from traincast.lower.spans import FAMILIES, rank_spans
from traincast.lower.stages import ChunkPart
from traincast.mesh import balanced_layers
from traincast.topology import Span


@dataclass(frozen=True)
class StagePace:
    """One stage on its slowest GPU: seconds of forward and backward of a microbatch for one layer, and for embedding
    and head beside them."""

    stage: int
    gpu: str
    speed: float
    layer_s: float
    fixed_s: float
    layers: int
    """Layers that the stage has now."""

    @property
    def seconds(self) -> float:
        """Forward and backward of one microbatch with the layers that the stage has."""
        return self.fixed_s + self.layers * self.layer_s


def stage_paces(job: Job) -> tuple[StagePace, ...]:
    """The pace of every stage of a job. A group waits for its slowest member, so the slowest rank of a stage counts."""
    mesh, spans = job.mesh, rank_spans(job.mesh, job.cluster)
    seats = take_seats(job, spans)
    books = CostBooks(job, (), seats)
    layers = job.recipe.stage_layers or balanced_layers(job.model.layers, mesh.pp, job.chunks)
    kinds = np.column_stack([mesh.coordinates()["pp"], seats.of_rank, spans.ids[:, FAMILIES.index("tp")]])
    _, examples = np.unique(kinds, axis=0, return_index=True)
    slowest: dict[int, StagePace] = {}
    for rank in examples.tolist():
        stage = int(kinds[rank, 0])
        pace = _pace(books.at(rank), stage, spans.of(rank), sum(layers[stage :: mesh.pp]))
        if stage not in slowest or pace.layer_s > slowest[stage].layer_s:
            slowest[stage] = pace
    return tuple(slowest[stage] for stage in range(mesh.pp))


def _pace(book: CostBook, stage: int, spans: Mapping[str, Span], layers: int) -> StagePace:
    first, last = stage == 0, stage == book.job.mesh.pp - 1

    def seconds(part: ChunkPart) -> float:
        return book.time("F", part, spans).duration_s + book.time("B", part, spans).duration_s

    layer_s = seconds(ChunkPart(2, False, False)) - seconds(ChunkPart(1, False, False))
    fixed_s = max(0.0, seconds(ChunkPart(1, first, last)) - layer_s) if first or last else 0.0
    return StagePace(stage, book.machine.gpu.name, book.machine.speed, layer_s, fixed_s, layers)


def balanced_stage_layers(job: Job, paces: Sequence[StagePace] | None = None) -> tuple[int, ...]:
    """Layers of each chunk, in pipeline order, that make the slowest stage as fast as can be.

    Notes
    -----
    A pipeline runs at the pace of its slowest stage, max over stages of fixed + layers * seconds of a layer. Layers are
    given one by one to the stage that would be fastest with one more; for layers of equal cost that is the optimum
    (Graham's rule on machines of different speed, equal jobs). Every stage keeps at least one layer a chunk. Raises
    ShapeError where there are fewer layers than chunks.
    """
    paces = paces or stage_paces(job)
    pp, chunks = job.mesh.pp, job.chunks
    if job.model.layers < pp * chunks:
        raise ShapeError(
            f"{job.model.layers} layers are fewer than pp {pp} * vpp {chunks} chunks", fix="use a smaller pp or vpp"
        )
    counts = [chunks] * pp
    for _ in range(job.model.layers - pp * chunks):
        stage = min(range(pp), key=lambda one: paces[one].fixed_s + (counts[one] + 1) * paces[one].layer_s)
        counts[stage] += 1
    return tuple(
        counts[stage] // chunks + (chunk < counts[stage] % chunks) for chunk in range(chunks) for stage in range(pp)
    )
