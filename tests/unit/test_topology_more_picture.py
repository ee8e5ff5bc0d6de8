"""The picture of a cluster: what is placed where, that every kind of cluster draws, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from traincast.cli.main import main
from traincast.errors import UsageError
from traincast.report.cluster_layout import chosen, plan_layout
from traincast.report.cluster_picture import Overlay, draw_cluster
from traincast.report.node_picture import draw_node, shown_nodes
from traincast.report.paint import EMPTY, GROUP_HUES, SWITCH_HUES, paint_of
from traincast.topology import Change, NodeRequest, degraded, load_cluster, node_cluster, selene, usual_node
from traincast.topology.loads import FamilyTraffic, link_loads

PNG = b"\x89PNG\r\n\x1a\n"


def test_chosen() -> None:
    assert chosen([0, 1, 2], 4) == [0, 1, 2]
    assert chosen(list(range(9)), 4) == [0, 1, 2, 8]
    assert chosen(list(range(9)), 4, {5}) == [0, 1, 5, 8]
    assert chosen(list(range(9)), 2, {3, 4, 5}) == [3, 4]


def test_layout_of_selene() -> None:
    """28 units in 4 pods: some of each, and the gaps say how many are left out."""
    layout = plan_layout(selene())
    assert [pod.number for pod in layout.pods] == [0, 1, 2, 3]
    assert {pod.spines for pod in layout.pods} == {80}
    shown = sum(len(pod.units) for pod in layout.pods)
    left_out = sum(int(gap.text.split()[0]) for gap in layout.gaps)
    assert shown + left_out == 28
    assert layout.pods[0].units[0].grid.shape == (20, 8)
    assert layout.pods[0].units[0].leaves == tuple(range(8))


def test_units_of_the_groups_come_first() -> None:
    cluster = selene()
    numbers = {unit.number for pod in plan_layout(cluster, [8 * 20 * 4]).pods for unit in pod.units}
    assert 4 in numbers


def test_dead_gpus_leave_a_gap() -> None:
    layout = plan_layout(degraded(selene(2), [Change("dead_gpu", "n0/gpu3")]))
    grid = layout.pods[0].units[0].grid
    assert grid.tolist() == [[0, 1, 2, -1, 3, 4, 5, 6], list(range(7, 15))]


def test_groups_have_colours() -> None:
    paint = paint_of(selene(2), "dp", np.arange(16).reshape(2, 8).T, None)
    assert len(paint.legend) == 8
    assert paint.cell(0) == paint.cell(8) != paint.cell(1)
    assert paint.cell(-1) == (1.0, 1.0, 1.0)
    many = paint_of(selene(8), "pp", np.arange(64).reshape(32, 2), None)
    assert list(many.legend.values()) == list(GROUP_HUES)
    assert many.cell(63) == paint_of(selene(8), "pp", np.arange(64).reshape(32, 2), None).cell(40)
    assert "#" + "".join(f"{round(part * 255):02x}" for part in many.cell(63)) == EMPTY


@pytest.mark.parametrize(
    ("name", "gpus"),
    [("selene", 1280), ("superpod_h100", 256), ("nvl72_pod", 144), ("pcie_box_bridged", 32), ("aws_p5", 64)],
)
def test_clusters_draw(tmp_path: Path, name: str, gpus: int) -> None:
    path = tmp_path / "cluster.png"
    draw_cluster(load_cluster(name, gpus=gpus), path, dpi=40)
    assert path.read_bytes().startswith(PNG)


@pytest.mark.parametrize("name", ["superpod_h100", "nvl72_pod", "jean_zay_a100", "aws_p5"])
def test_no_cable_passes_the_nvswitch(name: str) -> None:
    """Cables of NICs end, with the leaf's name, below the bar of the NVSwitch; only GPUs reach it."""
    from matplotlib.figure import Figure

    cluster = load_cluster(name, gpus=16)
    axes = Figure().subplots()
    (node,) = shown_nodes(cluster)
    draw_node(axes, cluster, node, paint_of(cluster, "", None, None))
    bar = next(patch for patch in axes.patches if patch.get_facecolor()[:3] == to_rgb(SWITCH_HUES["nvswitch"]))
    low = bar.get_window_extent().transformed(axes.transData.inverted()).y0
    reaching = [line for line in axes.lines if max(line.get_ydata()) > low]
    assert len(reaching) == len(node.keys["gpu"])
    assert all(text.get_position()[1] < low for text in axes.texts if "leaf" in text.get_text())


def test_a_node_alone_draws(tmp_path: Path) -> None:
    for request in (NodeRequest("V100-16GB-SXM", 8, 0), NodeRequest("H100-80GB-SXM", 8, 0)):
        draw_cluster(node_cluster(usual_node(request), 1), tmp_path / "node.svg", dpi=40)
        assert "GPU 7" in (tmp_path / "node.svg").read_text() or (tmp_path / "node.svg").stat().st_size > 1000


def test_heat_and_groups_draw(tmp_path: Path) -> None:
    cluster = load_cluster("pcie_box")
    groups = np.arange(32).reshape(4, 8)
    loads = link_loads(cluster, [FamilyTraffic("tp", groups, 1e9)])
    worn = degraded(cluster, [Change("missing_cable", "n0/nic0", "su0/leaf0"), Change("slow_gpu", "n0/gpu1", rate=0.9)])
    draw_cluster(cluster, tmp_path / "heat.png", Overlay("tp", groups, loads), dpi=40)
    draw_cluster(worn, tmp_path / "worn.png", Overlay("tp", groups), dpi=40)
    assert (tmp_path / "heat.png").read_bytes() != (tmp_path / "worn.png").read_bytes()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no picture"):
        draw_cluster(selene(1), tmp_path / "x.gif")
    with pytest.raises(UsageError, match="cannot write"):
        draw_cluster(selene(1), tmp_path / "none" / "x.png", dpi=40)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "selene.png"
    options = ["--gpus", "64", "--mesh", "tp=8,dp=8", "--family", "dp", "--bytes", "1 GB", "--picture", str(path)]
    assert main(["topology", "show", "selene", *options, "--format", "json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert path.read_bytes().startswith(PNG)
    busy = {link["kind"]: link for link in payload["busiest_links"]}
    assert busy["NIC to leaf"]["bytes"] == 1e9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--mesh", "tp=8,zp=3"], "no axis"),
        (["--mesh", "tp=8,dp=9999"], "4480 GPUs"),
        (["--bytes", "1 GB"], "--bytes without --mesh"),
        (["--mesh", "tp=8,dp=2", "--bytes", "7"], "no unit"),
        (["--mesh", "tp=8,dp=2", "--family", "zp"], "zp"),
        (["--picture", "x.gif"], "no picture"),
    ],
)
def test_options_that_do_not_fit(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "show", "selene", *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "fix" in error
