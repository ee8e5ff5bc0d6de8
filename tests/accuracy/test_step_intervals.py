"""The intervals of whole steps hold the rows that they were not made of."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from traincast.profile import load_profile, shipped_profiles

SCRIPT = Path(__file__).resolve().parents[2] / "calibration" / "fit_intervals.py"
FAMILIES = ("sc21", "vtrain", "bloom", "foundry", "dgxc_h100", "zero_bubble")


@pytest.fixture(scope="module")
def intervals() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_intervals", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_intervals_hold_rows_that_they_have_not_seen(intervals: ModuleType) -> None:
    """80 % intervals over several profiles hold 70 to 90 % of the steps that gave neither a constant nor the interval
    (83 % over all families when written, 78 to 96 % by profile)."""
    rows = intervals.read_published(intervals.published_files(), FAMILIES)
    inside = tested = 0
    for name, residuals in intervals.residuals(rows).items():
        found = load_profile(name).intervals.get("step")
        if found is None:
            continue
        band = found.band()
        others = [one for one in residuals if not intervals.tells(one.group)]
        inside += sum(band.low <= one.ratio <= band.high for one in others)
        tested += len(others)
    assert tested >= 150
    assert 0.70 <= inside / tested <= 0.90


def test_every_interval_says_whose_residuals_it_holds() -> None:
    for profile in shipped_profiles():
        for kind, one in profile.intervals.items():
            assert kind in ("step", "inside", "across"), profile.name
            assert 0 < one.level < 1
            assert one.rows >= 8
            assert "told no constant" in one.how
            assert all(band.low < band.high for band in one.bands)
