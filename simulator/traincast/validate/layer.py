"""The time of one transformer layer, for rows that measure that and not a step."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast.lower import Job

ONE_LAYER = "one_layer_time"
"""What such rows say in their column `unusual`."""


def layer_time(job: "Job") -> float:
    """Seconds of one layer, forward and backward with recomputation, without embedding, head, optimiser."""
    from traincast.lower.classes import CostBook
    from traincast.lower.spans import rank_spans
    from traincast.lower.stages import ChunkPart, chunk_parts

    spans = rank_spans(job.mesh, job.cluster).of(0)
    book, layer = CostBook(job, chunk_parts(job)), ChunkPart(layers=1, embedding=False, head=False)
    return book.time("F", layer, spans).duration_s + book.time("B", layer, spans).duration_s
