"""Where ranks sit: node of every rank, and which groups and neighbours leave a node."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from traincast.errors import ShapeError
from traincast.mesh.families import families_of, family_groups
from traincast.mesh.grid import Ints
from traincast.mesh.mesh import Mesh

Tier = Literal["self", "node", "network"]


@dataclass(frozen=True)
class Spread:
    """How the groups of a family lie on nodes. Hops join neighbours, of a ring or of a pipeline's chain."""

    family: str
    size: int
    groups_in_node: int
    groups_across: int
    most_nodes: int
    most_ranks_on_a_node: int
    hops_in_node: int
    hops_across: int

    @property
    def tier(self) -> Tier:
        """The farthest that any of its groups reaches."""
        if self.size == 1:
            return "self"
        return "network" if self.groups_across else "node"


@dataclass(frozen=True)
class StageHop:
    """The hop from one stage to the next: an example pair, and how many pipelines make it inside a node."""

    stage: int
    from_rank: int
    to_rank: int
    in_node: int
    across: int

    @property
    def tier(self) -> str:
        """Where the hop goes: inside the node, over the network, or both, depending on the pipeline."""
        if self.in_node and self.across:
            return "node and network"
        return "network" if self.across else "node"


def nodes_of_ranks(mesh: Mesh, gpus_per_node: int) -> Ints:
    """Node number of every rank, shape (world,), on nodes of equal size filled in GPU order."""
    if gpus_per_node < 1:
        raise ShapeError(f"{gpus_per_node} GPUs per node is below 1", fix="1 or more GPUs per node")
    return mesh.physical(np.arange(mesh.world)) // gpus_per_node


def spreads(mesh: Mesh, nodes: Ints, instead: Mapping[str, Ints] | None = None) -> tuple[Spread, ...]:
    """The spread of every family of the mesh; `nodes` is the node of every rank, shape (world,), and `instead` has
    groups that are not the mesh's own."""
    return tuple(
        spread(family.name, nodes[family_groups(mesh, family.name, instead)], family.ring)
        for family in families_of(mesh)
    )


def spread(family: str, group_nodes: Ints, ring: bool = True) -> Spread:
    """The spread of groups whose ranks sit on `group_nodes`, shape (count, size)."""
    count, size = group_nodes.shape
    ordered = np.sort(group_nodes, axis=1)
    steps = np.diff(ordered, axis=1) != 0
    distinct = 1 + steps.sum(axis=1)
    crossing = group_nodes[:, 1:] != group_nodes[:, :-1]
    if ring and size > 2:  # the way back of a ring of two is the same pair
        crossing = np.hstack([crossing, group_nodes[:, :1] != group_nodes[:, -1:]])
    across = int(crossing.sum())
    groups_across = int((distinct > 1).sum())
    return Spread(
        family=family,
        size=size,
        groups_in_node=count - groups_across,
        groups_across=groups_across,
        most_nodes=int(distinct.max()),
        most_ranks_on_a_node=_longest_run(steps),
        hops_in_node=crossing.size - across,
        hops_across=across,
    )


def _longest_run(steps: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> int:
    """The most ranks of a group on one node; `steps` (count, size-1): where a sorted group changes node."""
    starts = np.hstack([np.ones((len(steps), 1), dtype=bool), steps]).ravel()
    edges = np.append(np.flatnonzero(starts), starts.size)
    return int(np.diff(edges).max())


def stage_hops(mesh: Mesh, nodes: Ints, wrap: bool = False) -> tuple[StageHop, ...]:
    """Each hop of the pipelines; `wrap` adds the one from last to first stage, which interleaving makes."""
    pipelines = mesh.groups("pp")
    stages = mesh.pp if wrap and mesh.pp > 1 else mesh.pp - 1
    after = np.roll(pipelines, -1, axis=1)
    same = nodes[pipelines] == nodes[after]
    return tuple(
        StageHop(
            stage=stage,
            from_rank=int(pipelines[0, stage]),
            to_rank=int(after[0, stage]),
            in_node=int(same[:, stage].sum()),
            across=int((~same[:, stage]).sum()),
        )
        for stage in range(stages)
    )
