"""Spans of the groups that training uses, against what the wires of the paper's clusters give."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from traincast.catalog import load_catalog
from traincast.errors import TopologyError
from traincast.topology import (
    Cluster,
    NodeRequest,
    Span,
    family_spans,
    hdr4_a100,
    node_cluster,
    selene,
    span,
    usual_node,
)
from traincast.topology.clusters import fat_tree_for, tree_cluster
from traincast.topology.lanes import match_rails

Ints = npt.NDArray[np.int64]


def data_parallel(world: int, tp: int) -> Ints:
    """DP groups of pure TP x DP in the default order: the ranks with equal place in their TP group."""
    return np.arange(world).reshape(-1, tp).T


def one(spans: tuple[Span, ...]) -> Span:
    assert len(set(spans)) == 1
    return spans[0]


def test_tensor_parallel_in_a_node() -> None:
    found = one(family_spans(selene(4), np.arange(32).reshape(4, 8)))
    assert (found.tier, found.nodes, found.ranks_per_node) == ("nvlink", 1, 8)
    assert found.intra_bytes_per_s == 300e9
    assert found.inter_bytes_per_s == 0.0
    assert found.sharing == 1.0


def test_tensor_parallel_over_two_nodes() -> None:
    found = one(family_spans(selene(4), np.arange(32).reshape(2, 16)))
    assert (found.tier, found.nodes, found.ranks_per_node) == ("leaf", 2, 8)
    assert found.inter_bytes_per_s == 8 * 25e9


def test_data_parallel_of_the_1_7b_model() -> None:
    """SC21 Table 1, first row: 32 ranks over 4 nodes use all eight NICs of each: 200 GB/s."""
    found = span(selene(4), range(32))
    assert found.inter_bytes_per_s == 200e9
    assert found.nic_bytes_per_s == 25e9
    assert found.intra_bytes_per_s == 300e9


@pytest.mark.parametrize(("tp", "nics"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_data_parallel_beside_tensor_parallel(tp: int, nics: int) -> None:
    """With TP in the node each DP group has 8/TP ranks per node and as many NICs."""
    found = one(family_spans(selene(4), data_parallel(32, tp)))
    assert found.inter_bytes_per_s == nics * 25e9
    assert found.sharing == 1.0


def test_four_nics_are_halved() -> None:
    """Eight DP groups on four NICs: half a NIC each; alone, a group has a whole one."""
    cluster = hdr4_a100(4)
    found = one(family_spans(cluster, data_parallel(32, 8)))
    assert found.inter_bytes_per_s == 12.5e9
    assert found.sharing == 2.0
    assert span(cluster, range(0, 32, 8)).inter_bytes_per_s == 25e9
    assert span(cluster, range(32)).inter_bytes_per_s == 100e9


def test_gpus_per_node_scale_the_bandwidth() -> None:
    """NCCL issue 1168: 4 GPUs per node reach half of what 8 do; rings use the NICs near the GPUs."""
    cluster = selene(4)
    half = [8 * node + gpu for node in range(4) for gpu in range(4)]
    assert span(cluster, half).inter_bytes_per_s * 2 == span(cluster, range(32)).inter_bytes_per_s


def test_sc21_1t() -> None:
    """TP8 DP6 PP64 on 3,072 GPUs: every group has its rail; only the length of the path differs."""
    cluster = selene(384)
    ranks = np.arange(3072).reshape(64, 6, 8)
    gradients = family_spans(cluster, ranks.transpose(0, 2, 1).reshape(-1, 6))
    assert len(gradients) == 512
    assert {found.inter_bytes_per_s for found in gradients} == {25e9}
    assert {found.tier for found in gradients} == {"leaf", "spine", "core"}
    waits = {found.tier: found.inter_latency_s for found in gradients}
    assert waits["leaf"] < waits["spine"] < waits["core"] < 3e-6
    assert one(family_spans(cluster, ranks.reshape(-1, 8))).tier == "nvlink"


def test_equal_groups_share_one_object() -> None:
    spans = family_spans(selene(4), data_parallel(32, 8))
    assert len({id(found) for found in spans}) == 1


def test_pairs_as_ring_and_as_chain() -> None:
    """All neighbours of a pipeline at once: both ways halve a NIC in the middle, one way does not."""
    cluster = selene(4)
    stages = np.arange(32).reshape(4, 8)
    pairs = np.stack([stages[:-1], stages[1:]], axis=-1).reshape(-1, 2)
    both = family_spans(cluster, pairs)
    assert {found.inter_bytes_per_s for found in both} == {12.5e9}
    forward = one(family_spans(cluster, pairs, pattern="chain"))
    assert forward.inter_bytes_per_s == 25e9
    boundary = one(family_spans(cluster, pairs[:8]))
    assert boundary.inter_bytes_per_s == 25e9


def oversubscribed(leaf: float, spine: float, levels: int) -> Cluster:
    """Two units of two nodes, and two more in another pod where there are three levels."""
    parts = load_catalog()
    design = usual_node(NodeRequest("H100-80GB-SXM", 8, 8, nic="NDR400-IB"), parts)
    tree = replace(
        fat_tree_for(design.nic, 8, parts),
        levels=levels,
        nodes_per_unit=2,
        units_per_pod=2 if levels == 3 else None,
        oversubscription=(leaf, spine),
    )
    return tree_cluster("oversubscribed", design, 8, tree)


def test_oversubscribed_leaf_is_shared() -> None:
    """Two nodes on a leaf with one uplink: the groups that leave the unit get half of it."""
    cluster = oversubscribed(2.0, 1.0, 2)
    groups = np.stack([np.arange(0, 16), np.arange(16, 32)], axis=1)
    found = one(family_spans(cluster, groups))
    assert (found.tier, found.inter_bytes_per_s, found.sharing) == ("spine", 25e9, 2.0)
    alone = one(family_spans(cluster, groups[:8]))
    assert (alone.inter_bytes_per_s, alone.sharing) == (50e9, 1.0)
    inside = np.stack([np.arange(0, 8), np.arange(8, 16)], axis=1)
    assert one(family_spans(cluster, inside)).inter_bytes_per_s == 50e9


def test_oversubscribed_core_is_shared() -> None:
    """As between the pods of Llama 3's cluster: half of the four flows per rail fit above the spines."""
    cluster = oversubscribed(1.0, 2.0, 3)
    across = np.stack([np.arange(0, 32), np.arange(32, 64)], axis=1)
    found = one(family_spans(cluster, across))
    assert (found.tier, found.inter_bytes_per_s, found.sharing) == ("core", 25e9, 2.0)


def test_misaligned_groups() -> None:
    """TP6 straddles nodes: the group's narrowest boundary decides, and rails are reached over NVLink."""
    found = family_spans(selene(3), np.arange(24).reshape(4, 6))
    assert [group.nodes for group in found] == [1, 2, 2, 1]
    assert [group.inter_bytes_per_s for group in found] == [0.0, 50e9, 50e9, 0.0]
    assert found[1].tier == "leaf"


def test_match_rails() -> None:
    assert match_rails((0, 1, 2), (0, 1, 2)) == ([0, 1, 2], [0, 1, 2])
    assert match_rails((0, 1, -1), (1, 2, -1)) == ([0, 1], [1, 0])
    assert match_rails((6, 7), (0, 1, 2, 3)) == ([0, 1], [0, 1])
    assert match_rails((3, -1), (0, 3)) == ([0], [1])


def test_one_gpu_is_a_span_of_itself() -> None:
    found = span(selene(1), [3])
    assert (found.tier, found.ranks, found.nodes, found.inter_bytes_per_s) == ("self", 1, 1, 0.0)


def test_mesh_of_a_dgx1() -> None:
    """nvidia-smi topo -m of a DGX-1: GPU 0 has one link to GPU 1, two to GPU 3, none to GPU 5."""
    cluster = node_cluster(usual_node(NodeRequest("V100-16GB-SXM", 8)), 1)
    assert span(cluster, range(8)).intra_bytes_per_s == 150e9
    assert span(cluster, [0, 1]).intra_bytes_per_s == 25e9
    assert span(cluster, [0, 3]).intra_bytes_per_s == 50e9
    far = span(cluster, [0, 5])
    assert far.tier == "pcie"
    assert far.intra_bytes_per_s < 25e9


def test_bus_limits_a_gpu_with_two_nics() -> None:
    """Two HDR NICs (50 GB/s) behind one PCIe 4 x16 slot: the slot is the limit."""
    cluster = node_cluster(usual_node(NodeRequest("A100-80GB-SXM", 8, 16, nic="HDR200-IB")), 2)
    assert span(cluster, [0, 8]).inter_bytes_per_s == pytest.approx(31.508e9)


def test_sixteen_thousand_gpus_cost_as_many_objects_as_classes() -> None:
    cluster = node_cluster(usual_node(NodeRequest("H100-80GB-SXM", 8)), 2048)
    ranks = np.arange(16384).reshape(16, 128, 8)
    spans = family_spans(cluster, ranks.transpose(0, 2, 1).reshape(-1, 128))
    assert len(spans) == 128
    assert len({id(found) for found in spans}) == len(set(spans)) <= 3


def test_no_groups() -> None:
    assert family_spans(selene(1), np.zeros((0, 4), dtype=np.int64)) == ()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([[0, 32]], "GPU 32 of a group is not in selene, which has 32"),
        ([[-1, 3]], "GPU -1"),
        ([[4, 4]], "twice"),
        ([0, 1], "shape"),
        ([[0.5, 1.0]], "whole numbers"),
        (np.zeros((3, 0), dtype=np.int64), "shape"),
    ],
)
def test_refusals(groups: npt.ArrayLike, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        family_spans(selene(4), groups)
