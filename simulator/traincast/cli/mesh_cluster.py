"""Shows a mesh, and where its groups and a step's bytes go on a cluster."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.cli.output import OutputFormat, chosen_format, emit, remark

if TYPE_CHECKING:
    from traincast.lower import Job
    from traincast.mesh import Mesh
    from traincast.mesh.describe import Views
    from traincast.plan import Wiring
    from traincast.report.tables import Table
    from traincast.scenario import Scenario
    from traincast.topology import Cluster


@dataclass(frozen=True)
class Shown:
    """How to show it: busiest links, nothing cut short, form and file."""

    top: int
    everything: bool
    fmt: OutputFormat | None
    output: Path | None


@dataclass(frozen=True)
class Subject:
    """A mesh with what its schedule makes of it, on a cluster where one is named, with the job where a scenario is."""

    mesh: "Mesh"
    views: "Views"
    cluster: "Cluster | None" = None
    job: "Job | None" = None
    wiring: "Wiring | None" = None


def on_cluster(subject: Subject, name: str) -> Subject:
    """The mesh on the GPUs of a cluster that its ranks need."""
    from traincast.plan import nodes_of
    from traincast.topology import load_cluster

    mesh = subject.mesh
    cluster = load_cluster(name, gpus=mesh.world if mesh.placement is None else 1 + max(mesh.placement))
    views = replace(subject.views, gpus_per_node=cluster.gpus_per_node, nodes=nodes_of(mesh, cluster))
    return replace(subject, cluster=cluster, views=views)


def of_scenario(name: str, overrides: list[tuple[str, str]], cluster: str | None) -> Subject:
    """Mesh, cluster and job of a scenario; `cluster` takes the place of its own."""
    from traincast.forecast import prepare
    from traincast.lower.submeshes import context_mesh, sharding_mesh
    from traincast.mesh.describe import Views
    from traincast.plan import nodes_of, wiring_of

    loaded = scenario_on(name, overrides, cluster)
    prepared = prepare(loaded)
    job, model = prepared.job, loaded.model
    wiring = wiring_of(job.mesh, job.recipe.schedule, job.chunks)
    views = Views(
        gpus_per_node=job.cluster.gpus_per_node,
        nodes=nodes_of(job.mesh, job.cluster),
        model=_facts(loaded),
        interleaved=wiring.wraps,
        groups=wiring.groups,
        sharding=sharding_mesh(job),
        sharded_as=f"ZeRO-{job.recipe.zero_stage}",
        context=context_mesh(job),
    )
    remark(f"{loaded.name}: {model.name} on {job.mesh.world} GPUs of {job.cluster.name}")
    return Subject(job.mesh, views, job.cluster, job, wiring)


def scenario_on(name: str, overrides: list[tuple[str, str]], cluster: str | None) -> "Scenario":
    """A scenario, on another cluster if one is named."""
    from traincast.scenario import load_scenario

    return load_scenario(name, [*overrides, *([("cluster", cluster)] if cluster else [])])


def _facts(scenario: "Scenario") -> Any:
    from traincast.cli.mesh_schedule import parts_of_stages
    from traincast.mesh import balanced_layers
    from traincast.mesh.holdings import ModelFacts
    from traincast.schedule import chunks_of_model

    model, recipe, mesh = scenario.model, scenario.recipe, scenario.mesh
    chunks = chunks_of_model(recipe.schedule, recipe.vpp)
    return ModelFacts(
        split=recipe.stage_layers or balanced_layers(model.layers, mesh.pp, chunks),
        parts=parts_of_stages(recipe.schedule, mesh.pp, recipe.vpp),
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_hidden=model.ffn_hidden,
        vocab=model.vocab,
    )


def show(subject: Subject, shown: Shown) -> None:
    """Writes the mesh, and what is known of it on its cluster."""
    from traincast.cli.mesh_tables import mesh_tables, ranks_table
    from traincast.mesh.describe import describe

    form = chosen_format(shown.fmt, shown.output)
    payload = describe(subject.mesh, subject.views) if form == "json" else {}
    if form == "table":
        tables: tuple[Table, ...] = mesh_tables(subject.mesh, subject.views, shown.everything)
    else:
        tables = (ranks_table(subject.mesh, subject.views),)
    if subject.cluster is not None and form != "csv":
        further, entry = _on_cluster(subject, subject.cluster, shown.top)
        payload, tables = {**payload, "cluster": entry}, (*tables, *further)
    emit(payload, tables, form, shown.output)


def _on_cluster(subject: Subject, cluster: "Cluster", top: int) -> "tuple[list[Table], dict[str, Any]]":
    """Tables and JSON of the reach of every family, and of the load of links where a job is known."""
    from traincast.plan import busiest, by_kind, job_loads, reaches
    from traincast.plan.reach import PLAIN
    from traincast.report.plan_tables import kinds_table, links_table, reach_table

    found = reaches(subject.mesh, cluster, subject.wiring or PLAIN)
    tables = [reach_table(found, cluster.name)]
    entry: dict[str, Any] = {
        "name": cluster.name,
        "gpus": len(cluster.gpus),
        "families": {one.family: {**vars(one), "farthest": one.farthest} for one in found},
    }
    if subject.job is not None:
        loads = job_loads(subject.job)
        kinds, links = by_kind(loads), busiest(loads, top)
        tables += [kinds_table(kinds), links_table(links)]
        entry["bytes_per_step"] = [vars(one) for one in kinds]
        entry["busiest_links"] = [vars(one) for one in links]
    return tables, entry
