"""Layers on stages: the splits of published runs."""

import pytest

from traincast.errors import ShapeError
from traincast.mesh import balanced_layers, even_layers, stage_ranges
from traincast.mesh.layers import run_lengths


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "split"),
    [
        (126, 8, 1, (15, *[16] * 6, 15)),  # Llama 3.1 405B
        (126, 8, 2, (7, *[8] * 14, 7)),
        (22, 8, 1, (2, *[3] * 6, 2)),  # zero-bubble paper, table 4
        (70, 12, 1, (5, *[6] * 10, 5)),  # BLOOM
        (126, 16, 8, (0, *[1] * 126, 0)),
        (46, 4, 1, (11, 12, 12, 11)),
    ],
)
def test_embedding_and_head_count_as_layers_where_that_divides(layers, pp, vpp, split):
    assert balanced_layers(layers, pp, vpp, embedding_as_layer=True) == split


@pytest.mark.parametrize(
    ("layers", "pp", "vpp", "embedding", "split"),
    [
        (30, 4, 1, False, (8, 8, 7, 7)),
        (78, 12, 1, True, (7,) * 6 + (6,) * 6),  # 80 does not divide over 12
        (61, 4, 2, True, (8, 8, 8, 8, 8, 7, 7, 7)),
        (32, 4, 1, False, (8, 8, 8, 8)),
        (5, 1, 1, True, (5,)),
    ],
)
def test_otherwise_chunks_differ_by_one_layer(layers, pp, vpp, embedding, split):
    assert balanced_layers(layers, pp, vpp, embedding) == split


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(30, 4, 1), (61, 4, 2), (80, 16, 2), (95, 7, 3)])
def test_stages_differ_by_at_most_one_layer(layers, pp, vpp):
    split = balanced_layers(layers, pp, vpp)
    stages = [sum(split[stage::pp]) for stage in range(pp)]
    assert sum(split) == layers
    assert max(stages) - min(stages) <= 1


def test_splits_that_cannot_be():
    with pytest.raises(ShapeError, match="3 layers are fewer than pp 4"):
        balanced_layers(3, 4)
    with pytest.raises(ShapeError, match="30 layers do not divide"):
        even_layers(30, 4)


def test_chunk_i_lies_on_stage_i_modulo_pp():
    # SC21 section 2.2: 8 layers on 2 devices with 2 chunks: device 1 has layers 1, 2 and 5, 6 (from 1)
    assert stage_ranges(even_layers(8, 2, 2), 2) == (((0, 2), (4, 6)), ((2, 4), (6, 8)))


def test_long_splits_are_told_in_short():
    assert run_lengths((8, 8, 7, 7)) == "8, 8, 7, 7"
    assert run_lengths(balanced_layers(126, 8, 8, True)) == "1, 2 (62 times), 1"
