"""Linear layers of a decoder block: products, tensor-parallel collectives around or beside them, casts to fp8.

Under sequence parallelism an all-gather stands in front of a column-parallel product and a reduce-scatter behind a
row-parallel one. Whole, they are exposed forward; backward the gather of the input and the reduce-scatter of its
gradient run beside the two products (`overlap_tp`). Split ([1], [2]; `split_tp`), a gather arrives in t pieces, each
multiplied while the next comes in, and a row-parallel product is made in PIECES pieces, each reduced while the next is
made: only the last is exposed, and the kernels that reduce hold some of the multiprocessors.

In fp8 ([3], delayed scaling) both factors of a product are cast, and Hopper's fp8 products want both with the summed
dimension contiguous, so that each tensor is needed transposed as well (`fp8_transposes`; Blackwell's take either
order). Bytes for each element, where half precision has none: an activation or a gradient that one kernel reads (2)
and writes twice (1 + 1): 4; one that is cast (2 + 1) before it is gathered, and transposed (1 + 1) behind: 3 on this
rank's share and 2 on the whole. A norm writes fp8 itself (one byte less), and its output is transposed in the backward
pass (2). What is gathered is fp8, what is reduced is not. A compiler that fuses casts into the kernels in front of them
(XLA, `fused_casts`) leaves of all this the transposes: the byte that it writes is one that half precision writes, too.
Weights are cast once a step, not once a microbatch. The core
of attention and the head stay in half precision.

References
----------
[1] Korthikanti et al. 2022, §4.2.2 (gather and reduce-scatter in place of the all-reduce).
[2] Transformer Engine, "Overlapping communication with GEMM" (userbuffers; ring exchange, pipelined chunks, bulk) and
    the userbuffer settings of NeMo-Framework-Launcher (conf/training/gpt3/ub-confs: num_splits 4).
[3] Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; Transformer Engine, module/layernorm_linear.py and
    module/linear.py (cast_transpose, fp8_transpose).
"""

from dataclasses import replace

from traincast.model.block import ACTIVATION_BYTES, Block, Collective, CollectiveOp, Gemm, MemoryBound, Operator

PIECES = 4
"""Pieces of a row-parallel product whose output is reduced piece by piece."""

CAST_TRANSPOSED, CAST, TRANSPOSE = 4.0, 3.0, 2.0
"""Bytes an element: cast to fp8 and its transpose in one kernel, cast alone, transpose of fp8."""


def in_half_precision(block: Block) -> Block:
    """The block as the head sees it: neither fp8 nor split collectives (its product is no Transformer Engine layer)."""
    return replace(block, fp8=False, split_tp=False) if block.fp8 or block.split_tp else block


def gathered_bytes(block: Block) -> float:
    """Bytes of the full activation of width `hidden` that a linear layer gathers."""
    return block.hidden_bytes / ACTIVATION_BYTES if block.fp8 else block.hidden_bytes


def leave(block: Block, name: str) -> tuple[Operator, ...]:
    """Exit of a row-parallel layer: the partial sums meet."""
    if block.tp == 1:
        return ()
    op: CollectiveOp = "reduce_scatter" if block.sequence_parallel else "all_reduce"
    return (Collective(f"{name}.{op}", op, "tp", block.hidden_bytes),)


def enter(block: Block, name: str, behind: int = 0) -> tuple[Operator, ...]:
    """Entry of a layer that needs the whole sequence: an all-gather under sequence parallelism, else nothing."""
    if block.tp == 1 or not block.sequence_parallel:
        return ()
    return (Collective(f"{name}.all_gather", "all_gather", "tp", gathered_bytes(block), behind=behind),)


def _splits(block: Block) -> bool:
    return block.split_tp and block.tp > 1 and block.sequence_parallel


def _cast(block: Block, name: str, elements: float, *, transposed: bool) -> tuple[Operator, ...]:
    """A cast to fp8 in one kernel, with the transpose where asked for and needed; fused, the transpose alone."""
    transposes = transposed and block.fp8_transposes
    if block.fused_casts:
        return _transpose(block, name, elements) if transposes else ()
    return (MemoryBound(name, (CAST_TRANSPOSED if transposes else CAST) * elements),) if block.fp8 else ()


def _transpose(block: Block, name: str, elements: float) -> tuple[Operator, ...]:
    """A transpose of what is fp8 already."""
    return (MemoryBound(name, TRANSPOSE * elements),) if block.fp8 and block.fp8_transposes else ()


def column_parallel_forward(block: Block, part: str, name: str, width: int, calls: int) -> tuple[Operator, ...]:
    """Product of a column-parallel linear of `width` columns, with the gather of its input."""
    t, h = block.tokens, block.hidden
    if not _splits(block):
        return (*enter(block, part), Gemm(name, t, width, h, calls=calls, fp8=block.fp8))
    product = Gemm(name, t // block.tp, width, h, batch=block.tp, calls=calls, fp8=block.fp8)
    return (*enter(block, part, behind=1), product)


def row_parallel_forward(block: Block, part: str, name: str, width: int, calls: int) -> tuple[Operator, ...]:
    """Product of a row-parallel linear whose input has `width` columns on this rank, and the sum over TP."""
    t, h = block.tokens, block.hidden
    cast = _cast(block, f"{name}.cast", t * width, transposed=True)
    if not _splits(block):
        return (*cast, Gemm(name, t, h, width, calls=calls, fp8=block.fp8), *leave(block, part))
    piece = block.hidden_bytes / PIECES
    product = Gemm(name, -(-t // PIECES), h, width, PIECES, calls=calls, fp8=block.fp8, shares_sms=True)
    return (
        *cast,
        Collective(f"{part}.pieces.reduce_scatter", "reduce_scatter", "tp", block.hidden_bytes - piece, behind=1),
        product,
        Collective(f"{part}.reduce_scatter", "reduce_scatter", "tp", piece),
    )


def _weight_gradient(block: Block, name: str, rows: int, columns: int) -> tuple[Operator, ...]:
    """Weight gradient of a (columns x rows) weight, and its sum into the main gradient.

    Fused, the product's epilogue reads and writes the main gradient; unfused, the sum reads the new gradient (2 bytes)
    and reads and writes the main one.
    """
    summed = 2.0 * block.main_gradient_bytes
    out_bytes = summed if block.fused_accumulation else 2.0
    product = Gemm(
        f"{name}.wgrad", rows, columns, block.tokens, role="wgrad", calls=2, fp8=block.fp8, out_bytes=out_bytes
    )
    if block.fused_accumulation:
        return (product,)
    return (product, MemoryBound(f"{name}.accumulate", (2.0 + summed) * rows * columns))


def column_parallel_backward(block: Block, name: str, width: int) -> tuple[Operator, ...]:
    """Backward of a column-parallel linear of `width` columns: dgrad, then the sum of dgrads over TP and the wgrad.

    Under SP the input is gathered again for the wgrad, beside the dgrad, and the sum is a reduce-scatter.
    """
    t, h = block.tokens, block.hidden
    cast = _cast(block, f"{name}.cast.grad", t * width, transposed=True)
    dgrad = Gemm(f"{name}.dgrad", t, h, width, role="dgrad", calls=2, fp8=block.fp8)
    wgrad = (*_transpose(block, f"{name}.transpose", t * h), *_weight_gradient(block, name, width, h))
    if block.tp == 1:
        return (*cast, dgrad, *wgrad)
    behind = len(wgrad) if block.overlap_tp else 0
    if block.sequence_parallel:
        gather = enter(block, name, behind=1 if block.overlap_tp else 0)
        reduce = Collective(f"{name}.reduce_scatter", "reduce_scatter", "tp", block.hidden_bytes, behind=behind)
        return (*cast, *gather, dgrad, reduce, *wgrad)
    reduce = Collective(f"{name}.dgrad.all_reduce", "all_reduce", "tp", block.hidden_bytes, behind=behind)
    return (*cast, dgrad, reduce, *wgrad)


def row_parallel_backward(block: Block, name: str, width: int) -> tuple[Operator, ...]:
    """Backward of a row-parallel linear whose input has `width` columns on this rank."""
    t, h = block.tokens, block.hidden
    wgrad = _weight_gradient(block, name, h, width)
    if block.tp == 1 or not block.sequence_parallel:
        cast = _cast(block, f"{name}.cast.grad", t * h, transposed=True)
        return (*cast, Gemm(f"{name}.dgrad", t, width, h, role="dgrad", calls=2, fp8=block.fp8), *wgrad)
    cast = _cast(block, f"{name}.cast.grad", t * h / block.tp, transposed=False)
    split = _splits(block)
    rows, pieces = (t // block.tp, block.tp) if split else (t, 1)
    dgrad = Gemm(f"{name}.dgrad", rows, width, h, pieces, role="dgrad", calls=2, fp8=block.fp8)
    transpose = _transpose(block, f"{name}.transpose", t * h)
    return (*cast, *enter(block, name, behind=1 if split else 0), dgrad, *transpose, *wgrad)
