"""Degraded clusters: what a fault costs the groups that it touches, and nothing to the others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.errors import TopologyError, UserError
from traincast.topology import (
    Change,
    Cluster,
    NodeRequest,
    degraded,
    family_spans,
    load_cluster,
    node_cluster,
    route,
    selene,
    span,
    usual_node,
    without_nodes,
)
from traincast.topology.clusters import fat_tree_for, tree_cluster
from traincast.topology.degrade import first_nodes, ranges_text
from traincast.topology.summary import summarise

TREE = "builder: fat_tree\nnodes: 10\nnode: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}\n"


def by_rail(cluster: Cluster, nodes: int) -> np.ndarray:
    """DP groups beside TP 8: GPU r of every node."""
    return np.arange(8 * nodes).reshape(nodes, 8).T


def four_uplinks() -> Cluster:
    """Two units of four nodes; a leaf has four uplinks to as many spines or fewer."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, 8, nic="HDR200-IB"), parts)
    tree = fat_tree_for(design.nic, 8, parts)
    return tree_cluster("small", design, 8, replace(tree, levels=2, nodes_per_unit=4))


def test_nothing_changes_the_original() -> None:
    whole = selene(4)
    before = dict(whole.graph.edges["n0/nic3", "su0/leaf3"])
    changed = degraded(whole, [Change("slow_nic", "n0/nic3", rate=0.5), Change("dead_gpu", "n1/gpu0")])
    assert dict(whole.graph.edges["n0/nic3", "su0/leaf3"]) == before
    assert len(whole.gpus) == 32
    assert len(changed.gpus) == 31
    assert degraded(whole, []) is whole


def test_a_nic_at_half_speed_halves_its_group_and_no_other() -> None:
    whole = selene(4)
    groups = by_rail(whole, 4)
    slow = family_spans(degraded(whole, [Change("slow_nic", "n0/nic3", rate=0.5)]), groups)
    for rail, (now, before) in enumerate(zip(slow, family_spans(whole, groups), strict=True)):
        if rail == 3:
            assert now.inter_bytes_per_s == before.inter_bytes_per_s / 2
        else:
            assert now == before


def test_a_group_on_all_nics_keeps_step_with_the_slow_one() -> None:
    whole = selene(4)
    slow = degraded(whole, [Change("slow_nic", "n0/nic3", rate=0.5)])
    assert span(slow, range(16)).inter_bytes_per_s == span(whole, range(16)).inter_bytes_per_s / 2
    assert span(slow, range(8, 24)) == span(whole, range(8, 24))


def test_one_uplink_of_four_cut() -> None:
    """Groups that leave the unit by that leaf share three quarters; groups inside the unit and other rails do not."""
    whole = four_uplinks()
    cut = degraded(whole, [Change("cut_uplinks", "su0/leaf1", count=1)])
    pairs = np.stack([np.arange(32), np.arange(32, 64)], axis=1)
    now, before = family_spans(cut, pairs), family_spans(whole, pairs)
    for gpu in range(32):
        share = 0.75 if gpu % 8 == 1 else 1.0
        assert now[gpu].inter_bytes_per_s == before[gpu].inter_bytes_per_s * share
    inside = by_rail(whole, 4)
    assert family_spans(cut, inside) == family_spans(whole, inside)


def test_uplinks_of_a_spine() -> None:
    whole = selene(280)
    cut = degraded(whole, [Change("cut_uplinks", "spine0", count=7)])
    assert cut.fabric.block_up_bytes_per_s.min() == whole.fabric.block_up_bytes_per_s.min() - 7 * 25e9
    assert cut.assumptions[-1].startswith("degraded: spine0 lost 7 of 14 uplinks: 175 GB/s of 350 GB/s (-50 %)")


def test_a_leaf_that_loses_one_spine_keeps_its_block() -> None:
    """The first leaf of a block no longer knows all spines; the block's uplinks stay what they are."""
    whole = selene(280)
    changed = degraded(whole, [Change("missing_cable", "su0/leaf0", "spine0")])
    assert changed.fabric.block_up_bytes_per_s.tolist() == whole.fabric.block_up_bytes_per_s.tolist()
    assert changed.fabric.leaf_up_bytes_per_s[0] == whole.fabric.leaf_up_bytes_per_s[0] * 0.9


def test_a_missing_cable_sends_its_gpu_to_a_neighbour() -> None:
    """GPU 2 of node 1 takes NIC 3, which GPU 3 uses as well: half a NIC each; the other rails lose nothing."""
    whole = selene(4)
    changed = degraded(whole, [Change("missing_cable", "n1/nic2", "su0/leaf2")])
    groups = by_rail(whole, 4)
    now, before = family_spans(changed, groups), family_spans(whole, groups)
    assert [rail for rail in range(8) if now[rail] != before[rail]] == [2, 3]
    assert {now[2].inter_bytes_per_s, now[3].inter_bytes_per_s} == {12.5e9}
    assert "n1/nic3" in route(changed, 10, 2).hops


def test_a_gpu_without_any_cable_is_refused() -> None:
    changed = degraded(
        node_cluster(usual_node(NodeRequest("A100-80GB-SXM", 8, 1)), 2),
        [Change("missing_cable", "n1/nic0", "su0/leaf0")],
    )
    with pytest.raises(TopologyError, match="n1/gpu0 has no NIC"):
        span(changed, range(16))


def test_dead_gpus_are_skipped() -> None:
    """Ranks go on with the next GPU: TP 8 then straddles nodes. NICs stay with those that had them."""
    changed = degraded(selene(4), [Change("dead_gpu", "n0/gpu5")])
    assert len(changed.gpus) == 31
    assert "n0/gpu5" not in changed.gpus
    assert np.bincount(changed.node_index).tolist() == [7, 8, 8, 8]
    assert span(changed, range(8)).nodes == 2
    assert [len(row[row >= 0]) for row in changed.fabric.gpu_nics] == [1] * 31
    assert span(changed, range(7)).inter_bytes_per_s == 0.0
    assert summarise(changed).parts["gpu"] == 31


def test_node_lists_with_gaps() -> None:
    changed = without_nodes(selene(6), [1, 3])
    assert changed.nodes == 4
    assert np.unique(changed.node_index).tolist() == [0, 2, 4, 5]
    assert changed.assumptions[-1] == "nodes 1, 3 are not used (16 GPUs)"
    assert span(changed, range(0, 32, 8)) == span(selene(6), [0, 16, 32, 40])


def test_slow_gpus() -> None:
    whole = selene(2)
    changed = degraded(whole, [Change("slow_gpu", "n1/gpu0", rate=0.9)])
    assert whole.gpu_speed.tolist() == [1.0] * 16
    assert changed.gpu_speed.tolist() == [*[1.0] * 8, 0.9, *[1.0] * 7]
    with pytest.raises(ValueError, match="read-only"):
        changed.gpu_speed[0] = 0.5
    assert family_spans(changed, by_rail(changed, 2)) == family_spans(whole, by_rail(whole, 2))


def test_a_slow_link_inside_one_node_leaves_its_likes_alone() -> None:
    """Equal nodes are worked out once; the one with the slow bus is no longer equal."""
    whole = load_cluster("pcie_box")
    changed = degraded(whole, [Change("slow_link", "n1/cpu0", "n1/cpu1", rate=0.5)])
    groups = np.arange(32).reshape(4, 8)
    rates = [found.intra_bytes_per_s for found in family_spans(changed, groups)]
    assert rates == [24e9, 12e9, 24e9, 24e9]


def test_first_nodes() -> None:
    cut = first_nodes(degraded(selene(4), [Change("dead_gpu", "n0/gpu0")]), 8)
    assert (cut.nodes, len(cut.gpus)) == (2, 15)
    with pytest.raises(TopologyError, match="has 15 GPUs, 16 are asked for"):
        first_nodes(cut, 16)


def test_ranges_text() -> None:
    assert ranges_text([9, 3, 10, 11, 3]) == "3, 9-11"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change("slow_nic", "n0/nic9", rate=0.5), "no nic 'n0/nic9'"),
        (Change("slow_nic", "n0/gpu0", rate=0.5), "no nic 'n0/gpu0'"),
        (Change("slow_nic", "n0/nic0", rate=0.0), "at 0 of its rate"),
        (Change("slow_nic", "n0/nic0", rate=1.5), "at 1.5 of its rate"),
        (Change("slow_gpu", "n9/gpu0", rate=0.5), "no gpu"),
        (Change("cut_uplinks", "su0/leaf0", count=99), "99 uplinks of su0/leaf0 cut, which has 20"),
        (Change("cut_uplinks", "n0/nic0"), "no leaf or spine"),
        (Change("missing_cable", "n0/nic0", "su0/leaf1"), "are not joined"),
        (Change("absent_node", "n9"), "no node 'n9'"),
        (Change("absent_node", "rack"), "no node 'rack'"),
    ],
)
def test_refusals(change: Change, words: str) -> None:
    with pytest.raises(TopologyError, match=words) as caught:
        degraded(selene(4), [change])
    assert caught.value.fix


def test_no_gpu_left() -> None:
    with pytest.raises(TopologyError, match="has no GPU"):
        without_nodes(selene(2), [0, 1])


WRONG = """\
degraded:
  - {nic: n0/nic3, rate: 50 %}
  - {gpu: n4/gpu0, speed: 90 %}
  - {leaf: su0/leaf1, uplinks_cut: 5}
  - {link: [su0/leaf2, spine0], rate: 0.25}
  - {missing_cable: [n1/nic2, su0/leaf2]}
dead_gpus: [n2/gpu5]
absent_nodes: [3, 7-8]
"""


def test_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "worn.yaml"
    path.write_text(TREE + WRONG)
    cluster = load_cluster(str(path))
    assert len(cluster.gpus) == 80 - 1 - 24
    assert cluster.graph.edges["n0/nic3", "su0/leaf3"]["bandwidth_bytes_per_s"] == 12.5e9
    assert sorted(set(cluster.gpu_speed.tolist())) == [0.9, 1.0]
    lost = [note for note in cluster.assumptions if note.startswith(("degraded", "nodes"))]
    assert len(lost) == 7
    assert "degraded: n0/nic3 carries 12.5 GB/s of 25.0 GB/s (-50 %)" in lost
    assert lost[-1] == "nodes 3, 7-8 are not used (24 GPUs)"
    cut = load_cluster(str(path), gpus=20)
    assert np.unique(cut.node_index).tolist() == [0, 1, 2]
    assert len(cut.gpus) == 23


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("degraded:\n  - {nic: n0/nic3}\n", ":5:5: ", "{nic} does not say one thing"),
        ("degraded:\n  - {nic: n0/nic3, speed: 90 %}\n", ":5:5: ", "write one of {nic, rate}"),
        ("degraded:\n  - {nic: n0/nic3, rate: 50 GB/s}\n", ":5:26: ", "is a bandwidth, not a ratio"),
        ("degraded:\n  - {nik: n0/nic3, rate: 50 %}\n", ":5:6: ", "did you mean nic"),
        ("degraded:\n  - {nic: n0/nic13, rate: 50 %}\n", ":5:5: ", "no nic 'n0/nic13'"),
        ("degraded:\n  - {missing_cable: [n0/nic1]}\n", ":5:21: ", "more entries"),
        ("dead_gpus: [n0/gpu8]\n", ":4:13: ", "no gpu 'n0/gpu8'"),
        ("absent_nodes: [3-1]\n", ":4:16: ", "write 3 or 9-11"),
        ("absent_nodes: [1, 12]\n", ":4:19: ", "no node 'n12'"),
    ],
)
def test_mistakes_have_a_place(tmp_path: Path, text: str, place: str, words: str) -> None:
    path = tmp_path / "worn.yaml"
    path.write_text(TREE + text)
    with pytest.raises(UserError) as caught:
        load_cluster(str(path))
    assert str(caught.value).startswith(f"{path}{place}"), caught.value
    assert words in str(caught.value)


def test_a_defect_on_a_node_that_is_not_used_is_refused() -> None:
    """Nothing could show it; a defect on another node stays."""
    absent = Change("absent_node", "n1")
    with pytest.raises(TopologyError, match="n1/nic0 is on node 1, which is not used"):
        degraded(selene(4), [Change("slow_nic", "n1/nic0", 0.5), absent])
    assert len(degraded(selene(4), [Change("slow_nic", "n2/nic0", 0.5), absent]).losses) == 2
