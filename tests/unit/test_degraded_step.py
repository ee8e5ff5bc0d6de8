"""What the defects of a cluster touch: the groups that use the part, no others, all of it stated."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from degraded_cases import THREE, different, inside, on, own_bus, ranks, scenario, stated, worn

from traincast.degraded import degradation
from traincast.forecast import Prepared, forecast_prepared, prepare, prepare_on
from traincast.lower.touched import TouchedFamily, family_views, moved, uses
from traincast.mesh import Mesh
from traincast.topology import Change, clean, degraded, load_cluster, without_nodes


@pytest.fixture
def whole(tmp_path: Path) -> Prepared:
    return prepare(scenario(worn(tmp_path)))


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
