"""Several hashed flows in a lane: their number and seed, and ideal adaptive routing as their limit.

NCCL opens NCCL_IB_QPS_PER_CONNECTION queue pairs for each connection and one or two channels on a NIC (NCCL User Guide;
its logs); Llama Team 2024 (arXiv:2407.21783) §3.3.1 make 16 flows of one between two GPUs, so that hashes spread them
better.
"""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.errors import TopologyError
from traincast.topology import Cluster, NodeRequest, usual_node
from traincast.topology.clusters import fat_tree_for, tree_cluster
from traincast.topology.links import DEFAULT_FLOWS, MOST_FLOWS, LinkTable, Spread, group_links, link_table

NODES, GPUS = 12, 8
SEEDS = range(12)
FLOWS = (1, 2, 4, 16, 64)


@cache
def cluster() -> Cluster:
    """Twelve nodes in units of two, two units to a pod, all NICs of a unit on one leaf."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", GPUS, GPUS, nic="HDR200-IB"), parts)
    tree = replace(fat_tree_for(design.nic, GPUS, parts), levels=3, nodes_per_unit=2, units_per_pod=2)
    return tree_cluster("small", design, NODES, replace(tree, rail_optimised=False))


def rings() -> np.ndarray:
    """A ring for each GPU of a node, which changes its leaf at every hop."""
    order = np.arange(NODES).reshape(6, 2).T.reshape(-1)
    return order[None, :] * GPUS + np.arange(GPUS)[:, None]


def loads(table: LinkTable) -> np.ndarray:
    """What the rings put on every link, in lanes."""
    found = group_links(table, rings())
    return np.bincount(found.link, weights=found.weight, minlength=len(table.bytes_per_s))


def uplinks(table: LinkTable) -> dict[str, tuple[int, int]]:
    """First link and number of links of each section above the leaves, in both directions."""
    begins = sorted(table.first.values())
    ends = dict(pairwise(begins))
    names = ("leaf up", "leaf down", "block up", "block down")
    return {name: (table.first[name], ends[table.first[name]] - table.first[name]) for name in names}


def worst_load(flows: int, seed: int) -> float:
    """Load of the worst cable over its capacity, in lanes at NIC rate."""
    table = link_table(cluster(), Spread("ecmp", seed, flows))
    begin = table.first["leaf up"]
    end = table.first["bus out"]
    return float((loads(table)[begin:end] / table.bytes_per_s[begin:end]).max() * 25e9)


def test_the_worst_cable_has_less_with_more_flows() -> None:
    """The mean over seeds falls with every step from 1 to 64 flows, and no seed is below the even share."""
    worst = {flows: [worst_load(flows, seed) for seed in SEEDS] for flows in FLOWS}
    means = [float(np.mean(worst[flows])) for flows in FLOWS]
    assert all(more < fewer for fewer, more in pairwise(means)), means
    bundles = link_table(cluster())
    begin, end = bundles.first["leaf up"], bundles.first["bus out"]
    even = float((loads(bundles)[begin:end] / bundles.bytes_per_s[begin:end]).max() * 25e9)
    assert min(min(row) for row in worst.values()) >= even * (1 - 1e-12)
    assert means[0] > 2 * even
    assert means[-1] < 1.5 * even


@pytest.mark.parametrize("flows", FLOWS)
def test_cables_of_a_bundle_carry_what_the_bundle_carries(flows: int) -> None:
    """However many flows and whatever the hash: leaf by leaf the loads add up to those of ideal adaptive routing."""
    table, bundles = link_table(cluster(), Spread("ecmp", 5, flows)), link_table(cluster())
    assert table.cables is not None
    hashed, even = loads(table), loads(bundles)
    for name, (begin, count) in uplinks(table).items():
        low = table.cables.leaf_low if "leaf" in name else table.cables.spine_block[table.cables.spine_low]
        first, size = uplinks(bundles)[name]
        total = np.bincount(low, weights=hashed[begin : begin + count], minlength=size)
        np.testing.assert_allclose(total, even[first : first + size], rtol=1e-9)
    for section in ("nic out", "nic in", "bus out", "bus in"):
        ends = [(one.first[section], one.first[section] + GPUS * NODES) for one in (table, bundles)]
        np.testing.assert_allclose(hashed[slice(*ends[0])], even[slice(*ends[1])], rtol=1e-9)


@pytest.mark.parametrize("flows", FLOWS)
def test_adaptive_routing_is_the_limit(flows: int) -> None:
    """A cable that gets mu flows on average has more than (1 + d) mu with a probability below exp(-d² mu / (2 + d))
    (Chernoff bound; Mitzenmacher and Upfal, Probability and Computing, 4.2.1). With d such that this is below 0.001 for
    all cables and seeds together, none has more; d falls as one over the root of the number of flows."""
    bundles = link_table(cluster())
    even = loads(bundles)
    for seed in SEEDS:
        table = link_table(cluster(), Spread("ecmp", seed, flows))
        assert table.cables is not None
        hashed = loads(table)
        for name, (begin, count) in uplinks(table).items():
            low = table.cables.leaf_low if "leaf" in name else table.cables.spine_block[table.cables.spine_low]
            share = even[uplinks(bundles)[name][0] + low] / np.bincount(low)[low]
            beyond = math.log(1000 * len(SEEDS) * 4 * count)
            mean = share[share > 0] * flows
            slack = (beyond + np.sqrt(beyond**2 + 8 * beyond * mean)) / (2 * mean)
            assert (hashed[begin : begin + count][share > 0] <= share[share > 0] * (1 + slack)).all()


def test_the_flows_of_a_lane_are_more_of_the_same_hash() -> None:
    """The first flow of a lane is where it was alone; the same seed gives the same links."""
    pair = [[0, 24]]
    one, two = (group_links(link_table(cluster(), Spread("ecmp", 3, n)), pair, ring=False) for n in (1, 2))
    assert set(one.link.tolist()) <= set(two.link.tolist())
    again = group_links(link_table(cluster(), Spread("ecmp", 3, 2)), pair, ring=False)
    assert again.link.tolist() == two.link.tolist()
    assert DEFAULT_FLOWS == Spread("ecmp").flows == 2


@pytest.mark.parametrize("wrong", [{"flows": 0}, {"flows": MOST_FLOWS + 1}, {"seed": -1}])
def test_values_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(TopologyError, match="give"):
        Spread("ecmp", **wrong)
