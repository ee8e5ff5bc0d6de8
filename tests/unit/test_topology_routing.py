"""Structural routes against breadth-first search, on graphs small enough for it."""

from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest

from traincast.catalog import load_catalog
from traincast.errors import TopologyError
from traincast.topology import Cluster, NodeRequest, hdr4_a100, node_cluster, route, selene, span, usual_node
from traincast.topology.clusters import fat_tree_for, tree_cluster


def small(levels: int, nics: int = 8) -> Cluster:
    """Six nodes in three units of two, two units to a pod."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, nics, nic="HDR200-IB"), parts)
    tree = fat_tree_for(design.nic, nics, parts)
    pods = 2 if levels == 3 else None
    return tree_cluster("small", design, 6, replace(tree, levels=levels, nodes_per_unit=2, units_per_pod=pods))


@pytest.mark.parametrize("cluster", [small(2), small(3), small(2, nics=4), small(3, nics=4)])
def test_hops_equal_breadth_first_search(cluster: Cluster) -> None:
    """Shortest paths of a fabric in which only the receiver's rail is left: messages stay on a rail."""
    data, nics = cluster.graph.nodes, cluster.fabric.gpu_nics[:, 0]
    for b, end in enumerate(cluster.gpus):
        rail = cluster.fabric.nic_rail[nics[b]]
        others = [key for key in cluster.graph if data[key]["kind"] == "leaf" and data[key]["rail"] != rail]
        distances = nx.single_source_shortest_path_length(nx.restricted_view(cluster.graph, others, []), end)
        for a, start in enumerate(cluster.gpus):
            found = route(cluster, a, b)
            assert len(found.kinds) == distances[start], (start, end, found.hops)
            assert (found.hops[0], found.hops[-1]) == (start, end)
            assert all(cluster.graph.has_edge(*pair) for pair in pairwise(found.hops))


@pytest.mark.parametrize("cluster", [small(2), small(3), small(2, nics=4), small(3, nics=4)])
def test_a_pair_has_tier_and_latency_of_its_route(cluster: Cluster) -> None:
    """Two ways to the same answer: the span of two GPUs and the longer of the routes between them."""
    for a in range(len(cluster.gpus)):
        for b in range(a + 1, len(cluster.gpus), 5):
            pair = span(cluster, [a, b])
            routes = [route(cluster, a, b), route(cluster, b, a)]
            assert {found.tier for found in routes} == {pair.tier}
            wait = pair.inter_latency_s if pair.nodes > 1 else pair.intra_latency_s
            assert wait == pytest.approx(max(found.latency_s for found in routes), rel=1e-12)


def test_routes_of_selene() -> None:
    """One rail: leaf in a unit, spine in a pod, core between pods. Another rail is reached over NVLink."""
    cluster = selene(384)
    assert route(cluster, 0, 1).kinds == ("nvlink", "nvlink")
    same_unit = route(cluster, 0, 8)
    assert same_unit.tier == "leaf"
    assert same_unit.hops == ("n0/gpu0", "n0/pcie0", "n0/nic0", "su0/leaf0", "n1/nic0", "n1/pcie0", "n1/gpu0")
    assert same_unit.bandwidth_bytes_per_s == 25e9
    assert route(cluster, 0, 8 * 20).tier == "spine"
    assert route(cluster, 0, 8 * 140).tier == "core"
    assert route(cluster, 0, 8 + 7).kinds[:2] == ("nvlink", "nvlink")
    assert route(cluster, 0, 8 + 7).tier == "leaf"
    assert route(cluster, 5, 5).kinds == ()


def test_the_hash_spreads_over_spines() -> None:
    cluster = selene(140)
    spines = {route(cluster, 8 * a, 8 * (20 + b)).hops[4] for a in range(20) for b in range(20)}
    assert len(spines) == 10


def test_pcie_box_crosses_the_fabric_between_rails() -> None:
    """Without NVLink there is no way to another rail's NIC but through the spine."""
    cluster = node_cluster(usual_node(NodeRequest("A100-80GB-PCIe", 8, 4)), 4)
    assert route(cluster, 0, 1).kinds == ("pcie", "pcie")
    assert route(cluster, 0, 7).kinds == ("pcie", "pcie", "cpu", "pcie", "pcie")
    assert route(cluster, 0, 8).tier == "leaf"
    assert route(cluster, 0, 8 + 7).tier == "spine"


def test_refusals() -> None:
    cluster = hdr4_a100(2)
    with pytest.raises(TopologyError, match="no GPU 16"):
        route(cluster, 0, 16)
    with pytest.raises(TopologyError, match="no GPU -1"):
        route(cluster, -1, 3)
