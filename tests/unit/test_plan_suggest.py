"""Axes and order from the tiers of a cluster."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from traincast.cli.main import app
from traincast.errors import ShapeError, TopologyError
from traincast.forecast import prepare
from traincast.mesh import Mesh
from traincast.plan.suggest import Ask, Suggestion, _own, suggest
from traincast.plan.tiers import cluster_tiers
from traincast.scenario import load_scenario
from traincast.topology import load_cluster, selene


@pytest.mark.parametrize(
    ("name", "gpus", "tiers"),
    [
        (
            "selene",
            1536,
            {"PCIe switch": 2, "NUMA domain": 4, "NVLink domain": 8, "leaf": 160, "pod": 1120, "cluster": 1536},
        ),
        ("nvl72_pod", 144, {"NUMA domain": 2, "NVLink domain": 72, "pod": 144}),
        ("pcie_box", 32, {"PCIe switch": 2, "NUMA domain": 4, "node": 8, "pod": 32}),
        ("pcie_box_bridged", 32, {"NVLink pair": 2, "NUMA domain": 4, "node": 8, "pod": 32}),
    ],
)
def test_tiers_are_those_of_the_graph(name: str, gpus: int, tiers: dict[str, int]) -> None:
    found = cluster_tiers(load_cluster(name, gpus=gpus))
    assert {tier.name: tier.gpus for tier in found} == tiers
    rates = [tier.bytes_per_s for tier in found]
    assert rates == sorted(rates, reverse=True)


@pytest.mark.parametrize(
    ("name", "gpus", "tp"), [("selene", 64, 8), ("nvl72_pod", 144, 8), ("pcie_box", 32, 8), ("pcie_box_bridged", 32, 2)]
)
def test_tensor_parallelism_stays_on_the_fastest_tier(name: str, gpus: int, tp: int) -> None:
    """All of an NVLink domain (a power of two of it), a bridged pair, and a node whose PCIe is nearly even."""
    found = suggest(Ask(load_cluster(name, gpus=gpus), gpus))
    assert found.mesh.tp == tp
    assert found.mesh.world == gpus
    assert found.mesh.order.startswith("tp-cp-ep")
    assert dict(found.reasons)["tp"].startswith(f"tp {tp} stays on the ")


@pytest.mark.parametrize("row", ["1p7b", "3p6b", "7p5b", "18p4b", "76p1b", "145p6b", "310p1b", "529p6b", "1008b"])
def test_the_shapes_of_sc21_table_1_come_out(row: str) -> None:
    """Narayanan et al. 2021, Table 1: nine of its ten shapes have the fastest forecast of those that fit."""
    job = prepare(load_scenario(f"sc21/t1_{row}")).job
    found = suggest(Ask(job.cluster, job.mesh.world, job))
    assert (found.mesh.tp, found.mesh.pp, found.mesh.dp) == (job.mesh.tp, job.mesh.pp, job.mesh.dp)
    assert found.step_time_s is not None
    assert found.present_step_time_s is not None
    assert found.step_time_s <= 1.001 * found.present_step_time_s
    assert "the scenario's own" in dict(found.reasons)["pp"]


@pytest.mark.parametrize("name", ["sc21/t1_39p1b", "examples/gpt_10b_1f1b"])
def test_no_suggestion_is_slower_than_the_scenario_itself(name: str) -> None:
    """SC21's tenth shape, and one whose fewest ranks (tp 4, dp 8) take 1.7 times as long as its own."""
    job = prepare(load_scenario(name)).job
    found = suggest(Ask(job.cluster, job.mesh.world, job))
    assert found.step_time_s is not None
    assert found.present_step_time_s is not None
    assert found.step_time_s <= 1.001 * found.present_step_time_s
    assert "the fastest of" in dict(found.reasons)["pp"]
    own = (job.mesh.tp, job.mesh.pp) == (found.mesh.tp, found.mesh.pp)
    assert ("the scenario's own" in dict(found.reasons)["pp"]) == own


def test_an_own_mesh_that_only_its_order_makes_fastest_is_kept_with_that_reason() -> None:
    """Another order or placement of its axes, which no shape of the search has."""
    job = prepare(load_scenario("examples/gpt_10b_1f1b")).job
    slow = Suggestion(Mesh(tp=1, dp=32), (("tp", "tp 1"),), (), 9.0, 1.5)
    found = _own(job, slow)
    assert found.mesh == job.mesh
    assert found.step_time_s == 1.5
    assert dict(found.reasons)["mesh"].startswith("the scenario's own is the fastest: a step takes 1.50 s, 500 %")
    assert _own(job, replace(slow, step_time_s=1.4)).mesh == slow.mesh


def test_each_choice_has_one_line_of_reason() -> None:
    found = suggest(Ask(selene(16), 128, fixed={"pp": 4, "cp": 2, "ep": 4}))
    assert [name for name, _ in found.reasons] == ["tp", "cp", "ep", "pp", "dp", "order"]
    assert all(reason and "\n" not in reason for _, reason in found.reasons)
    assert (found.mesh.tp, found.mesh.cp, found.mesh.pp, found.mesh.dp) == (8, 2, 4, 2)
    assert found.mesh.order == "tp-cp-ep-dp-pp"  # the expert mesh needs pp last


def test_without_a_model_flows_on_the_upper_links_decide() -> None:
    """DP outermost: a ring crosses from unit to unit once, every pipeline at the same boundary otherwise."""
    found = suggest(Ask(selene(40), 320, fixed={"pp": 4}))
    assert found.mesh.order == "tp-cp-ep-pp-dp"
    assert "flows pass the links leaf to spines" in dict(found.reasons)["order"]


def test_inside_one_domain_the_order_of_dp_and_pp_is_free() -> None:
    found = suggest(Ask(load_cluster("nvl72_pod", gpus=72), 72, fixed={"pp": 3, "tp": 4}))
    assert "nothing leaves the NVLink domain" in dict(found.reasons)["order"]


def test_a_model_too_large_for_the_gpus_is_said_to_be() -> None:
    job = prepare(load_scenario("sc21/t1_145p6b", [("parallelism.dp", "1"), ("training.global_batch", "96")])).job
    found = suggest(Ask(job.cluster, 16, job))
    assert "does not fit" in dict(found.reasons)["pp"]
    assert found.present_step_time_s is None


def test_fixed_sizes_that_leave_no_shape_are_refused() -> None:
    with pytest.raises(ShapeError, match="tp 3, dp 5"):
        suggest(Ask(selene(2), 16, fixed={"tp": 3, "dp": 5}))
    job = prepare(load_scenario("sc21/t1_18p4b")).job
    with pytest.raises(ShapeError, match="no shape of 256 GPUs suits"):
        suggest(Ask(job.cluster, 256, job, {"tp": 1, "pp": 64}))


def test_islands_that_no_link_joins_are_refused(tmp_path: Path) -> None:
    """Two leaves of Slurm's file without a spine: what `mesh` would refuse on the cluster is not suggested."""
    matrix = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\nGPU1\tNV18\t X \tPIX\nNIC0\tPIX\tPIX\t X \n"
    tree = "SwitchName=a Nodes=n[1-4]\nSwitchName=b Nodes=n[5-8]\n"
    (tmp_path / "topo.txt").write_text(matrix)
    (tmp_path / "topology.conf").write_text(tree)
    files = [str(tmp_path / name) for name in ("topo.txt", "topology.conf")]
    cluster = str(tmp_path / "two.yaml")
    runner = CliRunner()
    assert runner.invoke(app, ["topology", "import", *files, "--gpu", "H100-80GB-SXM", "-o", cluster]).exit_code == 0
    with pytest.raises(TopologyError, match="a has no uplink"):
        suggest(Ask(load_cluster(cluster), 16))
    assert suggest(Ask(load_cluster(cluster), 8)).mesh.world == 8
