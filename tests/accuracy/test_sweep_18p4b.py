"""The sweep of SC21's 18.4B model on its 256 GPUs."""

import re
from functools import cache

import pytest

from traincast.scenario import load_scenario
from traincast.sweep import SweepOutcome, enumerate_shapes, evaluate_shapes
from traincast.validate import published_files, read_published, validate_rows


@cache
def swept() -> SweepOutcome:
    scenario = load_scenario("sc21/t1_18p4b")
    return evaluate_shapes(scenario, enumerate_shapes(scenario, {"microbatch": (2, 4, 8, 16)}))


def best(**axes: int) -> float:
    rows = swept().ranked
    return min(row.step_time_s for row in rows if all(getattr(row.shape, a) == v for a, v in axes.items()))


def test_tensor_parallelism_over_two_nodes_is_far_behind() -> None:
    """SC21 §5.4.1: TP beyond the node does not pay."""
    assert best(tp=16) > 1.3 * best(tp=8)


@pytest.mark.xfail(
    strict=True,
    reason="TP2 PP4 with five chunks comes out at 8.43 s, TP8 PP1 at 9.14 s (8 %). Measured neighbours agree with the"
    " forecast: in vTrain's 39.1B set TP4 PP4 (13.88 s) beats TP8 PP2 (14.61 s), forecast 14.5 and 15.3 s",
)
def test_tensor_parallelism_in_the_node_without_a_pipeline_is_within_2_pct_of_the_best() -> None:
    """SC21 Takeaway #1 read strictly: TP up to the node, no pipeline while memory allows."""
    assert best(tp=8, pp=1) <= 1.02 * best()


def fig_13(batch: int) -> dict[str, tuple[float, float]]:
    """Shape -> (measured, predicted) seconds."""
    rows = [r for r in read_published(published_files(), ["sc21"]) if re.fullmatch(rf"sc21_f13_\w+_B{batch}", r.id)]
    return {s.id.split("_")[2]: (s.measured_s or 0.0, s.predicted_s or 0.0) for s in validate_rows(rows).rows}


def test_shapes_of_fig_13_at_batch_32_come_in_the_measured_order() -> None:
    """SC21 Fig. 13, 162B on 64 GPUs: TP8 PP8, TP16 PP4, TP4 PP16, then TP32 and TP2 (13.1 and 14.8 s measured)."""
    shapes = fig_13(32)
    assert len(shapes) == 5
    measured, predicted = (sorted(shapes, key=lambda s: shapes[s][i]) for i in (0, 1))
    assert predicted[:3] == measured[:3]
    assert set(predicted[3:]) == {"pp2tp32", "pp32tp2"}


def test_measured_best_of_fig_13_at_batch_128_is_among_the_best() -> None:
    """There TP8 PP8 leads TP4 PP16 by 2 %: the forecast has them within 2 %, and TP32 last."""
    shapes = fig_13(128)
    predicted = {s: times[1] for s, times in shapes.items()}
    assert predicted["pp8tp8"] <= 1.02 * min(predicted.values())
    assert max(predicted, key=lambda s: predicted[s]) == "pp2tp32"
