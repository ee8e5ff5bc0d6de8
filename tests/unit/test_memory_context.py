"""Memory by sequence, context parallelism and copies to the host."""

from dataclasses import replace

import pytest

from traincast.memory import estimate, layer_activation_bytes
from traincast.memory.context import exchange_bytes, resident_passes
from traincast.mesh import Mesh
from traincast.model.shape import gpt
from traincast.recipe import Recipe

GIB = 2.0**30
MODEL = gpt("gpt", hidden=4096, layers=32, heads=32, vocab=51200)


def recipe(sequence: int = 131072, **changes: object) -> Recipe:
    base = Recipe(16, 1, sequence, precision="bf16", schedule="none", attention="flash")
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_go_with_the_tokens_of_a_rank(recompute: str) -> None:
    """Korthikanti 2022, eq. 2 with s/c for s: twice the sequence on twice the ranks keeps as much."""
    kept = [
        layer_activation_bytes(MODEL, Mesh(cp=cp), recipe(sequence, recompute=recompute))
        for cp, sequence in ((1, 32768), (2, 65536), (8, 262144))
    ]
    assert kept[0] == kept[1] == kept[2]


def test_recomputing_attention_alone_lets_long_sequences_fit() -> None:
    """Scores grow with s^2, all else with s (Korthikanti 2022, section 5): unfused attention keeps 5 a s^2 b bytes a
    layer beside 34 s b h, which selective recomputation drops; flash attention has none to drop but 4 bytes a row."""
    for sequence in (8192, 32768):
        unfused = recipe(sequence, attention="unfused")
        kept = layer_activation_bytes(MODEL, Mesh(), unfused)
        dropped = kept - layer_activation_bytes(MODEL, Mesh(), replace(unfused, recompute="selective"))
        assert dropped == 5 * MODEL.heads * sequence**2
        assert dropped / kept > 0.6
    flash = recipe(32768)
    row_bytes = layer_activation_bytes(MODEL, Mesh(), flash)
    row_bytes -= layer_activation_bytes(MODEL, Mesh(), replace(flash, recompute="selective"))
    assert row_bytes == 4 * MODEL.heads * 32768


def test_gathered_keys_and_values_are_kept_where_asked_for() -> None:
    """2 bytes of K and V of the (c - 1)/c of the tokens that other ranks have."""
    mesh, base = Mesh(cp=8), recipe(cp_kind="allgather")
    kept = layer_activation_bytes(MODEL, mesh, replace(base, cp_keep_kv=True))
    assert kept - layer_activation_bytes(MODEL, mesh, base) == 2 * 2 * 131072 * 4096 * 7 / 8


def test_a_ring_needs_buffers_of_blocks_and_a_gather_of_everything() -> None:
    """Keys, values and their gradients, two blocks each, and the queries' in single precision; or all of them."""
    mesh, tokens = Mesh(cp=8), 131072
    block = tokens / 8 * 4096
    assert exchange_bytes(MODEL, Mesh(), recipe()) == 0
    assert exchange_bytes(MODEL, mesh, recipe()) == 2 * 4 * 2 * block + 4 * block
    assert exchange_bytes(MODEL, mesh, recipe(cp_kind="allgather")) == 2 * 2 * 2 * tokens * 4096
    assert exchange_bytes(MODEL, mesh, recipe(cp_kind="ulysses")) == 2 * 2 * 3 * block
    sizes = [exchange_bytes(MODEL, mesh, recipe(cp_kind=kind)) for kind in ("ulysses", "ring", "allgather")]
    assert sizes == sorted(sizes)


def test_offloaded_activations_leave_the_gpu_but_for_two_passes() -> None:
    """1F1B holds p passes on the first stage; with a share offloaded all but two of them hold the rest only."""
    mesh, base = Mesh(pp=8, cp=4), recipe(schedule="1f1b")
    whole, offloaded = (
        estimate(MODEL, mesh, replace(base, offload_activations=share), 80 * GIB).per_stage for share in (0.0, 0.5)
    )
    kept = layer_activation_bytes(MODEL, mesh, base) * 4
    assert whole[0].activations_bytes - offloaded[0].activations_bytes == pytest.approx(0.5 * (8 - 2) * kept)
    assert whole[7].activations_bytes == offloaded[7].activations_bytes
    assert resident_passes(5, 0.0) == 5


def test_sequence_that_fits_grows_with_the_ranks_that_share_it() -> None:
    """The longest sequence of a 7B-like model in 80 GiB, twice as long on each doubling of cp."""
    longest = {}
    for cp in (2, 4, 8):
        fitting = [
            2**power
            for power in range(12, 22)
            if estimate(MODEL, Mesh(cp=cp, dp=8), recipe(2**power, zero_stage=1, recompute="full"), 80 * GIB).verdict
            == "fits"
        ]
        longest[cp] = max(fitting)
    assert longest[4] == 2 * longest[2]
    assert longest[8] == 2 * longest[4]
