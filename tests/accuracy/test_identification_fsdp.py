"""The shipped constants of sharded stacks are those that calibration/identify_fsdp.py finds, to 3 %."""

from types import ModuleType

import pytest
from calibration_scripts import script

from traincast.profile import load_profile

PROFILES = {
    "mosaicgpt_a100": "a100-80gb-mosaicgpt2023",
    "foundry_a100": "a100-80gb-llmfoundry2023",
    "foundry_h100": "h100-80gb-llmfoundry2023",
    "torchtitan_a100": "a100-80gb-torchtitan2024",
    "torchtitan_h100": "h100-96gb-torchtitan2024",
    "torchtitan_b200": "b200-torchtitan2025",
    "internevo": "a100-80gb-internevo",
    "zero_3": "a100-selene-megatron2021",
}


@pytest.fixture(scope="module")
def identify() -> ModuleType:
    return script("identify_fsdp")


def agree(identify: ModuleType, step: str) -> None:
    shipped = load_profile(PROFILES[step])
    for name, value in getattr(identify, step)().items():
        assert shipped[name] == pytest.approx(value, rel=0.03), name


def test_the_step_of_one_row(identify: ModuleType) -> None:
    agree(identify, "torchtitan_b200")


@pytest.mark.slow
@pytest.mark.parametrize("step", [step for step in PROFILES if step != "torchtitan_b200"])
def test_steps_of_several_rows(identify: ModuleType, step: str) -> None:
    agree(identify, step)


def test_asynchronous_tp_overlaps_in_the_way_that_comes_nearest(identify: ModuleType) -> None:
    """One pair of rows, both named as fitted, chose what the profile's stack does."""
    found = identify.torchtitan_overlap()
    chosen = load_profile(PROFILES["torchtitan_h100"]).defaults["overlap_tp"].value
    assert chosen == min(("bulk", "split", "async"), key=lambda way: abs(found[way] - found["measured"]))


def test_every_row_that_a_step_reads_is_named_as_fitted(identify: ModuleType) -> None:
    """So that it is never scored; rows on 40 GB and of April 2023 told the constants that their profiles inherit."""
    foundry = identify.every_fifth(("A100-80GB-SXM", "A100-40GB-SXM"))
    told = [load_profile(PROFILES[step]).fitted_rows for step in ("mosaicgpt_a100", "foundry_a100")]
    assert set(foundry) == told[0] | told[1]
    assert not told[0] & told[1]
    assert set(identify.every_fifth(("H100-80GB-SXM",))) == load_profile(PROFILES["foundry_h100"]).fitted_rows
    assert set(identify.TORCHTITAN_A100) == load_profile(PROFILES["torchtitan_a100"]).fitted_rows
    h100 = {*identify.TORCHTITAN_H100, *identify.TORCHTITAN_OVERLAP}
    assert h100 == load_profile(PROFILES["torchtitan_h100"]).fitted_rows
    assert set(identify.TORCHTITAN_B200) == load_profile(PROFILES["torchtitan_b200"]).fitted_rows
    assert set(identify.INTERNEVO) == load_profile(PROFILES["internevo"]).fitted_rows
    assert set(identify.ZERO_3) <= load_profile(PROFILES["zero_3"]).fitted_rows


def test_shipped_constants_are_complete_and_tied(identify: ModuleType) -> None:
    """Input gradients run at the forward rate, weight gradients at 0.95 of it, backward attention at 0.86."""
    for name in PROFILES.values():
        found = load_profile(name)
        assert found["gemm.dgrad"] == found["gemm.forward"]
        assert found["gemm.wgrad"] == pytest.approx(0.95 * found["gemm.forward"], rel=2e-3)
    for name in ("a100-80gb-mosaicgpt2023", "a100-80gb-llmfoundry2023", "h100-80gb-llmfoundry2023"):
        found = load_profile(name)
        assert found["attention.flash_backward"] == pytest.approx(0.86 * found["attention.flash_forward"], rel=5e-3)
