"""Memory of sharded states: shares of ranks and groups, what is gathered, what waits on the host."""

from dataclasses import replace

import pytest

from traincast.memory import (
    MemoryEstimate,
    MemoryJob,
    Overheads,
    StageMemory,
    estimate_job,
    nearest_that_fits,
    overheads_of,
    sharding,
)
from traincast.memory.states import gathered_bytes
from traincast.mesh import Mesh
from traincast.model import Grouping, gpt, layer_parameters, llama, stage_parameters
from traincast.profile import load_profile
from traincast.recipe import Recipe

BARE = Overheads(0, 0, 0, 0)
LLAMA = llama("8b", 4096, 32, 32, Grouping(8, 14336))
LAYER = layer_parameters(LLAMA)
ROOT = 2 * 128256 * 4096 + 4096
WHOLE = 32 * LAYER + ROOT


def job(mesh: Mesh, overheads: Overheads = BARE, **recipe: object) -> MemoryJob:
    base = Recipe(4 * mesh.dp, 1, 2048, "bf16", schedule="none" if mesh.pp == 1 else "1f1b", attention="flash")
    return MemoryJob(LLAMA, mesh, replace(base, **recipe), overheads)  # type: ignore[arg-type]


def memory(mesh: Mesh, overheads: Overheads = BARE, **recipe: object) -> StageMemory:
    return estimate_job(job(mesh, overheads, **recipe), 80e9).per_stage[0]


def gathered(mesh: Mesh, overheads: Overheads = BARE, **recipe: object) -> tuple[float, float]:
    held = stage_parameters(LLAMA, mesh.tp, LLAMA.layers // mesh.pp, first=True, last=mesh.pp == 1)
    return gathered_bytes(job(mesh, overheads, **recipe), held)


def test_a_4_way_full_shard_leaves_a_quarter_of_the_states() -> None:
    whole, quarter = memory(Mesh(dp=4)), memory(Mesh(dp=4), zero_stage=3)
    assert quarter.states_bytes == whole.states_bytes / 4
    assert memory(Mesh(dp=32), zero_stage=3, fsdp_shard=4).states_bytes == quarter.states_bytes


def test_a_sharded_master_copy_has_no_other_beside_it() -> None:
    """PyTorch FSDP, §4.4: parameters are kept in single precision and cast as they are gathered: 4 + 4 + 8 bytes of
    states a parameter, where DeepSpeed's ZeRO-3 has 2 + 4 + 12."""
    fsdp = memory(Mesh(dp=8), replace(BARE, shards_master=True), zero_stage=3)
    assert (fsdp.parameters_bytes, fsdp.optimizer_bytes) == (4 * WHOLE / 8, 8 * WHOLE / 8)
    assert fsdp.states_bytes == 16 * WHOLE / 8
    assert memory(Mesh(dp=8), zero_stage=3).states_bytes == 18 * WHOLE / 8
    assert memory(Mesh(dp=8), replace(BARE, shards_master=True), zero_stage=1).parameters_bytes == 2 * WHOLE


def test_gathered_is_the_root_and_the_layers_in_use() -> None:
    """bf16: root, one layer and one ahead; gradients of the head (2 bytes), of a layer as computed and as reduced."""
    gradients = 2 * 128256 * 4096 + (2 + 4) * LAYER
    assert gathered(Mesh(dp=8), zero_stage=3, overlap_dp=True) == (2 * (ROOT + 2 * LAYER), gradients)
    assert gathered(Mesh(dp=8), zero_stage=3, prefetch=3) == (2 * (ROOT + 4 * LAYER), gradients)
    assert gathered(Mesh(dp=8), zero_stage=3, reshard_after_forward=False) == (2 * WHOLE, gradients)
    assert gathered(Mesh(dp=8), zero_stage=2) == (0, gradients)  # reduced behind each microbatch: whole before that
    assert gathered(Mesh(dp=8), zero_stage=2, no_sync=True) == gathered(Mesh(dp=8), zero_stage=1) == (0, 0)
    stage = 16 * LAYER + 128256 * 4096  # in a pipeline gathered for the whole step; gradients are those of the stage
    assert gathered(Mesh(pp=2, dp=4), zero_stage=3) == (2 * stage, 2 * LAYER)


def test_gradients_of_a_unit_come_when_the_logits_are_gone() -> None:
    """At the loss all of the layers' activations are there, and no gradient yet: the peak has the one or the other."""
    at_loss = memory(Mesh(dp=8), zero_stage=3, overlap_dp=True)
    assert at_loss.logits_bytes == 10 * 2048 * 128256
    assert at_loss.gathered_bytes == 2 * (ROOT + 2 * LAYER)
    assert (at_loss.recompute_bytes, at_loss.workspace_bytes) == (0, 0)
    behind = memory(Mesh(dp=8), replace(BARE, logit_bytes=1.0), zero_stage=3, overlap_dp=True, recompute="full")
    again = behind.recompute_bytes + behind.workspace_bytes + behind.gathered_bytes - 2 * (ROOT + 2 * LAYER)
    assert again > 0
    longer = memory(Mesh(dp=8), replace(BARE, logit_bytes=2.0), zero_stage=3, overlap_dp=True, recompute="full")
    assert longer.total_bytes == pytest.approx(behind.total_bytes, rel=1e-12)


def test_gradients_that_are_not_reduced_stay_whole() -> None:
    """PyTorch FSDP, §3.3.4: without communication between microbatches unsharded gradients are kept."""
    assert memory(Mesh(dp=8), zero_stage=3, no_sync=True).gradients_bytes == 4 * WHOLE
    assert memory(Mesh(dp=8), zero_stage=3).gradients_bytes == 4 * WHOLE / 8
    stage = memory(Mesh(pp=2, dp=4), zero_stage=2)  # Llama 3, §3.3.2: whole until the last microbatch
    assert stage.gradients_bytes == 4 * (16 * LAYER + 128256 * 4096)


def test_matrix_by_matrix_holds_the_largest_and_what_runs_ahead() -> None:
    matrix = 2 * 128256 * 4096
    assert gathered(Mesh(dp=8), zero_stage=3, prefetch=1, prefetch_bytes=1e9) == (matrix + 1e9, matrix)


def test_states_on_the_host_leave_the_gpu() -> None:
    optimizer = memory(Mesh(dp=8), zero_stage=3, offload_states="optimizer")
    assert (optimizer.optimizer_bytes, optimizer.gradients_bytes) == (0, 0)
    assert optimizer.parameters_bytes == 2 * WHOLE / 8
    assert memory(Mesh(dp=8), zero_stage=3, offload_states="parameters").states_bytes == 0
    assert memory(Mesh(dp=8), zero_stage=1, offload_states="optimizer").gradients_bytes == 4 * WHOLE  # till the end


def sc21_under_zero_3(gpus: int) -> MemoryEstimate:
    """529.6B at microbatch 4 under DeepSpeed's ZeRO-3 on Selene."""
    recipe = Recipe(4 * gpus, 4, 2048, "fp16", "full", "none", zero_stage=3, gradient_dtype="fp16")
    recipe = replace(recipe, prefetch=1, prefetch_bytes=2 * 0.9 * 20480**2)
    overheads = overheads_of(load_profile("a100-selene-megatron2021"))
    return estimate_job(MemoryJob(gpt("530B", 20480, 105, 128), Mesh(dp=gpus), recipe, overheads), 80 * 2**30)


@pytest.mark.parametrize(("gpus", "runs"), [(640, True), (560, False)])
def test_530b_under_zero_3_needs_640_gpus_at_microbatch_4(gpus: int, runs: bool) -> None:
    """SC21, Table 2: on 560 GPUs it ran out of memory, so that it was run on 640. The two differ by 1.8 GiB of states,
    2 % of the GPU: below and above its 80 GiB, both of them called borderline."""
    found = sc21_under_zero_3(gpus)
    assert (found.worst.total_bytes <= found.limit_bytes) == runs


@pytest.mark.xfail(
    reason="borderline on both, 78.5 and 80.3 GiB of 80: 1.8 GiB apart, the band is 5.6 wide", strict=True
)
@pytest.mark.parametrize(("gpus", "verdict"), [(640, "fits"), (560, "does not fit")])
def test_530b_under_zero_3_is_told_apart_by_the_verdict(gpus: int, verdict: str) -> None:
    assert sc21_under_zero_3(gpus).verdict == verdict


def test_who_shares_what() -> None:
    """Rajbhandari et al. 2020, §5: optimiser, gradients, parameters over the replicas, or over groups of them."""
    recipe = Recipe(64, 1, 128, schedule="none", zero_stage=3, fsdp_shard=4)
    how = sharding(Mesh(dp=8, cp=2), recipe)
    assert (how.copies, how.shards, how.replicas, how.gathers, how.again) == (16, 4, 4, "pass", True)
    assert sharding(Mesh(dp=8), replace(recipe, zero_stage=0, fsdp_shard=None)).sums_whole
    assert sharding(Mesh(dp=8), replace(recipe, zero_stage=1)).sums_whole  # InternEvo: gradients over all replicas
    assert sharding(Mesh(pp=2, dp=8), replace(recipe, schedule="1f1b")).gathers == "step"
    assert sharding(Mesh(), replace(recipe, fsdp_shard=None)).gathers == "never"


def test_a_remedy_shards_gradients_and_parameters() -> None:
    """8B on eight GPUs: sharding the optimiser alone leaves 16 GB of parameters and 32 GB of gradients. Nothing else is
    as near as ZeRO-3, the one change that makes it fit."""
    recipe = replace(job(Mesh(dp=8)).recipe, sequence=8192)
    assert estimate_job(MemoryJob(LLAMA, Mesh(dp=8), replace(recipe, zero_stage=1)), 80e9).verdict == "does not fit"
    remedy = nearest_that_fits(LLAMA, Mesh(dp=8), recipe, 80e9)
    assert remedy is not None
    assert remedy.changes == ("zero_stage 3",)
    assert remedy.recipe.zero_stage == 3
    assert remedy.memory.verdict == "fits"
    # the same remedy for a job that shards its optimiser already
    assert nearest_that_fits(LLAMA, Mesh(dp=8), replace(recipe, zero_stage=1), 80e9) == remedy


def test_a_pipeline_is_offered_no_more_than_a_sharded_optimiser() -> None:
    """Llama 3, §3.3.2: in a pipeline parameters stay gathered and gradients whole, so that no stage saves more."""
    mesh = Mesh(pp=2, dp=4)
    recipe = replace(job(mesh).recipe, sequence=16384)
    remedy = nearest_that_fits(LLAMA, mesh, recipe, 80e9)
    assert remedy is not None
    assert not any(change in ("zero_stage 2", "zero_stage 3") for change in remedy.changes)
    for stage in (2, 3):
        sharded = estimate_job(MemoryJob(LLAMA, mesh, replace(recipe, zero_stage=stage)), 80e9).worst.total_bytes
        assert sharded >= estimate_job(MemoryJob(LLAMA, mesh, replace(recipe, zero_stage=1)), 80e9).worst.total_bytes


def test_the_nearer_stage_comes_first() -> None:
    """Where ZeRO-1 or ZeRO-2 suffice, no parameters are gathered for it."""
    recipe = replace(job(Mesh(dp=8)).recipe, sequence=1024)
    needs = {
        stage: estimate_job(MemoryJob(LLAMA, Mesh(dp=8), replace(recipe, zero_stage=stage)), 1e12).worst.total_bytes
        for stage in (0, 1, 2)
    }
    for stage in (1, 2):
        remedy = nearest_that_fits(LLAMA, Mesh(dp=8), recipe, needs[stage] / 0.92)
        assert remedy is not None
        assert remedy.changes == (f"zero_stage {stage}",)


def test_a_remedy_names_each_setting_once() -> None:
    """What is to be typed is the difference to the job, not the way that the search went."""
    recipe = Recipe(global_batch=64, microbatch=8, sequence=8192, schedule="none")
    remedy = nearest_that_fits(LLAMA, Mesh(dp=8), recipe, 80e9)
    assert remedy is not None
    names = [change.split()[0] for change in remedy.changes]
    assert len(names) == len(set(names)) >= 2
    for change in remedy.changes:
        name, value = change.split()
        after = getattr(remedy.mesh, name, None) or getattr(remedy.recipe, name)
        assert str(after).lower() == value
