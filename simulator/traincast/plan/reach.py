"""How far the groups of each family reach on a cluster: inside a node, over a leaf, a spine, the core."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.mesh import Family, Mesh, families_of, family_groups
from traincast.mesh.families import FAMILIES
from traincast.schedule import chunks_of_model, meets_itself, model_parts, stages_of
from traincast.topology import Cluster, Span, family_spans

Ints = npt.NDArray[np.int64]

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


@dataclass(frozen=True, eq=False)
class Wiring:
    """What a schedule makes of the groups of a mesh: families whose `groups` are not the mesh's own, and whether the
    last stage sends on to the first (`wraps`)."""

    groups: Mapping[str, Ints] = field(default_factory=dict)
    wraps: bool = False


PLAIN: Final = Wiring()
"""That of a schedule of one part of the model a stage."""


def wiring_of(mesh: Mesh, schedule: str, vpp: int) -> Wiring:
    """The wiring of a schedule with `vpp` chunks a stage.

    Where the model is folded (ZB-V, DualPipeV) or runs both ways (DualPipe), its first and its last part lie on one
    stage, so tied embeddings meet on each rank of it. Both ways, stages s and p - 1 - s hold the same two parts, whose
    gradients are summed over both (`lower.spans.gradient_groups`).
    """
    if mesh.pp == 1:
        return PLAIN
    if not meets_itself(schedule):
        return Wiring(wraps=vpp > 1)
    last = model_parts(schedule, mesh.pp, vpp) - 1
    first_on, last_on = ({stage for stage, _ in stages_of(schedule, mesh.pp, vpp, part)} for part in (0, last))
    on_both = np.isin(mesh.coordinates()["pp"], sorted(first_on & last_on))
    groups: dict[str, Ints] = {"embedding": np.flatnonzero(on_both)[:, None]}
    if chunks_of_model(schedule, vpp) < vpp:
        groups |= {name: _both_ways(mesh, FAMILIES[name]) for name in ("dp", "dp-cp")}
    return Wiring(groups)


def _both_ways(mesh: Mesh, family: Family) -> Ints:
    """Groups of a family, each with that of the stage as far from the other end, shape (count / 2, 2 size)."""
    groups = family_groups(mesh, family.name)
    stage = mesh.coordinates()["pp"][groups[:, 0]]
    by_stage = groups[np.argsort(stage, kind="stable")].reshape(mesh.pp, -1, groups.shape[1])
    paired = np.concatenate([by_stage, by_stage[::-1]], axis=2)[: mesh.pp // 2]
    return np.asarray(paired.reshape(-1, paired.shape[2]), dtype=np.int64)


def reaches(mesh: Mesh, cluster: Cluster, wiring: Wiring = PLAIN) -> tuple[Reach, ...]:
    """The reach of every family of a mesh. Raises TopologyError where a rank's GPU is not in the cluster."""
    return tuple(_reach(mesh, cluster, family, wiring) for family in families_of(mesh))


def _reach(mesh: Mesh, cluster: Cluster, family: Family, wiring: Wiring) -> Reach:
    name, gpus = family.name, mesh.physical(family_groups(mesh, family.name, wiring.groups))
    size = gpus.shape[1]
    if size == 1:
        return Reach(name, size, {"alone": len(gpus)}, 0.0, 0.0, 1.0)
    ring = family.ring or (name == "pp" and wiring.wraps)
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
