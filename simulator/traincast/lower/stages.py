"""Which layers a chunk holds, and the segments of operators that its passes run."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

from traincast.errors import ShapeError
from traincast.lower.chunk import Segment
from traincast.lower.context import context_of
from traincast.lower.job import Job
from traincast.lower.offload import host_copy, stays
from traincast.lower.recompute import layers_backward
from traincast.lower.sharded import Root, Unit, backward_pass, forward_pass, gathers_fp8, sharding_of
from traincast.memory import layers_before
from traincast.model import operators as op
from traincast.model.casts import Scaling
from traincast.model.parameters import padded_vocab
from traincast.profile import Traits
from traincast.recipe import BYTES_PER_ELEMENT, Recipe
from traincast.schedule import model_parts


@dataclass(frozen=True)
class ChunkPart:
    """Contents of one model chunk: transformer layers, and whether it carries embedding or head.

    `position` is that of the rank in its context-parallel ring, where it matters (`context_of`). `stays`: no
    activations of its passes leave the GPU, whatever share is offloaded. `before`: how many layers its rank counts
    before these, where every n-th is recomputed, less multiples of n.
    """

    layers: int
    embedding: bool
    head: bool
    position: int | None = None
    stays: bool = False
    before: int = 0

    @property
    def root(self) -> Root:
        """What of the model's root it holds."""
        return Root(self.embedding, self.head)


def chunk_parts(job: Job) -> tuple[ChunkPart, ...]:
    """Contents of each part of the model in the order of its layers (length pp * vpp; pp where two copies run)."""
    total = model_parts(job.recipe.schedule, job.mesh.pp, job.chunks)
    layers = job.recipe.stage_layers
    if layers is None:
        if job.model.layers % total:
            raise ShapeError(
                f"{job.model.layers} layers do not divide over {total} chunks "
                f"(pp {job.mesh.pp} x vpp {total // job.mesh.pp})",
                fix="choose parallelism.pp x vpp that divides the layers, or set training.stage_layers",
            )
        layers = (job.model.layers // total,) * total
    before = layers_before(job.mesh, job.recipe, layers)
    return tuple(
        ChunkPart(n, i == 0, i == total - 1, stays=stays(job, i), before=before[i]) for i, n in enumerate(layers)
    )


def scaling_of(recipe: Recipe, traits: Traits) -> Scaling:
    """How tensors are scaled on their way to fp8: as the recipe says, else as the stack does.

    In mxfp8 blocks are, along both axes at once where the stack's own kernels cast (Transformer Engine), else by axis.
    """
    if recipe.precision == "mxfp8":
        return "block" if traits.fp8_scaling == "delayed" else "block_twice"
    return cast("Scaling", recipe.fp8_scaling or traits.fp8_scaling)


def block_of(job: Job, position: int | None = None) -> op.Block:
    """The decoder block that a rank computes, from model, mesh, recipe and what the stack does."""
    model, recipe, traits = job.model, job.recipe, job.profile.traits
    overlap = recipe.overlap_tp or ("bulk" if traits.overlap_tp else "none")
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
        dropout=traits.drops(model.positions),
        overlap_tp=overlap in ("bulk", "split"),
        split_tp=overlap == "split",
        fp8=recipe.in_fp8,
        scaling=scaling_of(recipe, traits),
        copies_sequence=traits.copies_sequence and overlap != "async" and _sequences_are_inner(recipe),
        complex_rotary=traits.complex_rotary,
        unfused_rotary=traits.unfused_rotary,
        fp8_weights=gathers_fp8(job),
        fp8_transposes=traits.generation == "hopper",
        fused_casts=traits.fused_casts,
        autocast=traits.autocast,
        # what is reduced behind each microbatch needs no sum over them on this rank
        fused_accumulation=traits.fused_accumulation or sharding_of(job).reduces_each,
        summed=_summed(job),
        fused_loss=traits.fused_loss,
        softmax_keys=traits.softmax_keys,
        main_gradient_bytes=BYTES_PER_ELEMENT[recipe.gradient_dtype],
        cp=job.mesh.cp,
        context=context_of(job, position),
    )


def _sequences_are_inner(recipe: Recipe) -> bool:
    """Whether sequences run along an inner dimension, so that ranks' parts of several do not lie one behind another.

    PyTorch gathers along the first dimension and brings parts into place by chunk and cat (all_gather_tensor of
    torch/distributed/_functional_collectives.py). With one sequence they are in place, and `_maybe_view_chunk_cat`
    (torch/_utils.py) returns a view. Assumed of earlier versions and of reduce_scatter_tensor too, whose cat moves
    bytes in eager mode even so; symmetric memory moves dimensions without copies.
    """
    return recipe.microbatch > 1


def _summed(job: Job) -> float:
    """Share of the microbatches whose weight gradients are added to others: all but the first, where nothing else is.

    The optimiser drops half-precision gradients (Megatron-LM's zero_grad sets them to None), so that autograd keeps the
    first microbatch's without a copy. All are added to gradients that live in a buffer: single-precision ones, those
    that products add to themselves (gradient_accumulation_fusion asks for main_grad), and those of Megatron-LM's
    sharded optimiser, which demands such buffers (megatron/arguments.py: use_distributed_optimizer asserts
    use_contiguous_buffers_in_local_ddp; megatron/model/distributed.py: main_grad.add_); DeepSpeed's (known by its flat
    gradients) reduces autograd's. An overlapping DDP copies the last one's into its buckets instead. What is reduced
    behind each microbatch is added to nothing on this rank.
    """
    if sharding_of(job).reduces_each:
        return 0.0
    traits = job.profile.traits
    sharded = job.recipe.zero_stage > 0 and not traits.flat_gradients
    buffered = job.recipe.gradient_dtype == "fp32" or traits.fused_accumulation or sharded
    if buffered or job.overlaps_gradients or not job.first:
        return 1.0
    ragged = job.microbatches > 1 and job.recipe.last_microbatch(job.mesh.dp) < job.recipe.microbatch
    return 1.0 - 1.0 / (job.microbatches - ragged)


def _rows_of_vocabulary(job: Job) -> int:
    """Words whose logits a tensor-parallel rank computes; unpadded, the remainder is left out (vTrain)."""
    if job.profile.traits.pads_vocabulary:
        return padded_vocab(job.model.vocab, job.mesh.tp) // job.mesh.tp
    return job.model.vocab // job.mesh.tp


def forward_segments(job: Job, part: ChunkPart) -> tuple[Segment, ...]:
    """Operators of the forward pass of one chunk."""
    return _copies(job, part, "out") + forward_pass(job, part.root, _forward_units(job, part))


def first_forward_segments(job: Job, part: ChunkPart) -> tuple[Segment, ...]:
    """The same where the pass gathers the chunk's parameters, which later passes find."""
    segments = forward_pass(job, part.root, _forward_units(job, part), gathers=True)
    return _copies(job, part, "out") + segments


def _copies(job: Job, part: ChunkPart, way: Literal["out", "in"]) -> tuple[Segment, ...]:
    return () if part.stays else host_copy(job, part.layers, way, part.before)


def _forward_units(job: Job, part: ChunkPart) -> list[Unit]:
    block = block_of(job, part.position)
    vocabulary = _rows_of_vocabulary(job)
    units: list[Unit] = []
    if part.embedding:
        units.append(Unit((Segment(op.embedding_forward(block)),), layer=False))
    units += [_layer_forward(block)] * part.layers
    if part.head:
        units.append(Unit((Segment(op.head_forward(block, vocabulary)),), layer=False))
    return units


@lru_cache(maxsize=256)
def _layer_forward(block: op.Block) -> Unit:
    return Unit((Segment(op.block_forward(block)),))


def backward_segments(job: Job, part: ChunkPart) -> tuple[Segment, ...]:
    """Operators of the backward pass of one chunk, recomputation included; one mark after each weight-bearing part.

    Marks: head (if any), then the layers from last to first, then the embedding (if any).
    """
    block = block_of(job, part.position)
    vocabulary = _rows_of_vocabulary(job)
    units: list[Unit] = []
    if part.head:
        units.append(Unit((Segment(op.head_backward(block, vocabulary), mark=True, autograd=True),), layer=False))
    early_stop = job.profile.traits.early_stop
    layers = layers_backward(block, job.recipe.recompute, part.layers, before=part.before, early_stop=early_stop)
    units += map(Unit, layers)
    if part.embedding:
        last = Segment(op.embedding_backward(block, vocabulary), mark=True, autograd=True)
        units.append(Unit((last,), layer=False))
    return _copies(job, part, "in") + backward_pass(job, part.root, units)
