"""The shipped constants are those that calibration/identify_a100.py finds, to 3 %."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from traincast.profile import load_profile

SCRIPT = Path(__file__).resolve().parents[2] / "calibration" / "identify_a100.py"


@pytest.fixture(scope="module")
def identify() -> ModuleType:
    spec = importlib.util.spec_from_file_location("identify_a100", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def agree(found: dict[str, float], profile: str) -> None:
    shipped = load_profile(profile)
    compared = {name: value for name, value in found.items() if name in shipped.constants}
    assert compared
    for name, value in compared.items():
        assert shipped[name] == pytest.approx(value, rel=0.03), name


@pytest.mark.parametrize("step", ["products", "flash", "collectives", "layer_rates"])
def test_steps_1_to_4(identify: ModuleType, step: str) -> None:
    agree(getattr(identify, step)(), "a100-80gb-sxm")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["selene_wires", "selene_rates"])
def test_steps_5_and_6(identify: ModuleType, step: str) -> None:
    agree(getattr(identify, step)(), "a100-selene-megatron2021")


def test_no_row_that_told_a_constant_is_left_out_of_the_profiles(identify: ModuleType) -> None:
    """Every row that the script reads is named as fitted, so that it is never scored."""
    named = load_profile("a100-selene-megatron2021").fitted_rows | load_profile("a100-selene-megatron2022").fitted_rows
    used = {*identify.SC21_TABLE_1_FITTED, *identify.SELENE_ROWS, *identify.GRADIENT_PAIR}
    assert used <= named
