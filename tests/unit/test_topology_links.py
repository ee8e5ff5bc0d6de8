"""Directed links by number: against routes over the graph, and against the static share of spans."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.errors import TopologyError
from traincast.topology import Cluster, NodeRequest, family_spans, make_cluster, route, usual_node
from traincast.topology.clusters import fat_tree_for, tree_cluster
from traincast.topology.links import LinkTable, Spread, group_links, lane_links, link_table

NODES, GPUS = 12, 8
ECMP = Spread("ecmp", flows=1)


@cache
def cluster(nics: int = 8, leaf: float = 1.0, levels: int = 3) -> Cluster:
    """Twelve nodes in units of three, two units to a pod."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", GPUS, nics, nic="HDR200-IB"), parts)
    tree = fat_tree_for(design.nic, nics, parts)
    pods = 2 if levels == 3 else None
    tree = replace(tree, levels=levels, nodes_per_unit=3, units_per_pod=pods, oversubscription=(leaf, 1.0))
    return tree_cluster("small", design, NODES, tree)


def names(table: LinkTable, a: int, b: int, channel: int = 0) -> list[str]:
    found = group_links(table, [[a, b]], ring=False, channel=channel)
    assert found.lanes.tolist() == [1]
    return [table.name(link) for link in found.link.tolist()]


def test_links_of_a_message_are_those_of_its_route() -> None:
    """NIC out and in; above the leaf the bundle up and down; between pods the block's; and both GPUs' buses."""
    table = link_table(cluster())
    ends = {"n0/nic0 out", "n0/gpu0 bus out"}
    assert set(names(table, 0, 8)) == ends | {"n1/nic0 in", "n1/gpu0 bus in"}
    unit = {"su0/leaf0 up", "su1/leaf0 down", "n3/nic0 in", "n3/gpu0 bus in"}
    assert set(names(table, 0, 24)) == ends | unit
    pod = {"su0/leaf0 up", "su2/leaf0 down", "block0 up", "block8 down", "n6/nic0 in", "n6/gpu0 bus in"}
    assert set(names(table, 0, 48)) == ends | pod
    for goal, tier in ((8, "leaf"), (24, "spine"), (48, "core")):
        assert route(cluster(), 0, goal).tier == tier


def test_a_group_inside_a_node_uses_none() -> None:
    found = group_links(link_table(cluster()), [[0, 1, 2], [8, 9, 16]])
    assert found.lanes[0] == 0
    assert set(found.group.tolist()) == {1}


@pytest.mark.parametrize("nics", [8, 4])
@pytest.mark.parametrize("leaf", [1.0, 3.0])
@pytest.mark.parametrize("levels", [2, 3])
def test_static_share_of_spans_is_the_max_min_level(nics: int, leaf: float, levels: int) -> None:
    """Two ways to the same rate: counting flows link by link, and the spans. Rings of whole nodes and of one GPU."""
    world = cluster(nics, leaf, levels)
    table = link_table(world)
    order = np.random.default_rng(nics + levels).permutation(NODES)
    rings = np.array([[node * GPUS + gpu for node in np.roll(order, gpu)] for gpu in range(GPUS)])
    whole = (order.reshape(3, 4)[:, :, None] * GPUS + np.arange(GPUS)).reshape(3, -1)
    for groups in (rings, whole):
        found = group_links(table, groups)
        load = np.bincount(found.link, weights=found.weight, minlength=len(table.bytes_per_s))
        level = table.bytes_per_s[found.link] / load[found.link]
        for index, span in enumerate(family_spans(world, groups)):
            share = found.lanes[index] * level[found.group == index].min()
            assert span.inter_bytes_per_s == pytest.approx(share, rel=1e-12)


def test_cables_lead_from_end_to_end() -> None:
    """ECMP: one cable at each level, each of which begins where the one before ended."""
    world = cluster()
    table = link_table(world, ECMP)
    cables = table.cables
    assert cables is not None
    fabric = world.fabric
    rng = np.random.default_rng(1)
    out, into = (rng.integers(0, len(fabric.nic_keys), 400) for _ in range(2))
    lane, link = lane_links(table, out, into, channel=rng.integers(0, 99, 400))
    for number in range(400):
        steps = {}
        for index in link[lane == number].tolist():
            section, first = [(name, begin) for name, begin in table.first.items() if begin <= index][-1]
            steps[section] = index - first
        leaf_out, leaf_in = fabric.nic_leaf[[out[number], into[number]]]
        assert (len(steps) == 2) == (leaf_out == leaf_in)
        if leaf_out == leaf_in:
            continue
        up, down = steps["leaf up"], steps["leaf down"]
        assert cables.leaf_low[[up, down]].tolist() == [leaf_out, leaf_in]
        if fabric.leaf_block[leaf_out] == fabric.leaf_block[leaf_in]:
            assert cables.leaf_high[up] == cables.leaf_high[down]
            continue
        climb, fall = steps["block up"], steps["block down"]
        assert cables.spine_low[[climb, fall]].tolist() == cables.leaf_high[[up, down]].tolist()
        assert cables.spine_high[climb] == cables.spine_high[fall]


def test_cables_add_up_to_the_bundles() -> None:
    bundles, cables = link_table(cluster()), link_table(cluster(), ECMP)
    assert cables.bytes_per_s.sum() == pytest.approx(bundles.bytes_per_s.sum(), rel=1e-12)
    data = cluster().graph.nodes
    wires = sum(
        edge["links"]
        for *ends, edge in cluster().graph.edges(data=True)
        if any(data[end]["kind"] == "spine" for end in ends)
    )
    switches = len(cluster().fabric.leaf_keys) + len(cluster().fabric.block_up_bytes_per_s)
    assert len(cables.bytes_per_s) - len(bundles.bytes_per_s) == 2 * (wires - switches)


def test_the_hash_spreads_and_depends_on_seed_and_channel() -> None:
    """Of 2,400 messages between two leaves the busiest of 3 cables carries no more than 10 % above its share."""
    table = link_table(cluster(), ECMP)
    count = 2400
    out, into = np.zeros(count, dtype=np.int64), np.full(count, 24)
    _, links = lane_links(table, out, into, channel=np.arange(count))
    used = Counter(name for link in links.tolist() if "cable" in (name := table.name(link)) and name.endswith("up"))
    assert len(used) == 3
    assert max(used.values()) < 1.1 * count / 3
    other = link_table(cluster(), Spread("ecmp", seed=7, flows=1))
    assert any(names(table, 0, 24, c) != names(other, 0, 24, c) for c in range(9))
    assert names(table, 0, 24, 5) == names(link_table(cluster(), ECMP), 0, 24, 5)


def test_a_cut_cable_is_passed_by() -> None:
    """With one spine cut off from the target's leaf, flows take the other ones; with all cut, there is no way."""
    graph = cluster(levels=2).graph.copy()
    spines = [key for key in graph["su1/leaf0"] if graph.nodes[key]["kind"] == "spine"]
    graph.remove_edge("su1/leaf0", spines[0])
    table = link_table(make_cluster("cut", graph), ECMP)
    for channel in range(50):
        ways = [name for name in names(table, 0, 24, channel) if "cable" in name]
        assert len(ways) == 2
        assert not any(f"-{spines[0]} " in name for name in ways)
    for spine in spines[1:]:
        graph.remove_edge("su1/leaf0", spine)
    lost = link_table(make_cluster("cut off", graph), ECMP)
    out, into = np.array([0]), np.array([24])
    with pytest.raises(TopologyError, match="su0/leaf0 and su1/leaf0 have no switch above them in common"):
        lane_links(lost, out, into)


def test_an_uplink_is_counted_as_often_as_a_ring_passes_it() -> None:
    ring = np.array([[0, 24, 8, 32]])  # leaf 0 of unit 0, of unit 1, and again
    table = link_table(cluster())
    found = group_links(table, ring)
    weight = {table.name(link): w for link, w in zip(found.link.tolist(), found.weight.tolist(), strict=True)}
    assert weight["su0/leaf0 up"] == weight["su1/leaf0 down"] == 2.0
    assert weight["n0/nic0 out"] == 1.0
    hops = [route(cluster(), a, b).hops for a, b in pairwise([*ring[0].tolist(), 0])]
    assert sum("su0/leaf0" in path for path in hops) == 4
