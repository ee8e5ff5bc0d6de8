"""Scores of families. The null forecast's printed figures: 6.9 % on SC21 Table 1, 10.2 % on Korthikanti Table 5."""

from dataclasses import replace

import numpy as np
import pytest

from traincast.model.flops import hardware_flops
from traincast.model.shape import gpt
from traincast.validate.score import RowScore, family_scores, null_errors_pct, pearson, spearman

# SC21 Table 1: hidden, layers, heads, GPUs, batch, printed TFLOP/s
SC21 = (
    (2304, 24, 24, 32, 512, 137),
    (3072, 30, 32, 64, 512, 138),
    (4096, 36, 32, 128, 512, 142),
    (6144, 40, 48, 256, 1024, 135),
    (8192, 48, 64, 512, 1536, 138),
    (10240, 60, 80, 1024, 1792, 140),
    (12288, 80, 96, 1536, 2304, 148),
    (16384, 96, 128, 1920, 2160, 155),
    (20480, 105, 128, 2520, 2520, 163),
    (25600, 128, 160, 3072, 3072, 163),
)
# Korthikanti 2022 Tables 3 and 5: hidden, layers, heads, GPUs, batch, seconds with full and selective recomputation
KORTHIKANTI = (
    (6144, 48, 64, 8, 4, 1.42, 1.10),
    (12288, 96, 96, 64, 64, 18.13, 13.75),
    (20480, 105, 128, 280, 280, 49.05, 37.83),
    (25600, 128, 160, 512, 512, 94.42, 71.49),
)


def score(row_id: str, measured: float, predicted: float, status: str = "scored", flops: float | None = None):
    return RowScore(row_id, "f", measured, predicted, status, "", flops)


def sc21_rows() -> list[RowScore]:
    rows = []
    for hidden, layers, heads, gpus, batch, tflops in SC21:
        per_gpu = hardware_flops(gpt("", hidden, layers, heads), batch, 2048, "full") / gpus
        rows.append(score(str(hidden), per_gpu / (tflops * 1e12), per_gpu / 150e12, flops=per_gpu))
    return rows


def test_null_forecast_of_sc21_table_1():
    (family,) = family_scores(sc21_rows())
    assert family.null_mape_pct == pytest.approx(6.9, abs=0.05)


def test_null_forecast_of_korthikanti_table_5():
    rows = []
    for hidden, layers, heads, gpus, batch, full, selective in KORTHIKANTI:
        for mode, seconds in (("full", full), ("selective", selective)):
            flops = hardware_flops(gpt("", hidden, layers, heads), batch, 2048, mode) / gpus
            rows.append(score(f"{hidden}{mode}", seconds, seconds, flops=flops))
    errors = null_errors_pct(rows)
    assert np.mean(np.abs(list(errors.values()))) == pytest.approx(10.2, abs=0.05)
    assert max(map(abs, errors.values())) == pytest.approx(20.4, abs=0.05)


def test_errors_by_hand():
    (family,) = family_scores([score("a", 1.0, 1.1), score("b", 2.0, 1.6), score("c", 4.0, 4.0)])
    assert (family.n, family.scored, family.fitted) == (3, 3, 0)
    assert family.mape_pct == pytest.approx(10.0)
    assert family.max_abs_pct == pytest.approx(20.0)
    assert family.bias_pct == pytest.approx(-10 / 3)
    assert family.spearman == pytest.approx(1.0)
    assert family.null_mape_pct is None  # no FLOPs known


def test_fitted_and_skipped_rows_do_not_count():
    rows = [score("a", 1.0, 1.1), score("b", 1.0, 9.0, "fitted"), RowScore("c", "f", 1.0, None, "skipped", "no")]
    (family,) = family_scores(rows)
    assert (family.n, family.scored, family.fitted) == (3, 1, 1)
    assert family.mape_pct == pytest.approx(10.0)
    assert family.spearman is None  # one pair has no rank


def test_a_family_without_a_scored_row_is_still_there():
    (family,) = family_scores([RowScore("c", "f", None, None, "skipped", "no")])
    assert (family.n, family.scored, family.mape_pct, family.null_mape_pct) == (1, 0, None, None)


def test_a_fitted_row_lends_its_rate_to_the_null_but_is_not_scored():
    rows = sc21_rows()
    rows[0] = replace(rows[0], status="fitted")
    assert set(null_errors_pct(rows)) == {row.id for row in rows[1:]}


def test_row_as_json():
    row = score("a", 2.0, 1.5)
    assert row.as_dict() == {
        "id": "a",
        "family": "f",
        "measured_s": 2.0,
        "predicted_s": 1.5,
        "error_pct": -25.0,
        "status": "scored",
        "reason": "",
    }


def test_rank_correlation_takes_ties_at_their_mean_rank():
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: cov 4.5 over sqrt(4.5 * 5)
    found = spearman(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5.0))
    assert pearson(np.ones(4), np.arange(4.0)) is None
