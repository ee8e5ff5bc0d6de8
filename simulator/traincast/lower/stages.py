"""Which layers a chunk holds, and the segments of operators that its passes run."""

from dataclasses import dataclass

from traincast.errors import ShapeError
from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.model import operators as op
from traincast.model.parameters import padded_vocab
from traincast.recipe import BYTES_PER_ELEMENT
from traincast.schedule import model_parts


@dataclass(frozen=True)
class ChunkPart:
    """Contents of one model chunk: transformer layers, and whether it carries embedding or head."""

    layers: int
    embedding: bool
    head: bool


def chunk_parts(job: Job) -> tuple[ChunkPart, ...]:
    """Contents of each part of the model in the order of its layers (length pp * vpp; pp where two copies run)."""
    total = model_parts(job.recipe.schedule, job.mesh.pp, job.chunks)
    layers = job.recipe.stage_layers
    if layers is None:
        if job.model.layers % total:
            raise ShapeError(
                f"{job.model.layers} layers do not divide over {total} chunks "
                f"(pp {job.mesh.pp} x vpp {total // job.mesh.pp})",
                fix="choose pp x vpp that divides the layers, or give training.stage_layers",
            )
        layers = (job.model.layers // total,) * total
    return tuple(ChunkPart(n, i == 0, i == total - 1) for i, n in enumerate(layers))


def block_of(job: Job) -> op.Block:
    """The decoder block that a rank computes, from model, mesh, recipe and what the stack does."""
    model, recipe, traits = job.model, job.recipe, job.profile.traits
    return op.Block(
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        ffn_hidden=model.ffn_hidden,
        gated_mlp=model.gated_mlp,
        rotary=model.positions == "rotary",
        microbatch=recipe.microbatch,
        sequence=recipe.sequence,
        tp=job.mesh.tp,
        sequence_parallel=recipe.sequence_parallel,
        flash=recipe.attention == "flash",
        dropout=traits.dropout,
        overlap_tp=traits.overlap_tp,
        fused_accumulation=traits.fused_accumulation,
        main_gradient_bytes=BYTES_PER_ELEMENT[recipe.gradient_dtype],
    )


def forward_segments(job: Job, part: ChunkPart) -> tuple[Segment, ...]:
    """Operators of the forward pass of one chunk."""
    block = block_of(job)
    vocabulary = padded_vocab(job.model.vocab, job.mesh.tp) // job.mesh.tp
    segments: list[Segment] = []
    if part.embedding:
        segments.append(Segment(op.embedding_forward(block)))
    segments += [Segment(op.block_forward(block))] * part.layers
    if part.head:
        segments.append(Segment(op.head_forward(block, vocabulary)))
    return tuple(segments)


def backward_segments(job: Job, part: ChunkPart) -> tuple[Segment, ...]:
    """Operators of the backward pass of one chunk, recomputation included; one mark after each weight-bearing part.

    Marks: head (if any), then the layers from last to first, then the embedding (if any).
    """
    block = block_of(job)
    vocabulary = padded_vocab(job.model.vocab, job.mesh.tp) // job.mesh.tp
    segments: list[Segment] = []
    if part.head:
        segments.append(Segment(op.head_backward(block, vocabulary), mark=True))
    segments += layer_backward(block, job.recipe.recompute) * part.layers
    if part.embedding:
        segments.append(Segment(op.embedding_backward(block, vocabulary), mark=True))
    return tuple(segments)


def layer_backward(block: op.Block, recompute: str) -> list[Segment]:
    """Backward of one layer: the forward again (full), the attention core again (selective), or neither.

    A recomputed forward of a checkpointed layer repeats its collectives (SC21 §3.2: 12 b s h in place of 8).
    """
    if recompute == "full":
        return [Segment(op.block_forward(block), "recompute"), Segment(op.block_backward(block), mark=True)]
    if recompute == "selective":
        return [
            Segment(op.mlp_backward(block)),
            Segment(op.attention_core_forward(block), "recompute"),
            Segment(op.attention_backward(block), mark=True),
        ]
    return [Segment(op.block_backward(block), mark=True)]
