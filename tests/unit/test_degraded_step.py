"""What the defects of a cluster cost a step: the groups that they touch, no others, and the loss, all of it stated."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincast.degraded import MOST_ALONE, degradation, forecast_with_losses
from traincast.forecast import Prepared, forecast, forecast_prepared, prepare, prepare_on
from traincast.lower import lower
from traincast.lower.program import RankClass
from traincast.lower.touched import Degradation, TouchedFamily, defects_of, family_views, moved, uses
from traincast.mesh import Mesh
from traincast.model import gpt
from traincast.plan import by_kind, job_loads
from traincast.plan.hashes import over_seeds
from traincast.recipe import Recipe
from traincast.report.forecast_tables import traffic_table
from traincast.report.hash_table import hash_table
from traincast.scenario import ClusterSpec, Scenario
from traincast.topology import Change, Cluster, clean, degraded, load_cluster, without_nodes

TREE = """\
builder: fat_tree
nodes: 8
node: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}
fabric: {levels: 2, nodes_per_unit: 4}
"""
NIC, GPU, LEAF = "{nic: n0/nic3, rate: 50 %}", "{gpu: n4/gpu0, speed: 90 %}", "{leaf: su0/leaf1, uplinks_cut: 1}"
THREE = (
    Change("slow_nic", "n0/nic3", rate=0.5),
    Change("slow_gpu", "n4/gpu0", rate=0.9),
    Change("cut_uplinks", "su0/leaf1", count=1),
)


def scenario(path: Path, mesh: Mesh | None = None, **recipe: object) -> Scenario:
    """Two replicas of four stages; TP in a node, a pipeline in a scalable unit, a replica a unit."""
    base = Recipe(global_batch=32, microbatch=1, sequence=1024, schedule="1f1b", recompute="full")
    return Scenario(
        name="small",
        model=gpt("small", 1024, 16, 16),
        cluster=ClusterSpec(str(path)),
        mesh=mesh or Mesh(tp=8, pp=4, dp=2, order="tp-pp-dp"),
        recipe=replace(base, **recipe),  # type: ignore[arg-type]
    )


def worn(folder: Path, *defects: str) -> Path:
    path = folder / f"worn{len(defects)}.yaml"
    path.write_text(TREE + "degraded:\n" + "".join(f"  - {one}\n" for one in defects) if defects else TREE)
    return path


@pytest.fixture
def whole(tmp_path: Path) -> Prepared:
    return prepare(scenario(worn(tmp_path)))


def on(prepared: Prepared, changes: Iterable[Change]) -> Prepared:
    return prepare_on(prepared.scenario, degraded(prepared.job.cluster, changes))


def ranks(prepared: Prepared) -> tuple[RankClass, ...]:
    """The costs of every rank by itself."""
    return lower(prepared.job, fold=False).program.classes


def costs(classes: tuple[RankClass, ...], mesh: Mesh) -> dict[str, list[object]]:
    """What every group's own operations cost: chunks of a TP group, messages of a pipeline, buckets of a DP group."""

    def times(family: str, rank: int) -> object:
        cls = classes[rank]
        if family == "tp":
            return {key: (cost.duration_s, dict(cost.labels_s)) for key, cost in cls.chunks.items()}
        return cls.buckets if family == "dp" else {key: cost.send_s for key, cost in cls.chunks.items()}

    groups = {"tp": mesh.groups("tp"), "pp": mesh.groups("pp"), "dp": mesh.groups("dp")}
    return {name: [[times(name, rank) for rank in row] for row in rows.tolist()] for name, rows in groups.items()}


def different(one: Prepared, other: Prepared) -> dict[str, set[int]]:
    """Groups whose costs differ, by family; equal means equal to the last bit."""
    first, second = (costs(ranks(prepared), prepared.job.mesh) for prepared in (one, other))
    found = {name: {i for i, row in enumerate(first[name]) if row != second[name][i]} for name in first}
    return {name: rows for name, rows in found.items() if rows}


def stated(prepared: Prepared) -> tuple[dict[str, TouchedFamily], ...]:
    found = degradation(prepared, 1.0)
    assert isinstance(found, Degradation)
    return tuple({family.family: family for family in one.families} for one in found.defects)


def test_one_nic_at_half_speed(whole: Prepared) -> None:
    """Rank 3 alone uses it: its pipeline (3, 11, 19, 27) and its DP group (3, 35) pay, nobody else.

    In the pipeline its own message, that of rank 11 back to it, and the embedding that it shares with rank 27.
    """
    slow = on(whole, THREE[:1])
    assert different(whole, slow) == {"pp": {3}, "dp": {3}}
    before, now = ranks(whole), ranks(slow)
    assert [rank for rank in range(64) if before[rank] != now[rank]] == [3, 11, 27, 35]
    assert now[3].buckets[0].duration_s / before[3].buckets[0].duration_s == pytest.approx(2.0, rel=0.1)
    (families,) = stated(slow)
    assert families["dp"] == TouchedFamily("dp", 32, 1, 1, (3, 35))
    assert families["pp"] == TouchedFamily("pp", 16, 1, 1, (3, 11, 19, 27))
    assert set(families) == {"dp", "pp"}


def test_one_gpu_ten_percent_slow(whole: Prepared) -> None:
    """Rank 32 computes longer by 1/0.9, at every operator; no transfer of anybody costs anything else."""
    slow = on(whole, THREE[1:2])
    assert different(whole, slow) == {"tp": {4}}
    before, now = ranks(whole), ranks(slow)
    assert [rank for rank in range(64) if before[rank] != now[rank]] == [32]
    for key, cost in now[32].chunks.items():
        for label in ("compute", "recompute"):
            assert cost.labels_s.get(label, 0.0) == pytest.approx(
                before[32].chunks[key].labels_s.get(label, 0.0) / 0.9, rel=1e-12
            )
    (families,) = stated(slow)
    assert families == {
        "tp": TouchedFamily("tp", 8, 1, 1, tuple(range(32, 40))),
        "dp": TouchedFamily("dp", 32, 1, 1, (0, 32)),
        "pp": TouchedFamily("pp", 16, 1, 1, (32, 40, 48, 56)),
    }


def test_one_leaf_uplink_of_four_cut(whole: Prepared) -> None:
    """The four DP groups on rail 1 share three uplinks in place of four; pipelines stay below the leaf."""
    cut = on(whole, THREE[2:])
    assert different(whole, cut) == {"dp": {1, 9, 17, 25}}
    before, now = ranks(whole), ranks(cut)
    touched = [stage * 8 + 1 + replica * 32 for replica in (0, 1) for stage in range(4)]
    assert [rank for rank in range(64) if before[rank] != now[rank]] == touched
    for rank in touched:
        assert now[rank].buckets[0].duration_s / before[rank].buckets[0].duration_s == pytest.approx(4 / 3, rel=0.05)
    (families,) = stated(cut)
    assert families == {"dp": TouchedFamily("dp", 32, 4, 4, (1, 33))}


def test_an_uplink_that_nobody_needed(tmp_path: Path) -> None:
    """One ring over all nodes leaves the unit once a rail: three uplinks carry that as four did. Passed, not dearer."""
    whole = prepare(scenario(worn(tmp_path), Mesh(tp=8, dp=8), schedule="none"))
    cut = on(whole, THREE[2:])
    assert different(whole, cut) == {}
    assert stated(cut) == ({"dp": TouchedFamily("dp", 8, 1, 0, (1, 9, 17, 25, 33, 41, 49, 57))},)
    assert forecast_prepared(cut).step_time_s == forecast_prepared(whole).step_time_s


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


def test_the_clean_cluster_keeps_the_gaps_and_revives_the_dead(tmp_path: Path) -> None:
    whole = load_cluster(str(worn(tmp_path)))
    changes = (*THREE, Change("dead_gpu", "n1/gpu2"), Change("absent_node", "n2"))
    found = clean(degraded(whole, changes))
    expected = without_nodes(whole, [2])
    assert found.gpus == expected.gpus
    assert found.assumptions == expected.assumptions
    assert found.gpu_speed.tolist() == expected.gpu_speed.tolist()
    assert dict(found.graph.edges["n0/nic3", "su0/leaf3"]) == dict(whole.graph.edges["n0/nic3", "su0/leaf3"])
    twice = degraded(degraded(whole, changes[:2]), changes[2:])
    assert [loss.change for loss in twice.losses] == list(changes)
    assert clean(twice).gpus == expected.gpus


def test_a_dead_gpu_moves_later_ranks_on(whole: Prepared) -> None:
    """Without a placement ranks 13 and on take the next GPU: TP groups straddle nodes from there on."""
    short = prepare_on(scenario(Path("short"), Mesh(tp=8, pp=2, dp=3)), whole.job.cluster)
    dead = on(short, [Change("dead_gpu", "n1/gpu5")])
    (families,) = stated(dead)
    assert families["tp"] == TouchedFamily("tp", 6, 5, 5, tuple(range(8, 16)))
    assert forecast_prepared(dead).step_time_s > forecast_prepared(short).step_time_s


def test_placed_ranks_stay_on_their_gpus(whole: Prepared) -> None:
    """Numbers of a placement count living GPUs; the clean cluster has the dead one again, so they go up by one."""
    mesh = Mesh(tp=8, pp=2, placement=tuple(range(15, 31)))
    dead = on(prepare_on(scenario(Path("placed"), mesh), whole.job.cluster), [Change("dead_gpu", "n1/gpu2")])
    found = moved(mesh, dead.job.cluster, clean(dead.job.cluster))
    assert found.placement == tuple(range(16, 32))
    assert stated(dead) == ({},)
    assert degradation(dead, 1.0) is not None
    assert degradation(dead, forecast_prepared(dead).step_time_s).loss_s == 0.0  # type: ignore[union-attr]


def test_a_missing_cable_touches_who_used_it_and_whom_these_crowd_now(whole: Prepared) -> None:
    """GPU 2 of node 1 takes the NIC of GPU 3: ranks 10 and 11 have half a NIC each.

    On rail 3 five DP groups now leave the unit over four uplinks, so the others there pay too.
    """
    changed = on(whole, [Change("missing_cable", "n1/nic2", "su0/leaf2")])
    (families,) = stated(changed)
    assert families["dp"] == TouchedFamily("dp", 32, 5, 5, (3, 35))
    assert families["pp"] == TouchedFamily("pp", 16, 2, 2, (2, 10, 18, 26))
    assert different(whole, changed) == {"dp": {3, 10, 11, 19, 27}, "pp": {2, 3}}


def test_links_inside_nodes() -> None:
    """PCIe boxes of two sockets: TP 8 crosses them, TP 4 does not but DP over GPUs 0 and 4 does; one GPU's own bus."""
    boxes = load_cluster("pcie_box", gpus=16)
    cross = degraded(boxes, [Change("slow_link", "n1/cpu0", "n1/cpu1", rate=0.5)])
    assert inside(cross, Mesh(tp=8, dp=2)) == ({"tp": (2, 1, 1, 8)},)
    assert inside(cross, Mesh(tp=4, dp=4)) == ({"dp": (4, 4, 4, 0)},)
    bus = degraded(boxes, [Change("slow_link", *sorted(own_bus(boxes, "n0/gpu5")), rate=0.5)])
    assert inside(bus, Mesh(tp=4, dp=4)) == ({"tp": (4, 1, 1, 4), "dp": (4, 1, 0, 1)},)


def test_nvlink_of_one_gpu() -> None:
    whole = load_cluster("selene", gpus=16)
    switch = next(key for key in whole.graph["n1/gpu0"] if whole.graph.nodes[key]["kind"] == "nvswitch")
    slow = degraded(whole, [Change("slow_link", "n1/gpu0", switch, rate=0.5)])
    assert inside(slow, Mesh(tp=4, dp=4)) == ({"tp": (4, 1, 1, 8), "dp": (4, 1, 1, 0)},)
    assert inside(slow, Mesh(dp=16)) == ({"dp": (1, 1, 1, 0)},)


def test_uplinks_of_a_block_are_shared_by_its_spines() -> None:
    """280 nodes of Selene, a block a rail and pod: the ring of rail 0 over nodes 0 and 140 leaves it, no other does."""
    whole = load_cluster("selene", gpus=2240)
    cut = degraded(whole, [Change("cut_uplinks", "spine0", count=7)])
    spread = tuple(8 * node + gpu for node in (0, 140) for gpu in range(8))
    assert inside(cut, Mesh(tp=8, dp=2, placement=spread)) == ({"dp": (8, 1, 0, 0)},)
    assert inside(cut, Mesh(tp=8, dp=2)) == ({},)


def own_bus(cluster: Cluster, gpu: str) -> tuple[str, str]:
    host = next(key for key in cluster.graph[gpu] if cluster.graph.nodes[key]["kind"] in ("pcie", "cpu"))
    return gpu, host


def inside(cluster: Cluster, mesh: Mesh) -> tuple[dict[str, tuple[int, int, int, int]], ...]:
    """(groups, touched, changed, first rank) by family for each defect."""
    prepared = prepare_on(replace(scenario(Path("inside"), mesh, schedule="none"), name="inside"), cluster)
    return tuple(
        {row.family: (row.groups, row.touched, row.changed, row.first_ranks[0]) for row in one.families}
        for one in defects_of(prepared.job, clean(cluster))
    )


@pytest.mark.parametrize("seed", range(12))
def test_whoever_costs_another_time_is_touched(whole: Prepared, seed: int) -> None:
    """Law: the wires or the pace of a group differ from the clean ones only where a stated defect touches it."""
    random = np.random.default_rng(seed)
    shapes = (
        Mesh(tp=8, pp=4, dp=2),
        Mesh(tp=2, pp=4, dp=8, order="pp-tp-dp"),
        Mesh(tp=4, pp=2, dp=8, order="dp-tp-pp"),
    )
    mesh = replace(shapes[seed % 3], placement=tuple(random.permutation(64).tolist()) if seed % 2 else None)
    n, g, unit = (random.integers(0, most, 8).tolist() for most in (8, 8, 2))
    choices = [
        *(Change("slow_nic", f"n{n[i]}/nic{g[i]}", rate=0.25 + 0.5 * random.random()) for i in range(2)),
        Change("slow_gpu", f"n{n[2]}/gpu{g[2]}", rate=0.9),
        Change("cut_uplinks", f"su{unit[3]}/leaf{g[3]}", count=3),
        Change("missing_cable", f"n{n[4]}/nic{g[4]}", f"su{n[4] // 4}/leaf{g[4]}"),
    ]
    changes = [choices[i] for i in sorted(random.choice(5, size=3, replace=False).tolist())]
    first = prepare_on(replace(whole.scenario, mesh=mesh), whole.job.cluster)
    worse = on(first, changes)
    views = family_views(worse.job, clean(worse.job.cluster))
    touched = {
        view.family.name: {i for loss in worse.job.cluster.losses for i in np.flatnonzero(uses(loss, view)).tolist()}
        for view in views
    }
    for view in views:
        assert set(np.flatnonzero(view.changed).tolist()) <= touched[view.family.name], (view.family.name, changes)
    assert any(view.changed.any() for view in views)


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
