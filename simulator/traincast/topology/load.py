"""Clusters by name or from a YAML file: topologies/clusters/*.yaml, and a folder of one's own first."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from traincast.catalog import EXTRA_VARIABLE, Catalog, Link, data_dir, load_catalog
from traincast.errors import TopologyError, UserError, nearest_names
from traincast.topology.cluster import Cluster
from traincast.topology.clusterchanges import changes_of
from traincast.topology.clusterfile import (
    GRAPH_BUILDER,
    ClusterFile,
    FabricEntry,
    MixedFile,
    NodeEntry,
    TreeFile,
    parse_cluster_file,
)
from traincast.topology.clusters import hdr4_a100, selene, tree_cluster
from traincast.topology.degrade import Change, degraded, first_nodes
from traincast.topology.fattree import FatTree
from traincast.topology.graphplan import GraphPlan, plan_graph
from traincast.topology.mixed import NodeGroup, mixed_cluster, mixed_tree
from traincast.topology.nodes import NodeRequest, usual_node
from traincast.topology.yamltext import Document, read_yaml

Part = TypeVar("Part")


@dataclass(frozen=True)
class ClusterSummary:
    """What a cluster file says, without building the cluster."""

    name: str
    path: Path
    nodes: int
    gpus: int
    gpu: str
    nics_per_node: int
    nic: str
    description: str
    source: str


@dataclass(frozen=True, eq=False)
class _Plan:
    """A cluster file whose parts have been found in the catalogue."""

    name: str
    path: Path
    entry: ClusterFile
    groups: tuple[NodeGroup, ...]
    tree: FatTree | None
    changes: tuple[Change, ...]
    catalog: Catalog

    @property
    def gpus(self) -> int:
        """GPUs of all nodes, whether they can be used or not."""
        return sum(group.nodes * group.design.gpus for group in self.groups)

    @property
    def gpu(self) -> str:
        """The models of its GPUs."""
        return " + ".join(dict.fromkeys(group.design.gpu.name for group in self.groups))

    @property
    def nics_per_node(self) -> int:
        """The most NICs that a node has."""
        return max(group.design.nics for group in self.groups)

    @property
    def nic(self) -> str:
        """The kinds of its NICs."""
        return " + ".join(dict.fromkeys(group.design.nic.name for group in self.groups))

    def build(self, gpus: int | None) -> Cluster:
        """The cluster, cut to the whole nodes that hold `gpus` GPUs (None: not cut)."""
        if self.changes:  # they may name any node
            whole = degraded(self.build_nodes(self.entry.nodes), self.changes)
            return whole if gpus is None else first_nodes(whole, gpus)
        return self.build_nodes(self.entry.nodes if gpus is None else self.nodes_for(gpus))

    def nodes_for(self, gpus: int) -> int:
        """How many of the nodes hold so many GPUs. Raises TopologyError where all of them do not."""
        if gpus > self.gpus:
            raise TopologyError(
                f"{self.name} has {self.gpus} GPUs, {gpus} are asked for", fix="use a larger cluster or fewer GPUs"
            )
        nodes = 0
        for group in self.groups:
            needed = min(group.nodes, -(-gpus // group.design.gpus))
            nodes += needed
            gpus -= needed * group.design.gpus
            if gpus <= 0:
                break
        return nodes

    def build_nodes(self, nodes: int) -> Cluster:
        """The first so many nodes."""
        notes = tuple(self.entry.assumptions)
        if isinstance(self.entry, TreeFile):
            return tree_cluster(self.name, self.groups[0].design, nodes, self.tree, notes)
        if isinstance(self.entry, MixedFile):
            return mixed_cluster(self.name, _first(self.groups, nodes), self.tree, notes, self.catalog)
        return (selene if self.entry.builder == "selene" else hdr4_a100)(nodes, self.catalog)


def _first(groups: tuple[NodeGroup, ...], nodes: int) -> tuple[NodeGroup, ...]:
    """The groups cut to so many nodes in all."""
    kept = []
    for group in groups:
        if nodes > 0:
            kept.append(NodeGroup(group.design, min(nodes, group.nodes)))
        nodes -= group.nodes
    return tuple(kept)


def load_cluster(name_or_path: str, *, gpus: int | None = None, catalog: Catalog | None = None) -> Cluster:
    """The cluster of a name (`selene`) or of a file, cut to the whole nodes that hold `gpus` GPUs.

    Equal requests give the same object while the file does not change. Raises TopologyError or CatalogError,
    with ``file:line:col``, for a file that is not there or is wrong, a part that the catalogue lacks, and too
    many GPUs.
    """
    path = cluster_path(name_or_path)
    if catalog is not None:
        return _load(path, gpus, catalog)
    stamp = path.stat().st_mtime_ns if path.is_file() else 0
    return _cached(path, stamp, gpus, os.environ.get(EXTRA_VARIABLE, ""))


def list_clusters(catalog: Catalog | None = None) -> tuple[ClusterSummary, ...]:
    """All clusters that can be named, by name."""
    parts = catalog or load_catalog()
    plans = [_plan(path, parts) for _, path in sorted(_known().items())]
    return tuple(
        ClusterSummary(
            name=plan.name,
            path=plan.path,
            nodes=plan.entry.nodes,
            gpus=plan.gpus,
            gpu=plan.gpu,
            nics_per_node=plan.nics_per_node,
            nic=plan.nic,
            description=plan.entry.description,
            source=plan.entry.source,
        )
        for plan in plans
    )


def cluster_path(name_or_path: str) -> Path:
    """The file of a cluster's name, or the path itself. Raises TopologyError with the nearest names."""
    if name_or_path.lower().endswith((".yaml", ".yml")) or os.sep in name_or_path:
        return Path(name_or_path)
    known = _known()
    if name_or_path not in known:
        near = nearest_names(name_or_path, known) or tuple(sorted(known))
        fix = f"use {', '.join(near)}, or the path of a .yaml file"
        raise TopologyError(f"no cluster {name_or_path!r}", fix=fix)
    return known[name_or_path]


def _known() -> dict[str, Path]:
    folders = [data_dir() / "topologies" / "clusters"]
    extra = os.environ.get(EXTRA_VARIABLE)
    if extra:
        folders += [Path(extra), Path(extra) / "clusters"]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}


@lru_cache(maxsize=16)
def _cached(path: Path, stamp: int, gpus: int | None, extra: str) -> Cluster:
    """`stamp` and `extra` only tell one state of the files from another."""
    return _load(path, gpus, load_catalog())


def _load(path: Path, gpus: int | None, catalog: Catalog) -> Cluster:
    plan = _plan(path, catalog)
    if gpus is not None and gpus < 1:
        raise TopologyError(f"a cluster of {gpus} GPUs", fix="ask for at least 1")
    try:
        return plan.build(gpus)
    except UserError as error:
        raise _placed(error, str(path)) from error


def _plan(path: Path, catalog: Catalog) -> _Plan | GraphPlan:
    document = read_yaml(path)
    if document.values.get("builder") == GRAPH_BUILDER:
        return plan_graph(path, document, catalog)
    entry = parse_cluster_file(document)
    changes = changes_of(document, entry)
    if isinstance(entry, TreeFile):
        groups: tuple[NodeGroup, ...] = (_group(document, entry.node, entry.nodes, ("node",), catalog),)
        fabric = entry.fabric
    elif isinstance(entry, MixedFile):
        rows = enumerate(entry.groups)
        groups = tuple(_group(document, row, row.nodes, ("groups", place), catalog) for place, row in rows)
        fabric = entry.fabric
    else:
        nics = 8 if entry.builder == "selene" else 4
        design = usual_node(NodeRequest("A100-80GB-SXM", 8, nics, nic="HDR200-IB"), catalog)
        return _Plan(path.stem, path, entry, (NodeGroup(design, entry.nodes),), None, changes, catalog)
    try:
        tree = _tree(document, fabric, groups, catalog)
    except UserError as error:
        key = "node" if isinstance(entry, TreeFile) else "groups"
        raise _placed(error, document.where([key], key=True)) from error
    return _Plan(path.stem, path, entry, groups, tree, changes, catalog)


def _group(document: Document, node: NodeEntry, nodes: int, at: tuple[str | int, ...], catalog: Catalog) -> NodeGroup:
    """Nodes of the catalogue; a part that it lacks is reported at the place that names it."""
    _found(document, (*at, "gpu"), node.gpu, catalog.gpu)
    _found(document, (*at, "nic"), node.nic, catalog.nic)
    request = NodeRequest(
        gpu=node.gpu,
        gpus=node.gpus,
        nics=node.nics,
        nic=node.nic or "",
        nvlink_bridges=node.nvlink_bridges,
        gpus_per_pcie_switch=node.gpus_per_pcie_switch,
    )
    try:
        return NodeGroup(usual_node(request, catalog), nodes)
    except UserError as error:
        raise _placed(error, document.where(at, key=True)) from error


def _found(document: Document, at: tuple[str | int, ...], name: str | None, find: Callable[[str], Part]) -> Part | None:
    try:
        return None if name is None else find(name)
    except UserError as error:
        raise _placed(error, document.where(at)) from error


def _tree(document: Document, fabric: FabricEntry, groups: tuple[NodeGroup, ...], catalog: Catalog) -> FatTree | None:
    """The tree that a file describes; None for nodes without NICs."""
    if len(groups) == 1 and groups[0].design.nics == 0:
        return None
    names = ("switch", "spine_switch", "core_switch")
    switches = [_found(document, ("fabric", name), getattr(fabric, name), catalog.switch) for name in names]
    usual = mixed_tree(groups, catalog)
    leaf = switches[0] or usual.switch
    if fabric.port_bandwidth is not None:
        leaf = replace(leaf, port_bytes_per_s=fabric.port_bandwidth)
    rate = fabric.port_bandwidth or usual.cable.bandwidth_bytes_per_s
    wait = usual.cable.latency_s if fabric.cable_latency is None else fabric.cable_latency
    return replace(
        usual,
        switch=leaf,
        spine_switch=switches[1],
        core_switch=switches[2],
        cable=Link(usual.cable.name, usual.cable.kind, rate, wait),
        rail_optimised=fabric.rail_optimised,
        levels=fabric.levels,
        nodes_per_unit=fabric.nodes_per_unit,
        units_per_pod=fabric.units_per_pod,
        oversubscription=(fabric.leaf_oversubscription, fabric.spine_oversubscription),
    )


def _placed(error: UserError, where: str) -> UserError:
    """The same error at a place of the file."""
    return type(error)(error.message, fix=error.fix, where=error.where or where)
