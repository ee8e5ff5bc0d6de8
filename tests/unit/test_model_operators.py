"""Operators: volumes against SC21 §3.2 and Korthikanti 2022, FLOPs against SC21 eq. 3."""

from dataclasses import replace

import pytest

from traincast.model.operators import (
    Block,
    Collective,
    Gemm,
    MemoryBound,
    Operator,
    attention_core_backward,
    attention_core_forward,
    block_backward,
    block_forward,
    embedding_backward,
    embedding_forward,
    head_backward,
    head_forward,
)


def gpt(**changes: object) -> Block:
    block = Block(
        hidden=4096,
        heads=32,
        kv_heads=32,
        head_dim=128,
        ffn_hidden=16384,
        gated_mlp=False,
        rotary=False,
        microbatch=2,
        sequence=2048,
        tp=4,
    )
    return replace(block, **changes)  # type: ignore[arg-type]


def gemm_flops(ops: tuple[Operator, ...]) -> float:
    return sum(op.flops for op in ops if isinstance(op, Gemm))


def sent_bytes(ops: tuple[Operator, ...], tp: int) -> float:
    rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    return sum(rounds[op.op] * op.size_bytes * (tp - 1) / tp for op in ops if isinstance(op, Collective))


def test_flops_of_a_layer_are_sc21_eq_3() -> None:
    """Forward, recomputed forward and backward of one layer: 96 B s h² (1 + s/(6h)) over the TP ranks (eq. 3)."""
    block = gpt()
    flops = 2 * gemm_flops(block_forward(block)) + gemm_flops(block_backward(block))
    b, s, h = block.microbatch, block.sequence, block.hidden
    assert flops * block.tp == pytest.approx(96 * b * s * h * h * (1 + s / (6 * h)))


def test_flops_of_the_logits_are_sc21_eq_3() -> None:
    """Logits: 6 B s h V, eq. 3's V/(16 l h) term."""
    block = gpt()
    flops = gemm_flops(head_forward(block, 51200 // 4)) + gemm_flops(head_backward(block, 51200 // 4))
    assert flops * block.tp == pytest.approx(6 * block.microbatch * block.sequence * block.hidden * 51200)


@pytest.mark.parametrize(("recompute", "factor"), [(False, 8), (True, 12)])
def test_tensor_parallel_bytes_are_sc21_section_3_2(recompute: bool, factor: int) -> None:
    """8 b s h (t-1)/t elements a layer, microbatch and GPU; 12 with full recomputation."""
    block = gpt()
    ops = (*block_forward(block), *block_backward(block), *(block_forward(block) if recompute else ()))
    elements = sent_bytes(ops, block.tp) / 2
    bsh = block.microbatch * block.sequence * block.hidden
    assert elements == pytest.approx(factor * bsh * (block.tp - 1) / block.tp)


def test_sequence_parallelism_moves_the_same_bytes_and_one_more_gather() -> None:
    """Korthikanti 2022 §4.2.2: all-gather and reduce-scatter move what the all-reduce moved; backward gathers twice."""
    block = gpt(sequence_parallel=True)
    forward, backward = block_forward(block), block_backward(block)
    plain = gpt()
    assert sent_bytes(forward, 4) == pytest.approx(sent_bytes(block_forward(plain), 4))
    extra = sent_bytes(backward, 4) - sent_bytes(block_backward(plain), 4)
    assert extra == pytest.approx(2 * block.hidden_bytes * 3 / 4)


def test_one_rank_has_no_collectives() -> None:
    ops = (*block_forward(gpt(tp=1)), *block_backward(gpt(tp=1)))
    assert not any(isinstance(op, Collective) for op in ops)


def test_gqa_and_gated_mlp_shapes() -> None:
    """Llama-3 70B on TP 8: 8 query heads and one KV head of 128 a rank, gate and up in one product."""
    block = Block(8192, 64, 8, 128, 28672, True, True, 1, 8192, tp=8, flash=True, dropout=False)
    gemms = {op.name: (op.m, op.n, op.k) for op in block_forward(block) if isinstance(op, Gemm)}
    assert gemms == {
        "attention.qkv": (8192, 1280, 8192),
        "attention.out": (8192, 8192, 1024),
        "mlp.up": (8192, 7168, 8192),
        "mlp.down": (8192, 8192, 3584),
    }


def test_autocast_walks_a_single_precision_stream_and_casts_around_products() -> None:
    """torch.autocast's lists: F.linear in half precision, layer_norm in single. By element of the stream 14 + 10 in
    place of 4 + 6 bytes forward and 20 + 26 in place of 4 + 12 backward, twice a layer; by weight 6 a pass."""
    block = gpt(tp=1, dropout=False, flash=True)
    cast = replace(block, autocast=True)
    stream, weights = block.tokens * block.hidden, 12 * block.hidden**2
    assert moved(block_forward(cast)) - moved(block_forward(block)) == 2 * 14 * stream + 6 * weights
    assert moved(block_backward(cast)) - moved(block_backward(block)) == 2 * 30 * stream + 6 * weights


def test_autocast_runs_embedding_norm_and_loss_in_single_precision() -> None:
    """The lists again: lookup and layer_norm in single precision, F.linear in half (weights cast, 6 bytes each way),
    cross_entropy in single: 6 to cast, 8 and 12 of log_softmax and its gradient, 4 of zeros, 6 to cast back."""
    block = gpt(tp=1, dropout=False, flash=True, autocast=True, summed=0.0)
    e, v = block.tokens * block.hidden, 51200
    assert moved(embedding_forward(block)) == (8 + 12) * e
    assert moved(embedding_backward(block, v)) == (8 + 12) * e + 4 * v * block.hidden
    head = moved(head_forward(block, v)) + moved(head_backward(block, v))
    assert head == (14 + 26) * e + 12 * v * block.hidden + 36 * block.tokens * v
    fused = replace(block, fused_loss=True)
    assert head - moved(head_forward(fused, v)) - moved(head_backward(fused, v)) == (36 - 8) * block.tokens * v


def test_the_embedding_keeps_the_first_microbatch_s_gradient_as_layers_do() -> None:
    """A new gradient is zeros (2 bytes); of four microbatches three are read and added (2 + 2 + 2)."""

    def table(share: float) -> float:
        return moved(embedding_backward(gpt(summed=share), 12800)) - moved(embedding_backward(gpt(summed=share), 0))

    weights = 12800 * 4096
    assert table(0.0) == 2 * weights
    assert table(1.0) == pytest.approx((2 + 6) * weights)
    assert table(0.75) == pytest.approx((2 + 0.75 * 6) * weights)


def moved(ops: tuple[Operator, ...]) -> float:
    return sum(op.bytes_moved for op in ops if isinstance(op, MemoryBound))


def test_flash_attention_counts_the_same_forward_flops() -> None:
    """A flash kernel does the two products of the unfused core."""
    core = attention_core_forward(gpt())
    flash = attention_core_forward(gpt(flash=True))
    assert sum(getattr(op, "flops", 0.0) for op in flash) == pytest.approx(gemm_flops(core))


def test_unfused_weight_gradients_add_traffic() -> None:
    """Law: without epilogue accumulation each of the four weights has one more kernel."""
    more = len(block_backward(gpt())) - len(block_backward(gpt(fused_accumulation=True)))
    assert more == 4


def softmax_work(block: Block) -> list[tuple[float, int]]:
    """Bytes a score and kernels of the softmax, forward and backward."""
    scores = block.microbatch * block.core_heads * block.sequence**2
    both = (*attention_core_forward(block), *attention_core_backward(block))
    found = [op for op in both if isinstance(op, MemoryBound) and op.name.startswith("attention.softmax")]
    return [(op.bytes_moved / scores, op.calls) for op in found]


@pytest.mark.parametrize(
    ("tp", "microbatch", "sequence", "fused"),
    [
        (8, 2, 1024, True),  # four rows: two samples of two heads
        (8, 1, 1024, False),  # two rows
        (4, 1, 2048, True),
        (4, 1, 2052, False),  # more keys than the kernel has room for
        (4, 1, 1022, False),  # queries that are no multiple of four
        (4, 1, 16, False),  # fewer keys than the kernel is for
    ],
)
def test_the_fused_softmax_takes_rows_in_fours(tp: int, microbatch: int, sequence: int, fused: bool) -> None:
    """Megatron-LM, megatron/model/fused_softmax.py: 16 < keys <= 2048, queries and microbatch x local heads in fours;
    else five kernels in single precision forward, six backward (PyTorch's masked_fill copies the gradient)."""
    bound = gpt(heads=16, tp=tp, microbatch=microbatch, sequence=sequence, softmax_keys=2048)
    assert softmax_work(bound) == ([(3, 1), (6, 1)] if fused else [(36, 5), (48, 6)])
    assert softmax_work(replace(bound, softmax_keys=0)) == [(3, 1), (6, 1)]
