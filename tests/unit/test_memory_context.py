"""Memory by sequence, context parallelism and copies to the host."""

from dataclasses import replace

import pytest

from traincast.catalog import load_catalog
from traincast.lower import Job
from traincast.lower.recompute import layers_backward
from traincast.lower.stages import backward_segments, block_of, chunk_parts, forward_segments
from traincast.memory import MemoryJob, estimate, estimate_job, layer_activation_bytes
from traincast.memory.context import exchange_bytes
from traincast.mesh import Mesh
from traincast.model.operators import Collective, HostCopy
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.schedule import build, parts_of
from traincast.topology import selene

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


RECOMPUTE = (
    "none",
    "selective",
    "full",
    "full_but_qkv",
    "full_but_attention",
    "full_but_late_attention",
    "mlp",
    "every_2nd",
    "op:mlp_act+norm",
    "op:core_attn+norm",
    "op:torchtitan",
)


@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_what_is_kept_and_what_is_gathered_again_are_all_keys_and_values(recompute: str) -> None:
    """A backward pass needs every key and value: with `cp_keep_kv` what memory does not keep of the other ranks' its
    recomputation gathers, in time as in memory; without, memory keeps none and each layer gathers all."""
    mesh, layers = Mesh(cp=8), MODEL.layers
    others = layers * 2 * 2 * 131072 * 4096 * 7 / 8
    base = recipe(cp_kind="allgather", recompute=recompute)
    plain = layers * layer_activation_bytes(MODEL, mesh, base)
    kept, gathered = {}, {}
    for keep in (False, True):
        some = replace(base, cp_keep_kv=keep)
        kept[keep] = layers * layer_activation_bytes(MODEL, mesh, some) - plain
        block = block_of(job_of(mesh, some))
        operators = [
            op
            for layer in layers_backward(block, recompute, layers)
            for segment in layer
            for op in segment.operators
            if op.name in ("attention.k.gather", "attention.v.gather")
        ]
        gathered[keep] = sum(op.size_bytes for op in operators if isinstance(op, Collective)) * 7 / 8
    assert kept[True] + gathered[True] == pytest.approx(others, rel=1e-12)
    assert kept[False] == 0
    assert gathered[False] == pytest.approx(others + gathered[True], rel=1e-12)


def job_of(mesh: Mesh, some: Recipe) -> Job:
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-80gb-sxm")
    return Job(MODEL, mesh, some, profile, selene(max(2, mesh.world // 8)), gpu)


OFFLOADED = [
    *(("1f1b", p, m, 1) for p in (2, 4, 8) for m in (1, 3, 4, 16)),
    *(("gpipe", 2, m, 1) for m in (2, 3, 4, 8)),
    *(("interleaved", p, m, 2) for p, m in ((2, 2), (2, 8), (4, 8))),
    *((name, 4, 12, 1) for name in ("zb-h1", "zb-h2", "zb-1p", "zb-2p")),
    *((name, 4, 12, 2) for name in ("looped-bfs", "zb-v", "dualpipe", "dualpipev")),
    ("none", 1, 8, 1),
]


@pytest.mark.parametrize(("schedule", "p", "m", "v"), OFFLOADED)
def test_copies_are_charged_where_they_save_and_nowhere_else(schedule: str, p: int, m: int, v: int) -> None:
    """A pass copies if activations of its chunk leave the GPU; a stage of which some do holds less, and one of which
    none do holds what it holds without copies."""
    base = recipe(8192, global_batch=m, schedule=schedule, vpp=v, attention="flash")
    some, mesh = replace(base, offload_activations=0.5), Mesh(pp=p)
    one = job_of(mesh, some)
    parts = chunk_parts(one)
    copies, back = (
        [any(isinstance(op, HostCopy) for segment in segments(one, part) for op in segment.operators) for part in parts]
        for segments in (forward_segments, backward_segments)
    )
    assert copies == back
    order = build(schedule, p, m, v)
    whole, less = (
        estimate_job(MemoryJob(MODEL, mesh, recipe, order=order), 80 * GIB).per_stage for recipe in (base, some)
    )
    for stage in range(p):
        charged = any(copies[part] for part in parts_of(schedule, p, v, stage))
        if charged:
            assert less[stage].activations_bytes < whole[stage].activations_bytes
        else:
            assert less[stage] == whole[stage]
    if schedule == "1f1b":
        assert copies == [p - stage > 2 and m > 3 for stage in range(p)]


def test_two_passes_of_a_stage_are_whole_whatever_its_chunks() -> None:
    """One on its way out and one on its way in: interleaved 1F1B with 11 halves in flight keeps 9 of them by half."""
    base = recipe(8192, schedule="interleaved", vpp=2)
    whole, less = (
        estimate(MODEL, Mesh(pp=4), one, 80 * GIB).per_stage[0]
        for one in (base, replace(base, offload_activations=0.5))
    )
    half = 4 * layer_activation_bytes(MODEL, Mesh(pp=4), base)
    assert whole.activations_bytes - less.activations_bytes == pytest.approx(0.5 * (11 - 2) * half)


def test_a_ring_needs_buffers_of_blocks_and_a_gather_of_everything() -> None:
    """Keys, values and their gradients, two blocks each, and the queries' in single precision; or all of them."""
    mesh, tokens = Mesh(cp=8), 131072
    block = tokens / 8 * 4096
    assert exchange_bytes(MODEL, Mesh(), recipe()) == 0
    assert exchange_bytes(MODEL, mesh, recipe()) == 2 * 4 * 2 * block + 4 * block
    assert exchange_bytes(MODEL, mesh, recipe(cp_kind="allgather")) == 2 * 2 * 2 * tokens * 4096
    assert exchange_bytes(MODEL, mesh, recipe(cp_kind="ulysses")) == 2 * 2 * 3 * block
    grouped = replace(MODEL, kv_heads=8)
    found = exchange_bytes(grouped, mesh, recipe(cp_kind="allgather"), by_block=True)
    assert found == 2 * 2 * tokens * 4096 + 2 * 4 * 2 * block + 4 * block  # K and V repeated for every query head
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
