"""Whose weight gradients are added to others: Megatron-LM's zero_grad sets half-precision ones to None, so autograd
keeps the first microbatch's; single-precision ones have a buffer, an overlapping DDP its buckets."""

from dataclasses import replace

import pytest

from traincast.forecast import prepare
from traincast.lower import Job
from traincast.lower.ragged import last_job
from traincast.lower.stages import block_of
from traincast.mesh import Mesh
from traincast.scenario import load_scenario


@pytest.fixture(scope="module")
def local() -> Job:
    """SC21's 39.1B row: half-precision gradients, the local DDP, 12 microbatches."""
    return prepare(load_scenario("sc21/t1_39p1b")).job


def test_all_but_the_first_are_added(local: Job) -> None:
    assert local.microbatches == 12
    assert block_of(local).summed == pytest.approx(11 / 12)
    one = replace(local, recipe=replace(local.recipe, global_batch=local.recipe.global_batch // 12))
    assert block_of(one).summed == 0.0


def test_a_buffer_takes_the_first_too(local: Job) -> None:
    assert block_of(replace(local, recipe=replace(local.recipe, gradient_dtype="fp32"))).summed == 1.0
    assert block_of(prepare(load_scenario("sc21/t1_18p4b")).job).summed == 1.0  # the overlapping DDP


def test_sharded_optimisers_and_fused_products_have_buffers(local: Job) -> None:
    """Megatron-LM: use_distributed_optimizer demands contiguous buffers (arguments.py), gradient_accumulation_fusion
    adds to them; DeepSpeed's first stage reduces what autograd kept."""

    def summed(zero_stage: int, **traits: bool) -> float:
        profile = replace(local.profile, traits=replace(local.profile.traits, **traits))  # type: ignore[arg-type]
        return block_of(replace(local, profile=profile, recipe=replace(local.recipe, zero_stage=zero_stage))).summed

    assert summed(1) == 1.0
    assert summed(0, fused_accumulation=True) == 1.0
    assert summed(1, flat_gradients=True) == summed(0) == pytest.approx(11 / 12)


def test_what_is_reduced_behind_each_microbatch_is_added_to_nothing(local: Job) -> None:
    """ZeRO-3 without a pipeline: each microbatch's gradients leave for their owners."""
    recipe = replace(local.recipe, zero_stage=3, gradient_dtype="fp32", schedule="none")
    mesh = Mesh(tp=local.mesh.tp, dp=local.mesh.dp * local.mesh.pp)
    assert block_of(replace(local, mesh=mesh, recipe=recipe)).summed == 0.0
    assert block_of(replace(local, mesh=mesh, recipe=replace(recipe, no_sync=True))).summed == 1.0


@pytest.mark.parametrize("alike", [1, 2, 4, 8])
def test_of_a_ragged_step_only_the_first_microbatch_is_not_added(local: Job, alike: int) -> None:
    """`alike` microbatches and a smaller one: as many sums as there are microbatches, less one."""
    recipe = replace(local.recipe, microbatch=2, global_batch=local.mesh.dp * (2 * alike + 1))
    job = replace(local, recipe=recipe)
    small = last_job(job)
    assert small is not None
    assert alike * block_of(job).summed + block_of(small).summed == pytest.approx(alike)
