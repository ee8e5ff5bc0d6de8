"""Laws of degraded clusters, link loads, checks and PCIe boxes on random faults and groups."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.catalog import load_catalog
from traincast.topology import Change, Cluster, NodeRequest, degraded, family_spans, node_cluster, route, usual_node
from traincast.topology.check import check_cluster
from traincast.topology.clusters import fat_tree_for, tree_cluster
from traincast.topology.links import group_links, link_table
from traincast.topology.loads import FamilyTraffic, link_loads

NODES, GPUS = 12, 8


@cache
def cluster(nics: int = 8, leaf: float = 1.0, levels: int = 2) -> Cluster:
    """Twelve nodes in units of three, two units to a pod."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", GPUS, nics, nic="HDR200-IB"), parts)
    tree = fat_tree_for(design.nic, nics, parts)
    pods = 2 if levels == 3 else None
    tree = replace(tree, levels=levels, nodes_per_unit=3, units_per_pod=pods, oversubscription=(leaf, 1.0))
    return tree_cluster("small", design, NODES, tree)


@cache
def box(bridges: bool) -> Cluster:
    return node_cluster(usual_node(NodeRequest("A100-80GB-PCIe", 8, 4, nvlink_bridges=bridges)), 1)


clusters = st.builds(cluster, st.sampled_from([4, 8]), st.sampled_from([1.0, 3.0]), st.sampled_from([2, 3]))
families = st.integers(2, 6).flatmap(
    lambda size: st.permutations(range(NODES * GPUS)).map(
        lambda gpus: np.array(gpus[: NODES * GPUS // size // 2 * size]).reshape(-1, size)
    )
)
slow_nics = st.builds(
    lambda node, nic, rate: Change("slow_nic", f"n{node}/nic{nic}", rate=rate),
    st.integers(0, NODES - 1),
    st.integers(0, 3),
    st.sampled_from([0.25, 0.5, 0.9]),
)
cuts = st.builds(lambda unit, leaf: Change("cut_uplinks", f"su{unit}/leaf{leaf}"), st.integers(0, 3), st.integers(0, 3))


@settings(max_examples=40, deadline=None)
@given(clusters, families, slow_nics)
def test_a_slow_nic_touches_the_groups_that_use_it_and_no_other(
    world: Cluster, groups: np.ndarray, change: Change
) -> None:
    worn = degraded(world, [change])
    table = link_table(world)
    nic = world.fabric.nic_keys.index(change.part)
    used = group_links(table, groups)
    ports = np.isin(used.link, [table.first["nic out"] + nic, table.first["nic in"] + nic])
    touched = set(used.group[ports].tolist())
    for number, (now, before) in enumerate(zip(family_spans(worn, groups), family_spans(world, groups), strict=True)):
        if number in touched:
            assert now.inter_bytes_per_s <= before.inter_bytes_per_s
            assert now.nic_bytes_per_s <= before.nic_bytes_per_s
        else:
            assert now == before


@settings(max_examples=40, deadline=None)
@given(clusters, families, st.lists(slow_nics | cuts, min_size=1, max_size=3, unique_by=lambda change: change.part))
def test_what_is_worn_is_never_faster(world: Cluster, groups: np.ndarray, changes: list[Change]) -> None:
    up = world.fabric.leaf_up_bytes_per_s.min() / 25e9
    kept = [change for change in changes if change.kind != "cut_uplinks" or up > 1]
    worn = degraded(world, kept)
    for now, before in zip(family_spans(worn, groups), family_spans(world, groups), strict=True):
        assert now.inter_bytes_per_s <= before.inter_bytes_per_s
        assert (now.nodes, now.tier, now.intra_bytes_per_s) == (before.nodes, before.tier, before.intra_bytes_per_s)


@settings(max_examples=30, deadline=None)
@given(clusters, families, st.integers(0, NODES * GPUS - 1))
def test_a_dead_gpu_changes_nothing_for_groups_without_it(world: Cluster, groups: np.ndarray, dead: int) -> None:
    kept = groups[(groups != dead).all(axis=1)]
    worn = degraded(world, [Change("dead_gpu", world.gpus[dead])])
    assert family_spans(worn, kept - (kept > dead)) == family_spans(world, kept)


@settings(max_examples=30, deadline=None)
@given(clusters, families, st.booleans())
def test_what_leaves_a_nic_enters_another(world: Cluster, groups: np.ndarray, ring: bool) -> None:
    """Bytes out of NICs are bytes into NICs: once a boundary between two nodes of a group, for each group."""
    sent = np.arange(1.0, len(groups) + 1)
    loads = link_loads(world, [FamilyTraffic("random", groups, sent, ring)])
    nics = len(world.fabric.nic_keys)
    out, into = (loads.bytes[0, loads.first(kind) :][:nics].sum() for kind in ("nic out", "nic in"))
    nodes = np.array([span.nodes for span in family_spans(world, groups)])
    edges = np.where(nodes > 1, nodes - (not ring), 0)
    assert out == pytest.approx(into)
    assert out == pytest.approx(float((edges * sent).sum()))
    up, down = (loads.first("leaf up"), loads.first("leaf down"))
    leaves = len(world.fabric.leaf_keys)
    assert loads.bytes[0, up : up + leaves].sum() == pytest.approx(loads.bytes[0, down : down + leaves].sum())


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.permutations(range(8)), st.sampled_from([(2, 2, 2, 2), (4, 4), (3, 3), (2, 2), (8,)]))
def test_pcie_share_by_counting_links(bridges: bool, order: list[int], sizes: tuple[int, ...]) -> None:
    """Rings in physical order, counted link by link along the routes; bridged pairs have their bridge alone."""
    world = box(bridges)
    ends = np.cumsum(sizes)
    groups = [sorted(order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]
    paths = {
        number: [route(world, a, b).hops for a, b in pairwise([*group, group[0]])]
        for number, group in enumerate(groups)
        if not (bridges and len(group) == 2 and group[0] // 2 == group[1] // 2)
    }
    load = Counter(pair for hops in paths.values() for path in hops for pair in pairwise(path))
    for number, found in enumerate(family_spans(world, np.array(groups))):
        if number not in paths:
            assert (found.tier, found.intra_bytes_per_s) == ("nvlink", 300e9)
            continue
        edges = world.graph.edges
        rates = [edges[p]["bandwidth_bytes_per_s"] / load[p] for path in paths[number] for p in pairwise(path)]
        assert found.intra_bytes_per_s == min(rates)
        assert found.tier == "pcie"


faults = st.one_of(
    slow_nics,
    cuts,
    st.builds(
        lambda node, rail: Change("missing_cable", f"n{node}/nic{rail}", f"su{node // 3}/leaf{rail}"),
        st.integers(0, NODES - 1),
        st.integers(0, 3),
    ),
    st.builds(lambda n, g: Change("dead_gpu", f"n{n}/gpu{g}"), st.integers(0, 11), st.integers(0, 7)),
    st.builds(lambda n, g: Change("slow_gpu", f"n{n}/gpu{g}", rate=0.8), st.integers(0, 11), st.integers(0, 7)),
)


@settings(max_examples=60, deadline=None)
@given(clusters, faults)
def test_a_fault_is_found_and_named(world: Cluster, fault: Change) -> None:
    assert check_cluster(world) == ()
    findings = check_cluster(degraded(world, [fault]))
    assert fault.part in {finding.part for finding in findings}
    assert all(finding.loss for finding in findings)
    serious = fault.kind in ("missing_cable", "cut_uplinks")
    assert any(finding.severity == "error" for finding in findings) == serious
