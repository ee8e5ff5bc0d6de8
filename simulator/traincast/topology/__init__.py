"""Clusters as networkx graphs: builders, structural routing, and what a group of GPUs has in wires (its
span)."""

from traincast.topology.cluster import TIERS, Cluster, Tier, make_cluster
from traincast.topology.clusters import hdr4_a100, node_cluster, selene, tree_cluster
from traincast.topology.degrade import Change, Loss, clean, degraded, without_nodes
from traincast.topology.fattree import FatTree, FatTreePlan, plan_fat_tree
from traincast.topology.load import ClusterSummary, list_clusters, load_cluster
from traincast.topology.mixed import NodeGroup, mixed_cluster
from traincast.topology.nodes import NodeDesign, NodeRequest, usual_node
from traincast.topology.routing import Route, route
from traincast.topology.span import Span, family_spans, span

__all__ = [
    "TIERS",
    "Change",
    "Cluster",
    "ClusterSummary",
    "FatTree",
    "FatTreePlan",
    "Loss",
    "NodeDesign",
    "NodeGroup",
    "NodeRequest",
    "Route",
    "Span",
    "Tier",
    "clean",
    "degraded",
    "family_spans",
    "hdr4_a100",
    "list_clusters",
    "load_cluster",
    "make_cluster",
    "mixed_cluster",
    "node_cluster",
    "plan_fat_tree",
    "route",
    "selene",
    "span",
    "tree_cluster",
    "usual_node",
    "without_nodes",
]
