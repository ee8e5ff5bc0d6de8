"""Inside nodes without NVLink: the path decides, siblings share it, and bridges join pairs."""

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.costs import Machine
from traincast.costs.collectives import collective_seconds, message_seconds
from traincast.errors import TopologyError
from traincast.profile import find_profile
from traincast.topology import Cluster, NodeRequest, Span, family_spans, load_cluster, node_cluster, span, usual_node

SWITCH, BRIDGE, SOCKETS = [0, 1], [0, 2], [0, 4]
"""Two cards under one PCIe switch, on one socket, and on two sockets."""


@pytest.fixture(scope="module")
def box() -> Cluster:
    return load_cluster("pcie_box")


def bridged(nodes: int = 1) -> Cluster:
    return node_cluster(usual_node(NodeRequest("A100-80GB-PCIe", 8, 4, nvlink_bridges=True)), nodes)


def one(cluster: Cluster, groups: list[list[int]]) -> Span:
    found = set(family_spans(cluster, np.array(groups)))
    assert len(found) == 1
    return found.pop()


def test_farther_is_slower(box: Cluster) -> None:
    """PCIe 4 x16; five sixths of it through a root complex; 24 GB/s between sockets. 2, 4 and 5 hops."""
    near, middle, far = (span(box, pair) for pair in (SWITCH, BRIDGE, SOCKETS))
    assert [s.intra_bytes_per_s for s in (near, middle, far)] == [31.508e9, 26.257e9, 24e9]
    assert [s.intra_latency_s for s in (near, middle, far)] == pytest.approx([300e-9, 600e-9, 800e-9])
    assert {s.tier for s in (near, middle, far)} == {"pcie"}


def test_and_costs_more(box: Cluster) -> None:
    """Issue 3: a group inside one switch, across the host bridge and across sockets costs in that order."""
    profile, _ = find_profile("A100-80GB-SXM", None)
    network = Machine(load_catalog().gpu("A100-80GB-PCIe"), profile, "fp16", 8).network
    spans = [span(box, pair) for pair in (SWITCH, BRIDGE, SOCKETS)]
    for size in (1e6, 64e6, 1e9):
        rings = [collective_seconds("all_reduce", size, found, network) for found in spans]
        sends = [message_seconds(size, found, network) for found in spans]
        assert rings == sorted(rings)
        assert sends == sorted(sends)
        assert len(set(rings)) == len(set(sends)) == 3


def test_siblings_share_the_links_between_sockets(box: Cluster) -> None:
    """Four pairs over the sockets put four flows on that link each way: 24/4; pairs under a switch share nothing."""
    assert one(box, [[0, 4], [1, 5], [2, 6], [3, 7]]).intra_bytes_per_s == 6e9
    assert one(box, [[0, 1], [2, 3], [4, 5], [6, 7]]).intra_bytes_per_s == 31.508e9
    assert one(box, [[0, 2], [1, 3], [4, 6], [5, 7]]).intra_bytes_per_s == pytest.approx(26.257e9 / 2)


def test_a_ring_passes_each_boundary_once(box: Cluster) -> None:
    """Eight cards in physical order cross the sockets once each way, however the group lists them."""
    assert span(box, range(8)).intra_bytes_per_s == 24e9
    assert span(box, [0, 4, 1, 5, 2, 6, 3, 7]) == span(box, range(8))


def test_messages_one_way_and_both(box: Cluster) -> None:
    """Two messages over the sockets in one direction share the link; in opposite directions they do not."""
    same = family_spans(box, np.array([[0, 4], [1, 5]]), pattern="chain")
    assert {found.intra_bytes_per_s for found in same} == {12e9}
    opposite = family_spans(box, np.array([[0, 4], [5, 1]]), pattern="chain")
    assert {found.intra_bytes_per_s for found in opposite} == {24e9}


def test_bridges_join_pairs() -> None:
    """nccl-tests issue 178: a bridged pair of A100 PCIe cards reaches 208 GB/s, three cards 20 GB/s over PCIe."""
    cluster = bridged()
    pair, three = span(cluster, [2, 3]), span(cluster, [0, 1, 2])
    assert (pair.tier, pair.intra_bytes_per_s) == ("nvlink", 300e9)
    assert (three.tier, three.intra_bytes_per_s) == ("pcie", 26.257e9)
    assert pair.intra_bytes_per_s > 208e9
    assert three.intra_bytes_per_s > 20e9
    assert span(cluster, [1, 2]).tier == "pcie"


def test_bridged_rings_leave_less_to_pcie() -> None:
    """In a ring over two pairs half of the hops go over bridges, so a pair's own buses carry nothing inside it."""
    cluster = bridged()
    assert span(cluster, range(4)).intra_bytes_per_s == span(cluster, [0, 2]).intra_bytes_per_s


def test_only_pcie_cards_take_bridges() -> None:
    with pytest.raises(TopologyError, match="no place for NVLink bridges"):
        usual_node(NodeRequest("A100-80GB-SXM", nvlink_bridges=True))
    with pytest.raises(TopologyError, match="0 GPUs per PCIe switch"):
        usual_node(NodeRequest("A100-80GB-PCIe", gpus_per_pcie_switch=0))


def test_four_cards_to_a_switch() -> None:
    design = usual_node(NodeRequest("A100-80GB-PCIe", 8, 2, gpus_per_pcie_switch=4))
    cluster = node_cluster(design, 1)
    assert design.pcie_switches == 2
    assert span(cluster, range(4)).intra_bytes_per_s == 31.508e9
    assert span(cluster, [0, 4]).intra_bytes_per_s == 24e9


def test_a_dgx1_group_without_nvlink_goes_over_the_root() -> None:
    """GPU 0 and 5 of a DGX-1 have no NVLink; PCIe 3 through both root complexes: 15.754 x 5/6."""
    cluster = node_cluster(usual_node(NodeRequest("V100-16GB-SXM", 8)), 1)
    assert span(cluster, [0, 5]).intra_bytes_per_s == 13.129e9
