"""The attention core over whole sequences: scores, softmax, values."""

from traincast.model.block import Block, FlashAttention, Gemm, MemoryBound, Operator


def whole_forward(block: Block) -> tuple[Operator, ...]:
    """softmax(QK^T)V over whole sequences. Unfused: scores go to memory between kernels (the stacks before 2022)."""
    b, a, s, d = block.microbatch, block.core_heads, block.sequence, block.head_dim
    if block.flash:
        return (FlashAttention("attention", b, a, block.core_kv_heads, s, s, d),)
    scores = float(b * a * s * s)
    ops: list[Operator] = [
        Gemm("attention.scores", s, s, d, batch=b * a, calls=3),
        # the causal softmax kernel reads the lower triangle and writes the whole: 1 + 2 bytes an element
        MemoryBound("attention.softmax", 3 * scores),
    ]
    if block.dropout:
        ops.append(MemoryBound("attention.dropout", 5 * scores))
    ops.append(Gemm("attention.values", s, d, s, batch=b * a, calls=2))
    ops.append(MemoryBound("attention.merge_heads", 4.0 * block.tokens * block.attention_width))
    return tuple(ops)


def whole_backward(block: Block) -> tuple[Operator, ...]:
    """Gradients of softmax(QK^T)V over whole sequences."""
    b, a, s, d = block.microbatch, block.core_heads, block.sequence, block.head_dim
    if block.flash:
        return (FlashAttention("attention", b, a, block.core_kv_heads, s, s, d, role="bwd"),)
    scores = float(b * a * s * s)
    ops: list[Operator] = [
        MemoryBound("attention.merge_heads.grad", 4.0 * block.tokens * block.attention_width),
        Gemm("attention.values.dgrad", s, s, d, batch=b * a, role="dgrad", calls=2),
        Gemm("attention.values.wgrad", s, d, s, batch=b * a, role="wgrad", calls=2),
    ]
    if block.dropout:
        ops.append(MemoryBound("attention.dropout.grad", 5 * scores))
    ops += [
        MemoryBound("attention.softmax.grad", 6 * scores),
        Gemm("attention.scores.dgrad_q", s, d, s, batch=b * a, role="dgrad", calls=2),
        Gemm("attention.scores.dgrad_k", s, d, s, batch=b * a, role="wgrad", calls=2),
        MemoryBound("attention.split_heads.grad", 4.0 * block.tokens * block.qkv_width, calls=2),
    ]
    return tuple(ops)
