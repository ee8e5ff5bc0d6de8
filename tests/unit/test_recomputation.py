"""What is computed again: texts, operators, FLOPs and memory agree on it."""

import pytest

from traincast.lower.recompute import layer_backward, layers_backward
from traincast.memory import layer_activation_bytes
from traincast.mesh import Mesh
from traincast.model.flops import executed_flops, forward_flops, hardware_flops, model_flops
from traincast.model.operators import Block, Gemm, block_forward
from traincast.model.shape import Grouping, gpt, llama
from traincast.recipe import Recipe
from traincast.recomputation import Recomputation, recomputation

LLAMA = llama("8b", 4096, 32, 32, Grouping(8, 14336))
BLOCK = Block(4096, 32, 8, 128, 14336, True, True, 1, 8192, flash=True, dropout=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("none", Recomputation()),
        ("full", Recomputation(1)),
        ("every_2nd", Recomputation(2)),
        ("every_13th", Recomputation(13)),
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


def test_every_second_layer_is_recomputed_whole() -> None:
    layers = layers_backward(BLOCK, "every_2nd", 5)
    assert [len(segments) for segments in layers] == [1, 2, 1, 2, 1]
    assert [len(segments) for segments in layers_backward(BLOCK, "full", 2)] == [2, 2]


@pytest.mark.parametrize("recompute", ["full", "mlp", "selective", "op:torchtitan", "op:norm"])
def test_flops_are_those_of_the_operators(recompute: str) -> None:
    """Convention `hardware` beyond `model`: the products that a layer runs again, and its attention core."""
    segments = layer_backward(BLOCK, recompute)
    operators = [op for one in segments if one.phase == "recompute" for op in one.operators]
    run = sum(op.flops for op in operators if isinstance(op, Gemm))
    if any(op.name == "attention" for op in operators):
        run += forward_flops(LLAMA, 1, 8192).attention_core / LLAMA.layers
    extra = executed_flops(LLAMA, 1, 8192, recompute) - model_flops(LLAMA, 1, 8192)
    assert extra == pytest.approx(LLAMA.layers * run)


def test_half_of_the_layers_is_half_of_the_recomputation() -> None:
    whole = hardware_flops(LLAMA, 1, 8192, "full") - model_flops(LLAMA, 1, 8192)
    half = hardware_flops(LLAMA, 1, 8192, "every_2nd") - model_flops(LLAMA, 1, 8192)
    assert half == pytest.approx(whole / 2)


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
