"""Casts to fp8: traffic of each recipe, what travels in fp8, products by their scales.

Laws: torchao, testing/training/roofline_utils.py (kernels and bytes by recipe); OCP Microscaling Formats 1.0, section
5.2 (a byte of scale for 32 elements); torch/distributed/_functional_collectives.py (copies along inner dimensions).
"""

from dataclasses import replace
from typing import get_args

import pytest

from traincast.catalog import load_catalog
from traincast.costs import Machine, operator_seconds
from traincast.errors import CatalogError
from traincast.lower.recompute import layer_backward
from traincast.model.casts import Casts, Scaling, casts_of
from traincast.model.operators import (
    Block,
    Collective,
    FlashAttention,
    Gemm,
    MemoryBound,
    Operator,
    block_backward,
    block_forward,
)
from traincast.profile import load_profile, shipped_profiles
from traincast.recipe import Recipe
from traincast.validate.rows import PublishedRow
from traincast.validate.stack import fp8_of_row

BLOCK = Block(
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    ffn_hidden=14336,
    gated_mlp=True,
    rotary=True,
    microbatch=2,
    sequence=8192,
    flash=True,
    dropout=False,
    fused_accumulation=True,
)
SPLIT = replace(BLOCK, tp=8, sequence_parallel=True)


def recipe(scaling: Scaling) -> Casts:
    return casts_of(scaling, transposes=True, fused=False)


def layer(one: Block) -> tuple[Operator, ...]:
    return (*block_forward(one), *block_backward(one))


def moved(ops: tuple[Operator, ...], *names: str) -> float:
    return sum(op.bytes_moved for op in ops if isinstance(op, MemoryBound) and any(name in op.name for name in names))


def wire(ops: tuple[Operator, ...], kind: str) -> float:
    return sum(op.size_bytes for op in ops if isinstance(op, Collective) and op.op == kind)


def test_tensorwise_is_torchao_s_own_count() -> None:
    """Input or gradient: 2 to find the maximum, 4 to cast both ways (and 1 read again); weight: 2 + 3 + 3."""
    casts = recipe("tensorwise")
    assert casts.entry.rows + casts.entry_again.rows == casts.gradient.rows == 2 + 4 + 1
    assert casts.weight.rows + casts.weight_again.rows == 2 + 3 + 3
    assert casts.fp8_weight_again.rows == 2


def test_torchao_s_mxfp8_casts_each_axis_by_a_kernel() -> None:
    """2 + 1 bytes an axis and a scale of 1/32; Transformer Engine reads once for both."""
    casts = recipe("block_twice")
    assert casts.entry.rows + casts.entry_again.rows == casts.gradient.rows == 2 * (3 + 1 / 32)
    assert casts.weight.rows + casts.weight_again.rows == 2 * (3 + 1 / 32)
    assert recipe("block").gradient.rows == 4 + 2 / 32


def test_rowwise_walks_every_factor_along_columns_once() -> None:
    """Input, gradient and weight of each linear layer: 3 bytes an element against the grain."""
    one = replace(BLOCK, fp8=True, scaling="rowwise")
    against = sum(op.bytes_moved for op in layer(one) if isinstance(op, MemoryBound) and op.columns)
    t, h, f, qkv = one.tokens, one.hidden, one.ffn_width, one.qkv_width
    inputs, gradients = h + h + h + f, qkv + h + 2 * f + h
    weights = h * qkv + h * h + 3 * h * f
    assert against == pytest.approx(3.0 * (t * (inputs + gradients) + weights))
    tensorwise = layer(replace(one, scaling="tensorwise"))
    assert not any(op.columns for op in tensorwise if isinstance(op, MemoryBound))


def test_what_tensor_parallelism_gathers() -> None:
    """Cast before the gather, or behind it where scales go by rows; what is reduced is half precision."""
    half = wire(layer(SPLIT), "all_gather")
    for scaling, share in (
        ("delayed", 0.5),
        ("tensorwise", 0.5),
        ("block", 0.5),
        ("rowwise", 1.0),
        ("block_twice", 1.0),
    ):
        ops = layer(replace(SPLIT, fp8=True, scaling=scaling))
        assert wire(ops, "all_gather") == pytest.approx(share * half)
        assert wire(ops, "reduce_scatter") == wire(layer(SPLIT), "reduce_scatter")


def test_weights_gathered_in_fp8_need_no_cast_forward() -> None:
    own = replace(BLOCK, fp8=True, scaling="tensorwise")
    weights = BLOCK.hidden * (BLOCK.qkv_width + BLOCK.hidden + 3 * BLOCK.ffn_width)
    assert moved(layer(own), "weight.cast") == pytest.approx((5 + 3) * weights)
    assert moved(layer(replace(own, fp8_weights=True)), "weight.cast") == pytest.approx(2 * weights)
    assert moved(layer(replace(own, scaling="delayed")), "weight.cast") == 0


def test_products_that_run_again_do_so_in_fp8() -> None:
    """torchtitan's selective checkpointing: key, output and up, and the casts of their weights only."""
    own = replace(BLOCK, fp8=True, scaling="tensorwise")
    again = layer_backward(own, "op:torchtitan")[0].operators
    products = [op for op in again if isinstance(op, Gemm)]
    assert [op.name for op in products] == ["attention.key", "attention.out", "mlp.up"]
    assert all(op.fp8 for op in products)
    weights = sum(op.n * op.k for op in products)
    assert moved(tuple(again), "weight.cast") == pytest.approx(5 * weights)


def test_sequences_inside_a_batch_are_copied() -> None:
    """Of each gather and reduction along the second dimension every byte is read and written once more; a cast behind
    a gather reads the parts where they are."""
    copied = replace(SPLIT, copies_sequence=True)
    on_wire = wire(layer(SPLIT), "all_gather") + wire(layer(SPLIT), "reduce_scatter")
    assert moved(layer(copied), ".copy") == pytest.approx(2 * on_wire)
    rowwise = layer(replace(copied, fp8=True, scaling="rowwise"))
    assert moved(rowwise, ".copy") == pytest.approx(2 * wire(rowwise, "reduce_scatter"))
    assert moved(layer(SPLIT), ".copy") == 0


@pytest.mark.parametrize("how", ["complex_rotary", "unfused_rotary"])
def test_rotary_embeddings_of_several_kernels(how: str) -> None:
    """2 + 4, 4 + 4 and 4 + 2 bytes for each element of queries and keys, or 2, 4, 4 + 4 and 6, either way."""
    ops = layer(replace(BLOCK, **{how: True}))
    assert moved(ops, "rotary") == 2 * 20 * BLOCK.tokens * (32 + 8) * 128


def test_dropout_slows_fused_attention_and_nothing_else_of_it() -> None:
    """A random number for each score is drawn inside the kernel: no traffic, `attention.dropout` more time."""
    machine = Machine(load_catalog().gpu("H100-80GB-SXM"), load_profile("h100-nemo-megatroncore2025"), "bf16")
    plain, drops = (
        [one for one in layer(replace(BLOCK, dropout=on)) if isinstance(one, FlashAttention)] for on in (False, True)
    )
    for one, other in zip(plain, drops, strict=True):
        assert replace(other, drops=False) == one
        slower = operator_seconds(other, machine, {}) / operator_seconds(one, machine, {})
        assert slower == pytest.approx(1 + machine.profile["attention.dropout"])


@pytest.mark.parametrize(("positions", "drops"), [("learned", True), ("rotary", False)])
def test_gpt_drops_where_its_file_says_so(positions: str, drops: bool) -> None:
    """NeMo's GPT-3 trains with dropout 0.1, its Llama and Nemotron without."""
    assert load_profile("h100-nemo-megatroncore2025").traits.drops(positions) is drops
    assert not load_profile("h100-mlperf2024").traits.drops(positions)


def test_scales_by_row_slow_products_and_casts_along_columns() -> None:
    profile = load_profile("h100-96gb-torchtitan2024")
    machine = Machine(load_catalog().gpu("H100-96GB-SXM-500W"), profile, "fp8")
    long = Gemm("long", 8192, 8192, 65536, fp8=True)
    ratio = operator_seconds(long, machine, {}) / operator_seconds(replace(long, rowwise=True), machine, {})
    assert ratio == pytest.approx(profile["gemm.rowwise"], rel=0.01)
    cast = MemoryBound("cast", 3e9)
    ratio = operator_seconds(cast, machine, {}) / operator_seconds(replace(cast, columns=True), machine, {})
    assert ratio == pytest.approx(profile["memory.columns"], rel=0.01)


def test_mxfp8_runs_at_the_rate_of_fp8_where_the_gpu_has_it() -> None:
    catalog, profile = load_catalog(), load_profile("blackwell-nemo-megatroncore2025")
    product = Gemm("long", 8192, 8192, 65536, fp8=True)
    gpu = catalog.gpu("GB200")
    both = [operator_seconds(product, Machine(gpu, profile, precision), {}) for precision in ("fp8", "mxfp8")]
    assert both[0] == both[1]
    with pytest.raises(CatalogError, match="has no mxfp8 peak"):
        operator_seconds(product, Machine(catalog.gpu("H100-80GB-SXM"), profile, "mxfp8"), {})


def test_stacks_name_a_scaling_that_is_known() -> None:
    assert {profile.traits.fp8_scaling for profile in shipped_profiles()} <= set(get_args(Scaling))
    titan = {p.traits.fp8_scaling for p in shipped_profiles() if "torchtitan20" in p.name and p.gpu[0] != "A"}
    assert titan == {"tensorwise"}


def test_what_a_remark_says_of_the_recipe() -> None:
    def asked(remark: str) -> Recipe:
        return Recipe(8, 1, 8192, precision="fp8", **fp8_of_row(PublishedRow("rows.csv", 2, {"remark": remark})))

    assert (asked("fp8_rowwise").fp8_scaling, asked("fp8_rowwise").fp8_gather) == ("rowwise", False)
    assert (asked("fp8_allgather").fp8_scaling, asked("fp8_allgather").fp8_gather) == ("tensorwise", True)
    assert (asked("").fp8_scaling, asked("uneven_stages").fp8_gather) == (None, False)
