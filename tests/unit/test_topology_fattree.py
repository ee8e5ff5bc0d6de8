"""Switch counts of fat trees against the tables that NVIDIA prints for its SuperPODs."""

import networkx as nx
import pytest

from traincast.catalog import Link, Switch
from traincast.errors import TopologyError
from traincast.topology.fattree import FatTree, add_fat_tree, plan_fat_tree

CABLE = Link("cable", "ib", 25e9, 1e-7)


def tree(radix: int, **asked: object) -> FatTree:
    """A rail-optimised tree with eight NICs per node."""
    return FatTree(Switch("switch", "ib", radix, 25e9, 1e-7), CABLE, **{"rails": 8, **asked})  # type: ignore[arg-type]


def counts(asked: FatTree, nodes: int) -> tuple[int, int, int]:
    plan = plan_fat_tree(asked, nodes)
    return plan.leaves, plan.spines, plan.cores


def test_superpod_a100() -> None:
    """Reference architecture RA-09950-001: 140 DGX A100 (7 units of 20) on QM8790 with 40 ports."""
    asked = tree(40, levels=3, nodes_per_unit=20, units_per_pod=7)
    plan = plan_fat_tree(asked, 140)
    assert (plan.leaves, plan.spines, plan.cores) == (56, 80, 28)
    assert (plan.leaf_down, plan.leaf_up) == (20, 20)
    assert plan.leaves * plan.leaf_up == plan.spines * 14
    assert plan.spine_up == 14
    assert plan.spines * plan.spine_up == plan.cores * 40


@pytest.mark.parametrize(("nodes", "leaves", "spines"), [(31, 8, 4), (63, 16, 8), (95, 24, 16), (127, 32, 16)])
def test_superpod_h100(nodes: int, leaves: int, spines: int) -> None:
    """Reference architecture RA-11333-001: units of 32 DGX H100 less one slot for the manager, on QM9700."""
    assert counts(tree(64, levels=2, nodes_per_unit=32), nodes) == (leaves, spines, 0)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (64, (16, 8, 0)),
        (128, (32, 16, 0)),
        (256, (64, 32, 0)),
        (512, (128, 128, 64)),
        (1024, (256, 256, 128)),
        (2048, (512, 512, 256)),
    ],
)
def test_superpod_b200(nodes: int, expected: tuple[int, int, int]) -> None:
    """DGX B200 SuperPOD documentation: two levels to 2,048 GPUs, three above, found without being asked."""
    assert counts(tree(64), nodes) == expected


@pytest.mark.parametrize(
    ("nodes", "leaves", "spines"),
    [(72, 8, 4), (144, 16, 8), (288, 32, 18), (576, 64, 36), (1296, 144, 72)],
)
def test_superpod_b300_xdr(nodes: int, leaves: int, spines: int) -> None:
    """DGX B300 SuperPOD documentation, XDR InfiniBand: units of 72 nodes on switches with 144 ports."""
    assert counts(tree(144), nodes) == (leaves, spines, 0)


def test_four_superpods_share_a_core() -> None:
    """Every link of 560 nodes ends in a port: 4,480 at each level."""
    plan = plan_fat_tree(tree(40, levels=3, nodes_per_unit=20, units_per_pod=7), 560)
    assert plan.leaves * plan.leaf_up == 4480
    assert plan.spines * plan.spine_up == 4480
    assert plan.cores * 40 == 4480


def test_oversubscribed_leaf() -> None:
    """Narval (Digital Research Alliance of Canada): 40 ports, 33 down and 7 up, blocking 4.7:1."""
    asked = tree(40, rails=1, oversubscription=(33 / 7, 1.0))
    plan = plan_fat_tree(asked, 100)
    assert (plan.leaf_down, plan.leaf_up) == (33, 7)


@pytest.mark.parametrize("nodes", [1, 20, 21, 140, 141, 300])
@pytest.mark.parametrize("rail_optimised", [True, False])
def test_no_switch_has_more_links_than_ports(nodes: int, rail_optimised: bool) -> None:
    asked = tree(40, rail_optimised=rail_optimised)
    graph: nx.Graph[str] = nx.Graph()
    for node in range(nodes):
        graph.add_nodes_from((f"n{node}/nic{rail}", {"kind": "nic"}) for rail in range(8))
    plan = add_fat_tree(graph, asked, nodes)
    kinds = nx.get_node_attributes(graph, "kind")
    found = [sum(graph.nodes[key]["kind"] == kind for key in graph) for kind in ("leaf", "spine", "core")]
    assert found == [plan.leaves, plan.spines, plan.cores]
    for key, kind in kinds.items():
        links = sum(edge["links"] for edge in graph[key].values())
        assert links <= (1 if kind == "nic" else 40), key
    assert nx.is_connected(graph)


@pytest.mark.parametrize(
    ("asked", "nodes", "numbers"),
    [
        (tree(40, nodes_per_unit=30), 60, ("30 ports down", "40 ports")),
        (tree(40, levels=2), 400, ("carry 40 leaves", "160 are needed")),
        (tree(40), 5000, ("40 ports", "40000 NIC ports")),
        (tree(40, levels=3, units_per_pod=30), 1000, ("30 units", "20 of 40")),
        (tree(40, levels=5), 10, ("5 levels", "2 or 3")),
        (tree(40, oversubscription=(0.0, 1.0)), 10, ("oversubscription", "non-blocking")),
        (tree(40), 0, ("0 nodes", "at least 1")),
    ],
)
def test_what_cannot_be_is_refused_with_both_numbers(asked: FatTree, nodes: int, numbers: tuple[str, str]) -> None:
    with pytest.raises(TopologyError) as refusal:
        plan_fat_tree(asked, nodes)
    assert all(number in str(refusal.value) for number in numbers), refusal.value
    assert refusal.value.fix
