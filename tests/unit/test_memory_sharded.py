"""Memory of sharded states: shares of ranks and groups, what is gathered, what waits on the host."""

from dataclasses import replace

import pytest

from traincast.memory import MemoryJob, Overheads, StageMemory, estimate_job, overheads_of, sharding
from traincast.mesh import Mesh
from traincast.model import Grouping, ModelShape, gpt, layer_parameters, llama
from traincast.profile import load_profile
from traincast.recipe import Recipe

BARE = Overheads(0, 0, 0, 0)
LLAMA = llama("8b", 4096, 32, 32, Grouping(8, 14336))
LAYER = layer_parameters(LLAMA)
ROOT = 2 * 128256 * 4096 + 4096
WHOLE = 32 * LAYER + ROOT


def memory(mesh: Mesh, model: ModelShape = LLAMA, **recipe: object) -> StageMemory:
    base = Recipe(4 * mesh.dp, 1, 2048, "bf16", schedule="none" if mesh.pp == 1 else "1f1b", attention="flash")
    return estimate_job(MemoryJob(model, mesh, replace(base, **recipe), BARE), 80e9).per_stage[0]  # type: ignore[arg-type]


def test_a_4_way_full_shard_leaves_a_quarter_of_the_states() -> None:
    whole, quarter = memory(Mesh(dp=4)), memory(Mesh(dp=4), zero_stage=3)
    assert quarter.states_bytes == whole.states_bytes / 4
    assert memory(Mesh(dp=32), zero_stage=3, fsdp_shard=4).states_bytes == quarter.states_bytes


def test_gathered_is_the_root_and_the_layers_in_use() -> None:
    """bf16: root, one layer and one ahead; gradients of the head (2 bytes), of a layer as computed and as reduced."""
    found = memory(Mesh(dp=8), zero_stage=3, overlap_dp=True)
    gradients = 2 * 128256 * 4096 + (2 + 4) * LAYER
    assert found.gathered_bytes == 2 * (ROOT + 2 * LAYER) + gradients
    assert memory(Mesh(dp=8), zero_stage=3, prefetch=3).gathered_bytes - found.gathered_bytes == 2 * 2 * LAYER
    kept = memory(Mesh(dp=8), zero_stage=3, reshard_after_forward=False)
    assert kept.gathered_bytes == 2 * WHOLE + gradients
    assert memory(Mesh(dp=8), zero_stage=2).gathered_bytes == 0


def test_gradients_that_are_not_reduced_stay_whole() -> None:
    """PyTorch FSDP, §3.3.4: without communication between microbatches unsharded gradients are kept."""
    assert memory(Mesh(dp=8), zero_stage=3, no_sync=True).gradients_bytes == 4 * WHOLE
    assert memory(Mesh(dp=8), zero_stage=3).gradients_bytes == 4 * WHOLE / 8
    stage = memory(Mesh(pp=2, dp=4), zero_stage=2)  # Llama 3, §3.3.2: whole until the last microbatch
    assert stage.gradients_bytes == 4 * (16 * LAYER + 128256 * 4096)


def test_matrix_by_matrix_holds_the_largest_and_what_runs_ahead() -> None:
    found = memory(Mesh(dp=8), zero_stage=3, prefetch=1, prefetch_bytes=1e9)
    assert found.gathered_bytes == 2 * 2 * 128256 * 4096 + 1e9


def test_states_on_the_host_leave_the_gpu() -> None:
    optimizer = memory(Mesh(dp=8), zero_stage=3, offload_states="optimizer")
    assert (optimizer.optimizer_bytes, optimizer.gradients_bytes) == (0, 0)
    assert optimizer.parameters_bytes == 2 * WHOLE / 8
    assert memory(Mesh(dp=8), zero_stage=3, offload_states="parameters").states_bytes == 0
    assert memory(Mesh(dp=8), zero_stage=1, offload_states="optimizer").gradients_bytes == 4 * WHOLE  # till the end


@pytest.mark.parametrize(("gpus", "verdict"), [(640, "borderline"), (560, "does not fit")])
def test_530b_under_zero_3_needs_640_gpus_at_microbatch_4(gpus: int, verdict: str) -> None:
    """SC21, Table 2: on 560 GPUs it ran out of memory, so that it was run on 640."""
    model, mesh = gpt("530B", 20480, 105, 128), Mesh(dp=gpus)
    recipe = Recipe(4 * gpus, 4, 2048, "fp16", "full", "none", zero_stage=3, gradient_dtype="fp16")
    recipe = replace(recipe, prefetch=1, prefetch_bytes=2 * 0.9 * 20480**2)
    job = MemoryJob(model, mesh, recipe, overheads_of(load_profile("a100-selene-megatron2021")))
    assert estimate_job(job, 80 * 2**30).verdict == verdict


def test_who_shares_what() -> None:
    """Rajbhandari et al. 2020, §5: optimiser, gradients, parameters over the replicas, or over groups of them."""
    recipe = Recipe(64, 1, 128, schedule="none", zero_stage=3, fsdp_shard=4)
    how = sharding(Mesh(dp=8, cp=2), recipe)
    assert (how.copies, how.shards, how.replicas, how.gathers, how.again) == (16, 4, 4, "pass", True)
    assert sharding(Mesh(dp=8), replace(recipe, zero_stage=0, fsdp_shard=None)).sums_whole
    assert sharding(Mesh(dp=8), replace(recipe, zero_stage=1)).sums_whole  # InternEvo: gradients over all replicas
    assert sharding(Mesh(pp=2, dp=8), replace(recipe, schedule="1f1b")).gathers == "step"
    assert sharding(Mesh(), replace(recipe, fsdp_shard=None)).gathers == "never"
