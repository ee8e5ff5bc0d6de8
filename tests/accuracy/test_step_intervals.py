"""The intervals of whole steps hold studies that they were not made of."""

import csv
from pathlib import Path
from types import ModuleType

import pytest
from calibration_scripts import script

from traincast.calibration.conformal import Residual
from traincast.profile import load_profile, shipped_profiles

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "reports" / "validation" / "residuals.csv"
"""Every published row beside its forecast, as `traincast validate` last wrote it."""


@pytest.fixture(scope="module")
def intervals() -> ModuleType:
    return script("fit_intervals")


@pytest.fixture(scope="module")
def reported() -> list[Residual]:
    with REPORT.open(encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["status"] == "scored"]
    return [
        Residual(float(row["measured_s"]) / float(row["predicted_s"]), group=row["id"], source=row["family"])
        for row in rows
    ]


def test_intervals_hold_studies_that_they_have_not_seen(intervals: ModuleType, reported: list[Residual]) -> None:
    """Each study left out in turn, the 80 % interval of all others holds 70 to 90 % of its steps, as the mean of the
    studies (83 when written). The same for the six studies none of whose rows told any profile a constant (81): for
    them the forecast is as blind as for a user's own run."""
    unseen, blind = intervals.unseen_studies(reported), intervals.transferred(reported)
    assert (unseen.sources, blind.sources) >= (18, 5)
    assert 0.70 <= unseen.sources_share <= 0.90
    assert 0.70 <= blind.sources_share <= 0.90


@pytest.mark.slow
def test_shipped_intervals_are_those_of_all_studies(intervals: ModuleType) -> None:
    """What profiles state is what calibration/fit_intervals.py makes of all scored rows: to a hundredth, since physics
    elsewhere may move a row. By rows, half of which are one study's, left-out studies are held by 70 to 90 % too (78
    when written; 75 of the six that told no constant)."""
    by_profile = intervals.residuals(intervals.read_published(intervals.published_files()))
    every = [one for own in by_profile.values() for one in own]
    assert 0.70 <= intervals.unseen_studies(every).cases_share <= 0.90
    assert 0.70 <= intervals.transferred(every).cases_share <= 0.90
    made = intervals.step_intervals(by_profile)
    assert {one.name for one in shipped_profiles() if "step" in one.intervals} == set(made)
    for name, one in made.items():
        shipped, band = load_profile(name).intervals["step"].band(), one.interval.band()
        assert (shipped.low, shipped.high) == pytest.approx((band.low, band.high), abs=0.01), name
        if one.covered is not None:
            assert one.covered.cases_share >= 0.70, name


def test_no_profile_is_surer_than_all_studies_together() -> None:
    """A profile's own rows may widen its interval, never narrow it below what unseen studies show: that is the interval
    of a profile with seven rows of its own."""
    whole = load_profile("a100-selene-megatron2022").intervals["step"]
    found = [one.intervals["step"] for one in shipped_profiles() if "step" in one.intervals]
    assert len(found) >= 15
    for one in found:
        assert one.rows == whole.rows
        assert one.band().low <= whole.band().low
        assert one.band().high >= whole.band().high


def test_every_interval_says_whose_residuals_it_holds() -> None:
    for profile in shipped_profiles():
        for kind, one in profile.intervals.items():
            assert kind in ("step", "inside", "across"), profile.name
            assert 0 < one.level < 1
            assert one.rows >= 8
            assert "told no constant" in one.how
            assert all(band.low < band.high for band in one.bands)
