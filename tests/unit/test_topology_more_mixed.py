"""Clusters of different nodes: builder, file form, cutting, and what a group over both kinds has."""

from pathlib import Path

import numpy as np
import pytest

from traincast.errors import TopologyError, UserError
from traincast.topology import (
    Cluster,
    NodeGroup,
    NodeRequest,
    list_clusters,
    load_cluster,
    mixed_cluster,
    route,
    span,
    usual_node,
)

MIXED = """\
builder: mixed
groups:
  - {nodes: 4, gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}
  - {nodes: 2, gpu: H100-80GB-SXM, gpus: 8, nics: 8, nic: NDR400-IB}
  - {nodes: 3, gpu: A100-40GB-SXM, gpus: 4, nics: 4, nic: HDR200-IB}
fabric: {nodes_per_unit: 3}
"""


def group(gpu: str, nodes: int, **asked: object) -> NodeGroup:
    return NodeGroup(usual_node(NodeRequest(gpu, **asked)), nodes)  # type: ignore[arg-type]


@pytest.fixture
def mixed(tmp_path: Path) -> Cluster:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    return load_cluster(str(tmp_path / "mixed.yaml"))


def test_nodes_are_numbered_through(mixed: Cluster) -> None:
    assert np.bincount(mixed.node_index).tolist() == [8] * 6 + [4] * 3
    assert mixed.gpu_model == ("A100-80GB-SXM",) * 32 + ("H100-80GB-SXM",) * 16 + ("A100-40GB-SXM",) * 12
    assert (mixed.gpus_per_node, mixed.nics_per_node) == (8, 8)


def test_each_nic_keeps_its_rate(mixed: Cluster) -> None:
    edges = mixed.graph.edges
    assert edges["n0/nic0", "su0/leaf0"]["bandwidth_bytes_per_s"] == 25e9
    assert edges["n4/nic0", "su1/leaf0"]["bandwidth_bytes_per_s"] == 50e9
    assert not mixed.graph.has_node("n6/nic4")
    assert span(mixed, [0, 8]).inter_bytes_per_s == 25e9
    assert span(mixed, [32, 40]).inter_bytes_per_s == 50e9
    assert span(mixed, [0, 32]).inter_bytes_per_s == 25e9


def test_a_group_over_both_is_as_slow_as_the_slower(mixed: Cluster) -> None:
    """Eight lanes at one end, four at the other: four are used; NVLink is that of the A100."""
    over = span(mixed, [*range(8), *range(48, 52)])
    assert over.inter_bytes_per_s == 4 * 25e9
    assert span(mixed, [*range(8), *range(32, 40)]).intra_bytes_per_s == 300e9


def test_routes_go_between_kinds(mixed: Cluster) -> None:
    assert route(mixed, 0, 32).tier == "spine"
    assert route(mixed, 0, 59).hops[-1] == "n8/gpu3"


@pytest.mark.parametrize(("gpus", "nodes", "held"), [(1, 1, 8), (33, 5, 40), (48, 6, 48), (49, 7, 52), (60, 9, 60)])
def test_cut_to_whole_nodes(tmp_path: Path, gpus: int, nodes: int, held: int) -> None:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    cluster = load_cluster(str(tmp_path / "mixed.yaml"), gpus=gpus)
    assert (cluster.nodes, len(cluster.gpus)) == (nodes, held)


def test_too_many_gpus(tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    with pytest.raises(TopologyError, match="has 60 GPUs, 61 are asked for"):
        load_cluster(str(tmp_path / "mixed.yaml"), gpus=61)


def test_listed_with_all_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nics.csv").write_text("part,property,value,unit,kind,source,location,date\n")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "mine.yaml").write_text(MIXED)
    monkeypatch.setenv("TRAINCAST_CATALOG", str(tmp_path))
    entry = next(entry for entry in list_clusters() if entry.name == "mine")
    assert (entry.nodes, entry.gpus, entry.nics_per_node) == (9, 60, 8)
    assert entry.gpu == "A100-80GB-SXM + H100-80GB-SXM + A100-40GB-SXM"
    assert entry.nic == "HDR200-IB + NDR400-IB"


def test_the_builder_chooses_the_fabric_of_the_fastest_nic() -> None:
    cluster = mixed_cluster("two kinds", [group("A100-80GB-SXM", 2), group("H100-80GB-SXM", 2)])
    assert any("fabric is not stated" in note for note in cluster.assumptions)
    up = cluster.graph.edges["su0/leaf0", "spine0"]
    assert up["bandwidth_bytes_per_s"] / up["links"] == 50e9


def test_racks_and_boxes_beside_each_other() -> None:
    """An NVL72 rack keeps one NVLink domain beside HGX nodes."""
    parts = [group("GB200", 18, gpus=4, nics=4), group("B200-180GB-SXM", 2)]
    cluster = mixed_cluster("rack and boxes", parts)
    assert np.bincount(cluster.place("domain")).tolist() == [72, 8, 8]


def test_refusals() -> None:
    with pytest.raises(TopologyError, match="two kinds of network"):
        mixed_cluster("x", [group("A100-80GB-SXM", 1), group("H100-80GB-SXM", 1, nic="ETH400")])
    with pytest.raises(TopologyError, match="cannot reach the others"):
        mixed_cluster("x", [group("A100-80GB-SXM", 1), group("H100-80GB-SXM", 1, nics=0)])
    with pytest.raises(TopologyError, match="0 nodes"):
        mixed_cluster("x", [])


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (MIXED.replace("A100-40GB-SXM", "A100-41GB-SXM"), ":5:21: ", "did you mean A100-40GB-SXM"),
        (MIXED.replace("nodes: 2, ", ""), ":4:5: ", "groups.1.nodes is missing"),
        (MIXED.replace("nic: NDR400-IB", "nic: ETH400"), ":2:1: ", "two kinds of network"),
        (MIXED.replace("gpus: 4", "gpuz: 4"), ":5:36: ", "did you mean gpu or gpus"),
        ("builder: mixed\ngroups: []\n", ":2:9: ", "more entries"),
        ("builder: mixed\n", ":1:1: ", "the key groups is missing"),
        (MIXED + "nodes: 3\n", ":7:1: ", "unknown key nodes"),
        (MIXED.replace("nodes_per_unit: 3", "spine_switch: QM8791"), ":6:24: ", "did you mean QM8790"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, text: str, place: str, words: str) -> None:
    path = tmp_path / "mixed.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_cluster(str(path))
    assert str(caught.value).startswith(f"{path}{place}"), caught.value
    assert words in str(caught.value)
    assert caught.value.fix
