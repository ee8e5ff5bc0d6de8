"""SC21's Figures 11 to 18: errors over all rows, and the choices that the measurements make (arXiv:2104.04473)."""

import pytest

from traincast.validate import published_files, read_published
from traincast.validate.report import ValidationReport, validate_rows


@pytest.fixture(scope="module")
def report() -> ValidationReport:
    return validate_rows(read_published(published_files(), ["sc21"]))


def choice(report: ValidationReport, start: str, end: str) -> tuple[str, str]:
    """Ids of the measured and of the forecast fastest among a figure's rows of one batch."""
    rows = [r for r in report.rows if r.id.startswith(start) and r.id.endswith(end) and r.predicted_s and r.measured_s]
    assert len(rows) >= 4
    measured = min(rows, key=lambda row: row.measured_s or 0.0)
    forecast = min(rows, key=lambda row: row.predicted_s or 0.0)
    return measured.id, forecast.id


def test_all_rows_but_zero_3_within_6_percent(report: ValidationReport) -> None:
    """5.1 % with ZeRO-3's rows, which have a bar of their own (test_sharded_families)."""
    (family,) = report.families
    assert family.mape_pct is not None
    assert family.mape_pct <= 6.0


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("sc21_f13_", "_B32"),
        ("sc21_f14_", "_B32"),
        ("sc21_f14_", "_B512"),
        ("sc21_f15_", "_B128"),
        ("sc21_f16_", "_B128"),
    ],
)
def test_the_fastest_is_the_measured_one(report: ValidationReport, start: str, end: str) -> None:
    measured, forecast = choice(report, start, end)
    assert forecast == measured


@pytest.mark.xfail(
    reason="162B at batch 128: TP 4 PP 16 comes out 0.9 % ahead of TP 8 PP 8, measured 1.8 % behind: its step is 2 s "
    "longer than its time per microbatch makes it, at batch 32 and 128 alike; what that is nobody states",
    strict=True,
)
def test_the_fastest_split_at_batch_128(report: ValidationReport) -> None:
    measured, forecast = choice(report, "sc21_f13_", "_B128")
    assert forecast == measured


@pytest.mark.xfail(
    reason="91B at batch 512: microbatch 4 comes out 0.3 % ahead of 2, measured 6.9 % behind: a sequence takes 136 ms "
    "at microbatch 2 and 141 at 4 in the measurement, and products of twice the rows are no slower here",
    strict=True,
)
def test_the_fastest_microbatch_at_batch_512(report: ValidationReport) -> None:
    measured, forecast = choice(report, "sc21_f16_", "_B512")
    assert forecast == measured


def test_interleaving_pays_where_it_did(report: ValidationReport) -> None:
    """Figure 12: at every batch the interleaved schedule is the faster one."""
    rows = {row.id: row for row in report.rows}
    for batch in (12, 24, 36, 48):
        plain, interleaved = (rows[f"sc21_f12_{kind}_B{batch}"] for kind in ("noninterleaved", "interleaved"))
        assert (interleaved.predicted_s or 0) < (plain.predicted_s or 0)
        assert (interleaved.measured_s or 0) < (plain.measured_s or 0)
