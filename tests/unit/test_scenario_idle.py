"""Keys that a scenario states without effect are told in its assumptions; the step says that they have none."""

from pathlib import Path

import pytest

from traincast.forecast import forecast
from traincast.scenario import Scenario, load_scenario

BASE = """\
model: {hidden: 1024, layers: 8, heads: 16, vocab: 51200}
cluster: {gpu: H100-80GB-SXM, nodes: 1}
parallelism: {tp: 2, pp: 2, dp: 2}
training: {global_batch: 8, microbatch: 1, sequence: 1024}
"""


def load(folder: Path, *sets: str) -> Scenario:
    (folder / "s.yaml").write_text(BASE)
    return load_scenario(folder / "s.yaml", [(one.partition("=")[0], one.partition("=")[2]) for one in sets])


def idle(scenario: Scenario) -> list[str]:
    return [line for line in scenario.assumptions if "has no effect" in line]


@pytest.mark.parametrize(
    ("shape", "key", "why"),
    [
        (("parallelism.tp=1",), "training.overlap_tp=bulk", "tp is 1"),
        ((), "training.fp8_scaling=rowwise", "precision is bf16"),
        ((), "training.fp8_gather=true", "precision is bf16"),
        (("training.precision=fp8",), "training.fp8_gather=true", "zero_stage 0 gathers no parameters"),
        ((), "training.overlap_tp=split", "without sequence_parallel no collective is split"),
        (("parallelism.tp=1",), "parallelism.sequence_parallel=true", "tp is 1"),
        (("training.zero_stage=3", "parallelism.pp=1"), "training.bucket=1 MB", "layer by layer"),
        (("training.zero_stage=3",), "training.overlap_params=true", "before they are used"),
        ((), "training.overlap_params=true", "zero_stage 0 leaves no parameters"),
        (("parallelism.dp=1",), "training.overlap_dp=true", "one replica"),
        (("parallelism.pp=1",), "training.p2p=async", "pp is 1"),
        (("parallelism.pp=1",), "training.scatter_gather=false", "pp is 1"),
        (("parallelism.pp=1", "parallelism.tp=1"), "training.post_validation=true", "pp is 1"),
        (("parallelism.sequence_parallel=true",), "training.scatter_gather=false", "its own part"),
        (("parallelism.cp=2", "parallelism.dp=1", "training.cp_kind=burst"), "training.cp_inner=ring", "cp_ulysses"),
        ((), "training.recompute=every_100th", "a GPU holds 4 layers, of which none is the 100th"),
        (("parallelism.pp=1",), "training.offload_activations=0.5", "so nothing is copied"),
    ],
)
def test_a_key_without_effect_is_told_and_leaves_the_step_as_it_is(
    tmp_path: Path, shape: tuple[str, ...], key: str, why: str
) -> None:
    """The law: the same step with the key and without."""
    without, stated = load(tmp_path, *shape), load(tmp_path, *shape, key)
    (line,) = idle(stated)
    assert line.startswith(f"{key.partition('=')[0]} has no effect: ")
    assert why in line
    assert not idle(without)
    times = [forecast(one, engine="analytic").step_time_s for one in (without, stated)]
    assert times[0] == times[1]


SEQUENCE_PARALLEL = ("parallelism.sequence_parallel=true", "parallelism.pp=1", "training.microbatch=2")


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        (SEQUENCE_PARALLEL, "the stack copies nothing"),
        ((*SEQUENCE_PARALLEL, "profile=h100-80gb-torchtitan2025", "training.microbatch=1"), "a single sequence"),
        ((*SEQUENCE_PARALLEL, "profile=h100-80gb-torchtitan2025", "parallelism.sequence_parallel=false"), "without"),
        ((*SEQUENCE_PARALLEL, "profile=h100-80gb-torchtitan2025"), None),
    ],
)
def test_asynchronous_overlap_without_copies_is_as_none(
    tmp_path: Path, shape: tuple[str, ...], why: str | None
) -> None:
    """The law: the same step as with none; where copies are saved it is shorter, and nothing is said."""
    none, stated = (load(tmp_path, *shape, f"training.overlap_tp={way}") for way in ("none", "async"))
    lines = [line for line in stated.assumptions if "async is as none" in line]
    assert [why in line for line in lines] == ([True] if why else [])
    assert not [line for line in none.assumptions if "as none" in line]
    times = [forecast(one, engine="analytic").step_time_s for one in (none, stated)]
    assert (times[0] == times[1]) is (why is not None)
    assert times[0] >= times[1]


@pytest.mark.parametrize(
    "sets",
    [
        ("training.scatter_gather=false",),
        ("training.recompute=every_2nd",),
        ("training.zero_stage=3", "training.bucket=1 MB"),
        ("training.zero_stage=1", "training.overlap_params=true"),
        ("training.overlap_tp=none", "parallelism.tp=1"),
        ("training.post_validation=true", "parallelism.pp=1"),
        ("training.offload_activations=0.5", "parallelism.pp=4", "parallelism.tp=1", "training.global_batch=16"),
    ],
)
def test_keys_that_say_something_or_ask_for_nothing_are_not_named(tmp_path: Path, sets: tuple[str, ...]) -> None:
    assert not idle(load(tmp_path, *sets))


def test_the_default_profile_is_named_with_the_others_of_the_gpu(tmp_path: Path) -> None:
    """Which stack trains decides much, so the choice is shown where nobody made it."""
    (line,) = (one for one in forecast(load(tmp_path), engine="analytic").assumptions if "no stack stated" in one)
    assert "default profile h100-80gb-sxm of H100-80GB-SXM" in line
    assert "--set profile=NAME" in line
    assert "h100-80gb-torchtitan2025 (torchtitan (FSDP2))" in line
    assert "a100" not in line


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("training.post_validation=true",), "training.post_validation spares no stage a wait: pp is 1"),
        (("training.schedule=zb-h1",), "training.schedule zb-h1 fills no bubble: pp is 1"),
        (("training.schedule=zb-2p",), "training.schedule zb-2p fills no bubble: pp is 1"),
    ],
)
def test_what_is_for_pipelines_is_told_without_one(tmp_path: Path, sets: tuple[str, ...], words: str) -> None:
    """They change the step (a norm of the tp ranks, split passes), so they are not called without effect."""
    alone = load(tmp_path, "parallelism.pp=1", *sets)
    assert [line for line in alone.assumptions if line.startswith(words)]
    assert forecast(alone).step_time_s != forecast(load(tmp_path, "parallelism.pp=1")).step_time_s
    assert not [line for line in load(tmp_path, *sets).assumptions if words in line]
