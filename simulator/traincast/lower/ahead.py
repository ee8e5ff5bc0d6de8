"""Updated parameters gathered beside the next step's first forward passes.

A sharded optimiser leaves each rank with its share of the new parameters. Megatron-Core and NeMo gather them bucket by
bucket: the gather of a layer is issued when the layer before it begins, and that of a later chunk while the first
microbatches pass the chunks before it. What is exposed is the gather of the first bucket, and whatever the passes do
not cover.

References
----------
[1] Megatron-Core, distributed/param_and_grad_buffer.py (overlap_param_gather: the next bucket group's all-gather is
    issued when a bucket group's has ended) and pipeline_parallel/schedules.py (param_sync_func).
[2] NeMo user guide 24.12, "Communication Overlap", data-parallel communication overlap.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from traincast.lower.job import Job
from traincast.lower.sharded import family_of
from traincast.lower.stages import ChunkPart
from traincast.model.block import ACTIVATION_BYTES
from traincast.model.parameters import embedding_parameters, head_parameters, layer_parameters, norm_parameters
from traincast.topology import Span

if TYPE_CHECKING:
    from traincast.lower.classes import CostBook

FP8_BYTES = 1


def exposed_s(gathers_s: Sequence[float], passes_s: Sequence[float]) -> float:
    """What gathers add to the passes over the same units, each issued when the unit before its own begins [s].

    Notes
    -----
    Unit i begins at b_i = max(b_{i-1} + f_{i-1}, e_i) where its gather ends at e_i = max(e_{i-1}, b_{i-1}) + g_i; the
    first is issued at 0. Never less than g_0, nor than the sum of all gathers less that of all passes but the last.
    """
    begin = ended = 0.0
    before = 0.0
    for gather_s, pass_s in zip(gathers_s, passes_s, strict=True):
        ended = max(ended, begin) + gather_s
        begin = max(begin + before, ended)
        before = pass_s
    return max(begin + before - sum(passes_s), 0.0)


def units_of(part: ChunkPart) -> tuple[ChunkPart, ...]:
    """A chunk in units that are gathered one by one: embedding, layers, head with the final norm."""
    ends = [ChunkPart(0, embedding=True, head=False)] if part.embedding else []
    ends += [replace(part, layers=1, embedding=False, head=False)] * part.layers
    return (*ends, *([ChunkPart(0, embedding=False, head=True)] if part.head else []))


def parameters_ahead_s(book: "CostBook", stage: int, spans: Mapping[str, Span]) -> float:
    """What the step loses to gathers of a stage's updated parameters that run beside its first forward passes [s].

    The first chunk is gathered in front of and beside its first pass; each later one beside the p passes that the
    first microbatches make through the chunk before it.
    """
    chunks = [book.parts[index] for index in book.held(stage)]
    first = units_of(chunks[0])
    lost_s = exposed_s([_gather_s(book, one, spans) for one in first], [book.forward_s(one, spans) for one in first])
    for before, part in pairwise(chunks):
        gather_s = sum(_gather_s(book, one, spans) for one in units_of(part))
        lost_s += max(0.0, gather_s - book.job.mesh.pp * book.forward_s(before, spans))
    return lost_s


def updated_bytes(job: Job, parameters: int, layers: int) -> float:
    """Size of `parameters` of a tensor-parallel rank, those of `layers` layers among them, as gathered once updated
    [bytes].

    In the type of the passes: of half precision, but those of layers in fp8 where the stack keeps them so in an fp8 run
    (`fp8_params`). In mxfp8 they travel in half precision and are cast as they are copied out of the buffer
    (Megatron-Core, reuse_grad_buf_for_mxfp8_param_ag). So do embedding, head and final norm.
    """
    halved = job.recipe.precision == "fp8" and job.profile.traits.fp8_params
    narrow = layers * layer_parameters(job.model, job.mesh.tp) if halved else 0
    return float(ACTIVATION_BYTES * (parameters - narrow) + FP8_BYTES * narrow)


def _gather_s(book: "CostBook", part: ChunkPart, spans: Mapping[str, Span]) -> float:
    """All-gather of a unit's parameters, in buckets of as many elements as the gradients' have [s].

    A bucket closes with a whole parameter, so that the embedding and the head are one each.
    """
    job, elements = book.job, _parameters(book, part)
    count = math.ceil(elements * job.recipe.reduce_bytes / job.bucket_bytes) if part.layers else 1
    size = updated_bytes(job, elements, part.layers) / count
    return count * book.collective_s("all_gather", size, family_of("dp", spans), spans)


def _parameters(book: "CostBook", part: ChunkPart) -> int:
    model, tp = book.job.model, book.job.mesh.tp
    found = part.layers * layer_parameters(model, tp)
    found += embedding_parameters(model, tp) if part.embedding else 0
    return found + (head_parameters(model, tp) + norm_parameters(model) if part.head else 0)
