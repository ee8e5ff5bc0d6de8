"""The attention core over whole sequences: scores, softmax, values.

Between the products Megatron-LM scales, masks and normalises the scores in one fused kernel. It gives each of the four
warps of a block a row of another head or sample, and is called only where microbatch x local heads is a multiple of
ROWS_OF_A_BLOCK, the queries are a multiple of four and there are 17 keys to a limit that rose with the versions
(`softmax_keys`: 2048, 4096, 16384) ([1]). For other shapes kernels of PyTorch do it one by one, in single precision.
Bytes for each score:

- forward: to single precision (2 + 4), scale by the layer's number (4 + 4), mask in place (4 + 4), softmax (4 + 4), to
  half precision (4 + 2): 36; fused, the lower triangle is read and the whole written: 1 + 2;
- backward: the gradient to single precision (2 + 4), softmax (4 + 4 + 4), the mask's gradient (a copy, 4 + 4, masked in
  place, 4 + 4), scale (4 + 4), to half precision (4 + 2): 48; fused, 2 + 2 + 2.

The mask itself is one sequence's and stays in the cache.

References
----------
[1] Megatron-LM and microsoft/Megatron-DeepSpeed, megatron/model/fused_softmax.py (FusedScaleMaskSoftmax) and
    megatron/fused_kernels/scaled_upper_triang_masked_softmax.h (batches_per_block).
"""

from traincast.model.block import Block, FlashAttention, Gemm, MemoryBound, Operator

ROWS_OF_A_BLOCK = 4
"""Warps of a block of the fused softmax, each with a row of its own."""


def softmax_is_fused(block: Block) -> bool:
    """Whether the fused kernel takes the scores of this shape."""
    if not block.softmax_keys:
        return True
    rows, keys = block.microbatch * block.core_heads, block.sequence
    return 16 < keys <= block.softmax_keys and keys % 4 == 0 and rows % ROWS_OF_A_BLOCK == 0


def _softmax(block: Block, scores: float) -> MemoryBound:
    """Scale, mask and softmax of the scores, in one kernel or in five."""
    if softmax_is_fused(block):
        return MemoryBound("attention.softmax", 3 * scores)
    return MemoryBound("attention.softmax", 36 * scores, calls=5)


def _softmax_gradient(block: Block, scores: float) -> MemoryBound:
    """Gradient of scale, mask and softmax, in one kernel or in six."""
    if softmax_is_fused(block):
        return MemoryBound("attention.softmax.grad", 6 * scores)
    return MemoryBound("attention.softmax.grad", 48 * scores, calls=6)


def whole_forward(block: Block) -> tuple[Operator, ...]:
    """softmax(QK^T)V over whole sequences. Unfused: scores go to memory between kernels (the stacks before 2022)."""
    b, a, s, d = block.microbatch, block.core_heads, block.sequence, block.head_dim
    if block.flash:
        return (FlashAttention("attention", b, a, block.core_kv_heads, s, s, d, drops=block.dropout),)
    scores = float(b * a * s * s)
    ops: list[Operator] = [
        Gemm("attention.scores", s, s, d, batch=b * a, calls=3),
        _softmax(block, scores),
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
        return (FlashAttention("attention", b, a, block.core_kv_heads, s, s, d, role="bwd", drops=block.dropout),)
    scores = float(b * a * s * s)
    ops: list[Operator] = [
        MemoryBound("attention.merge_heads.grad", 4.0 * block.tokens * block.attention_width),
        Gemm("attention.values.dgrad", s, s, d, batch=b * a, role="dgrad", calls=2),
        Gemm("attention.values.wgrad", s, d, s, batch=b * a, role="wgrad", calls=2),
    ]
    if block.dropout:
        ops.append(MemoryBound("attention.dropout.grad", 5 * scores))
    ops += [
        _softmax_gradient(block, scores),
        Gemm("attention.scores.dgrad_q", s, d, s, batch=b * a, role="dgrad", calls=2),
        Gemm("attention.scores.dgrad_k", s, d, s, batch=b * a, role="wgrad", calls=2),
        MemoryBound("attention.split_heads.grad", 4.0 * block.tokens * block.qkv_width, calls=2),
    ]
    return tuple(ops)
