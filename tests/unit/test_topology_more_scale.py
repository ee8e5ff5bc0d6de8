"""A hundred thousand GPUs: the work grows with classes. Counts are asserted, seconds are what benchmarks/ reports."""

import numpy as np
import pytest

from traincast.lower.spans import rank_spans
from traincast.mesh import ShapeRequest, build_mesh
from traincast.topology import Cluster, NodeRequest, node_cluster, usual_node
from traincast.topology.affinity import _of_node
from traincast.topology.loads import FamilyTraffic, link_loads


def cluster_of(gpus: int) -> Cluster:
    """Eight B300 a node on three levels of 144-port switches, which alone reach so far."""
    return node_cluster(usual_node(NodeRequest("B300-SXM", 8, 8)), gpus // 8)


def test_alike_nodes_are_worked_out_once() -> None:
    _of_node.cache_clear()
    cluster_of(4096)
    assert _of_node.cache_info().misses == 1


def test_spans_of_16384_gpus() -> None:
    mesh = build_mesh(ShapeRequest(tp=8, cp=16, dp=8, pp=16))
    cluster = cluster_of(16384)
    spans = rank_spans(mesh, cluster)
    assert len(spans.table) <= 6
    assert cluster.graph.number_of_edges() < 7 * 16384


@pytest.mark.slow
def test_102400_gpus() -> None:
    """Graph, spans and link loads of TP 8, CP 16, DP 50, PP 16: as many different spans as at a sixth of the size."""
    mesh = build_mesh(ShapeRequest(tp=8, cp=16, dp=50, pp=16))
    cluster = cluster_of(102400)
    assert (len(cluster.gpus), cluster.nodes) == (102400, 12800)
    assert cluster.graph.number_of_edges() < 7 * 102400
    spans = rank_spans(mesh, cluster)
    assert len(spans.table) <= 6
    assert spans.ids.shape[0] == 102400
    groups = mesh.physical(mesh.groups("dp", "cp"))
    loads = link_loads(cluster, [FamilyTraffic("dp-cp", groups, 1e9)])
    nics = loads.bytes[0, loads.first("nic out") : loads.first("nic in")]
    np.testing.assert_allclose(nics, 1e9)
