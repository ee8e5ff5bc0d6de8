"""How far the groups of each family reach on a cluster: inside a node, over a leaf, a spine, the core."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.mesh import Mesh, families_of, family_groups
from traincast.topology import Cluster, Span, family_spans

REACHES: Final = ("alone", "node", "NVLink domain", "leaf", "spine", "core")
"""What a group crosses at most: nothing, its node, an NVLink domain of several nodes, or a level of the fabric."""


@dataclass(frozen=True)
class Reach:
    """The groups of one family. `groups` counts them by what they cross (a name of REACHES).

    `bytes_per_s` is what the worst placed group may use out of a node while all groups of the family communicate (per
    GPU where all stay inside one), raw and per direction; `sharing` how many groups its most shared link carries.
    """

    family: str
    size: int
    groups: Mapping[str, int]
    bytes_per_s: float
    latency_s: float
    sharing: float

    @property
    def count(self) -> int:
        """Groups of the family."""
        return sum(self.groups.values())

    @property
    def farthest(self) -> str:
        """The most that any group crosses."""
        return max((name for name, count in self.groups.items() if count), key=REACHES.index)


def reaches(mesh: Mesh, cluster: Cluster) -> tuple[Reach, ...]:
    """The reach of every family of a mesh. Raises TopologyError where a rank's GPU is not in the cluster."""
    return tuple(_reach(mesh, cluster, family.name, family.ring) for family in families_of(mesh))


def _reach(mesh: Mesh, cluster: Cluster, name: str, ring: bool) -> Reach:
    gpus = mesh.physical(family_groups(mesh, name))
    size = gpus.shape[1]
    if size == 1:
        return Reach(name, size, {"alone": len(gpus)}, 0.0, 0.0, 1.0)
    spans = family_spans(cluster, gpus, pattern="ring" if ring else "chain")
    nodes = cluster.node_index[gpus]
    one_node = (nodes == nodes[:, :1]).all(axis=1)
    found: Counter[str] = Counter()
    for span, inside in zip(spans, one_node.tolist(), strict=True):
        found[_crossed(span, inside)] += 1
    kinds = set(spans)
    return Reach(
        family=name,
        size=size,
        groups={reach: found[reach] for reach in REACHES if found[reach]},
        bytes_per_s=min(span.inter_bytes_per_s if span.nodes > 1 else span.intra_bytes_per_s for span in kinds),
        latency_s=max(span.inter_latency_s if span.nodes > 1 else span.intra_latency_s for span in kinds),
        sharing=max(span.sharing for span in kinds),
    )


def _crossed(span: Span, one_node: bool) -> str:
    if one_node:
        return "node"
    return "NVLink domain" if span.nodes == 1 else span.tier


def nodes_of(mesh: Mesh, cluster: Cluster) -> tuple[int, ...]:
    """The node of every rank on the cluster."""
    return tuple(cluster.node_index[mesh.physical(np.arange(mesh.world))].tolist())
