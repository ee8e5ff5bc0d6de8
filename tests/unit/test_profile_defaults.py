"""What a stack does where nobody says otherwise: read from profiles, laid under rows and scenarios."""

from dataclasses import replace
from pathlib import Path

import pytest

from traincast.errors import DataError
from traincast.profile import find_profile, load_profile, shipped_profiles
from traincast.scenario import load_scenario
from traincast.validate.build import build_case
from traincast.validate.place import place_of
from traincast.validate.rows import PublishedRow

NEMO = "h100-nemo-megatroncore2025"
ROW = {
    "id": "r",
    "family": "f",
    "hidden": "4096",
    "layers": "32",
    "heads": "32",
    "vocab": "51200",
    "seq": "2048",
    "gpu": "H100-80GB-SXM",
    "gpus": "64",
    "tp": "2",
    "pp": "4",
    "vpp": "2",
    "microbatch": "1",
    "global_batch": "64",
    "recompute": "none",
    "precision": "bf16",
    "attention": "fused",
    "stack": "NeMo 25.02",
}


def case(**changes: str):
    row = PublishedRow("a.csv", 2, {**ROW, **changes})
    return build_case(row, place_of(row).profile)


def recipe(**changes: str):
    (candidate,) = case(**changes).candidates
    return candidate.recipe


def test_what_a_row_leaves_open_its_stack_decides() -> None:
    found = recipe()
    assert (found.zero_stage, found.sequence_parallel, found.overlap_dp, found.overlap_params) == (1, True, True, True)
    assert (found.overlap_tp, found.p2p, found.gradient_dtype) == ("split", "async", "bf16")
    assert found.bucket_bytes == 2.0**28
    (note,) = [note for note in case().notes if "as the stack of" in note]
    assert NEMO in note
    assert "zero_stage 1" in note


def test_what_a_row_states_stands() -> None:
    stated = {"zero_stage": "0", "sequence_parallel": "n", "overlap_dp": "n", "overlap_tp": "n", "p2p_overlap": "n"}
    found = recipe(**stated)
    assert (found.zero_stage, found.sequence_parallel) == (0, False)
    assert (found.overlap_dp, found.overlap_params) == (False, False)
    assert (found.overlap_tp, found.p2p) == ("none", "blocking")


def test_what_says_nothing_for_a_shape_is_left_out() -> None:
    """No sequence to split without TP; messages overlap where chunks interleave."""
    found = recipe(tp="1", vpp="1", schedule="1f1b", gpus="32")
    assert (found.sequence_parallel, found.overlap_tp, found.p2p) == (False, None, "blocking")
    assert recipe(precision="fp16").gradient_dtype == "fp16"


def test_recomputation_and_offloading_of_a_stack() -> None:
    """BurstEngine's scripts recompute whole layers and keep the optimiser on the host; a row may say otherwise."""
    burst = {"gpu": "A800-80GB-SXM", "stack": "BurstEngine (2025)", "recompute": "", "vpp": "1", "tp": "1"}
    found = recipe(**burst)
    assert (found.recompute, found.offload_states, found.zero_stage) == ("full", "optimizer", 3)
    found = recipe(**{**burst, "recompute": "selective", "offload": "none"})
    assert (found.recompute, found.offload_states) == ("selective", "none")
    assert len(case(recompute="").candidates) == 3


def test_other_stacks_keep_their_defaults() -> None:
    found = recipe(stack="some other stack")
    assert (found.zero_stage, found.overlap_tp, found.overlap_params, found.gradient_dtype) == (0, None, False, "fp32")


@pytest.mark.parametrize(
    ("gpu", "stack", "profile"),
    [
        ("H100-80GB-SXM", "NVIDIA dgxc-benchmarking", NEMO),
        ("H100-80GB-SXM", "NeMo launcher 24.05 (2024-07)", "h100-nemo-megatroncore2024"),
        ("H100-80GB-SXM", "NeMo launcher 24.01 (2024-03)", "h100-nemo-megatroncore2401"),
        ("H100-80GB-SXM", "NeMo 24.07", "h100-nemo-megatroncore2407"),
        ("H100-80GB-SXM", "NVIDIA: NeMo 23.0x", "h100-mlperf2023"),
        ("H100-80GB-SXM", "NVIDIA: NeMo 23.09", "h100-mlperf2024"),
        ("H200-141GB-SXM", "Nebius: PyTorch NVIDIA Release 25.01", "h100-megatronbridge2025"),
        ("GB200", "Megatron-Bridge performance archive", "blackwell-megatronbridge2026"),
        ("GB200", "NVIDIA: NVIDIA NeMo Framework Release 25.04", "blackwell-nemo-megatroncore2025"),
        ("B300-SXM", "Megatron-Bridge performance archive", "gb300-nemo-megatroncore2025"),
        ("A100-80GB-SXM", "NeMo 24.07", "a100-nemo-megatroncore2024"),
        ("H100-80GB-SXM", "NeMo AutoModel (PyTorch DTensor/FSDP2)", "h100-automodel2025"),
    ],
)
def test_stacks_find_their_profile(gpu: str, stack: str, profile: str) -> None:
    """Releases and submitters differ in a row's stack; a profile names what they have in common."""
    assert find_profile(gpu, stack)[0].name == profile


def test_rows_that_ran_in_jax_are_not_of_a_suites_pytorch_stack() -> None:
    row = PublishedRow("a.csv", 2, {**ROW, "stack": "NVIDIA dgxc-benchmarking", "remark": "jax_xla"})
    place = place_of(row)
    assert set(place.profile.defaults) == {"recompute"}
    assert place.profile.name == "h100-maxtext2025"
    elsewhere = place_of(PublishedRow("a.csv", 2, {**row.cells, "gpu": "H200-141GB-SXM"}))
    assert any("jax_xla" in note for note in elsewhere.notes)


def test_rows_of_before_a_setting_changed_have_a_profile_of_their_own() -> None:
    """BLOOM's runs of 17 February 2022, quoted from logs; lines of other families' logs are of their stack."""
    row = PublishedRow("a.csv", 2, {**ROW, "gpu": "A100-80GB-SXM", "stack": "BLOOM-176B (BigScience logs)"})
    lines = "bigscience-workshop/bigscience@9e64ede train/tr11-176B-ml/chronicles-prequel.md (log lines ~L360-430)"
    early, later, other = (
        place_of(replace(row, cells={**row.cells, "family": family, "source": source}))
        for family, source in (("bloom", lines), ("bloom", "elsewhere"), ("other", lines))
    )
    assert not early.profile.traits.launch_blocking
    assert later.profile.traits.launch_blocking
    assert other.profile is later.profile


def test_a_stack_says_that_its_models_are_not_tied() -> None:
    """The fork of the zero-bubble schedules; other GPT rows have one table for both ends."""
    row = PublishedRow("a.csv", 2, {**ROW, "gated_mlp": "n"})
    profiles = [load_profile(name) for name in ("a100-roce-zerobubble2023", "a100-selene-megatron2022")]
    assert [build_case(row, one).model.tied_embeddings for one in profiles] == [False, True]


def test_no_two_profiles_claim_a_stack_of_one_gpu() -> None:
    seen: set[tuple[str, str]] = set()
    for profile in shipped_profiles():
        for gpu in (profile.gpu, *profile.also_for):
            claimed = {(gpu, stack) for stack in profile.stacks}
            assert not claimed & seen, profile.name
            seen |= claimed


def test_defaults_are_inherited() -> None:
    later, earlier = load_profile(NEMO), load_profile("h100-nemo-megatroncore2024")
    assert set(earlier.defaults) == set(later.defaults)
    assert earlier.defaults["bucket"].value == 125e6
    assert all(default.source for default in earlier.defaults.values())


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("zero: {value: 1, source: x}", "unknown default 'zero'"),
        ("zero_stage: {value: 4, source: x}", "zero_stage cannot be 4"),
        ("overlap_dp: {value: 1, source: x}", "overlap_dp cannot be 1"),
        ("recompute: {value: some, source: x}", "recompute cannot be 'some'"),
        ("bucket: {value: 100, source: x}", "default bucket: '100' has no unit"),
    ],
)
def test_a_default_that_cannot_be(tmp_path: Path, entry: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    head = "name: mine\ninherits: h100-80gb-sxm\ngpu: H100-80GB-SXM\nfabric: mine\ndefaults:\n"
    path.write_text(f"{head}  {entry}\n", encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_profile(str(path))


SCENARIO = """
model: llama3-70b
cluster: {{gpu: H100-80GB-SXM, nodes: 8}}
parallelism: {{tp: 4, pp: 4, vpp: 5{shape}}}
training: {{global_batch: 128, microbatch: 1{training}}}
{profile}
"""


def scenario(tmp_path: Path, shape: str = "", training: str = "", profile: str = f"profile: {NEMO}"):
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.format(shape=shape, training=training, profile=profile), encoding="utf-8")
    return load_scenario(str(path))


def test_a_scenario_takes_the_defaults_of_the_profile_that_it_names(tmp_path: Path) -> None:
    found = scenario(tmp_path)
    recipe = found.recipe
    assert (recipe.zero_stage, recipe.sequence_parallel, recipe.overlap_tp, recipe.p2p) == (1, True, "split", "async")
    assert f"training.zero_stage not stated: 1, as the stack of {NEMO} does" in found.assumptions
    assert not any(text.startswith("training.gradient_dtype not stated: fp32") for text in found.assumptions)


def test_a_scenario_that_says_otherwise_is_followed(tmp_path: Path) -> None:
    stated = ", zero_stage: 0, overlap_tp: none, gradient_dtype: fp32"
    recipe = scenario(tmp_path, ", sequence_parallel: false", stated).recipe
    assert (recipe.zero_stage, recipe.sequence_parallel, recipe.overlap_tp) == (0, False, "none")
    assert (recipe.gradient_dtype, recipe.overlap_params) == ("fp32", False)


def test_a_scenario_without_a_profile_keeps_its_own_defaults(tmp_path: Path) -> None:
    recipe = scenario(tmp_path, profile="").recipe
    assert (recipe.zero_stage, recipe.sequence_parallel, recipe.overlap_tp) == (0, False, None)


def test_a_default_may_end_at_a_number_of_tensor_parallel_ranks() -> None:
    """BurstEngine's comparison: Megatron-LM, which alone splits tensors, keeps its optimiser on the GPU."""
    profile = load_profile("a800-burstengine2025")
    assert profile.stack_defaults(1, 1)["offload_states"] == "optimizer"
    assert "offload_states" not in profile.stack_defaults(2, 1)


def test_the_name_that_says_most_of_a_stack_counts() -> None:
    """MLPerf 3.0's NeMo 23.04 has a profile beside that of all NeMo 2*."""
    found = [find_profile("H100-80GB-SXM", f"Somebody: NeMo 2{version}")[0].name for version in ("3.04", "4.07")]
    assert found == ["h100-mlperf2023", "h100-mlperf2024"]
