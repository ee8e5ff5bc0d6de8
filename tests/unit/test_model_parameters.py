"""Parameter counts against printed ones."""

import pytest

from traincast.model import (
    Grouping,
    closed_form_parameters,
    embedding_parameters,
    gpt,
    layer_parameters,
    llama,
    padded_vocab,
    stage_parameters,
    total_parameters,
)

# Narayanan et al. 2021 (SC21), Table 1: billions of parameters, hidden, layers, heads
SC21 = [
    (1.7, 2304, 24, 24),
    (3.6, 3072, 30, 32),
    (7.5, 4096, 36, 32),
    (18.4, 6144, 40, 48),
    (39.1, 8192, 48, 64),
    (76.1, 10240, 60, 80),
    (145.6, 12288, 80, 96),
    (310.1, 16384, 96, 128),
    (529.6, 20480, 105, 128),
    (1008.0, 25600, 128, 160),
]


@pytest.mark.parametrize(("billions", "hidden", "layers", "heads"), SC21)
def test_sc21_table_1(billions: float, hidden: int, layers: int, heads: int):
    counted = total_parameters(gpt("GPT", hidden, layers, heads))
    assert round(counted / 1e9, 1) == billions
    assert round(closed_form_parameters(layers, hidden, 51200, 2048) / 1e9, 1) == billions


@pytest.mark.parametrize(("billions", "hidden", "layers", "heads"), SC21)
def test_closed_form_is_the_count_without_the_final_norm(billions: float, hidden: int, layers: int, heads: int):
    counted = total_parameters(gpt("GPT", hidden, layers, heads)) - 2 * hidden
    assert closed_form_parameters(layers, hidden, 51200, 2048) == pytest.approx(counted, rel=1e-12)


# model cards of Llama 2 and Llama 3, exact counts as their checkpoints have them
@pytest.mark.parametrize(
    ("shape", "exact"),
    [
        (llama("Llama 2 7B", 4096, 32, 32, Grouping(32, 11008, 32000, 4096)), 6_738_415_616),
        (llama("Llama 2 70B", 8192, 80, 64, Grouping(8, 28672, 32000, 4096)), 68_976_648_192),
        (llama("Llama 3 8B", 4096, 32, 32, Grouping(8, 14336)), 8_030_261_248),
        (llama("Llama 3 70B", 8192, 80, 64, Grouping(8, 28672)), 70_553_706_496),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_llama_checkpoints(shape, exact: int):
    assert total_parameters(shape) == exact


def test_vocabulary_padding():
    assert padded_vocab(50257, 1) == 50304  # Megatron-LM's padding of the GPT-2 tokenizer
    assert padded_vocab(50257, 8) == 51200  # ... and at TP 8, SC21's V
    assert padded_vocab(51200, 8) == 51200
    assert padded_vocab(128256, 8) == 129024


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_layer_shards_add_up_but_for_what_every_rank_holds(tp: int):
    shape = gpt("GPT", 2304, 24, 24)
    shared = (tp - 1) * (2 * 2 * shape.hidden + 2 * shape.hidden)  # two norms, two row-parallel biases
    assert tp * layer_parameters(shape, tp) == layer_parameters(shape) + shared


def test_kv_heads_are_replicated_beyond_their_number():
    shape = llama("Llama 3 8B", 4096, 32, 32, Grouping(8, 14336))
    grown = 32 * layer_parameters(shape, 32) - 8 * layer_parameters(shape, 8)
    norms = (32 - 8) * 2 * 4096
    assert grown - norms == 24 * 2 * 4096 * 128


def test_stages_add_up_to_the_model():
    shape = llama("Llama 3 8B", 4096, 32, 32, Grouping(8, 14336, vocab=128 * 1002))
    stages = [stage_parameters(shape, 1, 8, first=s == 0, last=s == 3) for s in range(4)]
    assert sum(stage.total for stage in stages) == total_parameters(shape)


def test_tied_head_is_a_second_copy_only_in_a_pipeline():
    shape = gpt("GPT", 2304, 24, 24)
    alone = stage_parameters(shape, 1, 24, first=True, last=True)
    last = stage_parameters(shape, 1, 12, first=False, last=True)
    assert alone.head == 0
    assert alone.total == total_parameters(shape)
    assert last.head == 51200 * 2304
    assert embedding_parameters(shape) == (51200 + 2048) * 2304
