"""The forecast: conventions against SC21's printed figures, bubbles against the formula, folded against unfolded."""

from dataclasses import replace

import pytest

from traincast.errors import DataError, UsageError
from traincast.forecast import divisors, forecast, prepare, rates_of
from traincast.mesh import Mesh
from traincast.model import gpt
from traincast.recipe import Recipe
from traincast.scenario import ClusterSpec, Scenario, load_scenario

SMALL = Scenario(
    name="small",
    model=gpt("small", 1024, 16, 16),
    cluster=ClusterSpec("8 GPUs", gpu="A100-80GB-SXM", nodes=2, gpus_per_node=8),
    mesh=Mesh(tp=2, pp=4, dp=2),
    recipe=Recipe(global_batch=32, microbatch=2, sequence=1024, recompute="full", schedule="1f1b"),
)


def test_printed_rates_of_the_trillion_parameter_row():
    """SC21 Table 1: 163 TFLOP/s per GPU, 52 % of peak, 502 PFLOP/s in all, at 102.6 s a step (hardware FLOPs)."""
    rates = rates_of(prepare(load_scenario("sc21/t1_1008b")).job, 102.6)
    assert rates.tflops_per_gpu["hardware"] == pytest.approx(163, abs=0.5)
    assert rates.hfu == pytest.approx(0.52, abs=0.005)
    assert rates.aggregate_pflops == pytest.approx(502, abs=2)
    assert rates.mfu < rates.hfu
    assert rates.tokens_per_s_per_gpu == pytest.approx(3072 * 2048 / 102.6 / 3072)


def test_more_than_the_peak_is_not_shown():
    """No share of peak above 100 % is ever printed (design, section 2)."""
    rates = rates_of(prepare(SMALL).job, 1e-3)
    assert rates.mfu is None
    assert rates.hfu is None


def test_folded_equals_unfolded():
    folded, unfolded = forecast(SMALL), forecast(SMALL, fold=False)
    assert folded.step_time_s == unfolded.step_time_s
    assert folded.events < unfolded.events
    assert folded.breakdown.mean_s == pytest.approx(unfolded.breakdown.mean_s)


def test_bubble_has_both_names():
    """SC21 section 2.2.1: (p-1)/m of the ideal time; GPipe section 2.3: (p-1)/(m+p-1) of the step. m = 8, p = 4."""
    bubble = forecast(SMALL).bubble
    assert bubble.formula_share_of_ideal == pytest.approx(3 / 8)
    assert bubble.formula_share_of_step == pytest.approx(3 / 11)
    assert bubble.share_of_ideal > 0
    assert bubble.share_of_step > 0


def test_bubble_of_a_stage_that_is_like_the_others_comes_out_of_the_events():
    """Table 1's 1T row: (p-1)/m = 63/512, about 12 % of the ideal time."""
    bubble = forecast(load_scenario("sc21/t1_1008b"), engine="analytic").bubble
    assert bubble.formula_share_of_ideal == pytest.approx(63 / 512)
    assert bubble.share_of_ideal == pytest.approx(63 / 512, rel=0.1)


def test_no_other_engine():
    with pytest.raises(UsageError, match="no engine"):
        forecast(SMALL, engine="crystal ball")


def test_an_unknown_profile_and_a_profile_of_another_gpu():
    with pytest.raises(DataError, match="no profile"):
        forecast(replace(SMALL, profile_name="nowhere"))
    other = replace(SMALL, cluster=replace(SMALL.cluster, gpu="H100-80GB-SXM"), profile_name="a100-80gb-sxm")
    assert any("was calibrated on A100-80GB-SXM" in text for text in prepare(other).notes)


def test_one_gpu_sends_nothing():
    alone = replace(SMALL, mesh=Mesh(), recipe=replace(SMALL.recipe, schedule="none"))
    found = forecast(alone)
    assert found.cross_node_share == 0.0
    assert found.bubble.formula_share_of_ideal == 0.0
    assert found.as_dict()["traffic"] == {"cross_node_share": 0.0}


def test_pipeline_messages_across_nodes_are_counted():
    """TP2 DP2 PP4 on two nodes of eight: stages 0 and 1 share a node, stage 1 to 2 crosses."""
    found = forecast(SMALL)
    assert found.traffic["tp"].cross_node_share == 0.0
    assert 0 < found.traffic["pp"].cross_node_share < 1
    assert 0 < found.cross_node_share < 1


def test_divisors():
    assert divisors(12) == (1, 2, 3, 4, 6, 12)
    assert divisors(1) == (1,)
