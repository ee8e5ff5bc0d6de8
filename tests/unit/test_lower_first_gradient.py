"""Whose weight gradients are added to others: Megatron-LM's zero_grad sets half-precision ones to None, so autograd
keeps the first microbatch's; single-precision ones have a buffer, an overlapping DDP its buckets."""

from dataclasses import replace

import pytest

from traincast.forecast import prepare
from traincast.lower import Job
from traincast.lower.stages import block_of
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
