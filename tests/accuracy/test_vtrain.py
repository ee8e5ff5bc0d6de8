"""vTrain's measured shapes (MICRO 2024; VIA-Research/vTrain, data): 73 on up to 512 GPUs, 740 on one node."""

from statistics import fmean

import identify_vtrain
import numpy as np
import pytest

from traincast.profile import load_profile
from traincast.validate import published_files, read_published
from traincast.validate.report import ValidationReport, validate_rows
from traincast.validate.score import FamilyScore

SINGLE_NODE = "a100-80gb-megatron-deepspeed"


def _report(family: str) -> ValidationReport:
    return validate_rows(read_published(published_files(), [family]))


@pytest.fixture(scope="module")
def cluster_report() -> ValidationReport:
    return _report("vtrain")


@pytest.fixture(scope="module")
def cluster(cluster_report: ValidationReport) -> FamilyScore:
    return cluster_report.families[0]


def test_shapes_over_nodes_are_within_8_percent(cluster: FamilyScore) -> None:
    """No row told a constant; 7.0 %, the null forecast 19.8 %."""
    assert (cluster.scored, cluster.fitted) == (73, 0)
    assert cluster.mape_pct is not None
    assert cluster.mape_pct <= 8.0


def _mean_error_pct(report: ValidationReport, tp: str, hidden: str) -> float:
    """Of the multi-node rows of one model at one tensor-parallel degree."""
    chosen = {
        r.id for r in read_published(published_files(), ["vtrain"]) if (r.text("tp"), r.text("hidden")) == (tp, hidden)
    }
    return fmean(abs(row.error_pct) for row in report.rows if row.id in chosen and row.error_pct is not None)


def test_nodes_that_hold_one_group_each_are_within_3_percent(cluster_report: ValidationReport) -> None:
    """39.1B at TP 8, PP 2 to 16, DP 4 to 32, microbatch 2 to 24: nothing is fitted, and none of the irregular rows is
    among these; 2.7 % over 26 rows."""
    assert _mean_error_pct(cluster_report, "8", "8192") <= 3.0


def test_tensor_parallelism_over_two_nodes_is_within_10_percent(cluster_report: ValidationReport) -> None:
    """3.6B at TP 16, microbatch 2 to 32: 7.6 % too slow over five rows."""
    assert _mean_error_pct(cluster_report, "16", "3072") <= 10.0


def test_shapes_over_nodes_are_in_order(cluster: FamilyScore) -> None:
    """Over both models together."""
    assert cluster.spearman is not None
    assert cluster.spearman >= 0.9


@pytest.mark.xfail(
    reason="16 % on 39.1B, and a rank correlation of 0.72 there: rows of TP 2 (all six) and some of TP 4 ran 10 to 35 "
    "percent slower than neighbours of the same messages, without a pattern in batch, stages or bytes",
    strict=True,
)
def test_the_best_shape_is_within_3_percent_of_the_measured_best(cluster: FamilyScore) -> None:
    assert cluster.worst_regret_pct is not None
    assert cluster.worst_regret_pct <= 3.0


@pytest.mark.xfail(reason="0.72 on 39.1B, 0.97 on 3.6B: the same rows", strict=True)
def test_the_shapes_of_each_model_are_in_order(cluster: FamilyScore) -> None:
    assert cluster.worst_spearman_in_studies is not None
    assert cluster.worst_spearman_in_studies >= 0.9


@pytest.fixture(scope="module")
def one_node() -> ValidationReport:
    return _report("vtrain_single")


@pytest.mark.slow
def test_one_node_is_within_6_percent(one_node: ValidationReport) -> None:
    """5.5 % over 678 rows, the null forecast 53 %; six constants told by every twelfth row, not scored."""
    family = one_node.families[0]
    assert (family.scored, family.fitted) == (678, 62)
    assert family.mape_pct is not None
    assert family.mape_pct <= 6.0


@pytest.mark.slow
@pytest.mark.xfail(
    reason="5.5 %; 1.7 points are of three cells faster than their neighbours: hidden 2048 at TP 4, microbatch 1 and "
    "2; hidden 1024 at TP 2, microbatch 4",
    strict=True,
)
def test_one_node_is_within_5_percent(one_node: ValidationReport) -> None:
    mape = one_node.families[0].mape_pct
    assert mape is not None
    assert mape <= 5.0


@pytest.mark.slow
def test_one_node_at_hidden_2048_is_within_6_percent(one_node: ValidationReport) -> None:
    """5.5 % over 339 rows."""
    wide = {r.id for r in read_published(published_files(), ["vtrain_single"]) if r.text("hidden") == "2048"}
    rows = [row for row in one_node.rows if row.id in wide and row.status == "scored"]
    errors = [abs(row.error_pct) for row in rows if row.error_pct is not None]
    assert len(errors) >= 330
    assert fmean(errors) <= 6.0


@pytest.mark.slow
def test_the_softmax_of_two_heads_was_not_fused(one_node: ValidationReport) -> None:
    """TP 8 at microbatch 1 is Megatron's one case of two rows (model.attention); no such row told a constant. 20 % off
    over 19 rows, 29 % with the fused kernel."""
    chosen = {
        r.id
        for r in read_published(published_files(), ["vtrain_single"])
        if (r.text("tp"), r.text("microbatch")) == ("8", "1")
    }
    assert not chosen & load_profile(SINGLE_NODE).fitted_rows
    errors = [row.error_pct for row in one_node.rows if row.id in chosen and row.error_pct is not None]
    assert len(errors) == 19
    assert -25.0 <= fmean(errors) <= 0.0


def test_the_tables_rows_are_composed_of_a_few_measured_times() -> None:
    """One cell (hidden 2048, TP 4, microbatch 2, one pipeline stage, one replica): eight steps of 12 to 24 layers and 2
    to 8 microbatches are a + b layers + c microbatches + d layers microbatches to 2 us of 100 to 480 ms."""
    cell = {"hidden": "2048", "tp": "4", "microbatch": "2", "pp": "1", "dp": "1"}
    rows = [
        r for r in read_published(published_files(), ["vtrain_single"]) if all(r.text(k) == v for k, v in cell.items())
    ]
    layers, batch, measured = (
        np.array([float(r.text(c)) for r in rows]) for c in ("layers", "global_batch", "iter_time_s")
    )
    terms = np.column_stack([np.ones_like(layers), layers, batch, layers * batch])
    found = np.linalg.lstsq(terms, measured, rcond=None)[0]
    assert len(rows) == 8
    assert np.abs(terms @ found - measured).max() <= 2e-6


def test_the_rows_that_tell_one_node_are_every_twelfth() -> None:
    """calibration/identify_vtrain.py: a rule, not a choice; script and profile name the same rows."""
    ids = sorted(row.id for row in read_published(published_files(), ["vtrain_single"]))
    assert sorted(load_profile(SINGLE_NODE).fitted_rows) == ids[::12] == identify_vtrain.told_by()


def test_constants_of_one_node_keep_to_what_can_be() -> None:
    """No optimiser moves less than fused Adam alone, no collective starts in less than a launch."""
    found = load_profile(SINGLE_NODE)
    for name, (_, least, most) in identify_vtrain.CONSTANTS.items():
        assert least <= found[name] <= most, name
    assert found["optimizer.bytes_per_parameter"] >= 28.0
    assert found["host.collective"] >= 10e-6


@pytest.mark.slow
def test_the_residual_of_the_rows_that_tell_one_node_is_as_stated() -> None:
    """Two ways: what each constant of the profile states, and the rows with the shipped constants, to 0.3 points."""
    profile = load_profile(SINGLE_NODE)
    jobs, measured = identify_vtrain.jobs_of(identify_vtrain.told_by())
    error = np.abs(np.log(identify_vtrain.step_times(jobs, profile) / measured)).mean()
    stated = {profile.constants[name].residual for name in identify_vtrain.CONSTANTS}
    assert stated == {"4.7 % mean"}
    assert 100 * error == pytest.approx(4.7, abs=0.3)
