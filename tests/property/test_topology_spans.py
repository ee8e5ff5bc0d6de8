"""Laws of spans on random groups: what names and orders must not change, and the static share itself."""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.catalog import load_catalog
from traincast.topology import Cluster, NodeRequest, family_spans, route, span, usual_node
from traincast.topology.clusters import fat_tree_for, tree_cluster

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


clusters = st.builds(cluster, st.sampled_from([4, 8]), st.sampled_from([1.0, 3.0]), st.sampled_from([2, 3]))
families = st.integers(2, 6).flatmap(
    lambda size: st.permutations(range(NODES * GPUS)).map(
        lambda gpus: np.array(gpus[: NODES * GPUS // size // 2 * size]).reshape(-1, size)
    )
)


@settings(max_examples=40, deadline=None)
@given(clusters, families, st.randoms(use_true_random=False))
def test_order_of_groups_does_not_matter(world: Cluster, groups: np.ndarray, random: object) -> None:
    order = np.array(random.sample(range(len(groups)), len(groups)))  # type: ignore[attr-defined]
    spans = family_spans(world, groups)
    assert family_spans(world, groups[order]) == tuple(spans[place] for place in order)


@settings(max_examples=40, deadline=None)
@given(clusters, families)
def test_turning_a_ring_does_not_matter(world: Cluster, groups: np.ndarray) -> None:
    """A ring has no beginning, as long as each node is met once: one GPU per node here."""
    nodes = np.arange(NODES)
    rings = np.stack([nodes * GPUS + gpu for gpu in range(GPUS)])
    assert family_spans(world, np.roll(rings, 5, axis=1)) == family_spans(world, rings)


@settings(max_examples=40, deadline=None)
@given(clusters, st.permutations(range(GPUS)), st.integers(2, NODES))
def test_order_inside_a_node_does_not_matter(world: Cluster, order: list[int], nodes: int) -> None:
    ranks = np.arange(nodes * GPUS).reshape(nodes, GPUS)
    assert span(world, ranks[:, order].reshape(-1)) == span(world, ranks.reshape(-1))


@settings(max_examples=40, deadline=None)
@given(clusters, st.permutations(range(3)), families)
def test_nodes_of_a_unit_are_alike(world: Cluster, order: list[int], groups: np.ndarray) -> None:
    """Renaming the nodes of a unit maps the graph onto itself, so no span may change."""
    node, gpu = groups // GPUS, groups % GPUS
    renamed = (node // 3 * 3 + np.array(order)[node % 3]) * GPUS + gpu
    assert family_spans(world, renamed) == family_spans(world, groups)


@settings(max_examples=40, deadline=None)
@given(clusters, families)
def test_company_never_helps(world: Cluster, groups: np.ndarray) -> None:
    for members, found in zip(groups, family_spans(world, groups), strict=True):
        alone = span(world, members)
        assert found.inter_bytes_per_s <= alone.inter_bytes_per_s
        assert found.sharing >= alone.sharing >= 1.0
        assert replace(found, inter_bytes_per_s=0.0, sharing=0.0) == replace(alone, inter_bytes_per_s=0.0, sharing=0.0)


@settings(max_examples=30, deadline=None)
@given(clusters, st.lists(st.permutations(range(NODES)), min_size=GPUS, max_size=GPUS), st.integers(2, NODES))
def test_static_share_by_counting_links(world: Cluster, orders: list[list[int]], size: int) -> None:
    """One GPU per node and group: flows counted link by link along the routes, bundles taken together."""
    groups = np.array([[node * GPUS + gpu for node in order[:size]] for gpu, order in enumerate(orders)])
    hops = [ring_hops(world, ring) for ring in groups.tolist()]
    load = Counter(link for ring in hops for path in ring for link in links(world, path))
    for ring, found in zip(hops, family_spans(world, groups), strict=True):
        used = {link for path in ring for link in links(world, path)}
        share = min(capacity(world, link) / load[link] for link in used)
        np.testing.assert_allclose(found.inter_bytes_per_s, share, rtol=1e-12)


Link = tuple[str, str]


def ring_hops(world: Cluster, ring: list[int]) -> list[tuple[str, ...]]:
    """The paths from each member of a ring to the next."""
    return [route(world, a, b).hops for a, b in pairwise([*ring, ring[0]])]


def links(world: Cluster, path: tuple[str, ...]) -> set[Link]:
    """Directed links of a path, with spines of a block and cores replaced by one name."""
    data = world.graph.nodes

    def name(key: str) -> str:
        kind = data[key]["kind"]
        return f"block{data[key]['block']}" if kind == "spine" else "core" if kind == "core" else key

    return {(name(a), name(b)) for a, b in pairwise(path)}


def capacity(world: Cluster, link: Link) -> float:
    """Bytes/s of a link, summed over the parts that share a name."""
    return capacities(world)[link]


@cache
def capacities(world: Cluster) -> dict[Link, float]:
    found: Counter[Link] = Counter()
    for a, b, edge in world.graph.edges(data=True):
        for start, end in ((a, b), (b, a)):
            (pair,) = links(world, (start, end))
            found[pair] += edge["bandwidth_bytes_per_s"]
    return dict(found)
