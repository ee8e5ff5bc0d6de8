"""Sharded data parallelism as a scenario says it: defaults, keys that need others, groups that cannot be."""

from pathlib import Path

import pytest

from traincast.errors import UserError
from traincast.forecast import forecast
from traincast.scenario import load_scenario

TEXT = """\
model: llama3-8b
cluster: {{gpu: H100-80GB-SXM, nodes: 2}}
training: {{global_batch: 32, microbatch: 1, recompute: full, {keys}}}
"""


@pytest.fixture
def scenario(tmp_path: Path):
    def load(keys: str):
        path = tmp_path / "one.yaml"
        path.write_text(TEXT.format(keys=keys))
        return load_scenario(path)

    return load


def test_zero_3_overlaps_and_says_what_it_assumes(scenario) -> None:
    found = scenario("zero_stage: 3")
    assert (found.recipe.overlap_dp, found.recipe.gathers_ahead, found.recipe.fsdp_shard) == (True, 1, None)
    assert "training.no_sync not stated: gradients are reduced behind each microbatch" in found.assumptions
    said = "training.reshard_after_forward not stated: parameters are gathered again in each backward pass"
    assert said in found.assumptions
    assert not scenario("zero_stage: 1").recipe.overlap_dp


def test_every_key_reaches_the_recipe(scenario) -> None:
    keys = "fsdp_shard: 8, reshard_after_forward: false, prefetch: 2, prefetch_bucket: 1 GB, no_sync: true"
    recipe = scenario(f"zero_stage: 3, {keys}, reduce_dtype: bf16, offload_states: parameters").recipe
    assert (recipe.fsdp_shard, recipe.reshard_after_forward, recipe.prefetch) == (8, False, 2)
    assert (recipe.prefetch_bytes, recipe.no_sync, recipe.reduce_dtype) == (1e9, True, "bf16")
    assert (recipe.offload_states, recipe.reduce_bytes, recipe.gradient_dtype) == ("parameters", 2, "fp32")


@pytest.mark.parametrize(
    ("keys", "message", "fix"),
    [
        ("zero_stage: 3, fsdp_shard: 5", "fsdp_shard 5 does not divide 16 replicas", "set training.fsdp_shard: 4"),
        ("fsdp_shard: 4", "training.fsdp_shard says nothing with zero_stage 0", "set training.zero_stage: 1 or more"),
        (
            "zero_stage: 2, prefetch: 1",
            "training.prefetch says nothing with zero_stage 2",
            "set training.zero_stage: 3",
        ),
        ("offload_states: parameters", "zero_stage 0 fetches none", "set training.offload_states: optimizer"),
        ("recompute: every_2nd, zero_stage: 4", "training.zero_stage is 4", "give a whole number from 0 to 3"),
        ("offload_states: disk", "training.offload_states is 'disk'", "none, optimizer, parameters"),
    ],
)
def test_what_cannot_be_is_refused_with_place_and_fix(scenario, keys: str, message: str, fix: str) -> None:
    keys = keys if "recompute" not in keys else keys.replace("recompute: every_2nd, ", "")
    with pytest.raises(UserError) as found:
        scenario(keys)
    assert message in found.value.message
    assert fix in (found.value.fix or "")
    assert "one.yaml:3:" in (found.value.where or "")


def test_a_ragged_batch_is_legal_when_asked_for(tmp_path: Path) -> None:
    text = "model: llama3-8b\ncluster: {gpu: H100-80GB-SXM, nodes: 1}\n"
    text += "training: {global_batch: 40, microbatch: 2, zero_stage: 3, recompute: every_2nd"
    path = tmp_path / "ragged.yaml"
    path.write_text(text + "}\n")
    with pytest.raises(UserError, match="not a multiple of microbatch"):
        load_scenario(path)
    path.write_text(text + ", ragged: true}\n")
    found = load_scenario(path)
    assert (found.recipe.microbatches(8), found.recipe.last_microbatch(8)) == (3, 1)
    assert forecast(found, engine="analytic").step_time_s > 0


def test_hybrid_shards_keep_gathers_inside_the_nodes(scenario) -> None:
    """HSDP: what crosses nodes is an eighth of the gradients, summed over two replicas; FSDP gathers across too."""
    keys = "zero_stage: 3, fsdp_shard: 8"
    whole, hybrid = (forecast(scenario(one), engine="analytic") for one in ("zero_stage: 3", keys))
    assert hybrid.traffic["dp"].cross_node_share < whole.traffic["dp"].cross_node_share
