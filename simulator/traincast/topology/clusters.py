"""Clusters by name, and the cluster for the usual node of any GPU in the catalogue."""

from dataclasses import replace
from typing import Final

import networkx as nx

from traincast.catalog import Catalog, Link, Nic, Switch, load_catalog
from traincast.errors import TopologyError
from traincast.topology.cluster import Cluster, make_cluster
from traincast.topology.fattree import FatTree, add_fat_tree, plan_fat_tree
from traincast.topology.nodes import NodeDesign, NodeRequest, add_nodes, usual_node

SELENE_NODES: Final = 560
HDR4_NODES: Final = 64


def selene(nodes: int = SELENE_NODES, catalog: Catalog | None = None) -> Cluster:
    """NVIDIA's Selene: DGX A100, eight HDR rails, scalable units of 20 nodes, pods of 7 units, three levels.

    Narayanan et al. 2021 (SC21) §5: 560 DGX A100, 8 x 200 Gbit/s HDR InfiniBand per node for the
    application, three-level (leaf, spine, core) fat tree. Units and pods are those of the DGX A100 SuperPOD
    reference architecture.
    """
    parts = catalog or load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, 8, nic="HDR200-IB"), parts)
    if nodes > SELENE_NODES:
        raise TopologyError(f"Selene has {SELENE_NODES} nodes, {nodes} are asked for", fix="use a cluster file")
    tree = replace(fat_tree_for(design.nic, 8, parts), levels=3, nodes_per_unit=20, units_per_pod=7)
    notes = (
        "Selene's pods are taken as SuperPODs of 7 scalable units of 20 nodes; the paper states three levels",
        "only the compute fabric is modelled; the 850 switches that the paper counts include storage",
        "leaf and spine levels are not oversubscribed",
    )
    return tree_cluster("selene", design, nodes, tree, notes)


def hdr4_a100(nodes: int = HDR4_NODES, catalog: Catalog | None = None) -> Cluster:
    """8 x A100 80 GB SXM and 4 x 200 Gbit/s HDR InfiniBand per node, two GPUs to a NIC (vTrain, 2024)."""
    parts = catalog or load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, 4, nic="HDR200-IB"), parts)
    tree = fat_tree_for(design.nic, 4, parts)
    notes = (
        "the InfiniBand tree is not published: a rail-optimised one without oversubscription is assumed",
        "which GPUs share a NIC is not published: the two on one PCIe switch are assumed to",
    )
    return tree_cluster("hdr4_a100", design, nodes, tree, notes)


def node_cluster(design: NodeDesign, nodes: int, catalog: Catalog | None = None) -> Cluster:
    """`nodes` nodes of one design on a rail-optimised tree that is not oversubscribed, with the usual switch.

    The name says what it is; `assumptions` lists what the design and the fabric assume.
    """
    parts = catalog or load_catalog()
    name = f"{nodes} node{'s' if nodes != 1 else ''} of {design.name}"
    if design.nics == 0:
        return tree_cluster(name, design, nodes, None)
    notes: tuple[str, ...] = ()
    if nodes > design.domain_nodes:
        notes = ("the fabric is not stated: a rail-optimised fat tree without oversubscription is assumed",)
    return tree_cluster(name, design, nodes, fat_tree_for(design.nic, design.nics, parts), notes)


def tree_cluster(
    name: str, design: NodeDesign, nodes: int, tree: FatTree | None, notes: tuple[str, ...] = ()
) -> Cluster:
    """Equal nodes on one fat tree, or on none. Raises TopologyError where nodes would have no network."""
    if nodes < 1:
        raise TopologyError(f"a cluster of {nodes} nodes", fix="give at least 1 node")
    if tree is None and nodes > design.domain_nodes:
        raise TopologyError(f"{nodes} nodes have no NIC to reach each other", fix="give the nodes NICs or use 1 node")
    if tree is not None:
        plan_fat_tree(tree, nodes)  # refuses before anything large is built
    graph: nx.Graph[str] = nx.Graph()
    add_nodes(graph, design, 0, nodes)
    if tree is not None:
        add_fat_tree(graph, tree, nodes)
    return make_cluster(name, graph, (*design.assumptions, *notes))


def fat_tree_for(nic: Nic, rails: int, catalog: Catalog) -> FatTree:
    """A rail-optimised tree that is not oversubscribed, of the catalogue's switch and cable for a NIC."""
    return FatTree(switch=switch_for(nic, catalog), cable=cable_for(nic, catalog), rails=rails)


def switch_for(nic: Nic, catalog: Catalog) -> Switch:
    """The slowest switch of the NIC's kind that serves it at full rate, with the most ports of those."""
    rate = nic.bandwidth_bytes_per_s
    fitting = [s for s in catalog.switches.values() if s.kind == nic.kind and s.port_bytes_per_s >= rate * 0.999]
    if not fitting:
        raise TopologyError(f"no {nic.kind} switch is as fast as {nic.name}", fix="add one to switches.csv")
    return min(fitting, key=lambda s: (s.port_bytes_per_s, -s.radix))


def cable_for(nic: Nic, catalog: Catalog) -> Link:
    """The cable of the NIC's kind whose rate is nearest."""
    cables = [link for link in catalog.links.values() if link.kind == nic.kind]
    if not cables:
        raise TopologyError(f"the catalogue has no {nic.kind} cable", fix="add one to links.csv")
    return min(cables, key=lambda link: abs(link.bandwidth_bytes_per_s - nic.bandwidth_bytes_per_s))
