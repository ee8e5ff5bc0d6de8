"""The attention core under context parallelism: who sends what, and beside which block of attention.

A group of cp ranks splits every sequence. `ulysses` of them exchange heads for tokens (all-to-all), so that each
attends with fewer heads over longer sequences; rings of the others pass blocks of keys and values on, each block beside
the attention to the one before it, or gather them all. Bytes for b sequences of s tokens, g key/value heads of d
columns on a tensor-parallel rank, without exchange of heads:

- ring: K and V of s/cp tokens, cp - 1 times forward; backward they travel again with the sum of their gradients,
  2·2·b·(s/cp)·g·d·(cp - 1) elements;
- gather: as many, as an all-gather forward; an all-gather (unless kept) and a reduce-scatter backward. By block ([7])
  the gather runs beside the first block of attention only, and gradients go round the whole ring, 4 bytes an element.

Ranks of a balanced ring hold blocks i and 2r - 1 - i of 2r. Then every step but the first is half of a whole block
for all of them: all queries against half of the keys, or half of the queries against all keys. The first shape is the
slower one, some rank has it in every step, and the others wait for that rank: all steps have it here.

References
----------
[1] Liu et al. 2023, "Ring Attention with Blockwise Transformers" (arXiv:2310.01889).
[2] Jacobs et al. 2023, "DeepSpeed Ulysses" (arXiv:2309.14509).
[3] Llama Team 2024, "The Llama 3 Herd of Models", §3.3.2 (keys and values gathered, 2 cp blocks).
[4] Fang and Zhao 2024, "USP" (arXiv:2405.07719); Gu et al. 2024, "LoongTrain" (arXiv:2406.18485) (both at once).
[5] Sun et al. 2025, "BurstEngine" (arXiv:2509.19836), backward communication and rings by topology.
[6] Transformer Engine, attention/context_parallel.py (gradients of keys and values travel cp - 1 hops: the backward
    pass begins with the block that the forward pass ended with).
[7] PyTorch, torch/distributed/tensor/experimental/_attention.py (2.6; _templated_ring_attention and its backward:
    balanced by default, _AllGatherRotater, gradients in _AllToAllRotater, convert_to_f32); torchtitan, models/llama
    (repeat_kv before attention).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from traincast.model.attention import whole_backward, whole_forward
from traincast.model.block import ACTIVATION_BYTES, Block, Collective, FlashAttention, MemoryBound, Operator

Way = Literal["fwd", "bwd"]
Direction = Literal["forward", "backward"]

NEXT, ACROSS, HEADS = "cp_next", "cp_across", "cp_heads"
"""Families of groups: neighbours in a ring (inside a node where there is a ring across nodes as well), neighbours in a
ring across nodes, and ranks that exchange heads."""

_MERGE_BYTES = 10.0
"""Of a query's element: read the block's output (2), read and write the single-precision sum (4 + 4)."""

_SUM_BYTES = 6.0
"""Of an element of travelling gradients: read two, write one, in half precision."""

_WIDE_SUM_BYTES = 18.0
"""The same in single precision: read and write the sum (4 + 4), read the block's (2), write what is sent (4 + 4)."""

_CAST_BYTES = 12.0
"""Of a query's element: the first block's output to single precision, the sum back to half."""


def attention_core_forward(block: Block) -> tuple[Operator, ...]:
    """softmax(QK^T)V on this rank, with the exchange between context-parallel ranks."""
    if block.cp == 1:
        return whole_forward(block)
    return (*_heads(block, "qkv"), *_blocks(block, "fwd"), *_heads(block, "out"))


def attention_core_backward(block: Block) -> tuple[Operator, ...]:
    """Gradients of softmax(QK^T)V on this rank, with the exchange between context-parallel ranks."""
    if block.cp == 1:
        return whole_backward(block)
    return (*_heads(block, "out.grad"), *_blocks(block, "bwd"), *_heads(block, "qkv.grad"))


def _heads(block: Block, what: str) -> tuple[Operator, ...]:
    """Exchange of heads for tokens or back ([2]): tensors are brought into order, sent, brought into order again."""
    if block.context.ulysses == 1:
        return ()
    q = block.tokens * block.local_heads * block.head_dim
    kv = block.tokens * block.core_kv_heads * block.context.ulysses * block.head_dim
    sizes = {"q": q, "k": kv, "v": kv} if what.startswith("qkv") else {"o": q}
    name, order = f"attention.heads.{what}", 2.0 * ACTIVATION_BYTES * sum(sizes.values())
    sends = (
        Collective(f"{name}.{one}", "all_to_all", "cp", float(ACTIVATION_BYTES * size), group=HEADS)
        for one, size in sizes.items()
    )
    return (
        MemoryBound(f"{name}.pack", order, calls=len(sizes)),
        *sends,
        MemoryBound(f"{name}.unpack", order, calls=len(sizes)),
    )


def _blocks(block: Block, way: Way) -> tuple[Operator, ...]:
    """Attention of this rank's queries to all blocks of the sequence."""
    if block.ring == 1:
        return whole_forward(block) if way == "fwd" else whole_backward(block)
    if block.context.by_block:
        return tuple(_by_block(block, way))
    if block.context.style == "allgather":
        return _gathered_forward(block) if way == "fwd" else _gathered_backward(block)
    return tuple(_ring_forward(block) if way == "fwd" else _ring_backward(block))


def _kernel(block: Block, name: str, way: Way, shape: tuple[int, int], *, causal: bool) -> FlashAttention:
    """One call of the kernel for (queries, keys)."""
    kernel = FlashAttention(
        name,
        block.microbatch,
        block.core_heads,
        block.core_kv_heads,
        *shape,
        block.head_dim,
        causal,
        drops=block.dropout,
    )
    return kernel if way == "fwd" else replace(kernel, role="bwd")


def kv_elements(block: Block, keys: int) -> int:
    """Elements of the keys and values of so many tokens a sequence that this rank attends to."""
    return 2 * block.microbatch * keys * block.core_kv_heads * block.head_dim


def query_elements(block: Block, queries: int) -> int:
    """Elements of the queries, or of the output, of so many tokens a sequence."""
    return block.microbatch * queries * block.core_heads * block.head_dim


def step_work(block: Block, step: int, way: Way) -> tuple[Operator, ...]:
    """Compute operators of one step of a ring: attention to the block that came in, and the sums that it adds to."""
    length, context = block.core_sequence, block.context
    if step == 0:
        return (_kernel(block, "attention.block0", way, (length, length), causal=True),)
    if not context.balanced and step > context.position:
        return ()  # the block lies behind all of this rank's queries
    keys = length // 2 if context.balanced else length
    name = f"attention.block{step}"
    traffic = _MERGE_BYTES * query_elements(block, length)
    if way == "bwd":
        wide = context.by_block
        traffic += (_WIDE_SUM_BYTES if wide else _SUM_BYTES) * kv_elements(block, length if wide else keys)
    return (
        _kernel(block, name, way, (length, keys), causal=False),
        MemoryBound(f"{name}.merge", traffic, calls=2),
    )


def _ring_forward(block: Block) -> Iterator[Operator]:
    """Each block is attended to while the next comes in ([1]); a ring across nodes has a whole turn for it ([5])."""
    works = [step_work(block, step, "fwd") for step in range(block.ring)]
    size = float(ACTIVATION_BYTES * kv_elements(block, block.core_sequence))
    for step, work in enumerate(works):
        yield from _incoming(block, works, step, size)
        yield from work
    yield MemoryBound("attention.cast", _CAST_BYTES * query_elements(block, block.core_sequence), calls=2)


def _incoming(block: Block, works: list[tuple[Operator, ...]], step: int, size: float) -> Iterator[Collective]:
    """What a rank sends, and receives, beside a step: the block of the next one, and ahead that of the next turn."""
    turn = block.context.inner or block.ring
    if step % turn == 0 and step + turn < block.ring:
        beside = sum(len(work) for work in works[step : step + turn])
        yield _pass(f"attention.turn{step // turn + 1}", size, beside, ACROSS)
    if (step + 1) % turn:
        yield _pass(f"attention.pass{step + 1}", size, len(works[step]), NEXT)


def _pass(name: str, size: float, beside: int, group: str) -> Collective:
    return Collective(name, "send_recv", "cp", size, behind=beside, group=group)


def travelling_bytes(block: Block) -> tuple[float, float]:
    """Bytes of a backward hop: what is read on each rank, and the gradients that each rank adds to.

    Keys and values with their gradients; or, where a burst ring has less to send so, queries, the gradient of the
    output and two single-precision numbers a row (log-sum-exp and delta), with the gradient of the queries ([5]).
    """
    length = block.core_sequence
    kv = float(ACTIVATION_BYTES * kv_elements(block, length))
    q = float(ACTIVATION_BYTES * query_elements(block, length))
    rows = 4.0 * 2 * block.microbatch * length * block.core_heads
    if block.context.style == "burst" and 3 * q + rows < 2 * kv:
        return 2 * q + rows, q
    return kv, kv


def _ring_backward(block: Block) -> Iterator[Operator]:
    """As forward; gradients follow one step behind what they belong to.

    A plain ring ends where they are at home ([6]); in a burst ring they have one more hop, which nothing hides.
    """
    works = [step_work(block, step, "bwd") for step in range(block.ring)]
    read, written = travelling_bytes(block)
    turn = block.context.inner or block.ring
    for step, work in enumerate(works):
        passes = list(_incoming(block, works, step, read))
        if step > 0:
            group = NEXT if step % turn else ACROSS
            joined = [replace(one, size_bytes=read + written) for one in passes if one.group == group == NEXT]
            sums = joined or [_pass(f"attention.sum{step}", written, len(work), group)]
            passes = [one for one in passes if not joined or one.group != NEXT] + sums
        yield from passes
        yield from work
    if block.context.style == "burst":
        yield _pass("attention.home", written, 0, ACROSS if turn < block.ring else NEXT)


def ring_exchanges(block: Block) -> Iterator[tuple[Direction, Collective, tuple[Operator, ...]]]:
    """Each kind of pass of a ring, with the operators that it runs beside; of equal ones the first.

    All steps but the first are alike, so a long ring need not be written out.
    """
    kv, (read, written) = float(ACTIVATION_BYTES * kv_elements(block, block.core_sequence)), travelling_bytes(block)
    turn = block.context.inner or block.ring
    ways: tuple[tuple[Direction, Way, tuple[float, float]], ...] = (
        ("forward", "fwd", (kv, kv)),
        ("backward", "bwd", (read, read + written)),
    )
    for direction, way, sizes in ways:
        first, later = step_work(block, 0, way), step_work(block, 1, way)
        yield direction, _pass("attention.pass1", sizes[0], len(first), NEXT), first
        if turn > 2:
            yield direction, _pass("attention.pass2", sizes[1], len(later), NEXT), later
        if turn < block.ring:
            beside = first + later * (turn - 1)
            yield direction, _pass("attention.turn1", sizes[0], len(beside), ACROSS), beside


def _by_block(block: Block, way: Way) -> Iterator[Operator]:
    """Attention to what is gathered, a block at a time, and backward the gradients of each block on their way home.

    Those of a block leave when they are summed, beside the attention to the next block ([7]); the last go alone.
    """
    works = [step_work(block, step, way) for step in range(block.ring)]
    if way == "fwd" or not block.context.keeps_gathered:
        size = float(ACTIVATION_BYTES * kv_elements(block, block.sequence))
        yield Collective("attention.kv.gather", "all_gather", "cp", size, behind=len(works[0]))
    gradients = 2.0 * ACTIVATION_BYTES * kv_elements(block, block.core_sequence)
    for step, work in enumerate(works):
        if way == "bwd" and step > 0:
            yield _pass(f"attention.sum{step}", gradients, len(work), NEXT)
        yield from work
    if way == "bwd":
        yield _pass("attention.home", gradients, 0, NEXT)
    yield MemoryBound("attention.cast", _CAST_BYTES * query_elements(block, block.core_sequence), calls=2)


def _gather(block: Block, what: str) -> tuple[Collective, ...]:
    """All-gather of keys and values, or reduce-scatter of their gradients, over the ranks of a ring ([3])."""
    size = float(ACTIVATION_BYTES * kv_elements(block, block.sequence)) / 2
    if what == "gather":
        return tuple(Collective(f"attention.{one}.gather", "all_gather", "cp", size) for one in ("k", "v"))
    return tuple(Collective(f"attention.{one}.scatter", "reduce_scatter", "cp", size) for one in ("dk", "dv"))


def gathered_work(block: Block, way: Way) -> tuple[Operator, ...]:
    """Attention to gathered keys: the first and the last of 2r blocks of queries, or block `position` of r.

    Balanced ranks do equal work; rank 0 stands for all.
    """
    length, sequence, context = block.core_sequence, block.sequence, block.context
    if not context.balanced:
        keys = length * (context.position + 1)
        return (_kernel(block, "attention.gathered", way, (length, keys), causal=True),)
    half = length // 2
    kernels: tuple[Operator, ...] = (
        _kernel(block, "attention.first", way, (half, half), causal=True),
        _kernel(block, "attention.last", way, (half, sequence), causal=True),
    )
    if way == "fwd":
        return kernels
    return (*kernels, MemoryBound("attention.dkv", _SUM_BYTES * kv_elements(block, sequence), calls=2))


def _gathered_forward(block: Block) -> tuple[Operator, ...]:
    return (*_gather(block, "gather"), *gathered_work(block, "fwd"))


def _gathered_backward(block: Block) -> tuple[Operator, ...]:
    again = () if block.context.keeps_gathered else _gather(block, "gather")
    return (*again, *gathered_work(block, "bwd"), *_gather(block, "scatter"))
