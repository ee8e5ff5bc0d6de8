"""Scores of families. The null forecast's printed figures: 6.9 % on SC21 Table 1, 10.2 % on Korthikanti Table 5."""

from dataclasses import replace

import numpy as np
import pytest

from traincast.model.flops import hardware_flops
from traincast.model.shape import gpt
from traincast.report.validation_tables import families_table
from traincast.validate import PublishedRow, ValidationReport
from traincast.validate.score import RowScore, family_scores, null_errors_pct, pearson, spearman
from traincast.validate.studies import studies_of, with_regret

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


def published_row(row_id: str, **cells: object) -> PublishedRow:
    return PublishedRow("f.csv", 2, {"id": row_id, "family": "f", **{name: str(cell) for name, cell in cells.items()}})


def study_rows() -> tuple[list[PublishedRow], list[RowScore]]:
    """Four shapes of one model on eight GPUs (one measured twice), two of another, one alone; seconds a step."""
    job = {"model": "big", "hidden": 8192, "gpus": 8, "global_batch": 64}
    rows = [
        published_row("a", **job, tp=8),
        published_row("b", **job, tp=4),
        published_row("b2", **job, tp=4),
        published_row("c", **{**job, "global_batch": 66}, tp=2),  # within 5 %: times count per sequence
        published_row("d", **job, tp=1),
        published_row("e", **{**job, "hidden": 4096, "model": "small"}, tp=8),
        published_row("f", **{**job, "hidden": 4096, "model": "small"}, tp=4),
        published_row("g", **{**job, "global_batch": 128}, tp=4),  # another batch, another job
    ]
    times = [(10.0, 11.0), (8.0, 10.0), (8.4, 10.2), (9.9, 9.9), (12.0, 12.0), (2.0, 2.0), (3.0, 2.5), (1.0, 1.0)]
    return rows, [score(row.id, *pair) for row, pair in zip(rows, times, strict=True)]


def test_studies_hold_the_shapes_of_one_model_on_the_same_gpus() -> None:
    """DESIGN §10: rank correlation of shapes inside one study, regret of the predicted best against the measured."""
    rows, scores = study_rows()
    big, small = studies_of(scores, rows)
    assert [shape.ids for shape in big.shapes] == [("a",), ("b", "b2"), ("d",), ("c",)]
    assert (big.model, big.gpus, big.batch) == ("big", 8, 64)
    # per sequence: predicted best c (9.9 / 66), measured best b (8.2 / 64)
    assert (big.predicted_best.ids, big.measured_best.ids) == (("c",), ("b", "b2"))
    assert big.regret_pct == pytest.approx(100 * ((9.9 / 66) / (8.2 / 64) - 1))
    # ranks measured c 2, b 1, a 3, d 4; predicted c 1, b 2, a 3, d 4: 1 - 6 * 2 / (4 * 15)
    assert big.spearman == pytest.approx(0.8)
    assert (small.regret_pct, small.spearman) == (0.0, None)


def test_regret_of_a_family_by_hand() -> None:
    """The mean over studies, the worst beside it; what told a constant takes no part."""
    rows, scores = study_rows()
    (family,) = with_regret(family_scores(scores), studies_of(scores, rows))
    expected = 100 * ((9.9 / 66) / (8.2 / 64) - 1)
    assert family.studies == 2
    assert family.regret_pct == pytest.approx(expected / 2)
    assert family.worst_regret_pct == pytest.approx(expected)
    assert family.spearman_in_studies == family.worst_spearman_in_studies == pytest.approx(0.8)
    scores[3] = replace(scores[3], status="fitted")
    (family,) = with_regret(family_scores(scores), studies_of(scores, rows))
    assert (family.regret_pct, family.studies) == (0.0, 2)


def test_a_family_without_studies_has_no_regret() -> None:
    (family,) = with_regret(family_scores([score("a", 1.0, 1.0)]), studies_of([score("a", 1.0, 1.0)], ()))
    assert (family.studies, family.regret_pct, family.spearman_in_studies) == (0, None, None)


def test_the_table_of_families_shows_regret() -> None:
    """Issue 6, point 6: regret of the predicted best shape in the table, and in JSON as `regret_pct`."""
    rows, scores = study_rows()
    families = with_regret(family_scores(scores), studies_of(scores, rows))
    report = ValidationReport(tuple(scores), families, ())
    table = families_table(report)
    shown = dict(zip(table.columns, table.rows[0], strict=True))
    assert shown["regret %"] == report.as_dict()["families"][0]["regret_pct"] == families[0].regret_pct
    assert shown["worst regret %"] == families[0].worst_regret_pct
    assert shown["studies"] == 2
