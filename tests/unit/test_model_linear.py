"""Linear layers: what splitting and fp8 change, and what they must not change.

Laws: pieces of a product and of a reduction add up to the whole; fp8 halves what is gathered, not what is reduced;
casts move the bytes that model/linear.py states (Transformer Engine's cast and transpose kernels, delayed scaling).
"""

from dataclasses import replace
from typing import get_args

import pytest

from traincast.model.casts import Scaling
from traincast.model.linear import PIECES
from traincast.model.operators import (
    Block,
    Collective,
    Gemm,
    MemoryBound,
    Operator,
    block_backward,
    block_forward,
    column_parallel_backward,
    head_backward,
    head_forward,
)

BLOCK = Block(
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
    sequence_parallel=True,
    flash=True,
    dropout=False,
    overlap_tp=True,
    fused_accumulation=True,
)


def block(**changes: object) -> Block:
    return replace(BLOCK, **changes)  # type: ignore[arg-type]


def layer(one: Block) -> tuple[Operator, ...]:
    return (*block_forward(one), *block_backward(one))


def flops(ops: tuple[Operator, ...]) -> float:
    return sum(op.flops for op in ops if isinstance(op, Gemm))


def wire(ops: tuple[Operator, ...], kind: str) -> float:
    return sum(op.size_bytes for op in ops if isinstance(op, Collective) and op.op == kind)


def casts(ops: tuple[Operator, ...]) -> dict[str, float]:
    found: dict[str, float] = {}
    for op in ops:
        if isinstance(op, MemoryBound) and ("cast" in op.name or "transpose" in op.name):
            found[op.name] = op.bytes_moved
    return found


@pytest.mark.parametrize("gated", [False, True])
def test_pieces_add_up(gated: bool) -> None:
    """Split or whole, a layer multiplies, gathers and reduces the same."""
    whole, split = layer(block(gated_mlp=gated)), layer(block(gated_mlp=gated, split_tp=True))
    assert flops(split) == flops(whole)
    for kind in ("all_gather", "reduce_scatter"):
        assert wire(split, kind) == pytest.approx(wire(whole, kind))


def test_what_of_a_split_layer_is_exposed() -> None:
    """Forward one piece of each row-parallel output, no gather; backward nothing, as gradients are split too."""
    forward = [op for op in block_forward(block(split_tp=True)) if isinstance(op, Collective)]
    waiting = [op for op in forward if op.behind == 0]
    assert [op.op for op in waiting] == ["reduce_scatter", "reduce_scatter"]
    assert sum(op.size_bytes for op in waiting) == pytest.approx(2 * BLOCK.hidden_bytes / PIECES)
    backward = [op for op in block_backward(block(split_tp=True)) if isinstance(op, Collective)]
    assert all(op.behind > 0 for op in backward)
    assert sum(op.behind == 0 for op in block_backward(BLOCK) if isinstance(op, Collective)) == 2


def test_reductions_beside_a_product_take_its_multiprocessors() -> None:
    shares = {op.name for op in layer(block(split_tp=True)) if isinstance(op, Gemm) and op.shares_sms}
    assert shares == {"attention.out", "mlp.down"}
    assert not any(op.shares_sms for op in layer(BLOCK) if isinstance(op, Gemm))


@pytest.mark.parametrize("changes", [{"tp": 1}, {"sequence_parallel": False}])
def test_without_a_split_sequence_nothing_is_split(changes: dict[str, object]) -> None:
    assert layer(block(split_tp=True, **changes)) == layer(block(**changes))


def test_fp8_products_are_those_of_linear_layers() -> None:
    """All products of a layer (its attention is fused), none of the head."""
    fp8 = block(fp8=True)
    assert all(op.fp8 for op in layer(fp8) if isinstance(op, Gemm))
    head = (*head_forward(fp8, 8192), *head_backward(fp8, 8192))
    assert head == (*head_forward(BLOCK, 8192), *head_backward(BLOCK, 8192))
    assert flops(layer(fp8)) == flops(layer(BLOCK))


def test_fp8_halves_what_is_gathered() -> None:
    plain, fp8 = layer(BLOCK), layer(block(fp8=True))
    assert wire(fp8, "all_gather") == pytest.approx(wire(plain, "all_gather") / 2)
    assert wire(fp8, "reduce_scatter") == wire(plain, "reduce_scatter")


def test_bytes_of_casts_on_hopper() -> None:
    """t tokens, h wide, TP 4, f = 4h: inputs of row-parallel layers 4 bytes, gradients of column-parallel ones 4, those
    of row-parallel ones 3 on this rank's quarter and 2 on the whole, gathered inputs 2."""
    t, h = BLOCK.tokens, BLOCK.hidden
    assert casts(layer(block(fp8=True))) == pytest.approx(
        {
            "attention.out.cast": 4 * t * h / 4,
            "mlp.down.cast": 4 * t * h,
            "mlp.down.cast.grad": 3 * t * h / 4,
            "mlp.down.transpose": 2 * t * h,
            "mlp.up.cast.grad": 4 * t * h,
            "mlp.up.transpose": 2 * t * h,
            "attention.out.cast.grad": 3 * t * h / 4,
            "attention.out.transpose": 2 * t * h,
            "attention.qkv.cast.grad": 4 * t * 3 * h / 4,
            "attention.qkv.transpose": 2 * t * h,
        }
    )


def test_blackwell_needs_no_transposes() -> None:
    found = casts(layer(block(fp8=True, fp8_transposes=False)))
    assert not any("transpose" in name for name in found)
    assert found["mlp.down.cast"] == 3 * BLOCK.tokens * BLOCK.hidden


WAYS: dict[str, dict[str, bool]] = {
    "none": {"overlap_tp": False},
    "bulk": {"overlap_tp": True},
    "split": {"overlap_tp": True, "split_tp": True},
}
PRECISIONS: list[dict[str, object]] = [{}, *({"fp8": True, "scaling": one} for one in get_args(Scaling))]


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
def test_what_reads_gathered_data_comes_behind_what_hides_the_gather(
    precision: dict[str, object], way: str, copies: bool
) -> None:
    """Beside a gather run products and copies of other tensors; in front of a reduction stands what it reads."""
    one = block(**precision, **WAYS[way], copies_sequence=copies)
    ops = layer(one)
    gathers = [place for place, op in enumerate(ops) if isinstance(op, Collective) and op.op == "all_gather"]
    assert len(gathers) == 6
    for place in gathers:
        gather = ops[place]
        assert isinstance(gather, Collective)
        computing = [op for op in ops[place + 1 :] if not isinstance(op, Collective)]
        beside = computing[: gather.behind]
        assert all(isinstance(op, Gemm) or op.name.endswith("reduce_scatter.copy") for op in beside)
        copied = [op.name for op in computing].count(f"{gather.name}.copy")
        assert copied == (copies and not one.reads_behind_gathers)
    for place, op in enumerate(ops):
        if op.name.endswith("reduce_scatter.copy"):
            layer_of = op.name.removesuffix(".reduce_scatter.copy")
            before = [other.name for other in ops[:place] if isinstance(other, Gemm)]
            assert before[-1].startswith(layer_of)
            assert isinstance(ops[place + 1], Collective)


def test_bulk_overlap_keeps_hiding_where_sequences_are_copied() -> None:
    """Gather beside dgrad, reduction beside the copy and the weight gradient; split gathers have nothing to hide in."""
    ops = column_parallel_backward(block(copies_sequence=True), "up", 4096)
    assert [(op.name, getattr(op, "behind", None)) for op in ops] == [
        ("up.all_gather", 2),
        ("up.dgrad", None),
        ("up.reduce_scatter.copy", None),
        ("up.reduce_scatter", 2),
        ("up.all_gather.copy", None),
        ("up.wgrad", None),
    ]
    split = layer(block(split_tp=True, copies_sequence=True))
    exposed = [op.name for op in split if isinstance(op, Collective) and op.op == "all_gather" and not op.behind]
    assert exposed == ["attention.all_gather", "mlp.all_gather", "mlp.down.all_gather", "attention.out.all_gather"]
    assert {op.batch for op in split if isinstance(op, Gemm) and op.name in ("mlp.up", "mlp.down.dgrad")} == {1}


def test_norms_write_fp8_themselves() -> None:
    def norms(one: Block) -> float:
        names = ("attention.norm", "mlp.norm")
        return sum(op.bytes_moved for op in block_forward(one) if isinstance(op, MemoryBound) and op.name in names)

    assert norms(block(fp8=True)) == pytest.approx(norms(BLOCK) * 3 / 4)


def test_a_fused_sum_reads_and_writes_the_main_gradient() -> None:
    fused = {op.out_bytes for op in layer(block(main_gradient_bytes=4)) if isinstance(op, Gemm) and op.role == "wgrad"}
    assert fused == {8.0}
    own = layer(block(main_gradient_bytes=4, fused_accumulation=False))
    assert {op.out_bytes for op in own if isinstance(op, Gemm)} == {2.0}


def test_a_sum_of_its_own_moves_bytes_for_the_microbatches_that_add_anything() -> None:
    """Autograd keeps the first microbatch's gradient: of four, three read it and read and write the sum (2 + 2 + 2)."""

    def summed(share: float) -> float:
        own = layer(block(fused_accumulation=False, summed=share))
        return sum(op.bytes_moved for op in own if isinstance(op, MemoryBound) and op.name.endswith(".accumulate"))

    assert summed(1.0) == pytest.approx(6 * 12 * 4096**2 / 4)
    assert summed(0.75) == pytest.approx(0.75 * summed(1.0))
    assert summed(0.0) == 0.0


def test_fused_casts_leave_the_transposes() -> None:
    """XLA makes a cast part of the kernel in front of it: on Hopper the transposed copies stay, else nothing."""
    t, h = BLOCK.tokens, BLOCK.hidden
    hopper = casts(layer(block(fp8=True, fused_casts=True)))
    assert hopper["attention.out.cast"] == pytest.approx(2 * t * h / 4)
    assert hopper["mlp.up.cast.grad"] == pytest.approx(2 * t * h)
    assert "mlp.down.cast.grad" not in hopper
    assert hopper["mlp.down.transpose"] == pytest.approx(2 * t * h)
    assert not casts(layer(block(fp8=True, fused_casts=True, fp8_transposes=False)))
