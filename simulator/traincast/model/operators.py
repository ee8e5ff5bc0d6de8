"""Operators of one microbatch on one rank, with the true shapes that the GPU sees.

A decoder block is lowered to a tuple of operators in program order. Nothing here knows seconds: `costs` turns an
operator into time, `lower` puts the times on streams. Volumes follow SC21 §3.2 (tensor parallelism), Korthikanti et al.
2022 §4 (sequence parallelism, selective recomputation) and the released Megatron-LM sources of those papers.

Byte counts of memory-bound work are per element of the tensor that the kernel walks, with 2-byte activations:
a fused bias-dropout-add reads the input and the residual (2+2), writes the sum (2) and a one-byte mask (1): 7.
"""

from dataclasses import replace

from traincast.model.block import (
    ACTIVATION_BYTES,
    Block,
    Collective,
    CollectiveAxis,
    CollectiveOp,
    Context,
    ContextStyle,
    FlashAttention,
    Gemm,
    HostCopy,
    MemoryBound,
    Operator,
    Role,
)
from traincast.model.context import attention_core_backward, attention_core_forward
from traincast.model.linear import (
    column_parallel_backward,
    column_parallel_forward,
    enter,
    for_weights,
    in_half_precision,
    leave,
    row_parallel_backward,
    row_parallel_forward,
)

__all__ = [
    "ACTIVATION_BYTES",
    "Block",
    "Collective",
    "CollectiveAxis",
    "CollectiveOp",
    "Context",
    "ContextStyle",
    "FlashAttention",
    "Gemm",
    "HostCopy",
    "MemoryBound",
    "Operator",
    "Role",
    "attention_backward",
    "attention_core_backward",
    "attention_core_forward",
    "attention_forward",
    "block_backward",
    "block_forward",
    "column_parallel_backward",
    "embedding_backward",
    "embedding_forward",
    "head_backward",
    "head_forward",
    "mlp_backward",
    "mlp_forward",
    "row_parallel_backward",
]


def _norm(block: Block, name: str) -> MemoryBound:
    """A norm in front of a column-parallel layer: reads half precision, writes what the layer multiplies.

    Under autocast it reads and writes single precision (4 + 4), and the layer casts that (4 + 2).
    """
    if block.autocast:
        return MemoryBound(name, 14 * block.norm_elements, calls=2)
    return MemoryBound(name, block.casts.norm * block.norm_elements)


def _residual(block: Block, name: str) -> MemoryBound:
    """Bias, dropout and residual add in one kernel; under autocast of half onto single precision (2 + 4 + 4)."""
    if block.autocast:
        return MemoryBound(name, 10 * block.norm_elements)
    return MemoryBound(name, (7 if block.dropout else 6) * block.norm_elements)


def _residual_gradient(block: Block, name: str) -> MemoryBound:
    """Gradients of a residual add and of the bias in front of it.

    Under autocast the gradient of the stream is added to that of the norm (4 + 4 + 4), cast for the products (4 + 2)
    and summed for the bias (2).
    """
    if block.autocast:
        return MemoryBound(name, 20 * block.norm_elements, calls=3)
    return MemoryBound(name, (7 if block.dropout else 4) * block.norm_elements, calls=2)


def _norm_gradient(block: Block, name: str) -> MemoryBound:
    """Gradients of a norm and of its weights.

    Under autocast the product's gradient is cast up (2 + 4), the norm reads it and its input and writes (4 + 4 + 4),
    and its weights' gradients read both again (4 + 4).
    """
    if block.autocast:
        return MemoryBound(name, 26 * block.norm_elements, calls=4)
    return MemoryBound(name, 12 * block.norm_elements, calls=3)


def _weight_casts(block: Block, name: str, columns: int, matrices: int = 2) -> tuple[Operator, ...]:
    """Under autocast: weights of `columns` times hidden elements cast down (4 + 2), or their gradients up (2 + 4)."""
    return (MemoryBound(name, 6.0 * columns * block.hidden, calls=matrices),) if block.autocast else ()


def _rotary(block: Block, name: str) -> tuple[Operator, ...]:
    """Rotary embedding of queries and keys; fused, one kernel walks the whole projection.

    With complex numbers, which compilers leave to kernels of their own, each element of queries and keys is cast to
    single precision (2 + 4), multiplied (4 + 4) and cast back (4 + 2): torchtitan, models/llama/model.py,
    `apply_rotary_emb`. Unfused, half of it is negated (2), both halves are joined the other way round (4), it is
    multiplied by a cosine and that by a sine (4 + 4), and the two are added (6): as many bytes (Megatron-Core,
    models/common/embeddings/rotary_pos_embedding.py, `apply_rotary_pos_emb` without apply_rope_fusion).
    """
    if not block.rotary:
        return ()
    width = (block.local_heads + block.local_kv_heads) * block.head_dim
    apart = block.complex_rotary or block.unfused_rotary
    moved = 20.0 * width if apart else 4.0 * block.qkv_width
    return (MemoryBound(name, moved * block.tokens, calls=6 if apart else 2),)


def attention_forward(block: Block) -> tuple[Operator, ...]:
    """Norm, projections, attention and residual of one block."""
    return (
        _norm(block, "attention.norm"),
        *_weight_casts(block, "attention.weights.cast", block.qkv_width + block.attention_width),
        *column_parallel_forward(block, "attention", "attention.qkv", block.qkv_width, 3),
        *_rotary(block, "rotary"),
        *attention_core_forward(block),
        *row_parallel_forward(block, "attention", "attention.out", block.attention_width, 3),
        _residual(block, "attention.residual"),
    )


def mlp_forward(block: Block) -> tuple[Operator, ...]:
    """Norm, MLP and residual of one block."""
    t, f = block.tokens, block.ffn_width
    gates = 2 if block.gated_mlp else 1
    return (
        _norm(block, "mlp.norm"),
        *_weight_casts(block, "mlp.weights.cast", (gates + 1) * f),
        *column_parallel_forward(block, "mlp", "mlp.up", gates * f, 2),
        MemoryBound("mlp.activation", 2.0 * (gates + 1) * t * f),
        *row_parallel_forward(block, "mlp", "mlp.down", f, 2),
        _residual(block, "mlp.residual"),
    )


def block_forward(block: Block) -> tuple[Operator, ...]:
    """One decoder block, forward."""
    return (*attention_forward(block), *mlp_forward(block))


def mlp_backward(block: Block) -> tuple[Operator, ...]:
    """Backward of residual, MLP and norm."""
    t, f = block.tokens, block.ffn_width
    gates = 2 if block.gated_mlp else 1
    return (
        _residual_gradient(block, "mlp.residual.grad"),
        *row_parallel_backward(block, "mlp.down", f),
        MemoryBound("mlp.activation.grad", 2.0 * (2 * gates + 2) * t * f, calls=2),
        *column_parallel_backward(block, "mlp.up", gates * f),
        *for_weights(_weight_casts(block, "mlp.weights.grad.cast", (gates + 1) * f)),
        _norm_gradient(block, "mlp.norm.grad"),
    )


def attention_backward(block: Block) -> tuple[Operator, ...]:
    """Backward of residual, attention and norm."""
    return (
        _residual_gradient(block, "attention.residual.grad"),
        *row_parallel_backward(block, "attention.out", block.attention_width),
        *attention_core_backward(block),
        *_rotary(block, "rotary.grad"),
        *column_parallel_backward(block, "attention.qkv", block.qkv_width),
        *for_weights(_weight_casts(block, "attention.weights.grad.cast", block.qkv_width + block.attention_width)),
        _norm_gradient(block, "attention.norm.grad"),
    )


def block_backward(block: Block) -> tuple[Operator, ...]:
    """One decoder block, backward (input and weight gradients), without recomputation."""
    return (*mlp_backward(block), *attention_backward(block))


def embedding_forward(block: Block) -> tuple[Operator, ...]:
    """Vocabulary-parallel lookup, its sum over TP, positions and dropout (first stage).

    Autocast leaves a lookup in the type of its table: single precision is read and written (4 + 4), and positions are
    added to it (4 + 4 + 4).
    """
    e = block.tokens * block.hidden
    if block.autocast:
        return (
            MemoryBound("embedding.lookup", 8.0 * e, calls=6),
            *leave(block, "embedding"),
            MemoryBound("embedding.positions", 12 * block.norm_elements, calls=3),
        )
    return (
        MemoryBound("embedding.lookup", 6.0 * e, calls=6),
        *leave(block, "embedding"),
        MemoryBound("embedding.positions", 11 * block.norm_elements, calls=3),
    )


def embedding_backward(block: Block, vocabulary: int) -> tuple[Operator, ...]:
    """Scatter-add into the embedding gradient of this rank's `vocabulary` rows (first stage).

    A new gradient is filled with zeros; the share `summed` of them is read and added to the main gradient.
    """
    width = 4.0 if block.autocast else 2.0
    added = block.summed * (width + 2.0 * block.main_gradient_bytes)
    table = (width + added) * vocabulary * block.hidden
    scattered = 3.0 * width * block.tokens * block.hidden
    return for_weights(
        (
            MemoryBound("embedding.dropout.grad", (8 if block.autocast else 5) * block.norm_elements, calls=2),
            *enter(in_half_precision(block), "embedding"),
            MemoryBound("embedding.grad", scattered + table, calls=3),
        )
    )


def _loss_work(block: Block) -> tuple[MemoryBound, MemoryBound]:
    """Loss and its gradient, for one logit.

    Megatron-LM's vocabulary-parallel loss reads the logits in single precision: cast (2 + 4), maximum (4), shift (8),
    exponential (8), sum (4), normalise (8): 38 bytes a logit, and 18 for the gradient. Fused: 4 and 4. Under autocast
    it is PyTorch's cross_entropy in single precision: cast (2 + 4), log-softmax (4 + 4) and a lookup; backward zeros
    (4), the gradient of the log-softmax (4 + 4 + 4) and a cast (4 + 2). Kernels of the log-softmax pass over a row more
    than once (aten/src/ATen/native/cuda/SoftMax.cu): assumed in the cache, where the rows of all multiprocessors fit.
    """
    if block.fused_loss:
        return MemoryBound("loss", 4.0, calls=2), MemoryBound("loss.grad", 4.0, calls=2)
    if block.autocast:
        return MemoryBound("loss", 14.0, calls=3), MemoryBound("loss.grad", 22.0, calls=3)
    return MemoryBound("loss", 38.0, calls=12), MemoryBound("loss.grad", 18.0, calls=4)


def head_forward(block: Block, vocabulary: int) -> tuple[Operator, ...]:
    """Final norm, logits over this rank's `vocabulary` columns and the vocabulary-parallel loss (last stage).

    Three all-reduces of one float a token are latency only. Under autocast the norm is as those of layers are, and the
    weights are cast for the product.
    """
    logits, (loss, _) = float(block.tokens * vocabulary), _loss_work(block)
    reduce: tuple[Operator, ...] = ()
    if block.tp > 1:
        size = 4.0 * block.tokens
        reduce = tuple(Collective(f"loss.all_reduce{i}", "all_reduce", "tp", size) for i in range(3))
    half = in_half_precision(block)
    return (
        _norm(half, "final.norm"),
        *_weight_casts(block, "head.weights.cast", vocabulary, 1),
        *enter(half, "head"),
        Gemm("head.logits", block.tokens, vocabulary, block.hidden, calls=3),
        replace(loss, bytes_moved=loss.bytes_moved * logits),
        *reduce,
    )


def head_backward(block: Block, vocabulary: int) -> tuple[Operator, ...]:
    """Loss gradient, logits dgrad and wgrad, final norm (last stage)."""
    logits, (_, loss) = float(block.tokens * vocabulary), _loss_work(block)
    norm = MemoryBound("final.norm.grad", 12 * block.norm_elements, calls=2)
    return (
        replace(loss, bytes_moved=loss.bytes_moved * logits),
        *column_parallel_backward(in_half_precision(block), "head.logits", vocabulary),
        *for_weights(_weight_casts(block, "head.weights.grad.cast", vocabulary, 1)),
        _norm_gradient(block, norm.name) if block.autocast else norm,
    )
