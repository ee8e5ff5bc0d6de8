"""Built clusters: counts, attributes of every edge, affinity of GPUs and NICs."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.errors import CatalogError, TopologyError
from traincast.topology import NodeRequest, hdr4_a100, make_cluster, node_cluster, selene, span, usual_node
from traincast.topology.clusters import fat_tree_for
from traincast.topology.fattree import add_fat_tree
from traincast.topology.nodes import add_nodes
from traincast.topology.summary import summarise


def kinds(graph: "nx.Graph[str]") -> Counter[str]:
    return Counter(kind for _, kind in graph.nodes(data="kind"))


def nics_of(cluster_name: str, **asked: int) -> list[list[int]]:
    """Rails of the NICs near each GPU of one node."""
    design = usual_node(NodeRequest(cluster_name, **asked))  # type: ignore[arg-type]
    fabric = node_cluster(design, 1).fabric
    return [[int(fabric.nic_rail[nic]) for nic in row if nic >= 0] for row in fabric.gpu_nics]


def test_selene_of_140_nodes_is_a_superpod() -> None:
    """DGX A100 SuperPOD (RA-09950-001): 140 nodes, 56 leaf, 80 spine, 28 core switches."""
    found = kinds(selene(140).graph)
    assert found == {
        **{"gpu": 1120, "nic": 1120, "nvswitch": 140, "pcie": 560, "cpu": 280},
        **{"leaf": 56, "spine": 80, "core": 28},
    }


def test_sc21_cluster() -> None:
    """SC21 §5: 384 nodes of the 560 ran the largest model on 3,072 GPUs."""
    cluster = selene(384)
    assert (len(cluster.gpus), cluster.nodes) == (3072, 384)
    assert (cluster.gpus_per_node, cluster.nics_per_node) == (8, 8)
    assert set(cluster.gpu_model) == {"A100-80GB-SXM"}
    assert cluster.node_index.tolist() == [gpu // 8 for gpu in range(3072)]
    assert len(np.unique(cluster.place("leaf"))) == 20
    assert len(np.unique(cluster.place("spine"))) == 3
    assert np.unique(cluster.place("core")).tolist() == [0]
    assert any("pods" in note for note in cluster.assumptions)


def test_leaf_r_carries_rail_r() -> None:
    graph = selene(45).graph
    for key, data in graph.nodes(data=True):
        if data["kind"] == "leaf":
            below = [graph.nodes[other] for other in graph[key] if graph.nodes[other]["kind"] == "nic"]
            assert {nic["rail"] for nic in below} == {data["rail"]}
            assert {nic["node"] // 20 for nic in below} == {data["unit"]}


@pytest.mark.parametrize("name", sorted(load_catalog().gpus))
def test_every_gpu_has_a_usual_cluster(name: str) -> None:
    cluster = node_cluster(usual_node(NodeRequest(name)), 40)
    assert set(cluster.gpu_model) == {name}
    assert nx.is_connected(cluster.graph)
    for _, _, edge in cluster.graph.edges(data=True):
        assert edge["bandwidth_bytes_per_s"] > 0
        assert 0 <= edge["latency_s"] < 1e-5
        assert edge["kind"] in {"nvlink", "pcie", "c2c", "cpu", "ib", "ethernet", "opa"}
        assert edge["links"] >= 1


def test_dgx_a100_node() -> None:
    """DGX A100 user guide: 6 NVSwitches, 12 NVLinks of 25 GB/s per GPU, 2 GPUs and 2 NICs per PCIe switch."""
    graph = selene(1).graph
    assert graph.nodes["n0/nvswitch"]["units"] == 6
    edge = graph.edges["n0/gpu0", "n0/nvswitch"]
    assert (edge["bandwidth_bytes_per_s"], edge["links"]) == (300e9, 12)
    for switch in range(4):
        near = Counter(graph.nodes[other]["kind"] for other in graph[f"n0/pcie{switch}"])
        assert near == {"gpu": 2, "nic": 2, "cpu": 1}


def test_dgx1_mesh_uses_six_links_per_gpu() -> None:
    """Each V100 has six NVLinks; the hybrid cube mesh of a DGX-1 uses all of them."""
    graph = node_cluster(usual_node(NodeRequest("V100-16GB-SXM", 8)), 1).graph
    for gpu in range(8):
        near = [edge for edge in graph[f"n0/gpu{gpu}"].values() if edge["kind"] == "nvlink"]
        assert sum(edge["links"] for edge in near) == 6


def test_dgx2_has_nvswitches() -> None:
    assert node_cluster(usual_node(NodeRequest("V100-32GB-SXM", 16)), 1).graph.nodes["n0/nvswitch"]["units"] == 12


def test_nvl72_is_one_nvlink_domain_over_18_trays() -> None:
    cluster = node_cluster(usual_node(NodeRequest("GB200", 4)), 36)
    assert np.bincount(cluster.place("domain")).tolist() == [72, 72]
    assert len(np.unique(cluster.place("node"))) == 36
    assert span(cluster, range(72)).tier == "nvlink"
    assert span(cluster, range(73)).nodes == 2


@pytest.mark.parametrize(
    ("nics", "expected"),
    [
        (8, [[0], [1], [2], [3], [4], [5], [6], [7]]),
        (4, [[0], [0], [1], [1], [2], [2], [3], [3]]),
        (2, [[0], [0], [0], [0], [1], [1], [1], [1]]),
        (1, [[0]] * 8),
        (16, [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]),
    ],
)
def test_affinity(nics: int, expected: list[list[int]]) -> None:
    """GPU i of a DGX A100 has NIC i; with four NICs the two GPUs of a PCIe switch share one; and so on."""
    assert nics_of("A100-80GB-SXM", gpus=8, nics=nics) == expected


def test_what_is_not_stated_is_said() -> None:
    stated = usual_node(NodeRequest("A100-80GB-SXM", 8, 8, 200.0, "ib"))
    assert stated.assumptions == ()
    notes = usual_node(NodeRequest("A100-80GB-SXM")).assumptions
    assert len(notes) == 3
    assert usual_node(NodeRequest("A100-80GB-SXM", 8, 4, 100.0, "opa")).nic.name == "OPA100"
    assert usual_node(NodeRequest("H100-80GB-SXM", 8, 8, 400.0, "roce")).nic.kind == "ethernet"


def test_refusals() -> None:
    with pytest.raises(CatalogError, match="A100-80GB-SXM"):
        usual_node(NodeRequest("A100-80GB-SXN"))
    with pytest.raises(CatalogError, match="300 Gbit/s"):
        usual_node(NodeRequest("A100-80GB-SXM", 8, 8, 300.0, "ib"))
    with pytest.raises(TopologyError, match="0 GPUs"):
        usual_node(NodeRequest("A100-80GB-SXM", 0))
    with pytest.raises(TopologyError, match="2 nodes have no NIC"):
        node_cluster(usual_node(NodeRequest("A100-80GB-SXM", 8, 0)), 2)
    with pytest.raises(TopologyError, match="560 nodes, 561"):
        selene(561)
    with pytest.raises(TopologyError, match="0 nodes"):
        hdr4_a100(0)
    with pytest.raises(TopologyError, match="no tier 'rack'"):
        hdr4_a100(1).place("rack")
    with pytest.raises(TopologyError, match="no GPU"):
        make_cluster("empty", nx.Graph())


def test_a_node_without_nics_stands_alone() -> None:
    cluster = node_cluster(usual_node(NodeRequest("A100-80GB-SXM", 8, 0)), 1)
    assert span(cluster, range(8)).tier == "nvlink"
    assert summarise(cluster).counts == {"gpus": 8, "nics": 0, "switches": 0, "nodes": 1}


def test_mixed_nodes_take_the_slower_nvlink() -> None:
    parts = load_catalog()
    fast = usual_node(NodeRequest("H100-80GB-SXM", 8, 8, nic="HDR200-IB"), parts)
    slow = usual_node(NodeRequest("A100-80GB-SXM", 8, 8, nic="HDR200-IB"), parts)
    graph: nx.Graph[str] = nx.Graph()
    add_nodes(graph, fast, 0, 1)
    add_nodes(graph, slow, 1, 1)
    add_fat_tree(graph, fat_tree_for(fast.nic, 8, parts), 2)
    mixed = make_cluster("mixed", graph)
    assert Counter(mixed.gpu_model) == {"H100-80GB-SXM": 8, "A100-80GB-SXM": 8}
    assert span(mixed, range(8)).intra_bytes_per_s == 450e9
    assert span(mixed, range(16)).intra_bytes_per_s == 300e9


def test_summary_of_selene() -> None:
    """4,480 NICs inject 25 GB/s each; the tree is not oversubscribed, so half of it crosses the middle."""
    summary = summarise(selene())
    assert summary.counts == {"gpus": 4480, "nics": 4480, "switches": 656, "nodes": 560}
    tiers = {row.tier: row for row in summary.tiers}
    assert list(tiers) == ["nvlink", "leaf", "spine", "core"]
    assert tiers["nvlink"].bisection_bytes_per_s == 8 * 300e9 / 2
    assert tiers["core"].bisection_bytes_per_s == 4480 * 25e9 / 2
    assert [row.groups for row in summary.tiers] == [560, 28, 4, 1]
    assert {row.oversubscription for row in summary.tiers} == {1.0}
    links = {row.between: row.links for row in summary.links}
    assert links["nic-leaf"] == links["leaf-spine"] == links["spine-core"] == 4480
    assert summary.assumed
