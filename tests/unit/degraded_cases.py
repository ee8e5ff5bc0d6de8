"""A small worn cluster, a job on it, and what its groups cost: shared by the tests of defects."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from traincast.degraded import degradation
from traincast.forecast import Prepared, prepare_on
from traincast.lower import lower
from traincast.lower.program import RankClass
from traincast.lower.touched import Degradation, TouchedFamily, defects_of
from traincast.mesh import Mesh
from traincast.model import gpt
from traincast.recipe import Recipe
from traincast.scenario import ClusterSpec, Scenario
from traincast.topology import Change, Cluster, clean, degraded

TREE = """\
builder: fat_tree
nodes: 8
node: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}
fabric: {levels: 2, nodes_per_unit: 4}
"""
NIC, GPU, LEAF = "{nic: n0/nic3, rate: 50 %}", "{gpu: n4/gpu0, speed: 90 %}", "{leaf: su0/leaf1, uplinks_cut: 1}"
THREE = (
    Change("slow_nic", "n0/nic3", rate=0.5),
    Change("slow_gpu", "n4/gpu0", rate=0.9),
    Change("cut_uplinks", "su0/leaf1", count=1),
)


def scenario(path: Path, mesh: Mesh | None = None, **recipe: object) -> Scenario:
    """Two replicas of four stages; TP in a node, a pipeline in a scalable unit, a replica a unit."""
    base = Recipe(global_batch=32, microbatch=1, sequence=1024, schedule="1f1b", recompute="full")
    return Scenario(
        name="small",
        model=gpt("small", 1024, 16, 16),
        cluster=ClusterSpec(str(path)),
        mesh=mesh or Mesh(tp=8, pp=4, dp=2, order="tp-pp-dp"),
        recipe=replace(base, **recipe),  # type: ignore[arg-type]
    )


def worn(folder: Path, *defects: str) -> Path:
    path = folder / f"worn{len(defects)}.yaml"
    path.write_text(TREE + "degraded:\n" + "".join(f"  - {one}\n" for one in defects) if defects else TREE)
    return path


def on(prepared: Prepared, changes: Iterable[Change]) -> Prepared:
    return prepare_on(prepared.scenario, degraded(prepared.job.cluster, changes))


def ranks(prepared: Prepared) -> tuple[RankClass, ...]:
    """The costs of every rank by itself."""
    return lower(prepared.job, fold=False).program.classes


def costs(classes: tuple[RankClass, ...], mesh: Mesh) -> dict[str, list[object]]:
    """What every group's own operations cost: chunks of a TP group, messages of a pipeline, buckets of a DP group."""

    def times(family: str, rank: int) -> object:
        cls = classes[rank]
        if family == "tp":
            return {key: (cost.duration_s, dict(cost.labels_s)) for key, cost in cls.chunks.items()}
        return cls.buckets if family == "dp" else {key: cost.send_s for key, cost in cls.chunks.items()}

    groups = {"tp": mesh.groups("tp"), "pp": mesh.groups("pp"), "dp": mesh.groups("dp")}
    return {name: [[times(name, rank) for rank in row] for row in rows.tolist()] for name, rows in groups.items()}


def different(one: Prepared, other: Prepared) -> dict[str, set[int]]:
    """Groups whose costs differ, by family; equal means equal to the last bit."""
    first, second = (costs(ranks(prepared), prepared.job.mesh) for prepared in (one, other))
    found = {name: {i for i, row in enumerate(first[name]) if row != second[name][i]} for name in first}
    return {name: rows for name, rows in found.items() if rows}


def stated(prepared: Prepared) -> tuple[dict[str, TouchedFamily], ...]:
    found = degradation(prepared, 1.0)
    assert isinstance(found, Degradation)
    return tuple({family.family: family for family in one.families} for one in found.defects)


def own_bus(cluster: Cluster, gpu: str) -> tuple[str, str]:
    host = next(key for key in cluster.graph[gpu] if cluster.graph.nodes[key]["kind"] in ("pcie", "cpu"))
    return gpu, host


def inside(cluster: Cluster, mesh: Mesh) -> tuple[dict[str, tuple[int, int, int, int]], ...]:
    """(groups, touched, changed, first rank) by family for each defect."""
    prepared = prepare_on(replace(scenario(Path("inside"), mesh, schedule="none"), name="inside"), cluster)
    return tuple(
        {row.family: (row.groups, row.touched, row.changed, row.first_ranks[0]) for row in one.families}
        for one in defects_of(prepared.job, clean(cluster))
    )
