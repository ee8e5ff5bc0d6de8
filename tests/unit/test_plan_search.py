"""Orders, placements and splits, ranked by the recurrence."""

from dataclasses import replace
from pathlib import Path

import pytest

from traincast.errors import ShapeError
from traincast.forecast import Prepared, forecast, prepare
from traincast.mesh import Mesh
from traincast.plan import Wish, balanced_stage_layers, distinct_orders, placements, plan, stage_paces
from traincast.plan.placements import node_blocks, swaps
from traincast.plan.search import candidates
from traincast.scenario import load_scenario
from traincast.topology import selene
from traincast.topology.degrade import Change, degraded

MIXED = """\
builder: mixed
groups:
  - {gpu: A100-80GB-SXM, nodes: 2}
  - {gpu: H100-80GB-SXM, nodes: 2}
"""
JOB = """\
model: {hidden: 2048, layers: 16, heads: 16, vocab: 51200}
cluster: mixed.yaml
parallelism: {tp: 8, pp: 4, dp: 1}
training: {global_batch: 64, microbatch: 2, sequence: 1024, recompute: full, precision: fp16}
"""
PIPELINE = [("training.global_batch", "64"), ("model.layers", "8"), ("training.schedule", "1f1b")]


@pytest.fixture(scope="module")
def small() -> Prepared:
    """A small GPT on four nodes: TP8 PP2 DP2."""
    return prepare(load_scenario("sc21/t1_18p4b", [("parallelism", "{tp: 8, pp: 2, dp: 2}"), *PIPELINE]))


def test_distinct_orders_are_the_permutations_of_sized_axes() -> None:
    assert len(distinct_orders(Mesh(tp=2, pp=4, dp=2))) == 6
    assert distinct_orders(Mesh(tp=2, pp=4)) == ("tp-pp", "pp-tp")
    assert len(distinct_orders(Mesh(tp=2, cp=2, pp=2, dp=2))) == 24


def test_all_orders_are_ranked_and_the_present_one_marked(small: Prepared) -> None:
    found = plan(small)
    assert len(found.rows) == 6
    assert [row.present for row in found.rows].count(True) == 1
    times = [row.step_time_s for row in found.rows]
    assert times == sorted(times)
    assert found.present.order == "tp-dp-pp"
    assert found.best.order.startswith("tp")
    assert found.rows[-1].order.endswith(("tp", "tp-dp", "tp-pp"))


def test_each_row_is_the_forecast_of_that_order(small: Prepared) -> None:
    """The recurrence alone, without memory of what was evaluated before."""
    for row in plan(small).rows:
        scenario = replace(small.scenario, mesh=replace(small.scenario.mesh, order=row.order))
        assert forecast(scenario, engine="des").step_time_s == row.step_time_s, row.order


def test_the_limit_of_a_bad_order_is_tp_on_a_nic(small: Prepared) -> None:
    found = {row.order: row for row in plan(small).rows}
    worst = found["dp-pp-tp"].limit
    assert worst.axis == "tp"
    assert worst.links is not None
    assert worst.links.kind in ("NIC to leaf", "leaf to NIC")
    assert worst.links.name.startswith("n0/nic")
    assert "tp waits" in str(worst)
    assert worst.exposed_s > found["tp-dp-pp"].limit.exposed_s


def test_a_step_that_waits_for_nobody_is_limited_by_compute() -> None:
    one = load_scenario("sc21/t1_1p7b", [("parallelism.dp", "1"), ("training.global_batch", "16")])
    found = plan(prepare(one))
    assert len(found.rows) == 1
    assert str(found.present.limit) == "compute"


def test_placements_are_told_apart_and_hold_the_same_gpus() -> None:
    """Two pods of seven units: dealing nodes out differs from leaving them; nothing is slow and one model is there."""
    mesh, cluster = Mesh(tp=8, dp=192), selene(192)
    found = placements(mesh, cluster)
    assert list(found) == ["as given", "leaves in turn", "pods in turn"]
    assert all(sorted(gpus) == list(range(1536)) for gpus in found.values())
    dealt = [gpu // 8 for gpu in found["pods in turn"][::8]]
    assert dealt[:4] == [0, 140, 1, 141]


def test_cyclic_ranks_are_put_back_by_node(small: Prepared) -> None:
    """Ranks dealt out to nodes in turn put TP on the network; sorting them by node gets it back."""
    cyclic = tuple(node * 8 + gpu for gpu in range(8) for node in range(4))
    job = replace(small.job, mesh=replace(small.job.mesh, placement=cyclic))
    found = plan(replace(small, job=job), Wish(orders=False, placements=True))
    assert found.present.placement == "as given"
    assert found.best.placement == "by node"
    assert found.present.step_time_s > 1.5 * found.best.step_time_s


def test_swaps_move_a_slow_node_to_where_it_hurts_least(small: Prepared) -> None:
    """Swaps are the same for the same seed, keep all GPUs, and never make it slower."""
    slow = degraded(small.job.cluster, [Change("slow_nic", "n1/nic0", rate=0.25)])
    prepared = replace(small, job=replace(small.job, cluster=slow))
    blocks = node_blocks(prepared.job.mesh, slow)
    assert list(swaps(blocks, 5, 1)) == list(swaps(blocks, 5, 1))
    found = plan(prepared, Wish(orders=False, swaps=6))
    assert found.best.step_time_s <= found.present.step_time_s
    assert sorted(found.best.placed or range(32)) == list(range(32))


def test_refused_orders_are_counted_not_lost(small: Prepared) -> None:
    """An expert mesh shares its stages with the dense one in some orders only; the others are refused."""
    job = replace(small.job, mesh=Mesh(tp=4, pp=2, dp=4, ep=2))
    refusals: list[str] = []
    kept = list(candidates(job, Wish(), refusals))
    assert refusals
    assert all("would not share their stages" in line for line in refusals)
    assert len({one.job.mesh.signature() for one in kept}) == len(kept)


@pytest.fixture
def mixed(tmp_path: Path) -> Prepared:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    (tmp_path / "job.yaml").write_text(JOB)
    return prepare(load_scenario(tmp_path / "job.yaml"))


def test_the_balanced_split_makes_the_slowest_stage_fastest(mixed: Prepared) -> None:
    """Against every split of sixteen layers over two pairs of alike stages."""
    paces = stage_paces(mixed.job)
    assert [pace.gpu[:4] for pace in paces] == ["A100", "A100", "H100", "H100"]
    assert paces[0].layer_s > 1.5 * paces[3].layer_s
    found = balanced_stage_layers(mixed.job)
    assert sum(found) == 16

    def slowest(split: tuple[int, ...]) -> float:
        return max(pace.fixed_s + layers * pace.layer_s for pace, layers in zip(paces, split, strict=True))

    every = [(a, b, c, 16 - a - b - c) for a in range(1, 14) for b in range(1, 14) for c in range(1, 15 - a - b + 1)]
    assert slowest(found) == pytest.approx(min(slowest(split) for split in every if min(split) >= 1))


def test_alike_stages_get_alike_layers(small: Prepared) -> None:
    """On one GPU model the split is even, but for the head, which costs as much as a layer or so."""
    assert sorted(balanced_stage_layers(small.job)) in ([4, 4], [3, 5])


def test_chunks_of_a_stage_share_its_layers(mixed: Prepared) -> None:
    job = replace(mixed.job, recipe=replace(mixed.job.recipe, vpp=2, schedule="interleaved"))
    found = balanced_stage_layers(job)
    assert len(found) == 8
    stages = [found[stage] + found[stage + 4] for stage in range(4)]
    assert stages == list(balanced_stage_layers(mixed.job))
    with pytest.raises(ShapeError, match="fewer than"):
        balanced_stage_layers(replace(job, recipe=replace(job.recipe, vpp=8)))


def test_plans_try_the_split_and_the_models_the_other_way_round(mixed: Prepared) -> None:
    found = plan(mixed, Wish(orders=False, placements=True, splits=True))
    assert {(row.placement, row.split) for row in found.rows} == {
        (placement, split) for placement in ("as given", "models reversed") for split in ("as given", "by GPU")
    }
    assert found.best.split == "by GPU"
    assert found.best.stage_layers is not None
    assert found.best.step_time_s < 0.9 * found.present.step_time_s
