"""Linear layers of a decoder block: products, tensor-parallel collectives around or beside them, casts to fp8.

Under sequence parallelism an all-gather stands in front of a column-parallel product and a reduce-scatter behind a
row-parallel one. Whole, they are exposed forward; backward the gather of the input and the reduce-scatter of its
gradient run beside the two products (`overlap_tp`). Split ([1], [2]; `split_tp`), a gather arrives in t pieces, each
multiplied while the next comes in, and a row-parallel product is made in PIECES pieces, each reduced while the next is
made: only the last is exposed, and the kernels that reduce hold some of the multiprocessors.

What reads gathered data (a copy into place, a cast) stands behind the operators that the gather runs beside. Where the
very product beside which it would run needs what they make, nothing hides the gather, and the product stays whole.

In fp8 tensors are cast and transposed around the products, and what is gathered may be fp8, as `model.casts` says; what
is reduced is half precision. The core of attention and the head stay in half precision.

References
----------
[1] Korthikanti et al. 2022, §4.2.2 (gather and reduce-scatter in place of the all-reduce).
[2] Transformer Engine, "Overlapping communication with GEMM" (userbuffers; ring exchange, pipelined chunks, bulk) and
    the userbuffer settings of NeMo-Framework-Launcher (conf/training/gpt3/ub-confs: num_splits 4).
"""

from dataclasses import replace

from traincast.model.block import ACTIVATION_BYTES, Block, Collective, Gemm, MemoryBound, Operator
from traincast.model.casts import Traffic

COPY = Traffic(2.0)
"""A read and a write of each byte."""

PIECES = 4
"""Pieces of a row-parallel product whose output is reduced piece by piece."""


def in_half_precision(block: Block) -> Block:
    """The block as the head sees it: neither fp8 nor split collectives (its product is no Transformer Engine layer)."""
    return replace(block, fp8=False, split_tp=False) if block.fp8 or block.split_tp else block


def gathered_bytes(block: Block) -> float:
    """Bytes of the full activation of width `hidden` that a linear layer gathers."""
    return block.hidden_bytes if block.casts.gathers_half else block.hidden_bytes / ACTIVATION_BYTES


def leave(block: Block, name: str) -> tuple[Operator, ...]:
    """Exit of a row-parallel layer: the partial sums meet."""
    if block.tp == 1:
        return ()
    if not block.sequence_parallel:
        return (Collective(f"{name}.all_reduce", "all_reduce", "tp", block.hidden_bytes),)
    return _scatter(block, name)


def _scatter(block: Block, name: str, behind: int = 0) -> tuple[Operator, ...]:
    """A reduce-scatter along the sequence; where that is copied, from parts that are put in front of each other."""
    scattered = Collective(f"{name}.reduce_scatter", "reduce_scatter", "tp", block.hidden_bytes, behind=behind)
    return (*_scatter_copy(block, name), scattered)


def _scatter_copy(block: Block, name: str) -> tuple[Operator, ...]:
    return _moves(f"{name}.reduce_scatter.copy", COPY, block.hidden_bytes * block.copies_sequence)


def enter(block: Block, name: str) -> tuple[Operator, ...]:
    """Entry of a layer that needs the whole sequence: an exposed all-gather under sequence parallelism, else none."""
    return (*_gather(block, name), *_gather_copy(block, name))


def _gather(block: Block, name: str, behind: int = 0) -> tuple[Operator, ...]:
    if block.tp == 1 or not block.sequence_parallel:
        return ()
    return (Collective(f"{name}.all_gather", "all_gather", "tp", gathered_bytes(block), behind=behind),)


def _gather_copy(block: Block, name: str) -> tuple[Operator, ...]:
    """What is gathered along a sequence that is not the outermost dimension comes rank by rank, and is copied into
    place, unless a cast reads it there."""
    if block.tp == 1 or not block.sequence_parallel or block.reads_behind_gathers:
        return ()
    return _moves(f"{name}.all_gather.copy", COPY, gathered_bytes(block) * block.copies_sequence)


def for_weights(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Operators of a backward pass, marked as serving gradients of weights alone."""
    return tuple(
        replace(one, for_weights=True) if isinstance(one, Gemm | MemoryBound | Collective) else one for one in operators
    )


def _splits(block: Block) -> bool:
    return block.split_tp and block.tp > 1 and block.sequence_parallel


def _moves(name: str, traffic: Traffic, elements: float) -> tuple[Operator, ...]:
    """Kernels that cast, transpose or copy, where they move anything."""
    rows, columns = traffic.rows * elements, traffic.columns * elements
    along = (MemoryBound(name, rows),) if rows else ()
    return (*along, MemoryBound(f"{name}.columns", columns, columns=True)) if columns else along


def _product(block: Block, name: str, shape: tuple[int, int, int], batch: int = 1) -> Gemm:
    """Products of a linear layer, (m, n, k) each, in the block's precision."""
    return Gemm(name, *shape, batch, fp8=block.fp8, rowwise=block.fp8 and block.scaling == "rowwise")


def _entry_cast(block: Block, name: str) -> tuple[Operator, ...]:
    """The norm's output cast: this rank's share where it is gathered in fp8, else the whole, behind the gather."""
    casts = block.casts
    elements = block.tokens * block.hidden if casts.gathers_half else block.norm_elements
    return _moves(f"{name}.cast", casts.entry, elements)


def _weight_cast(block: Block, name: str, elements: int, *, again: bool = False) -> tuple[Operator, ...]:
    """A weight cast for the forward pass or, `again`, for the backward one."""
    casts = block.casts
    if again:
        traffic = casts.fp8_weight_again if block.fp8_weights else casts.weight_again
        return _moves(f"{name}.weight.cast.again", traffic, elements)
    return () if block.fp8_weights else _moves(f"{name}.weight.cast", casts.weight, elements)


def column_parallel_forward(block: Block, part: str, name: str, width: int, calls: int) -> tuple[Operator, ...]:
    """Product of a column-parallel linear of `width` columns, with the gather of its input."""
    t, h = block.tokens, block.hidden
    cast, weight = _entry_cast(block, name), _weight_cast(block, name, width * h)
    streams = block.streams_gathers
    rows, pieces = (t // block.tp, block.tp) if streams else (t, 1)
    product = replace(_product(block, name, (rows, width, h), pieces), calls=calls)
    gather = (*_gather(block, part, behind=1 if streams else 0), *_gather_copy(block, part))
    if block.casts.gathers_half:
        return (*weight, *gather, *cast, product)
    return (*cast, *weight, *gather, product)


def row_parallel_forward(block: Block, part: str, name: str, width: int, calls: int) -> tuple[Operator, ...]:
    """Product of a row-parallel linear whose input has `width` columns on this rank, and the sum over TP."""
    t, h = block.tokens, block.hidden
    cast = (*_moves(f"{name}.cast", block.casts.inner, t * width), *_weight_cast(block, name, width * h))
    if not _splits(block):
        return (*cast, replace(_product(block, name, (t, h, width)), calls=calls), *leave(block, part))
    piece = block.hidden_bytes / PIECES
    product = replace(_product(block, name, (-(-t // PIECES), h, width), PIECES), calls=calls, shares_sms=True)
    return (
        *cast,
        Collective(f"{part}.pieces.reduce_scatter", "reduce_scatter", "tp", block.hidden_bytes - piece, behind=1),
        product,
        *_scatter_copy(block, part),
        Collective(f"{part}.reduce_scatter", "reduce_scatter", "tp", piece),
    )


def _weight_gradient(block: Block, name: str, rows: int, columns: int) -> tuple[Operator, ...]:
    """Weight gradient of a (columns x rows) weight, and its sum into the main gradient.

    Fused, the product's epilogue reads and writes the main gradient; unfused, the sum reads the new gradient (2 bytes)
    and reads and writes the main one. Bytes are the mean over microbatches, of which a share `summed` adds anything.
    """
    summed = 2.0 * block.main_gradient_bytes
    out_bytes = summed if block.fused_accumulation else 2.0
    product = replace(
        _product(block, f"{name}.wgrad", (rows, columns, block.tokens)), role="wgrad", calls=2, out_bytes=out_bytes
    )
    if block.fused_accumulation or block.summed == 0.0:
        return (product,)
    return (product, MemoryBound(f"{name}.accumulate", block.summed * (2.0 + summed) * rows * columns))


def column_parallel_backward(block: Block, name: str, width: int) -> tuple[Operator, ...]:
    """Backward of a column-parallel linear of `width` columns: dgrad, then the sum of dgrads over TP and the wgrad.

    Under SP the input is gathered again for the wgrad, beside the dgrad, and the sum is a reduce-scatter.
    """
    t, h = block.tokens, block.hidden
    casts, beside = block.casts, block.overlap_tp
    cast = (
        *_moves(f"{name}.cast.grad", casts.gradient, t * width),
        *_weight_cast(block, name, width * h, again=True),
    )
    dgrad = replace(_product(block, f"{name}.dgrad", (t, h, width)), role="dgrad", calls=2)
    wgrad = (*_moves(f"{name}.transpose", casts.entry_again, t * h), *_weight_gradient(block, name, width, h))
    wgrad = for_weights((*_gather_copy(block, name), *wgrad))
    if block.tp == 1:
        return (*cast, dgrad, *wgrad)
    behind = len(wgrad) if beside else 0
    if block.sequence_parallel:
        inner = (dgrad, *_scatter_copy(block, name))
        gather = for_weights(_gather(block, name, behind=len(inner) if beside else 0))
        return (*cast, *gather, dgrad, *_scatter(block, name, behind), *wgrad)
    reduce = Collective(f"{name}.dgrad.all_reduce", "all_reduce", "tp", block.hidden_bytes, behind=behind)
    return (*cast, dgrad, reduce, *wgrad)


def row_parallel_backward(block: Block, name: str, width: int) -> tuple[Operator, ...]:
    """Backward of a row-parallel linear whose input has `width` columns on this rank."""
    t, h, casts = block.tokens, block.hidden, block.casts
    again = _moves(f"{name}.input.transpose", casts.inner_again, t * width)
    wgrad = for_weights((*again, *_weight_gradient(block, name, h, width)))
    weight = _weight_cast(block, name, h * width, again=True)
    streams = block.streams_gathers
    rows, pieces = (t // block.tp, block.tp) if streams else (t, 1)
    dgrad = replace(_product(block, f"{name}.dgrad", (rows, width, h), pieces), role="dgrad", calls=2)
    gather = (*_gather(block, name, behind=1 if streams else 0), *_gather_copy(block, name))
    if casts.gathers_half or not gather:
        cast = _moves(f"{name}.cast.grad", casts.gradient, t * h)
        return (*weight, *gather, *cast, dgrad, *wgrad)
    cast = _moves(f"{name}.cast.grad", casts.shard, t * h / block.tp)
    transpose = for_weights(_moves(f"{name}.transpose", casts.shard_again, t * h))
    return (*cast, *weight, *gather, dgrad, *transpose, *wgrad)
