"""Operators under context parallelism: bytes against closed forms, work against the causal triangle."""

from dataclasses import replace

import pytest

from traincast.model.context import ACROSS, HEADS, NEXT, attention_core_backward, attention_core_forward
from traincast.model.operators import (
    ACTIVATION_BYTES,
    Block,
    Collective,
    Context,
    FlashAttention,
    Gemm,
    Operator,
    block_backward,
    block_forward,
)

STYLES = ("ring", "allgather", "burst")


def llama(kv_heads: int = 8, cp: int = 8, **context: object) -> Block:
    return Block(
        hidden=4096,
        heads=32,
        kv_heads=kv_heads,
        head_dim=128,
        ffn_hidden=14336,
        gated_mlp=True,
        rotary=True,
        microbatch=2,
        sequence=65536,
        tp=2,
        flash=True,
        dropout=False,
        cp=cp,
        context=Context(**context),  # type: ignore[arg-type]
    )


def sent_elements(ops: tuple[Operator, ...], ranks: int) -> float:
    """Elements that a rank sends: a gather or an exchange keeps its own part."""
    share = {"send_recv": 1.0, "all_gather": (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks}
    share["all_to_all"] = (ranks - 1) / ranks
    return sum(share[op.op] * op.size_bytes for op in ops if isinstance(op, Collective)) / ACTIVATION_BYTES


def kernels(ops: tuple[Operator, ...]) -> list[FlashAttention]:
    return [op for op in ops if isinstance(op, FlashAttention)]


def visible(op: FlashAttention) -> float:
    """Pairs of query and key that the mask leaves, up to its diagonal; the queries are the last of the keys."""
    pairs = op.query * op.keys - (op.query**2 / 2 if op.causal else 0)
    return op.batch * op.heads * pairs


@pytest.mark.parametrize("style", ["ring", "allgather"])
@pytest.mark.parametrize("kv_heads", [32, 8, 2])
def test_bytes_of_a_layer_are_the_closed_form(style: str, kv_heads: int) -> None:
    """DESIGN section 5: K and V of b s/c kv_heads/t d elements each, (c - 1) times forward; backward they travel again
    (or are gathered again) with the sums of their gradients. MHA (32), GQA (8), MQA-like (2)."""
    block = llama(kv_heads, style=style)
    c = block.cp
    local = block.microbatch * block.sequence / c * kv_heads / block.tp * block.head_dim
    assert sent_elements(attention_core_forward(block), c) == 2 * local * (c - 1)
    assert sent_elements(attention_core_backward(block), c) == 4 * local * (c - 1)


def test_kept_keys_and_values_are_not_gathered_again() -> None:
    block = llama(style="allgather", keeps_gathered=True)
    backward = attention_core_backward(block)
    assert {op.op for op in backward if isinstance(op, Collective)} == {"reduce_scatter"}
    gathered_again = attention_core_backward(llama(style="allgather"))
    assert sent_elements(backward, 8) == sent_elements(gathered_again, 8) / 2


@pytest.mark.parametrize("kv_heads", [32, 8, 2])
def test_bytes_by_block_are_those_of_all_query_heads(kv_heads: int) -> None:
    """PyTorch's context_parallel under torchtitan: K and V, repeated for all query heads, of b s/c a/t d elements, are
    gathered forward and backward; their gradients pass all c hops in single precision, two half elements each."""
    block = llama(kv_heads, style="allgather", by_block=True)
    c = block.cp
    local = block.microbatch * block.sequence / c * block.local_heads * block.head_dim
    assert sent_elements(attention_core_forward(block), c) == 2 * local * (c - 1)
    assert sent_elements(attention_core_backward(block), c) == 2 * local * (c - 1) + 2 * 2 * local * c


def test_work_by_block_is_a_ring_s() -> None:
    """The same kernels as in a ring, which balances causal work; all that a causal mask leaves, as when gathered."""
    by_block = attention_core_forward(llama(style="allgather", by_block=True))
    ring, gathered = (attention_core_forward(llama(style=style)) for style in ("ring", "allgather"))
    assert [(k.query, k.keys, k.causal) for k in kernels(by_block)] == [
        (k.query, k.keys, k.causal) for k in kernels(ring)
    ]
    assert sum(map(visible, kernels(by_block))) == pytest.approx(sum(map(visible, kernels(gathered))), rel=1e-3)
    (gather,) = [op for op in by_block if isinstance(op, Collective)]
    assert gather.behind == 1  # beside the first block only


@pytest.mark.parametrize(("kv_heads", "sent_kv_heads"), [(32, 16), (8, 4), (4, 4)])
def test_bytes_of_an_exchange_of_heads(kv_heads: int, sent_kv_heads: int) -> None:
    """Jacobs et al. 2023, section 3.2: q, k, v in and o out, (u - 1)/u of what a rank has; key/value heads are sent to
    several ranks where there are fewer than ranks (the last case: 2 a rank, 4 ranks)."""
    u = 4
    block = llama(kv_heads, cp=u, ulysses=u)
    tokens, d = block.microbatch * block.sequence / u, block.head_dim
    assert block.core_kv_heads * u == sent_kv_heads
    expected = (2 * block.local_heads + 2 * sent_kv_heads) * tokens * d * (u - 1) / u
    assert sent_elements(attention_core_forward(block), u) == expected
    assert sent_elements(attention_core_backward(block), u) == expected


def test_a_burst_ring_sends_the_smaller_side_backward() -> None:
    """Sun et al. 2025: with as many key/value heads as query heads, q, dO, two numbers a row and dq travel (3 d + 4
    bytes more a row) in place of k, v, dk, dv (4 d); with few of them keys and values do. dq has one more hop."""
    for kv_heads, query_side in ((32, True), (8, False)):
        block = llama(kv_heads, style="burst")
        c, rows = block.cp, block.microbatch * block.sequence / block.cp
        q, kv = rows * block.local_heads * block.head_dim, 2 * rows * kv_heads / block.tp * block.head_dim
        numbers = 2 * 4 / ACTIVATION_BYTES * rows * block.local_heads
        read, written = (2 * q + numbers, q) if query_side else (kv, kv)
        sent = sent_elements(attention_core_backward(block), c)
        assert sent == pytest.approx(read * (c - 1) + written * c)
        assert sent_elements(attention_core_forward(block), c) == kv * (c - 1)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("cp", "ulysses"), [(8, 1), (8, 2), (8, 8), (2, 1)])
def test_a_balanced_rank_does_its_share_of_the_causal_triangle(style: str, cp: int, ulysses: int) -> None:
    """The Llama 3 Herd of Models, section 3.3.2: with 2 cp blocks every rank has s^2 / (2 cp) pairs of all heads."""
    block = llama(cp=cp, style=style, ulysses=ulysses)
    everything = block.microbatch * block.local_heads * block.sequence**2 / 2
    for core in (attention_core_forward(block), attention_core_backward(block)):
        assert sum(visible(op) for op in kernels(core)) == pytest.approx(everything / cp)


@pytest.mark.parametrize("style", ["ring", "allgather"])
def test_unbalanced_ranks_together_do_the_triangle_and_the_last_most(style: str) -> None:
    """Contiguous blocks: rank i has i + 1/2 blocks of keys of (s/c)^2 pairs each."""
    blocks = [llama(style=style, balanced=False, position=i) for i in range(8)]
    done = [sum(visible(op) for op in kernels(attention_core_forward(block))) for block in blocks]
    unit = 2 * 16 * (65536 / 8) ** 2
    assert done == pytest.approx([unit * (i + 0.5) for i in range(8)])
    assert sum(done) == pytest.approx(2 * 16 * 65536**2 / 2)


def test_exchange_runs_beside_the_block_before_it() -> None:
    """Liu et al. 2023: while a block is attended to, the next comes in; nothing else waits for it."""
    ops = attention_core_forward(llama(cp=4))
    order = [op.name for op in ops]
    assert order == [
        *("attention.pass1", "attention.block0"),
        *("attention.pass2", "attention.block1", "attention.block1.merge"),
        *("attention.pass3", "attention.block2", "attention.block2.merge"),
        *("attention.block3", "attention.block3.merge", "attention.cast"),
    ]
    behind = [op.behind for op in ops if isinstance(op, Collective)]
    assert behind == [1, 2, 2]
    backward = [op for op in attention_core_backward(llama(cp=4)) if isinstance(op, Collective)]
    kv = backward[0].size_bytes
    assert [op.size_bytes for op in backward] == [kv, 2 * kv, 2 * kv, kv]
    assert all(op.behind for op in backward)


def test_shapes_of_a_ring_s_kernels_are_those_of_its_blocks() -> None:
    """The first block is causal, the others are half of a whole one: the kernel's ramp sees their true length."""
    first, *others = kernels(attention_core_forward(llama(cp=4)))
    assert (first.query, first.keys, first.causal) == (16384, 16384, True)
    assert {(op.query, op.keys, op.causal) for op in others} == {(16384, 8192, False)}


def test_a_ring_by_node_sends_ahead_across_nodes() -> None:
    """Sun et al. 2025, topology-aware ring: one hop across nodes a turn, beside the whole turn; in all c - 1 hops."""
    ops = attention_core_forward(llama(cp=8, style="burst", inner=4))
    hops = [op for op in ops if isinstance(op, Collective)]
    across = [op for op in hops if op.group == ACROSS]
    assert len(hops) == 7
    assert [op.name for op in across] == ["attention.turn1"]
    assert across[0].behind == 1 + 3 * 2  # a kernel, then a kernel and a sum for each block
    backward = [op for op in attention_core_backward(llama(cp=8, style="burst", inner=4)) if isinstance(op, Collective)]
    plain = [op for op in attention_core_backward(llama(cp=8, style="burst")) if isinstance(op, Collective)]
    assert sum(op.size_bytes for op in backward) == sum(op.size_bytes for op in plain)


def test_both_at_once_pass_blocks_between_those_that_exchange_heads() -> None:
    """Fang and Zhao 2024: with u of c ranks exchanging heads a ring has c/u - 1 hops of as many bytes each."""
    plain, both = (attention_core_forward(llama(32, ulysses=u)) for u in (1, 4))
    hops = [op for op in both if isinstance(op, Collective) and op.group == NEXT]
    assert [op.size_bytes for op in hops] == [plain[0].size_bytes]  # type: ignore[union-attr]
    assert sum(isinstance(op, Collective) and op.group == HEADS for op in both) == 4
    assert kernels(both)[0].query == 65536 // 2
    assert kernels(both)[0].heads == 16 // 4


@pytest.mark.parametrize("style", STYLES)
def test_everything_else_sees_its_share_of_the_tokens(style: str) -> None:
    """Products and tensor-parallel collectives outside the core scale with s/c (Korthikanti 2022 with s/c for s)."""
    whole, split = llama(cp=1), llama(cp=8, style=style)
    for lowered in (block_forward, block_backward):
        a, b = lowered(whole), lowered(split)
        products = [[op.flops for op in ops if isinstance(op, Gemm)] for ops in (a, b)]
        assert products[1] == [flops / 8 for flops in products[0]]
        sums = [[op.size_bytes for op in ops if isinstance(op, Collective) and op.axis == "tp"] for ops in (a, b)]
        assert sums[0]
        assert sums[1] == [size / 8 for size in sums[0]]


def test_one_rank_exchanges_nothing() -> None:
    """cp 1 is what it was without context parallelism, however it is asked for."""
    plain = llama(cp=1)
    for style in STYLES:
        assert block_forward(replace(plain, context=Context(style=style))) == block_forward(plain)
        assert not [op for op in block_backward(plain) if isinstance(op, Collective) and op.axis == "cp"]
