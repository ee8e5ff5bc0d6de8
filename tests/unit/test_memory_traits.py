"""Memory follows the time model: autocast, recipes of fp8, repeated keys and values, an unpadded vocabulary."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from traincast.catalog import load_catalog
from traincast.lower import Job
from traincast.lower.stages import block_of, chunk_parts, first_forward_segments, forward_segments, scaling_of
from traincast.memory import MemoryJob, Overheads, StageMemory, estimate_job, held_parameters, overheads_of
from traincast.memory.activations import READS_HALF_AGAIN, backward_bytes, layer_bytes, logits_bytes
from traincast.memory.context import kept_kv_bytes
from traincast.memory.states import gathered_bytes, gathered_weight_bytes, state_bytes, step_copy_bytes, weight_bytes
from traincast.mesh import Mesh
from traincast.model import Grouping, ModelShape, StageParameters, gpt, layer_parameters, llama
from traincast.model.casts import CAST, Scaling, casts_of
from traincast.model.operators import Collective, Gemm
from traincast.profile import load_profile, profiles_dir
from traincast.recipe import Recipe
from traincast.topology import selene

BARE = Overheads(0, 0, 0, 0, dropout=False)
AUTOCAST = replace(BARE, autocast=True, shards_master=True)
GPT = gpt("7.5B", 4096, 36, 32, vocab=51200)
LLAMA = llama("8b", 4096, 32, 32, Grouping(8, 14336))
GIB = 2.0**30

RECIPE = Recipe(32, 4, 2048, "bf16", schedule="none", attention="flash", zero_stage=3, overlap_dp=True)
TENSORWISE = replace(RECIPE, precision="fp8", fp8_scaling="tensorwise")


def memory(job: MemoryJob) -> StageMemory:
    return estimate_job(job, 80e9).worst


def held(job: MemoryJob) -> StageParameters:
    return held_parameters(job, job.model.layers // job.mesh.pp, first=True, last=job.mesh.pp == 1)


def timed(job: MemoryJob, **traits: Any) -> Job:
    """The same job as time sees it."""
    profile = load_profile("a100-80gb-sxm")
    profile = replace(profile, traits=replace(profile.traits, **traits))
    gpu = load_catalog().gpu("A100-80GB-SXM")
    return Job(job.model, job.mesh, job.recipe, profile, selene(-(-job.mesh.world // 8)), gpu)


def test_under_autocast_parameters_are_gathered_as_their_shards_are() -> None:
    """FSDP casts what it gathers to MixedPrecision.param_dtype. Without one root, layer and the layer ahead take 4
    bytes a parameter, and so do gradients of the head and of a layer, before the layer's are cast to be reduced."""
    layer = layer_parameters(GPT)
    half, single = (MemoryJob(GPT, Mesh(dp=8), RECIPE, one) for one in (replace(BARE, shards_master=True), AUTOCAST))
    root, head = held(half).total - held(half).layers, 51200 * 4096
    assert gathered_bytes(half, held(half)) == (2 * (root + 2 * layer), 2 * head + (2 + 4) * layer)
    assert gathered_bytes(single, held(single)) == (4 * (root + 2 * layer), 4 * head + (4 + 4) * layer)
    assert state_bytes(single, held(single)) == state_bytes(half, held(half))  # single precision in either case
    short = sum(gathered_bytes(single, held(single))) - sum(gathered_bytes(half, held(half)))
    assert short == 2 * (root + head + 3 * layer)
    matrices = replace(RECIPE, prefetch_bytes=2e8)
    found = gathered_bytes(MemoryJob(GPT, Mesh(dp=8), matrices, AUTOCAST), held(half))
    assert found == (4 * head + 4e8, 4 * head)  # 1e8 elements ahead


def test_under_autocast_a_replica_has_one_copy_of_its_parameters() -> None:
    """4 + 4 + 8 bytes whatever is sharded, no half-precision gradients, and no copies of them at the optimiser step;
    where nothing is in half precision, nothing is cast."""
    job = MemoryJob(GPT, Mesh(dp=8), replace(RECIPE, zero_stage=0), replace(AUTOCAST, keeps_half_gradients=True))
    parameters = held(job).total
    assert state_bytes(job, held(job)) == (4 * parameters, 4 * parameters, 8 * parameters)
    half = replace(job, recipe=replace(job.recipe, gradient_dtype="bf16"))
    assert step_copy_bytes(half, parameters) == (0, 0)
    single = replace(job, recipe=replace(job.recipe, precision="fp32"))
    assert memory(single) == memory(replace(single, overheads=replace(single.overheads, autocast=False)))


def test_under_autocast_inputs_of_norms_are_single_precision() -> None:
    """Two norms of a layer keep 4 bytes an element instead of 2; products keep the half-precision copies of what they
    multiply: inputs, and weights, which a layer that is recomputed has while its backward pass runs."""
    half, single = (MemoryJob(GPT, Mesh(dp=8), RECIPE, one) for one in (BARE, AUTOCAST))
    sbh, copies = 4 * 2048 * 4096, 2 * 12 * 4096**2
    assert layer_bytes(single) - layer_bytes(half) == 2 * 2 * sbh + copies
    ends = 2 * sbh  # the final norm's input; the head's is half
    wider = memory(single).activations_bytes - memory(half).activations_bytes
    assert wider == 36 * (2 * 2 * sbh + copies) + ends
    assert logits_bytes(single) - logits_bytes(half) == 2 * 51200 * 4096  # the copy of the head's matrix
    assert backward_bytes(single)[1] - backward_bytes(half)[1] == 2 * 2 * sbh  # gradients of the stream and of a norm
    full = [replace(job, recipe=replace(RECIPE, recompute="full")) for job in (half, single)]
    assert [layer_bytes(job) for job in full] == [2 * sbh, 4 * sbh]
    assert backward_bytes(full[1])[0] == layer_bytes(single)
    some = [replace(job, recipe=replace(RECIPE, recompute="op:torchtitan")) for job in (half, single)]
    assert layer_bytes(some[1]) - layer_bytes(some[0]) == 2 * sbh  # its input; weights are cast again


def test_the_verdict_follows_autocast() -> None:
    """7.5B at microbatch 4: the inputs of norms take 4.6 GiB more, copies of the weights 13.5 GiB; what fits in half
    precision fills the GPU."""
    half, single = (MemoryJob(GPT, Mesh(dp=8), RECIPE, one) for one in (BARE, AUTOCAST))
    norms, copies = (2 * 36 + 1) * 2 * 4 * 2048 * 4096, 36 * 2 * 12 * 4096**2
    assert (round(norms / GIB, 1), round(copies / GIB, 1)) == (4.6, 13.5)
    assert memory(single).activations_bytes - memory(half).activations_bytes == norms + copies
    assert estimate_job(half, 80e9).verdict == "fits"
    assert estimate_job(single, 80e9).verdict == "borderline"
    assert estimate_job(single, 64e9).verdict == "does not fit"


@pytest.mark.oracle
@pytest.mark.parametrize("autocast", [True, False])
def test_what_autograd_saves_of_a_block_is_what_it_counts(autocast: bool) -> None:
    """torch's saved tensors of a block of MPT's form, parameters left out, each storage once; beside them norms keep
    a mean and a deviation of 4 bytes a row each."""
    torch = pytest.importorskip("torch")
    nn, f = torch.nn, torch.nn.functional
    hidden, heads, sequence = 64, 4, 32
    norms, dtype = [nn.LayerNorm(hidden) for _ in range(2)], torch.float32 if autocast else torch.bfloat16
    qkv, out, up, down = (nn.Linear(*size) for size in ((64, 192), (64, 64), (64, 256), (256, 64)))
    own = nn.ModuleList([*norms, qkv, out, up, down]).to(dtype)
    ours = {one.untyped_storage().data_ptr() for one in own.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in ours:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    x = torch.randn(2, sequence, hidden, dtype=dtype, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        q, k, v = qkv(norms[0](x)).view(2, sequence, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4)
        core = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, sequence, hidden)
        y = x + out(core)
        z = y + down(f.gelu(up(norms[1](y))))
    assert z.dtype == dtype
    recipe = Recipe(2, 2, sequence, "bf16", schedule="none", attention="flash")
    counted = layer_bytes(MemoryJob(gpt("one", hidden, 1, heads), Mesh(), recipe, replace(BARE, autocast=autocast)))
    rows = 2 * sequence
    statistics = 2 * 2 * (4 if autocast else 2) * rows
    assert sum(saved.values()) - statistics == counted


def fp8(recipe: Recipe, **overheads: Any) -> MemoryJob:
    return MemoryJob(LLAMA, Mesh(dp=8), recipe, replace(BARE, shards_master=True, **overheads))


def test_memory_scales_to_fp8_as_time_does() -> None:
    for path, precision, scaling in product(
        profiles_dir().glob("*.yaml"), ("fp8", "mxfp8"), (None, "delayed", "tensorwise", "rowwise")
    ):
        profile, recipe = load_profile(path.stem), replace(RECIPE, precision=precision, fp8_scaling=scaling)
        job = MemoryJob(LLAMA, Mesh(dp=8), recipe, overheads_of(profile))
        assert job.scaling == scaling_of(recipe, profile.traits), path.stem


@pytest.mark.parametrize("scaling", ["delayed", "tensorwise", "rowwise", "block", "block_twice"])
def test_an_input_that_is_cast_again_is_kept_in_half_precision(scaling: Scaling) -> None:
    """A cast reads two bytes and writes one, a transpose of what is fp8 one and one: where the backward pass moves as
    much as a cast of each input, what it reads is half precision, and a layer keeps what a half-precision one does."""
    casts = casts_of(scaling, transposes=True, fused=False)
    for again in (casts.entry_again, casts.inner_again):
        assert (again.rows + again.columns >= CAST) == (scaling in READS_HALF_AGAIN)
    recipe = replace(RECIPE, precision="mxfp8" if "block" in scaling else "fp8", fp8_scaling=None)
    job = fp8(recipe, fp8_scaling={"block": "delayed", "block_twice": "tensorwise"}.get(scaling, scaling))
    assert job.scaling == scaling
    half = layer_bytes(replace(job, recipe=RECIPE))
    if scaling in READS_HALF_AGAIN:
        assert layer_bytes(job) == half
        return
    # inputs of query, key and value and of the MLP's first product: one byte less; those of the MLP's second too; the
    # output of attention is kept by its kernel, and once more as the next product's input
    tokens, scale = 4 * 2048, 1 / 32 if scaling == "block" else 0
    assert half - layer_bytes(job) == tokens * ((1 - scale) * (2 * 4096 + 14336) - (1 + scale) * 4096)


def test_gathered_in_fp8_a_layers_weights_take_a_byte() -> None:
    """torchao's enable_fsdp_float8_all_gather: layers in use in fp8, the root and all gradients as before; shards stay
    single precision."""
    layer = layer_parameters(LLAMA)
    half, one = fp8(TENSORWISE), fp8(replace(TENSORWISE, fp8_gather=True))
    assert gathered_bytes(half, held(half))[0] - gathered_bytes(one, held(one))[0] == 2 * layer
    assert gathered_bytes(half, held(half))[1] == gathered_bytes(one, held(one))[1]
    assert state_bytes(half, held(half)) == state_bytes(one, held(one))
    scaled = fp8(replace(TENSORWISE, precision="mxfp8", fp8_scaling=None, fp8_gather=True))
    assert gathered_bytes(scaled, held(one))[0] - gathered_bytes(one, held(one))[0] == 2 * layer / 32
    idle = replace(one, recipe=replace(one.recipe, precision="bf16"))
    assert gathered_bytes(idle, held(one)) == gathered_bytes(half, held(half))


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("trait", ["none", "autocast", "fp8_gather"])
def test_what_is_gathered_is_as_wide_as_what_travels(trait: str, pp: int) -> None:
    """The all-gathers of a forward pass carry what memory counts for all layers and the root."""
    recipe = replace(TENSORWISE, fp8_gather=True) if trait == "fp8_gather" else RECIPE
    recipe = replace(recipe, schedule="none" if pp == 1 else "1f1b", reshard_after_forward=False)
    job = MemoryJob(LLAMA, Mesh(dp=8, pp=pp), recipe, AUTOCAST if trait == "autocast" else BARE)
    seen = timed(job, autocast=trait == "autocast")
    segments = (forward_segments if pp == 1 else first_forward_segments)(seen, chunk_parts(seen)[0])
    operators = [op for segment in segments for op in segment.operators if isinstance(op, Collective)]
    sizes = sum(op.size_bytes for op in operators if op.name.endswith("parameters.all_gather"))
    assert sizes == gathered_bytes(job, held(job))[0] == gathered_weight_bytes(job, held(job))


def test_a_block_of_32_has_a_byte_of_scale() -> None:
    """OCP Microscaling Formats 1.0, section 5.2: weights that are kept in mxfp8, along both axes, take 2·33/32."""
    recipe = replace(RECIPE, precision="mxfp8", zero_stage=1)
    job = MemoryJob(LLAMA, Mesh(dp=8), recipe, replace(BARE, fp8_copies=1))
    kept, root = held(job), held(job).total - held(job).layers
    assert weight_bytes(job, kept) == 2 * 33 / 32 * kept.layers + 2 * root
    plain = replace(job, recipe=replace(recipe, precision="fp8"))
    assert weight_bytes(plain, kept) == kept.layers + 2 * root


def test_keys_and_values_are_kept_as_attention_gets_them() -> None:
    """torchtitan repeats them for every query head before context parallelism gathers them: what is kept is as large as
    the queries, and as what the time's blocks attend to; neither repeats them for another exchange or without one."""
    ours = replace(RECIPE, cp_kind="allgather")
    for mesh, recipe in product((Mesh(cp=1), Mesh(cp=4), Mesh(cp=4, tp=2)), (ours, replace(ours, cp_kind="ring"))):
        job = MemoryJob(LLAMA, mesh, recipe, replace(BARE, cp_by_block=True))
        block = block_of(timed(job, cp_by_block=True))
        assert job.kv_repeats * block.local_kv_heads == block.core_kv_heads
        once = replace(job, overheads=BARE)
        tokens = 4 * 2048 / mesh.cp
        assert layer_bytes(job) - layer_bytes(once) == 4 * tokens * (block.core_kv_heads - block.local_kv_heads) * 128
    keeps = MemoryJob(LLAMA, Mesh(cp=4), replace(ours, cp_keep_kv=True), replace(BARE, cp_by_block=True))
    assert kept_kv_bytes(keeps) == 4 * 3 / 4 * 4 * 2048 * 4096
    titan = replace(keeps, recipe=replace(ours, recompute="op:torchtitan"))
    again = backward_bytes(titan)[0] - backward_bytes(replace(titan, overheads=BARE))[0]
    assert layer_bytes(titan) == layer_bytes(replace(titan, overheads=BARE))  # repeated again, not kept
    assert again == 4 * 2048 * (4096 - 1024)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("pads", [True, False])
def test_states_and_logits_have_as_many_words(pads: bool, tied: bool) -> None:
    """vTrain's own model has 50257 / TP rows: those of its head's product are those of the logits, the embedding and
    the head, and all that follows from parameters."""
    model: ModelShape = replace(gpt("small", 1024, 8, 16, vocab=50257), tied_embeddings=tied)
    recipe = Recipe(8, 1, 1024, "fp16", schedule="none", attention="flash")
    job = MemoryJob(model, Mesh(tp=8), recipe, replace(BARE, pads_vocabulary=pads))
    seen = timed(job, pads_vocabulary=pads)
    (part,) = chunk_parts(seen)
    operators = [op for segment in forward_segments(seen, part) for op in segment.operators if isinstance(op, Gemm)]
    words = 6400 if pads else 6282
    assert job.words == words == next(op.n for op in operators if op.name == "head.logits")
    assert logits_bytes(job) == 10 * 1024 * words
    kept = held(job)
    assert (kept.embedding, kept.head) == ((words + 2048) * 1024, 0 if tied else words * 1024)
    assert memory(job).states_bytes == 18 * kept.total
