"""`traincast topology`: the clusters and GPUs that are known, and what one cluster consists of."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.output import FormatOption, OutputOption, emit

if TYPE_CHECKING:
    from traincast.catalog import Gpu
    from traincast.report.tables import Table
    from traincast.topology.load import ClusterSummary
    from traincast.topology.summary import Summary


def list_(fmt: FormatOption = None, output: OutputOption = None) -> None:
    """List the clusters that can be named, and the GPUs of the catalogue."""
    from traincast.catalog import load_catalog
    from traincast.topology.load import list_clusters

    clusters, gpus = list_clusters(), tuple(load_catalog().gpus.values())
    payload = {
        "clusters": [_cluster_entry(cluster) for cluster in clusters],
        "gpus": [_gpu_entry(gpu) for gpu in gpus],
    }
    emit(payload, [_cluster_table(clusters), _gpu_table(gpus)], fmt, output)


def show(
    name: Annotated[str, typer.Argument(help="A cluster's name (see 'topology list') or a .yaml file.")],
    gpus: Annotated[int | None, typer.Option("--gpus", help="Only the whole nodes that hold so many GPUs.")] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE", help="Also draw it, as .png, .svg or .pdf.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="SIZES", help="A mesh on it, such as tp=8,pp=4,dp=12.")
    ] = None,
    family: Annotated[str, typer.Option("--family", help="The groups of the mesh to colour.")] = "dp",
    size: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="What each of them sends a step, shown as heat.")
    ] = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Show what a cluster consists of: parts, links, tiers with their bisection bandwidth; and draw it."""
    from traincast.cli.topology_picture import busiest_table, draw, overlay_of
    from traincast.topology.load import load_cluster
    from traincast.topology.summary import summarise

    cluster = load_cluster(name, gpus=gpus)
    summary = summarise(cluster)
    entry, tables = _summary_entry(summary), _summary_tables(summary)
    overlay = overlay_of(cluster, mesh, family, size)
    if overlay.loads is not None:
        entry["busiest_links"] = [vars(link) for link in overlay.loads.busiest_by_kind()]
        tables.append(busiest_table(overlay.loads))
    if picture is not None:
        draw(cluster, overlay, picture)
    emit(entry, tables, fmt, output)


def _cluster_entry(cluster: "ClusterSummary") -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(cluster).items()}


def _gpu_entry(gpu: "Gpu") -> dict[str, Any]:
    return {key: dict(value) if key == "peaks_flops_per_s" else value for key, value in vars(gpu).items()}


def _cluster_table(clusters: "tuple[ClusterSummary, ...]") -> "Table":
    from traincast.report.tables import Table

    columns = ("cluster", "nodes", "GPUs", "GPU", "NICs per node", "NIC", "description")
    rows = tuple((c.name, c.nodes, c.gpus, c.gpu, c.nics_per_node, c.nic, c.description) for c in clusters)
    return Table("Clusters", columns, rows)


def _gpu_table(gpus: "tuple[Gpu, ...]") -> "Table":
    from traincast.report.tables import Table
    from traincast.units import format_bandwidth, format_size

    columns = (
        "GPU",
        "memory",
        "memory bandwidth",
        "NVLink per direction",
        "dense 16-bit TFLOP/s",
        "GPUs per node",
        "NICs per node",
        "NIC",
    )
    rows = tuple(
        (
            gpu.name,
            format_size(gpu.memory_bytes),
            format_bandwidth(gpu.memory_bandwidth_bytes_per_s),
            format_bandwidth(gpu.nvlink_bytes_per_s) if gpu.nvlink_bytes_per_s else "none",
            _dense_16_bit(gpu),
            gpu.gpus_per_node,
            gpu.nics_per_node,
            gpu.nic,
        )
        for gpu in gpus
    )
    return Table("GPUs of the catalogue, with the node they usually come in", columns, rows)


def _dense_16_bit(gpu: "Gpu") -> float | None:
    peaks = gpu.peaks_flops_per_s
    peak = peaks.get("bf16", peaks.get("fp16"))
    return None if peak is None else peak / 1e12


def _summary_entry(summary: "Summary") -> dict[str, Any]:
    return {
        **vars(summary),
        "links": [vars(row) for row in summary.links],
        "tiers": [vars(row) for row in summary.tiers],
        "assumed": list(summary.assumed),
    }


def _summary_tables(summary: "Summary") -> "list[Table]":
    from traincast.report.tables import Table
    from traincast.units import format_bandwidth, format_time

    models = ", ".join(f"{count} x {model}" for model, count in summary.gpu_models.items())
    counts = [(kind, count) for kind, count in summary.counts.items() if kind in ("nodes", "switches")]
    parts = [(kind, count) for kind, count in summary.parts.items()]
    tiers = tuple(
        (
            row.tier,
            row.groups,
            row.gpus_per_group,
            format_bandwidth(row.bisection_bytes_per_s),
            row.oversubscription,
        )
        for row in summary.tiers
    )
    links = tuple(
        (
            row.between,
            row.kind,
            row.links,
            format_bandwidth(row.bandwidth_bytes_per_s),
            format_time(row.latency_s),
        )
        for row in summary.links
    )
    bisection = "bisection of one group, per direction"
    tables = [
        Table(f"{summary.name}: {models}", ("part", "count"), (*counts, *parts)),
        Table("Tiers", ("tier", "groups", "GPUs per group", bisection, "oversubscription"), tiers),
        Table("Links", ("between", "kind", "links", "one link, per direction", "latency"), links),
    ]
    if summary.assumed:
        tables.append(Table("Assumed", ("assumption",), tuple((text,) for text in summary.assumed)))
    return tables
