"""`traincast topology check`: every kind of fault is found, named and priced, and a sound cluster has none."""

import csv
import io
import json
from pathlib import Path

import networkx as nx
import pytest

from traincast.cli.main import main
from traincast.topology import (
    Change,
    Cluster,
    NodeRequest,
    degraded,
    list_clusters,
    load_cluster,
    make_cluster,
    node_cluster,
    selene,
    usual_node,
)
from traincast.topology.check import Finding, check_cluster

TREE = "builder: fat_tree\nnodes: 10\nnode: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}\n"


def rewired(cluster: Cluster, *moves: tuple[str, str, str]) -> Cluster:
    """The cluster with cables (end, from, to) plugged in elsewhere."""
    graph: nx.Graph[str] = cluster.graph.copy()
    for end, old, new in moves:
        data = dict(graph.edges[end, old])
        graph.remove_edge(end, old)
        graph.add_edge(end, new, **data)
    return make_cluster(cluster.name, graph)


def found(cluster: Cluster) -> list[tuple[str, str, str]]:
    return [(one.severity, one.what, one.part) for one in check_cluster(cluster)]


def only(cluster: Cluster) -> Finding:
    (one,) = check_cluster(cluster)
    return one


@pytest.mark.parametrize("entry", [e for e in list_clusters() if e.gpus < 5000], ids=lambda entry: entry.name)
def test_shipped_clusters_are_sound(entry: object) -> None:
    assert check_cluster(load_cluster(entry.name)) == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize("gpu", ["V100-16GB-SXM", "A100-80GB-PCIe", "GB300"])
def test_usual_nodes_are_sound(gpu: str) -> None:
    assert check_cluster(node_cluster(usual_node(NodeRequest(gpu)), 20)) == ()


def test_missing_cable_of_a_nic() -> None:
    findings = check_cluster(degraded(selene(4), [Change("missing_cable", "n1/nic2", "su0/leaf2")]))
    assert findings[0] == Finding(
        "error", "missing cable", "n1/nic2", "n1/nic2 has no cable to a leaf", "node 1 sends by 7 of 8 NICs (-12.5 %)"
    )
    assert [(one.what, one.part) for one in findings[1:]] == [("less NIC", "n1/gpu2"), ("less NIC", "n1/gpu3")]
    assert findings[1].loss == "12.5 GB/s in place of 25.0 GB/s (-50 %)"


def test_nic_on_the_wrong_rail() -> None:
    """Two cables swapped at the switch: both NICs are named, with the rails that they are on."""
    swapped = rewired(selene(4), ("n2/nic4", "su0/leaf4", "su0/leaf5"), ("n2/nic5", "su0/leaf5", "su0/leaf4"))
    assert found(swapped) == [("error", "wrong rail", "n2/nic4"), ("error", "wrong rail", "n2/nic5")]
    first = check_cluster(swapped)[0]
    assert first.message == "n2/nic4 of rail 4 is on su0/leaf5, which carries rail 5"
    assert "cross a spine" in first.loss


def test_nic_in_the_wrong_unit() -> None:
    moved = rewired(selene(30), ("n3/nic6", "su0/leaf6", "su1/leaf6"))
    one = only(moved)
    assert (one.severity, one.what, one.part) == ("error", "wrong unit", "n3/nic6")
    assert "unit 1" in one.message
    assert "unit 0" in one.message


def test_gpu_without_a_nic() -> None:
    cut = degraded(
        node_cluster(usual_node(NodeRequest("A100-80GB-SXM", 8, 1)), 4),
        [Change("missing_cable", "n1/nic0", "su0/leaf0")],
    )
    assert [row for row in found(cut) if row[1] == "no NIC"] == [("error", "no NIC", f"n1/gpu{g}") for g in range(8)]


def test_missing_uplinks_of_a_leaf() -> None:
    one = only(degraded(selene(45), [Change("cut_uplinks", "su1/leaf2", count=5)]))
    assert (one.severity, one.what, one.part) == ("error", "missing cable", "su1/leaf2")
    assert one.message == "su1/leaf2 has 15 uplinks, its like have 20"
    assert one.loss == "groups that leave it share 375 GB/s of 500 GB/s (-25 %)"


def test_missing_uplinks_of_a_spine() -> None:
    one = only(degraded(selene(280), [Change("cut_uplinks", "spine7", count=7)]))
    assert (one.what, one.part, one.message) == ("missing cable", "spine7", "spine7 has 7 uplinks, its like have 14")


@pytest.mark.parametrize(("part", "nodes"), [("su1/leaf2", 45), ("spine7", 280)])
def test_a_switch_without_any_uplink(part: str, nodes: int) -> None:
    whole = selene(nodes)
    above = [key for key in whole.graph[part] if whole.graph.nodes[key]["kind"] in ("spine", "core")]
    count = sum(whole.graph.edges[part, key]["links"] for key in above if not (part == "spine7" and "leaf" in key))
    one = only(degraded(whole, [Change("cut_uplinks", part, count=count)]))
    assert (one.severity, one.what, one.part) == ("error", "missing cable", part)
    assert one.loss == "nobody outside reaches its nodes"


def test_uneven_uplinks() -> None:
    """As many cables as its like, but three on one spine and one on the next."""
    whole = selene(45)
    graph: nx.Graph[str] = whole.graph.copy()
    up = [key for key in graph["su0/leaf0"] if graph.nodes[key]["kind"] == "spine"]
    for key, links in zip(up[:2], (3, 1), strict=True):
        edge = graph.edges["su0/leaf0", key]
        assert edge["links"] == 2
        edge.update(links=links, bandwidth_bytes_per_s=edge["bandwidth_bytes_per_s"] / 2 * links)
    one = only(make_cluster("uneven", graph))
    assert (one.severity, one.what, one.part) == ("warning", "uneven uplinks", "su0/leaf0")
    assert "1 to 3 cables" in one.message


def test_asymmetric_links() -> None:
    findings = check_cluster(degraded(selene(4), [Change("slow_nic", "n0/nic3", rate=0.5)]))
    assert [(one.severity, one.what) for one in findings] == [("warning", "less NIC"), ("warning", "asymmetric link")]
    assert findings[1].loss.startswith("12.5 GB/s in place of 25.0 GB/s (-50 %)")
    inner = only(degraded(selene(4), [Change("slow_link", "n2/gpu1", "n2/nvswitch", rate=0.75)]))
    assert (inner.what, inner.part) == ("asymmetric link", "n2/gpu1")
    up = only(degraded(selene(45), [Change("slow_link", "su0/leaf0", "spine0", rate=0.5)]))
    assert (up.what, up.part) == ("asymmetric link", "spine0")


def test_leaves_that_nothing_joins() -> None:
    graph: nx.Graph[str] = selene(45).graph.copy()
    graph.remove_nodes_from(
        [key for key, data in selene(45).graph.nodes(data=True) if data["kind"] in ("spine", "core")]
    )
    findings = check_cluster(make_cluster("apart", graph))
    assert len(findings) == 3 * 8
    assert {one.message for one in findings if one.part == "su0/leaf0"} == {"su0/leaf0 is joined to no spine"}


def test_one_leaf_a_rail_needs_no_spine() -> None:
    graph: nx.Graph[str] = selene(4).graph.copy()
    graph.remove_nodes_from(
        [key for key, data in selene(4).graph.nodes(data=True) if data["kind"] in ("spine", "core")]
    )
    assert check_cluster(make_cluster("rails only", graph)) == ()


def test_dead_and_slow_gpus_but_not_absent_nodes() -> None:
    changes = [Change("dead_gpu", "n0/gpu1"), Change("slow_gpu", "n1/gpu0", rate=0.9), Change("absent_node", "n3")]
    assert found(degraded(selene(4), changes)) == [
        ("warning", "dead GPU", "n0/gpu1"),
        ("warning", "slow GPU", "n1/gpu0"),
    ]


def test_different_nodes_are_not_faults(tmp_path: Path) -> None:
    text = """\
builder: mixed
groups:
  - {nodes: 4, gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}
  - {nodes: 4, gpu: H100-80GB-SXM, gpus: 8, nics: 8, nic: NDR400-IB}
  - {nodes: 4, gpu: A100-40GB-SXM, gpus: 4, nics: 4, nic: HDR200-IB}
"""
    (tmp_path / "mixed.yaml").write_text(text)
    assert check_cluster(load_cluster(str(tmp_path / "mixed.yaml"))) == ()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 0 with warnings or nothing, 1 with an error, 2 for a file that is not there."""
    assert main(["topology", "check", "hdr4_a100"]) == 0
    assert "nothing found" in capsys.readouterr().out
    path = tmp_path / "worn.yaml"
    path.write_text(TREE + "degraded: [{nic: n0/nic3, rate: 50 %}]\n")
    assert main(["topology", "check", str(path), "--format", "json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert (payload["errors"], payload["warnings"]) == (0, 2)
    assert payload["findings"][0]["loss"]
    path.write_text(TREE + "degraded: [{leaf: su0/leaf0, uplinks_cut: 1}]\n")
    assert main(["topology", "check", str(path), "--format", "csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["part"] for row in rows] == ["su0/leaf0"]
    assert main(["topology", "check", str(tmp_path / "none.yaml")]) == 2
