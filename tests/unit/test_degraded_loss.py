"""What the defects of a cluster cost a step: the loss, alone and together, and what is said of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from degraded_cases import GPU, LEAF, NIC, THREE, TREE, different, on, ranks, scenario, stated, worn

from traincast.degraded import MOST_ALONE, forecast_with_losses
from traincast.forecast import Prepared, forecast, prepare, prepare_on
from traincast.lower import lower
from traincast.mesh import Mesh
from traincast.plan import by_kind, job_loads
from traincast.plan.hashes import over_seeds
from traincast.report.forecast_tables import traffic_table
from traincast.report.hash_table import hash_table
from traincast.topology import clean, load_cluster, without_nodes


@pytest.fixture
def whole(tmp_path: Path) -> Prepared:
    return prepare(scenario(worn(tmp_path)))


def test_all_three_touch_what_each_touches(tmp_path: Path, whole: Prepared) -> None:
    """From a file: three defects, the families of each as alone, and the loss of the step against the clean cluster."""
    path = worn(tmp_path, NIC, GPU, LEAF)
    found = forecast_with_losses(scenario(path))
    plain = forecast(scenario(worn(tmp_path)))
    told = found.degraded
    assert told is not None
    assert [(one.part, one.left) for one in told.defects] == [("n0/nic3", 0.5), ("n4/gpu0", 0.9), ("su0/leaf1", 0.75)]
    assert [one.loss for one in told.defects] == [
        "n0/nic3 carries 12.5 GB/s of 25.0 GB/s (-50 %)",
        "n4/gpu0 computes at 90 % of its speed (-10 %)",
        "su0/leaf1 lost 1 of 4 uplinks: 75.0 GB/s of 100 GB/s (-25 %)",
    ]
    alone = [stated(on(whole, [change]))[0] for change in THREE]
    assert [{family.family: family for family in one.families} for one in told.defects] == alone
    assert different(whole, on(whole, THREE)) == {"tp": {4}, "pp": {3}, "dp": {1, 3, 9, 17, 25}}
    assert told.clean_step_time_s == plain.step_time_s
    assert told.step_time_s == found.step_time_s
    assert told.loss_s == found.step_time_s - plain.step_time_s > 0.0
    assert told.loss_percent == pytest.approx(100 * told.loss_s / plain.step_time_s)
    assert found.as_dict()["degraded"]["loss_s"] == told.loss_s


@pytest.mark.parametrize(("defect", "rank"), [(NIC, 3), (LEAF, 1)])
@pytest.mark.parametrize("engine", ["des", "analytic"])
def test_the_loss_of_a_slow_reduction_is_what_the_reduction_takes_longer(
    tmp_path: Path, defect: str, rank: int, engine: str
) -> None:
    """One stage, reduced after the backward: the step waits for the slowest of its reductions, and for nothing else."""
    mesh = Mesh(tp=8, dp=2, order="tp-dp")
    places = tuple(8 * node + gpu for node in (0, 4) for gpu in range(8))
    if defect == LEAF:  # all nodes of both units, so that four groups cross together
        mesh, places = Mesh(tp=8, pp=4, dp=2, order="tp-pp-dp"), tuple(range(64))
    one = scenario(worn(tmp_path, defect), replace(mesh, placement=places), schedule="1f1b" if mesh.pp > 1 else "none")
    found = forecast_with_losses(one, engine=engine)  # type: ignore[arg-type]
    told, prepared = found.degraded, prepare(one)
    assert told is not None
    now = ranks(prepared)
    before = ranks(prepare_on(one, clean(prepared.job.cluster)))
    longer_s = now[rank].buckets[0].duration_s - before[rank].buckets[0].duration_s
    assert longer_s > 0.0
    assert told.loss_s == pytest.approx(longer_s, rel=1e-6)


def test_the_loss_of_a_slow_gpu_is_what_it_computes_longer(tmp_path: Path) -> None:
    one = scenario(worn(tmp_path, GPU), Mesh(tp=8, dp=8), schedule="none")
    told = forecast_with_losses(one).degraded
    assert told is not None
    now, before = ranks(prepare(one))[32], ranks(prepare(one))[33]
    m = one.recipe.microbatches(8)
    longer_s = sum(m * (now.chunks[key].duration_s - before.chunks[key].duration_s) for key in now.chunks)
    longer_s += sum(op.duration_s - other.duration_s for op, other in zip(now.tail, before.tail, strict=True))
    assert told.loss_s == pytest.approx(longer_s, rel=1e-9)


def test_nothing_is_stated_unasked_or_where_nothing_is_wrong(tmp_path: Path) -> None:
    """Sweeps and plans forecast once; a node list with gaps is no defect."""
    assert forecast(scenario(worn(tmp_path, NIC))).degraded is None
    assert forecast_with_losses(scenario(worn(tmp_path))).degraded is None
    assert forecast_with_losses(scenario(worn(tmp_path))).as_dict()["degraded"] is None
    gaps = without_nodes(load_cluster(str(worn(tmp_path))), [1])
    assert clean(gaps) is gaps


def test_each_defect_costs_what_it_costs_alone(tmp_path: Path) -> None:
    """Two ways to the loss of each of three: the statement on a cluster with all, and a cluster with that one only."""
    told = forecast_with_losses(scenario(worn(tmp_path, NIC, GPU, LEAF)), engine="analytic").degraded
    assert told is not None
    alone = []
    for number, defect in enumerate((NIC, GPU, LEAF)):
        (tmp_path / str(number)).mkdir()
        one = forecast_with_losses(scenario(worn(tmp_path / str(number), defect)), engine="analytic").degraded
        assert one is not None
        assert one.defects[0].alone_loss_s == one.loss_s == one.sum_alone_s
        assert one.clean_step_time_s == told.clean_step_time_s
        alone.append(one.loss_s)
    assert [one.alone_loss_s for one in told.defects] == alone
    assert told.sum_alone_s == sum(alone)
    assert max(alone) <= told.loss_s
    stated = told.as_dict()
    assert stated["sum_of_losses_alone_s"] == told.sum_alone_s
    assert [one["alone_loss_s"] for one in stated["defects"]] == alone


def test_of_many_defects_the_first_are_told_alone(tmp_path: Path) -> None:
    """Each is a forecast of its own; what is not done is said, and no sum is made up."""
    slow = [f"{{gpu: n{node}/gpu{gpu}, speed: 95 %}}" for node in range(3) for gpu in range(3)]
    found = forecast_with_losses(scenario(worn(tmp_path, *slow)), engine="analytic")
    told = found.degraded
    assert told is not None
    assert [one.alone_loss_s is None for one in told.defects] == [False] * MOST_ALONE + [True]
    assert told.sum_alone_s is None
    assert any(f"the first {MOST_ALONE} defects" in note for note in found.assumptions)


def test_what_rests_on_a_defect_is_said(tmp_path: Path) -> None:
    """The interval comes from steps on sound clusters: the same share of the step with and without the defect."""
    worse, plain = (forecast_with_losses(scenario(worn(tmp_path, *which)), engine="analytic") for which in ((GPU,), ()))
    assert any("modelled, not measured" in note for note in worse.assumptions)
    assert not any("defects" in note for note in plain.assumptions)
    assert worse.interval is not None
    assert plain.interval is not None
    assert worse.interval.low_s / worse.step_time_s == pytest.approx(plain.interval.low_s / plain.step_time_s)
    assert any("sound clusters" in note and "interval" in note for note in worse.assumptions)


def test_the_longest_wait_is_told_beside_the_mean(tmp_path: Path) -> None:
    """A slow GPU makes the others of its TP group wait: the mean over 64 GPUs hides what seven of them lose."""
    found = forecast_with_losses(scenario(worn(tmp_path, GPU)), engine="analytic")
    told = found.degraded
    assert told is not None
    assert told.most_exposed_s["tp"] == max(row["tp"] for row in found.breakdown.classes_s)
    assert told.most_exposed_s["tp"] > found.traffic["tp"].exposed_s
    table = {row[0]: row for row in traffic_table(found).rows}
    assert table["tp"][4] == told.most_exposed_s["tp"]
    assert len(traffic_table(forecast(scenario(worn(tmp_path)), engine="analytic")).columns) == 5


def test_traffic_is_the_mean_over_all_ranks(tmp_path: Path) -> None:
    """GPU 7 of node 0 is dead: TP groups of four, of which that of ranks 4 to 7 crosses to node 1, as does every second
    one from there on. Two ways: the share of bytes that cross, and what goes over NICs."""
    path = tmp_path / "dead.yaml"
    path.write_text(TREE + "dead_gpus: [n0/gpu7]\n")
    prepared = prepare(scenario(path, Mesh(tp=4, dp=4), schedule="none"))
    stated = lower(prepared.job).traffic["tp"]
    across = {load.kind: load for load in by_kind(job_loads(prepared.job))}["NIC to leaf"].by_family["tp"]
    assert stated.cross_node_bytes * 16 == pytest.approx(across)
    assert stated.cross_node_bytes > 0.0
    assert (
        lower(prepare(scenario(worn(tmp_path), Mesh(tp=4, dp=4), schedule="none")).job).traffic["tp"].cross_node_bytes
        == 0.0
    )


def test_seeds_that_make_no_difference_have_no_best(tmp_path: Path) -> None:
    """One node: no flow is hashed, so all seeds give one step, and none is the best or the worst."""
    one = scenario(worn(tmp_path), Mesh(tp=8), schedule="none")
    alike = over_seeds(one, 2, (0, 1, 2))
    assert list(alike.chosen()) == ["median"]
    assert list(alike.as_dict()["step_time_s"]) == ["median"]
    (row,) = hash_table(alike).rows
    assert (row[0], row[2]) == ("all alike", None)
