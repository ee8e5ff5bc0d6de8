"""What a software stack changes about memory: dropout, the loss, fp8, copies of gradients, what its peaks mean."""

from dataclasses import replace

import pytest

from traincast.memory import (
    EAGER_LOGIT_BYTES,
    FUSED_LOGIT_BYTES,
    MemoryJob,
    Overheads,
    StageMemory,
    estimate_job,
    layer_activation_bytes,
    overheads_of,
    reported_peak,
)
from traincast.mesh import Mesh
from traincast.model import Grouping, ModelShape, gpt, layer_parameters, llama
from traincast.profile import Traits, load_profile, profiles_dir
from traincast.recipe import Recipe

BARE = Overheads(0, 0, 0, 0)
GPT = gpt("GPT", 2048, 24, 16, vocab=50304)
LLAMA = llama("405b", 16384, 126, 128, Grouping(8, 53248, vocab=32000))


def worst(model: ModelShape, mesh: Mesh, recipe: Recipe, overheads: Overheads = BARE) -> StageMemory:
    return estimate_job(MemoryJob(model, mesh, recipe, overheads), 80e9).worst


def test_the_stack_says_whether_masks_are_kept() -> None:
    """Korthikanti et al. 2022, eq. 2 and §4.1: of 34·s·b·h bytes two are masks, and of 5·a·s²·b three are dropout's."""
    flash = Recipe(1, 1, 1024, "bf16", schedule="none", attention="flash")
    for recipe, masks in (
        (flash, 2 * 1024 * 2048),
        (replace(flash, attention="unfused"), 2 * 1024 * 2048 + 3 * 16 * 1024**2),
    ):
        kept = [layer_activation_bytes(GPT, Mesh(), recipe, dropout=on) for on in (True, False)]
        assert kept[0] - kept[1] == masks
        assert layer_activation_bytes(GPT, Mesh(), recipe) == kept[0]  # without a stack: GPTs are trained with it
    without = worst(GPT, Mesh(), flash, replace(BARE, dropout=False))
    assert without.activations_bytes == 24 * (32 * 1024 * 2048 + 4 * 16 * 1024) + 4 * 1024 * 2048
    mpt = overheads_of(load_profile("a100-80gb-llmfoundry2023"))
    assert mpt.dropout is False
    assert overheads_of(load_profile("a100-selene-megatron2022")).dropout is True


def test_a_loss_on_half_precision_logits_keeps_these_and_their_gradient() -> None:
    """Megatron-LM issue 818: 2 + 4 + 4 bytes a logit; flash-attn's cross-entropy: 2 + 2."""
    recipe = Recipe(8, 8, 1024, "bf16", schedule="none", attention="flash")
    logits = 8 * 1024 * 50304
    assert worst(GPT, Mesh(), recipe).logits_bytes == 10 * logits
    assert worst(GPT, Mesh(), recipe, replace(BARE, logit_bytes=4.0)).logits_bytes == 4 * logits
    assert overheads_of(load_profile("h100-80gb-llmfoundry2023")).logit_bytes == 4
    assert overheads_of(load_profile("a100-80gb-llmfoundry2023")).logit_bytes == 4
    assert overheads_of(load_profile("a100-selene-megatron2022")).logit_bytes == 10


def test_one_trait_says_how_long_a_loss_takes_and_what_it_keeps() -> None:
    """Fused, a kernel passes over half-precision logits and writes their gradient: these are all that there is. Eager
    it keeps more."""
    for path in profiles_dir().glob("*.yaml"):
        profile = load_profile(path.stem)
        kept = overheads_of(profile).logit_bytes
        if profile.traits.fused_loss:
            assert kept == FUSED_LOGIT_BYTES, path.stem
        else:
            assert kept >= EAGER_LOGIT_BYTES, path.stem


def test_scores_have_their_gradients_when_the_mlp_is_done() -> None:
    """A layer that is recomputed whole has 34·s·b·h + 5·a·s²·b, and beside it either the gradients of the MLP's tensors
    (16·s·b·h) or those of the scores (4·a·s²·b), which come when the MLP's 19·s·b·h are gone; 4·s·b·h around."""
    sbh, scores = 2048 * 2048, 16 * 2048**2
    recipe = Recipe(1, 1, 2048, "fp16", "full", "none", gradient_dtype="fp32")
    found = worst(gpt("wide", 2048, 24, 16, vocab=128), Mesh(), recipe, replace(BARE, logit_bytes=0.0))
    assert found.recompute_bytes == 34 * sbh + 5 * scores
    assert found.workspace_bytes == 4 * scores - 19 * sbh + 4 * sbh
    flash = replace(recipe, attention="flash")
    found = worst(gpt("wide", 2048, 24, 16, vocab=128), Mesh(), flash, replace(BARE, logit_bytes=0.0))
    assert found.recompute_bytes == 34 * sbh + 4 * 16 * 2048
    assert found.workspace_bytes == (16 + 4) * sbh


@pytest.mark.parametrize(
    ("profile", "copies"), [("h100-nemo-megatroncore2025", 2), ("blackwell-nemo-megatroncore2025", 1)]
)
def test_fp8_parameters_take_a_byte_a_copy(profile: str, copies: int) -> None:
    """FP8_PARAMS of NVIDIA's MLPerf 5.0 submissions: matrices are in fp8, on Hopper transposed as well, because its
    products take one order only; embedding and norms stay in half precision."""
    overheads = overheads_of(load_profile(profile))
    recipe = Recipe(8, 1, 1024, "fp8", schedule="1f1b", attention="flash", sequence_parallel=True)
    last = estimate_job(MemoryJob(LLAMA, Mesh(tp=8, pp=126), recipe, overheads), 80e9).per_stage[-1]
    assert last.parameters_bytes == copies * layer_parameters(LLAMA, 8) + 2 * (32768 // 8 * 16384 + 16384)
    half = estimate_job(MemoryJob(LLAMA, Mesh(tp=8, pp=126), replace(recipe, precision="bf16"), overheads), 80e9)
    assert half.per_stage[-1].parameters_bytes == 2 * (layer_parameters(LLAMA, 8) + 32768 // 8 * 16384 + 16384)
    assert half.per_stage[-1].optimizer_bytes == last.optimizer_bytes == 6 * half.per_stage[-1].parameters_bytes


def test_flat_gradients_come_on_top_of_what_activations_left() -> None:
    """DeepSpeed's FP16_Optimizer without ZeRO: copies of single gradients, then one flat tensor of them all, 4 bytes a
    parameter each; Megatron has the copies alone, and makes them where the activations were."""
    recipe = Recipe(8, 8, 1024, "fp16", schedule="none", gradient_dtype="fp16")
    parameters = worst(GPT, Mesh(), recipe).parameters_bytes / 2
    flat = replace(BARE, flat_gradients=True)
    assert worst(GPT, Mesh(), recipe, flat).total_bytes - worst(GPT, Mesh(), recipe).total_bytes == 4 * parameters
    sharded = replace(recipe, zero_stage=1)
    assert worst(GPT, Mesh(dp=8), sharded, flat) == worst(GPT, Mesh(dp=8), sharded)


def test_a_peak_is_what_the_stack_calls_one() -> None:
    """nvidia-smi shows the context and NCCL's buffers as well, PyTorch's max_memory_reserved what its allocator holds,
    max_memory_allocated tensors; and a GB is not a GiB."""
    model, mesh = gpt("small", 1024, 8, 16), Mesh(pp=2, dp=2)
    found = estimate_job(MemoryJob(model, mesh, Recipe(16, 4, 1024)), 80e9)
    first = found.per_stage[0]
    device = reported_peak(found, Traits())
    assert device == found.worst.total_bytes / 1e9
    assert reported_peak(found, Traits(peak_unit="GiB")) == pytest.approx(device / 1.073741824, rel=1e-12)
    assert reported_peak(found, Traits(peak_kind="reserved", peak_stage="first")) == first.reserved_bytes / 1e9
    assert reported_peak(found, Traits(peak_kind="allocated", peak_stage="first")) == first.allocated_bytes / 1e9
    assert first.total_bytes - first.reserved_bytes == pytest.approx(first.context_bytes + first.communicators_bytes)
    tensors = first.states_bytes + first.activations_bytes + first.recompute_bytes + first.workspace_bytes
    assert first.allocated_bytes == pytest.approx(tensors + first.logits_bytes + first.gathered_bytes)
