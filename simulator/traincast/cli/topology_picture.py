"""The picture of `traincast topology show`: the cluster, with the groups of a mesh and their load on its links."""

from pathlib import Path
from typing import TYPE_CHECKING

from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.mesh import Mesh
    from traincast.report.cluster_picture import Overlay
    from traincast.report.tables import Table
    from traincast.topology import Cluster
    from traincast.topology.loads import LinkLoads

_SIZES = ("tp", "cp", "pp", "dp", "ep", "etp")


def overlay_of(cluster: "Cluster", mesh: str | None, family: str, size: str | None) -> "Overlay":
    """What the options ask to be shown. Raises UsageError, ShapeError or TopologyError where they do not fit."""
    from traincast.mesh import family_groups
    from traincast.report.cluster_picture import Overlay
    from traincast.topology.loads import FamilyTraffic, link_loads
    from traincast.units import parse_size

    if mesh is None:
        if size is not None:
            raise UsageError("--bytes without --mesh", fix="say which mesh sends, such as --mesh tp=8,dp=4")
        return Overlay()
    built = mesh_of(mesh, len(cluster.gpus))
    groups = built.physical(family_groups(built, family))
    loads = None
    if size is not None and groups.shape[1] > 1:
        loads = link_loads(cluster, [FamilyTraffic(family, groups, parse_size(size))])
    return Overlay(family, groups, loads)


def mesh_of(text: str, gpus: int) -> "Mesh":
    """The mesh of "tp=8,pp=4,dp=12,order=tp-cp-ep-dp-pp", on at most so many GPUs."""
    from traincast.mesh import ShapeRequest, build_mesh

    sizes: dict[str, int] = {}
    order = ""
    for word in text.split(","):
        name, _, value = (part.strip() for part in word.partition("="))
        if name == "order" and value:
            order = value
        elif name in _SIZES and value.isdecimal() and name not in sizes:
            sizes[name] = int(value)
        else:
            raise UsageError(f"{word.strip()!r} is no axis and its size", fix="such as tp=8,pp=4,dp=12", where="--mesh")
    built = build_mesh(ShapeRequest(**sizes, **({"order": order} if order else {})))  # type: ignore[arg-type]
    if built.world > gpus:
        raise UsageError(f"the mesh has {built.world} ranks, the cluster {gpus} GPUs", fix="use a smaller mesh")
    return built


def draw(cluster: "Cluster", overlay: "Overlay", path: Path) -> None:
    """Draws the picture into a file."""
    from traincast.report.cluster_picture import draw_cluster

    draw_cluster(cluster, path, overlay)


def busiest_table(loads: "LinkLoads") -> "Table":
    """The busiest link of each kind."""
    from traincast.report.tables import Table
    from traincast.units import format_bandwidth, format_size, format_time

    rows = tuple(
        (link.kind, link.name, format_size(link.bytes), format_bandwidth(link.bytes_per_s), format_time(link.seconds))
        for link in loads.busiest_by_kind()
    )
    columns = ("links", "busiest", "bytes a step", "one way", "least time")
    return Table(f"Busiest links of {', '.join(loads.families)}", columns, rows)
