"""The shipped clusters against what their sources print, and what a pod boundary leaves of a NIC."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.topology import Cluster, NodeRequest, family_spans, list_clusters, load_cluster, node_cluster, span
from traincast.topology import usual_node as usual
from traincast.topology.summary import summarise


def kinds(cluster: Cluster) -> Counter[str]:
    return Counter(data["kind"] for _, data in cluster.graph.nodes(data=True))


@pytest.mark.parametrize("name", sorted(load_catalog().gpus))
def test_the_usual_node_of_every_gpu_builds(name: str) -> None:
    """Any measured row finds a cluster: one node, and three that reach each other."""
    for nodes in (1, 3):
        cluster = node_cluster(usual(NodeRequest(name)), nodes)
        assert nx.is_connected(cluster.graph)
        assert span(cluster, range(len(cluster.gpus))).ranks == len(cluster.gpus)
        assert summarise(cluster).counts["nodes"] == nodes


def test_superpod_h100_of_four_units() -> None:
    """DGX SuperPOD H100 (RA-11333-001), four scalable units: 127 nodes, 1,016 GPUs, 32 leaf and 16 spine switches."""
    cluster = load_cluster("superpod_h100")
    found = kinds(cluster)
    assert (cluster.nodes, found["gpu"], found["leaf"], found["spine"], found["core"]) == (127, 1016, 32, 16, 0)
    assert np.bincount(cluster.place("leaf")).tolist() == [256, 256, 256, 248]


def test_jean_zay() -> None:
    """BLOOM: 48 nodes and 4 spare ones, 8 A100 80 GB and four Omni-Path 100 links each; two GPUs share a link."""
    cluster = load_cluster("jean_zay_a100")
    assert (cluster.nodes, cluster.gpus_per_node, cluster.nics_per_node) == (52, 8, 4)
    edge = cluster.graph.edges["n0/nic0", "su0/leaf0"]
    assert (edge["kind"], edge["bandwidth_bytes_per_s"]) == ("opa", 12.5e9)
    alone = span(cluster, range(0, 64, 8))
    assert alone.inter_bytes_per_s == 12.5e9
    both = family_spans(cluster, np.arange(384).reshape(48, 8).T)
    assert {found.inter_bytes_per_s for found in both} == {6.25e9}


def test_llama3_pods() -> None:
    """Llama 3: 24,576 H100 in 8 pods of 3,072 (384 nodes, 192 racks of 16); two pods are enough to look at."""
    entry = next(entry for entry in list_clusters() if entry.name == "llama3_24k")
    assert (entry.nodes, entry.gpus) == (3072, 24576)
    cluster = load_cluster("llama3_24k", gpus=2 * 3072)
    assert np.bincount(cluster.place("spine")).tolist() == [3072, 3072]
    assert np.bincount(cluster.place("leaf")).tolist() == [16] * 384
    tiers = {row.tier: row for row in summarise(cluster).tiers}
    assert tiers["spine"].oversubscription == 0.5
    assert tiers["core"].oversubscription == pytest.approx(7.0, rel=0.02)


def test_llama3_seven_to_one() -> None:
    """7:1 above the pods: a GPU that sends to another pod beside all others gets 50/7 = 7.1 GB/s; in its pod 50."""
    cluster = load_cluster("llama3_24k", gpus=2 * 3072)
    pairs = np.stack([np.arange(3072), np.arange(3072, 6144)], axis=1)
    across = family_spans(cluster, pairs)
    assert {found.tier for found in across} == {"core"}
    assert across[0].inter_bytes_per_s == pytest.approx(50e9 / 7, rel=0.02)
    assert len(set(across)) == 1
    inside = family_spans(cluster, np.stack([np.arange(1536), np.arange(1536, 3072)], axis=1))
    assert {(found.tier, found.inter_bytes_per_s) for found in inside} == {("spine", 50e9)}


def test_llama3_dp_over_pods_costs_more_than_pp_over_pods() -> None:
    """The slow boundary belongs to the family with the fewest bytes: with PP over pods a DP ring keeps its NIC."""
    cluster = load_cluster("llama3_24k", gpus=2 * 3072)
    ranks = np.arange(6144).reshape(2, 384, 8)
    over_pods = family_spans(cluster, ranks.transpose(1, 2, 0).reshape(-1, 2))
    in_pods = family_spans(cluster, ranks.transpose(0, 2, 1).reshape(-1, 384))
    assert max(s.inter_bytes_per_s for s in over_pods) < min(s.inter_bytes_per_s for s in in_pods) / 6


def test_nvl72_pod() -> None:
    """Eight racks: 72 GPUs over 18 trays are one NVLink domain at 900 GB/s; between racks 50 GB/s a GPU."""
    cluster = load_cluster("nvl72_pod")
    assert np.bincount(cluster.place("domain")).tolist() == [72] * 8
    rack = span(cluster, range(72))
    assert (rack.tier, rack.nodes, rack.intra_bytes_per_s) == ("nvlink", 1, 900e9)
    pair = span(cluster, [0, 72])
    assert (pair.nodes, pair.inter_bytes_per_s) == (2, 50e9)
    assert span(cluster, range(144)).inter_bytes_per_s == 72 * 50e9


# NICs of a node and Gbit/s of each: the providers' instance tables
CLOUD = {
    "azure_ndv4": (8, 200, "ib"),
    "azure_ndm_a100_v4": (8, 200, "ib"),
    "azure_ndv5": (8, 400, "ib"),
    "aws_p4d": (4, 100, "ethernet"),
    "aws_p4de": (4, 100, "ethernet"),
    "aws_p5": (32, 100, "ethernet"),
    "gcp_a3_high": (4, 200, "ethernet"),
    "gcp_a3_mega": (8, 200, "ethernet"),
    "gcp_a3_ultra": (8, 400, "ethernet"),
}


@pytest.mark.parametrize("name", CLOUD)
def test_cloud_nodes(name: str) -> None:
    """NIC counts and rates of the instance types, and what a whole node sends: 400 Gbit/s a p4d, 3,200 a p5."""
    nics, gbit, kind = CLOUD[name]
    cluster = load_cluster(name)
    assert (cluster.gpus_per_node, cluster.nics_per_node) == (8, nics)
    edge = cluster.graph.edges["n0/nic0", "su0/leaf0"]
    assert (edge["kind"], edge["bandwidth_bytes_per_s"] * 8) == (kind, gbit * 1e9)
    assert span(cluster, range(16)).inter_bytes_per_s * 8 == nics * gbit * 1e9


def test_every_file_says_where_it_comes_from() -> None:
    for entry in list_clusters():
        assert entry.source, entry.name
        assert entry.description, entry.name


def test_a_chassis_is_used_only_where_it_is_named() -> None:
    """The usual fabric of a 400 Gbit/s RoCE node stays one of 64-port switches."""
    cluster = node_cluster(usual(NodeRequest("H100-80GB-SXM", 8, 8, 400.0, "roce")), 8)
    most = max(cluster.graph.degree(key) for key, kind in cluster.graph.nodes(data="kind") if kind == "leaf")
    assert most <= 64
