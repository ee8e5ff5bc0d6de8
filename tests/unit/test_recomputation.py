"""What is computed again: texts, operators, FLOPs and memory agree on it."""

from dataclasses import replace

import pytest

from traincast.catalog import load_catalog
from traincast.lower import Job
from traincast.lower.recompute import layer_backward, layers_backward, repeated
from traincast.lower.stages import chunk_parts
from traincast.memory import MemoryJob, chunk_layers, layer_activation_bytes, layers_activation_bytes, whole_layers
from traincast.memory.activations import chunks_before
from traincast.mesh import Mesh
from traincast.model.flops import Repeated, executed_flops, forward_flops, hardware_flops, model_flops, step_flops
from traincast.model.operators import Block, Gemm, block_forward
from traincast.model.shape import Grouping, gpt, llama
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.recomputation import Recomputation, recomputation
from traincast.schedule import parts_of
from traincast.topology import selene

LLAMA = llama("8b", 4096, 32, 32, Grouping(8, 14336))
BLOCK = Block(4096, 32, 8, 128, 14336, True, True, 1, 8192, flash=True, dropout=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", Recomputation()),
        ("full", Recomputation(1)),
        ("every_2nd", Recomputation(2)),
        ("every_13th", Recomputation(13)),
        ("full_but_qkv", Recomputation(1, kept_qkv=True)),
        ("selective", Recomputation(pieces=frozenset({"core_attn"}))),
        ("mlp", Recomputation(pieces=frozenset({"mlp"}))),
        ("op:act+layernorm", Recomputation(pieces=frozenset({"mlp_act", "norm"}))),
        ("op:torchtitan", Recomputation(pieces=frozenset({"torchtitan"}))),
    ],
)
def test_texts(text: str, found: Recomputation) -> None:
    assert recomputation(text) == found


@pytest.mark.parametrize("text", ["", "all", "every_0th", "op:", "op:moe", "op:norm+layernorm", "op:torchtitan+norm"])
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not one of none, selective, full"):
        recomputation(text)


def again(recompute: str, *, early_stop: bool = False) -> list[str]:
    segments = layer_backward(BLOCK, recompute, early_stop=early_stop)
    return [op.name for segment in segments if segment.phase == "recompute" for op in segment.operators]


def test_torchtitan_keeps_every_second_product() -> None:
    """Products in order: query, key, value, output, gate, up, down; the first, third, ... are kept, attention too."""
    names = again("op:torchtitan")
    assert [name for name in names if name in ("attention.key", "attention.out", "mlp.up")] == [
        "attention.key",
        "attention.out",
        "mlp.up",
    ]
    assert "attention" not in names
    assert "mlp.down" not in names
    assert {"attention.norm", "rotary", "mlp.norm", "mlp.activation"} <= set(names)


def test_pieces_are_what_they_say() -> None:
    assert again("none") == []
    assert again("selective") == ["attention"]
    assert again("mlp") == ["mlp.up", "mlp.activation", "mlp.down"]
    assert again("op:mlp_act+norm") == ["mlp.norm", "mlp.activation", "attention.norm"]
    assert again("full") == [op.name for op in block_forward(BLOCK)]


def test_recomputation_that_stops_early_leaves_the_down_projection_out() -> None:
    """torch.utils.checkpoint from 2.1: nothing behind the last tensor that the backward pass reads."""
    assert again("full", early_stop=True) == again("full")[: again("full").index("mlp.down")]
    assert again("mlp", early_stop=True) == ["mlp.up", "mlp.activation"]


def test_what_stops_early_scatters_nothing_of_the_product_that_it_leaves_out() -> None:
    """Split collectives write three quarters of the sum of the down projection in front of the product that they run
    beside (Megatron-Core, tp_comm_overlap): where it does not run again, nor do they."""
    split = replace(BLOCK, tp=4, sequence_parallel=True, overlap_tp=True, split_tp=True)
    names = [one.name for one in block_forward(split)]
    assert names.index("mlp.pieces.reduce_scatter") < names.index("mlp.down")
    for recompute in ("full", "mlp", "op:torchtitan"):
        segments = layer_backward(split, recompute, early_stop=True)
        repeated = [one.name for segment in segments if segment.phase == "recompute" for one in segment.operators]
        assert not any(name.startswith(("mlp.down", "mlp.pieces", "mlp.reduce_scatter")) for name in repeated)
        assert "mlp.up" in repeated


@pytest.mark.parametrize("recompute", ["none", "selective", "full", "op:mlp_act+norm", "op:torchtitan"])
def test_what_is_computed_again_is_issued_by_python(recompute: str) -> None:
    """torch.utils.checkpoint runs the modules again; only the gradients behind them are autograd's own calls."""
    segments = layer_backward(BLOCK, recompute)
    assert all(segment.autograd == (segment.phase == "compute") for segment in segments)
    assert any(segment.autograd for segment in segments)


def test_every_second_layer_is_recomputed_whole() -> None:
    layers = layers_backward(BLOCK, "every_2nd", 5)
    assert [len(segments) for segments in layers] == [1, 2, 1, 2, 1]
    assert [len(segments) for segments in layers_backward(BLOCK, "full", 2)] == [2, 2]


@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize("recompute", ["full", "mlp", "selective", "op:torchtitan", "op:norm"])
def test_flops_are_those_of_the_operators(recompute: str, early_stop: bool) -> None:
    """Convention `hardware` beyond `model`: the products that a layer runs again, and its attention core."""
    segments = layer_backward(BLOCK, recompute, early_stop=early_stop)
    operators = [op for one in segments if one.phase == "recompute" for op in one.operators]
    run = sum(op.flops for op in operators if isinstance(op, Gemm))
    if any(op.name == "attention" for op in operators):
        run += forward_flops(LLAMA, 1, 8192).attention_core / LLAMA.layers
    extra = executed_flops(LLAMA, 1, 8192, Repeated(recompute, early_stop=early_stop)) - model_flops(LLAMA, 1, 8192)
    assert extra == pytest.approx(LLAMA.layers * run)


def test_half_of_the_layers_is_half_of_the_recomputation() -> None:
    whole = hardware_flops(LLAMA, 1, 8192, "full") - model_flops(LLAMA, 1, 8192)
    half = hardware_flops(LLAMA, 1, 8192, "every_2nd") - model_flops(LLAMA, 1, 8192)
    assert half == pytest.approx(whole / 2)


# pp, vpp, schedule; whole layers of 16 under every_2nd, and of 15 on uneven stages
COUNTED = [
    (1, 1, "none", None, 8),
    (4, 1, "1f1b", None, 8),
    (4, 4, "interleaved", None, 8),
    (16, 1, "1f1b", None, 0),
    (4, 2, "zb-v", None, 8),
    (4, 2, "dualpipe", None, 8),
    (2, 1, "1f1b", (7, 9), 7),
    (2, 2, "interleaved", (3, 5, 4, 4), 7),
]


@pytest.mark.parametrize(("pp", "vpp", "schedule", "split", "whole"), COUNTED)
def test_lower_memory_and_flops_count_the_same_layers(
    pp: int, vpp: int, schedule: str, split: tuple[int, ...] | None, whole: int
) -> None:
    """A rank counts its layers through its chunks (torchtitan, activation_checkpoint.py, `_layer_sac_count`): with one
    layer a rank every_2nd recomputes none."""
    model, mesh = replace(LLAMA, layers=16), Mesh(pp=pp, dp=2)
    recipe = Recipe(32, 1, 8192, "bf16", "every_2nd", schedule, vpp=vpp, attention="flash", stage_layers=split)  # type: ignore[arg-type]
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-selene-megatron2021")
    job = Job(model, mesh, recipe, profile, selene(4), gpu)
    lowered = [layers_backward(BLOCK, "every_2nd", part.layers, before=part.before) for part in chunk_parts(job)]
    recomputed = [sum(one.phase == "recompute" for layer in layers for one in layer) for layers in lowered]
    assert sum(recomputed) == whole
    counted, held = whole_layers(model, mesh, recipe)
    assert counted / held == repeated(job).whole == whole / 16
    extra = step_flops(model, 32, 8192, "hardware", repeated(job)) - model_flops(model, 32, 8192)
    assert extra == pytest.approx(whole / 16 * (hardware_flops(model, 32, 8192, "full") - model_flops(model, 32, 8192)))
    plain, full = (replace(recipe, recompute=how) for how in ("none", "full"))
    one, again = (layer_activation_bytes(model, mesh, each) for each in (plain, full))
    for stage, chunks in enumerate(chunk_layers(model, mesh, recipe)):
        places = parts_of(schedule, pp, vpp, stage)
        for chunk, (layers, before) in enumerate(zip(chunks, chunks_before(recipe, chunks), strict=True)):
            count = recomputed[places[chunk]]
            found = layers_activation_bytes(MemoryJob(model, mesh, recipe), layers, before)
            assert found == pytest.approx(count * again + (layers - count) * one)


def kept(recompute: str, model=LLAMA) -> float:
    recipe = Recipe(8, 1, 8192, "bf16", recompute, "none", attention="flash")
    return layer_activation_bytes(model, Mesh(dp=8), recipe) / 8192


def test_kept_bytes() -> None:
    """Bytes a token: 2 for each element of what stays, 4 for each row of flash attention."""
    hidden, ffn, kv = 4096, 14336, 1024
    assert kept("none") - kept("op:mlp_act") == 2 * ffn
    assert kept("none") - kept("op:norm") == 2 * 2 * hidden
    assert kept("none") - kept("mlp") == 2 * 3 * ffn
    assert kept("every_2nd") == pytest.approx((kept("none") + kept("full")) / 2)
    assert kept("op:torchtitan") == 2 * (hidden + hidden + kv + hidden + ffn + hidden) + 4 * 32
    plain = gpt("g", 4096, 32, 32)
    assert kept("full", plain) < kept("op:torchtitan", plain) < kept("none", plain)


def test_kept_queries_keys_and_values_are_not_made_again() -> None:
    """MaxText's save_qkv_proj: neither their projection nor rotary embedding, the rest up to the down projection."""
    (again, *_) = layer_backward(BLOCK, "full_but_qkv", early_stop=True)
    names = [one.name for one in again.operators]
    assert names[0] == "attention.norm"
    assert {"attention", "attention.out", "mlp.up", "mlp.activation"} <= set(names)
    assert not {"attention.qkv", "rotary", "mlp.down"} & set(names)


def test_kept_queries_keys_and_values_take_memory_and_save_work() -> None:
    """2 bytes of each of their elements beside what full recomputation keeps, and 2 FLOP a weight and token less."""
    kept = Recipe(
        global_batch=8, microbatch=1, sequence=8192, precision="bf16", attention="flash", recompute="full_but_qkv"
    )
    columns = LLAMA.attention_width + 2 * LLAMA.kv_width
    for tp in (1, 4):
        mesh = Mesh(tp=tp)
        more = layer_activation_bytes(LLAMA, mesh, kept)
        more -= layer_activation_bytes(LLAMA, mesh, replace(kept, recompute="full"))
        assert more == 2 * 8192 * columns / tp
    less = executed_flops(LLAMA, 1, 8192, "full") - executed_flops(LLAMA, 1, 8192, "full_but_qkv")
    assert less == 2.0 * 8192 * LLAMA.layers * LLAMA.hidden * columns
