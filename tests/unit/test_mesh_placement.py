"""Nodes and hops: 16 ranks TP2 PP4 DP2 on 8-GPU nodes (0 -> 4 stays, 4 -> 8 leaves), and placements."""

import numpy as np
import pytest

from traincast.errors import ShapeError
from traincast.mesh import Mesh, nodes_of_ranks, spreads, stage_hops
from traincast.mesh.placement import spread


def by_family(mesh, gpus_per_node):
    return {one.family: one for one in spreads(mesh, nodes_of_ranks(mesh, gpus_per_node))}


def test_pipeline_hops_of_the_16_rank_case():
    mesh = Mesh(tp=2, pp=4, dp=2)
    hops = stage_hops(mesh, nodes_of_ranks(mesh, 8))
    assert [(hop.from_rank, hop.to_rank, hop.tier) for hop in hops] == [
        (0, 4, "node"),
        (4, 8, "network"),
        (8, 12, "node"),
    ]
    assert [(hop.in_node, hop.across) for hop in hops] == [(4, 0), (0, 4), (4, 0)]
    wrapped = stage_hops(mesh, nodes_of_ranks(mesh, 8), wrap=True)
    assert (wrapped[-1].from_rank, wrapped[-1].to_rank, wrapped[-1].tier) == (12, 0, "network")


def test_tiers_of_the_16_rank_case():
    families = by_family(Mesh(tp=2, pp=4, dp=2), 8)
    assert {name: one.tier for name, one in families.items()} == {
        "tp": "node",
        "cp": "self",
        "pp": "network",
        "dp": "node",
        "dp-cp": "node",
        "tp-pp": "network",
        "embedding": "network",
    }
    pp = families["pp"]
    assert (pp.hops_in_node, pp.hops_across, pp.most_nodes, pp.most_ranks_on_a_node) == (8, 4, 2, 2)


def test_tp_that_straddles_nodes_shows():
    # tp 5 on 8-GPU nodes: the second group of eight ranks is split
    families = by_family(Mesh(tp=5, dp=8), 8)
    assert families["tp"].tier == "network"
    assert families["tp"].groups_in_node == 4  # ranks 0-4, 10-14, 25-29 and 35-39 of 40 lie on one node


def test_placement_moves_groups_between_nodes():
    identity = Mesh(tp=2, dp=4)
    apart = Mesh(tp=2, dp=4, placement=(0, 4, 1, 5, 2, 6, 3, 7))
    assert by_family(identity, 4)["tp"].tier == "node"
    assert by_family(apart, 4)["tp"].tier == "network"
    assert by_family(apart, 4)["dp"].tier == "node"


def test_a_ring_of_two_has_one_hop_and_a_chain_no_way_back():
    assert spread("x", np.array([[0, 1]])).hops_across == 1
    ring, chain = spread("x", np.array([[0, 0, 1]])), spread("x", np.array([[0, 0, 1]]), ring=False)
    assert (ring.hops_in_node, ring.hops_across) == (1, 2)
    assert (chain.hops_in_node, chain.hops_across) == (1, 1)


def test_mixed_hops_say_both():
    # 3 stages of 2 ranks on 3-GPU nodes: one pipeline stays where the other leaves
    hops = stage_hops(Mesh(tp=2, pp=3), nodes_of_ranks(Mesh(tp=2, pp=3), 3))
    assert [hop.tier for hop in hops] == ["node and network", "node and network"]


def test_nodes_have_gpus():
    with pytest.raises(ShapeError, match="0 GPUs per node"):
        nodes_of_ranks(Mesh(), 0)
