"""The rank grid: axes, order, coordinates, groups, sub-meshes, placement, and the shapes that cannot be."""

from traincast.mesh.build import build_mesh, check_shape, shape_warnings
from traincast.mesh.families import (
    FAMILIES,
    CommunicatorCount,
    Family,
    FamilyCount,
    count_communicators,
    families_of,
    family_groups,
)
from traincast.mesh.grid import Grid
from traincast.mesh.gridchecks import AXES, DEFAULT_ORDER
from traincast.mesh.layers import balanced_layers, even_layers, stage_ranges
from traincast.mesh.mesh import DENSE_AXES, EXPERT_AXES, Mesh
from traincast.mesh.placement import Spread, StageHop, nodes_of_ranks, spreads, stage_hops
from traincast.mesh.problems import Problem
from traincast.mesh.request import ShapeRequest
from traincast.mesh.submesh import SubMesh, fsdp_mesh, hsdp_mesh

__all__ = [
    "AXES",
    "DEFAULT_ORDER",
    "DENSE_AXES",
    "EXPERT_AXES",
    "FAMILIES",
    "CommunicatorCount",
    "Family",
    "FamilyCount",
    "Grid",
    "Mesh",
    "Problem",
    "ShapeRequest",
    "Spread",
    "StageHop",
    "SubMesh",
    "balanced_layers",
    "build_mesh",
    "check_shape",
    "count_communicators",
    "even_layers",
    "families_of",
    "family_groups",
    "fsdp_mesh",
    "hsdp_mesh",
    "nodes_of_ranks",
    "shape_warnings",
    "spreads",
    "stage_hops",
    "stage_ranges",
]
