"""Clusters by name or from a YAML file: topologies/clusters/*.yaml, and a folder of one's own first."""

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from traincast.catalog import EXTRA_VARIABLE, Catalog, Link, data_dir, load_catalog
from traincast.errors import TopologyError, UserError, nearest_names
from traincast.topology.cluster import Cluster
from traincast.topology.clusterfile import ClusterFile, TreeFile, parse_cluster_file
from traincast.topology.clusters import cable_for, hdr4_a100, selene, switch_for, tree_cluster
from traincast.topology.fattree import FatTree
from traincast.topology.nodes import NodeDesign, NodeRequest, usual_node
from traincast.topology.yamltext import Document, read_yaml


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
    design: NodeDesign
    tree: FatTree | None
    catalog: Catalog

    def build(self, nodes: int) -> Cluster:
        if not isinstance(self.entry, TreeFile):
            builder = selene if self.entry.builder == "selene" else hdr4_a100
            return builder(nodes, self.catalog)
        return tree_cluster(self.name, self.design, nodes, self.tree, tuple(self.entry.assumptions))


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
            gpus=plan.entry.nodes * plan.design.gpus,
            gpu=plan.design.gpu.name,
            nics_per_node=plan.design.nics,
            nic=plan.design.nic.name,
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
    nodes = plan.entry.nodes
    if gpus is not None:
        if gpus < 1:
            raise TopologyError(f"a cluster of {gpus} GPUs", fix="ask for at least 1")
        nodes = -(-gpus // plan.design.gpus)
    if nodes > plan.entry.nodes:
        have = plan.entry.nodes * plan.design.gpus
        raise TopologyError(
            f"{plan.name} has {have} GPUs, {gpus} are asked for", fix="use a larger cluster or fewer GPUs"
        )
    try:
        return plan.build(nodes)
    except UserError as error:
        raise _placed(error, str(path)) from error


def _plan(path: Path, catalog: Catalog) -> _Plan:
    document = read_yaml(path)
    entry = parse_cluster_file(document)
    if not isinstance(entry, TreeFile):
        nics = 8 if entry.builder == "selene" else 4
        request = NodeRequest("A100-80GB-SXM", 8, nics, nic="HDR200-IB")
        return _Plan(path.stem, path, entry, usual_node(request, catalog), None, catalog)
    node = entry.node
    _look_up(document, catalog, entry)
    try:
        design = usual_node(NodeRequest(node.gpu, node.gpus, node.nics, nic=node.nic or ""), catalog)
        tree = _tree(entry, design, catalog) if design.nics else None
    except UserError as error:
        raise _placed(error, document.where(["node"], key=True)) from error
    return _Plan(path.stem, path, entry, design, tree, catalog)


def _look_up(document: Document, catalog: Catalog, entry: TreeFile) -> None:
    """Parts that the catalogue lacks are reported at the place that names them."""
    wanted = (
        (("node", "gpu"), entry.node.gpu, catalog.gpu),
        (("node", "nic"), entry.node.nic, catalog.nic),
        (("fabric", "switch"), entry.fabric.switch, catalog.switch),
    )
    for keys, name, find in wanted:
        try:
            if name is not None:
                find(name)
        except UserError as error:
            raise _placed(error, document.where(keys)) from error


def _tree(entry: TreeFile, design: NodeDesign, catalog: Catalog) -> FatTree:
    fabric = entry.fabric
    switch = catalog.switch(fabric.switch) if fabric.switch else switch_for(design.nic, catalog)
    cable = cable_for(design.nic, catalog)
    if fabric.port_bandwidth is not None:
        switch = replace(switch, port_bytes_per_s=fabric.port_bandwidth)
    rate = fabric.port_bandwidth or cable.bandwidth_bytes_per_s
    wait = cable.latency_s if fabric.cable_latency is None else fabric.cable_latency
    return FatTree(
        switch=switch,
        cable=Link(cable.name, cable.kind, rate, wait),
        rails=design.nics,
        rail_optimised=fabric.rail_optimised,
        levels=fabric.levels,
        nodes_per_unit=fabric.nodes_per_unit,
        units_per_pod=fabric.units_per_pod,
        oversubscription=(fabric.leaf_oversubscription, fabric.spine_oversubscription),
    )


def _placed(error: UserError, where: str) -> UserError:
    """The same error at a place of the file."""
    return type(error)(error.message, fix=error.fix, where=error.where or where)
