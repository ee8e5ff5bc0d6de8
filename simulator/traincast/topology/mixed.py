"""Clusters of several kinds of node: 8 GPUs beside 4, A100 beside H100, on one fabric."""

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from traincast.catalog import Catalog, Link, Nic, load_catalog
from traincast.errors import TopologyError
from traincast.topology.cluster import Cluster, make_cluster
from traincast.topology.clusters import cable_for, fat_tree_for
from traincast.topology.fattree import FatTree, add_fat_tree, plan_fat_tree
from traincast.topology.nodes import NodeDesign, add_nodes


@dataclass(frozen=True)
class NodeGroup:
    """So many nodes of one design, one after the other."""

    design: NodeDesign
    nodes: int


def mixed_cluster(
    name: str,
    groups: Sequence[NodeGroup],
    tree: FatTree | None = None,
    notes: tuple[str, ...] = (),
    catalog: Catalog | None = None,
) -> Cluster:
    """Groups of nodes in the order given, numbered through, on one fat tree.

    Each NIC runs at its own rate; a node with fewer NICs than the tree has rails uses the first of them. `tree` is
    by default rail-optimised, not oversubscribed, and of the switch that suits the fastest NIC. Raises TopologyError
    for groups that share no kind of network, or have none.
    """
    parts = catalog or load_catalog()
    if not groups or any(group.nodes < 1 for group in groups):
        raise TopologyError("a group of 0 nodes", fix="give at least 1 node to each group")
    fabric = tree or mixed_tree(groups, parts)
    hosts = [cable for group in groups for cable in [_host_cable(group.design.nic, fabric, parts)] * group.nodes]
    plan_fat_tree(fabric, len(hosts))  # refuses before anything large is built
    graph: nx.Graph[str] = nx.Graph()
    first = 0
    for group in groups:
        add_nodes(graph, group.design, first, group.nodes)
        first += group.nodes
    add_fat_tree(graph, fabric, len(hosts), hosts)
    assumed = dict.fromkeys(note for group in groups for note in group.design.assumptions)
    if tree is None:
        notes = (*notes, "the fabric is not stated: a rail-optimised fat tree without oversubscription is assumed")
    return make_cluster(name, graph, (*assumed, *notes))


def mixed_tree(groups: Sequence[NodeGroup], catalog: Catalog) -> FatTree:
    """A tree with a rail for each NIC of the node that has most, of the switch that suits the fastest NIC.

    Raises TopologyError where a group has no NIC, or another kind of network than the first.
    """
    nics = [group.design.nic for group in groups]
    for group in groups:
        if group.design.nics == 0:
            raise TopologyError(f"nodes of {group.design.name} cannot reach the others", fix="give them NICs")
        if group.design.nic.kind != nics[0].kind:
            raise TopologyError(
                f"{nics[0].name} and {group.design.nic.name} are of two kinds of network", fix="use NICs of one kind"
            )
    fastest = max(nics, key=lambda nic: nic.bandwidth_bytes_per_s)
    return fat_tree_for(fastest, max(group.design.nics for group in groups), catalog)


def _host_cable(nic: Nic, tree: FatTree, catalog: Catalog) -> Link:
    """The cable from a node to its leaf: at the NIC's rate, with the tree's latency."""
    cable = cable_for(nic, catalog)
    rate = min(cable.bandwidth_bytes_per_s, tree.cable.bandwidth_bytes_per_s)
    return Link(cable.name, cable.kind, rate, tree.cable.latency_s)
