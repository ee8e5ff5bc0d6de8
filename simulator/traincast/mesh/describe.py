"""A mesh as plain data: axes, groups, placement, communicators, and what each rank holds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from traincast.mesh.families import CommunicatorCount, Family, count_communicators, families_of, family_groups
from traincast.mesh.grid import Ints
from traincast.mesh.holdings import Holding, ModelFacts, end_stages, holdings, weight_shares
from traincast.mesh.mesh import DENSE_AXES, EXPERT_AXES, Mesh
from traincast.mesh.placement import nodes_of_ranks, spreads, stage_hops
from traincast.mesh.submesh import SubMesh


@dataclass(frozen=True)
class Views:
    """What to describe beside the grid itself. `nodes` is the node of every rank; by default they are filled evenly.

    `groups` has the families whose groups the schedule makes otherwise than the mesh alone; with `interleaved` the last
    stage sends on to the first. `sharding` are the ranks that share states (`sharded_as` says how), `context` those
    that exchange heads and those that pass blocks round, where context-parallel groups do both.
    """

    gpus_per_node: int = 8
    nodes: tuple[int, ...] | None = None
    model: ModelFacts = field(default_factory=ModelFacts)
    interleaved: bool = False
    sharding: SubMesh | None = None
    sharded_as: str = ""
    context: SubMesh | None = None
    warnings: tuple[str, ...] = ()
    groups: Mapping[str, Ints] = field(default_factory=dict)

    def nodes_of(self, mesh: Mesh) -> Ints:
        """The node of every rank, shape (world,)."""
        if self.nodes is None:
            return nodes_of_ranks(mesh, self.gpus_per_node)
        return np.asarray(self.nodes, dtype=np.int64)


def axes_of(mesh: Mesh) -> tuple[tuple[str, str, int, int], ...]:
    """(mesh, axis, size, stride) of every axis, fastest first; the expert mesh's where one was asked for."""
    dense = [("dense", axis, mesh.dense.size(axis), mesh.dense.stride(axis)) for axis in mesh.dense.names]
    if not mesh.has_expert_mesh:
        return tuple(dense)
    expert = mesh.expert
    return (*dense, *(("expert", axis, expert.size(axis), expert.stride(axis)) for axis in expert.names))


def rank_columns(mesh: Mesh, nodes: Ints) -> dict[str, list[int]]:
    """Column -> value of every rank: rank, gpu, node, coordinates (the expert ones where asked for)."""
    ranks = range(mesh.world)
    columns = {"rank": list(ranks), "gpu": mesh.physical(list(ranks)).tolist(), "node": nodes.tolist()}
    columns |= {axis: mesh.dense.coordinate(mesh.dense.groups(()).ravel(), axis).tolist() for axis in DENSE_AXES}
    if mesh.has_expert_mesh:
        every = mesh.expert_coordinates()
        columns |= {axis: every[axis].tolist() for axis in EXPERT_AXES if axis != "pp"}
    return columns


def group_numbers(mesh: Mesh, name: str, instead: Mapping[str, Ints] | None = None) -> list[int | None]:
    """The number of each rank's group in its family; None where it has none (embedding, middle stages)."""
    groups = family_groups(mesh, name, instead)
    numbers: list[int | None] = [None] * mesh.world
    for number, group in enumerate(groups.tolist()):
        for rank in group:
            numbers[rank] = number
    return numbers


def communicators_payload(counts: Sequence[CommunicatorCount]) -> dict[str, Any]:
    """Scope -> totals and families."""
    return {
        count.scope.replace(" ", "_"): {
            "groups": count.groups,
            "gloo_twins": count.twins,
            "creations": count.creations,
            "singletons_wasted": count.waste,
            "families": [{**asdict(one), "singletons": one.singletons} for one in count.families],
        }
        for count in counts
    }


def describe(mesh: Mesh, views: Views) -> dict[str, Any]:
    """Everything about a mesh, ready for JSON.

    `families` lists every group; a rank's `groups` gives the number of its group in each of those lists.
    """
    nodes = views.nodes_of(mesh)
    families = families_of(mesh)
    return {
        "signature": mesh.signature(),
        "world": mesh.world,
        "order": "-".join(mesh.axes),
        "sizes": {axis: getattr(mesh, axis) for axis in ("tp", "cp", "ep", "dp", "pp", "etp", "edp")},
        "axes": [dict(zip(("mesh", "axis", "size", "stride"), axis, strict=True)) for axis in axes_of(mesh)],
        "families": {family.name: _family_payload(mesh, family, views) for family in families},
        "placement": _placement_payload(mesh, nodes, views),
        "communicators": communicators_payload(count_communicators(mesh, views.groups)),
        "sharding": None if views.sharding is None else submesh_payload(views.sharding),
        "context": None if views.context is None else submesh_payload(views.context),
        "weights": _weights_payload(mesh, views.model),
        "warnings": list(views.warnings),
        "ranks": _ranks_payload(mesh, nodes, views),
    }


def _weights_payload(mesh: Mesh, model: ModelFacts) -> list[dict[str, Any]]:
    """`stages` says which end of the model a weight belongs to, `on_stages` the pipeline stages that hold it."""
    ends, every = end_stages(mesh, model.parts), tuple(range(mesh.pp))
    return [
        {**asdict(weight), "share": weight.share, "on_stages": list(ends.get(weight.stages, every))}
        for weight in weight_shares(mesh, model)
    ]


def _family_payload(mesh: Mesh, family: Family, views: Views) -> dict[str, Any]:
    groups = family_groups(mesh, family.name, views.groups)
    return {"purpose": family.purpose, "count": len(groups), "size": groups.shape[1], "groups": groups.tolist()}


def _placement_payload(mesh: Mesh, nodes: Ints, views: Views) -> dict[str, Any]:
    return {
        "gpus_per_node": views.gpus_per_node,
        "nodes": len(set(nodes.tolist())),
        "families": {one.family: {**asdict(one), "tier": one.tier} for one in spreads(mesh, nodes, views.groups)},
        "stage_hops": [{**asdict(hop), "tier": hop.tier} for hop in stage_hops(mesh, nodes, views.interleaved)],
    }


def submesh_payload(sharding: SubMesh) -> dict[str, Any]:
    """Dimensions of a sub-mesh and the groups along each."""
    return {
        "cut_from": list(sharding.axes),
        "shape": dict(zip(sharding.dims, sharding.shape, strict=True)),
        "groups": {dim: sharding.groups(dim).tolist() for dim in sharding.dims},
    }


def _ranks_payload(mesh: Mesh, nodes: Ints, views: Views) -> list[dict[str, Any]]:
    columns = rank_columns(mesh, nodes)
    numbers = {family.name: group_numbers(mesh, family.name, views.groups) for family in families_of(mesh)}
    return [
        {
            **{name: columns[name][rank] for name in ("rank", "gpu", "node")},
            "coordinates": _row(columns, rank, skip=("rank", "gpu", "node")),
            "groups": _row(numbers, rank),
            "holds": _held_payload(held),
        }
        for rank, held in enumerate(holdings(mesh, views.model))
    ]


def _row(columns: Mapping[str, Sequence[object]], rank: int, skip: Sequence[str] = ()) -> dict[str, object]:
    return {name: column[rank] for name, column in columns.items() if name not in skip}


def _held_payload(held: Holding) -> dict[str, Any]:
    """Stage, layer numbers (all null without layers), and the part of each weight, counted from 0."""
    chunks = held.chunks
    return {
        "stage": held.stage,
        "layers": None if chunks is None else [layer for first, end in chunks for layer in range(first, end)],
        "layers_per_chunk": None if chunks is None else [end - first for first, end in chunks],
        "weights": {name: "whole" if of == 1 else f"part {part} of {of}" for name, (part, of) in held.parts.items()},
    }
