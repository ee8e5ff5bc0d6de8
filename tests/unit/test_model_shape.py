"""Shapes that cannot be are refused; the helpers give the usual families."""

import pytest

from traincast.errors import ShapeError
from traincast.model import Grouping, ModelShape, gpt, llama


def test_gpt_has_four_times_hidden_and_full_heads():
    shape = gpt("GPT-3 175B", 12288, 96, 96)
    assert (shape.ffn_hidden, shape.kv_heads, shape.head_dim) == (49152, 96, 128)
    assert shape.attention_width == shape.kv_width == 12288
    assert shape.mlp_matrices == 2


def test_llama_groups_heads_and_gates_the_mlp():
    shape = llama("Llama 3 70B", 8192, 80, 64, Grouping(kv_heads=8, ffn_hidden=28672))
    assert (shape.kv_width, shape.mlp_matrices, shape.tied_embeddings) == (1024, 3, False)


def test_query_heads_share_key_heads_evenly():
    with pytest.raises(ShapeError, match="12 query heads cannot share 8"):
        ModelShape("odd", 768, 2, 12, 8, 64, 3072, 1000, 128)


@pytest.mark.parametrize("field", ["hidden", "layers", "vocab"])
def test_sizes_start_at_one(field: str):
    sizes = {
        "hidden": 64,
        "layers": 1,
        "heads": 1,
        "kv_heads": 1,
        "head_dim": 64,
        "ffn_hidden": 256,
        "vocab": 100,
        "max_positions": 16,
    }
    with pytest.raises(ShapeError, match=f"{field} is 0"):
        ModelShape("none", **(sizes | {field: 0}))


def test_hidden_must_hold_the_heads_unless_head_dim_is_given():
    with pytest.raises(ShapeError, match="hidden 100 is not a multiple of 3 heads"):
        gpt("odd", 100, 2, 3)
