"""What `mesh --cluster` shows of a step, against the traffic of `predict`: on every cluster of the catalogue, in shapes
drawn by seed.

Law: both count the same bytes. By axis, what all members of the groups send is the bytes of a GPU times the GPUs, and
what leaves nodes on NICs is that times the share of a GPU's bytes that crosses nodes.
"""

from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest

from traincast.catalog import load_catalog
from traincast.lower import Job, lower
from traincast.lower.traffic import AXIS_OF
from traincast.mesh import Mesh
from traincast.model import gpt
from traincast.plan import by_kind, job_loads
from traincast.plan.loads import family_traffic, spans_of
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology.load import list_clusters, load_cluster

KINDS: dict[str, dict[str, object]] = {
    "ring": {},
    "allgather": {"cp_kind": "allgather"},
    "ulysses": {"cp_kind": "ulysses"},
    "usp": {"cp_kind": "usp", "cp_ulysses": 2},
    "burst": {"cp_kind": "burst"},
}
CLUSTERS = [one.name for one in list_clusters()]
WORLD = 32


def drawn(name: str, kind: str) -> Job:
    """A job on the first 32 GPUs of a cluster: sizes, order and schedule by the seed that both names make."""
    random = Random(f"{name} {kind}")
    cp = random.choice([4, 8])
    tp = random.choice([size for size in (1, 2, 4) if size * cp <= WORLD])
    pp = random.choice([size for size in (1, 2) if tp * cp * size <= WORLD])
    axes = ["tp", "cp", "ep", "dp", "pp"]
    random.shuffle(axes)
    mesh = Mesh(tp=tp, cp=cp, pp=pp, dp=WORLD // (tp * cp * pp), order="-".join(axes))
    recipe = Recipe(
        global_batch=4 * mesh.dp,
        microbatch=1,
        sequence=8192,
        schedule="none" if pp == 1 else random.choice(["1f1b", "gpipe", "zb-h1"]),
        attention="flash",
        zero_stage=random.choice([0, 1]),
        p2p="async",
    )
    cluster = load_cluster(name, gpus=WORLD)
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-80gb-sxm")
    return Job(gpt("small", 2048, 4, 32), mesh, replace(recipe, **KINDS[kind]), profile, cluster, gpu)  # type: ignore[arg-type]


def axis_of(family: str) -> str:
    """The axis that a forecast counts a family to; that of tied embeddings is dp."""
    return AXIS_OF.get(family, family)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CLUSTERS)
def test_both_count_the_same_bytes(name: str, kind: str) -> None:
    job = drawn(name, kind)
    stated = lower(job).traffic
    sent: dict[str, float] = defaultdict(float)
    for row in family_traffic(job, spans_of(job)):
        sent[axis_of(row.name)] += float(row.group_bytes.sum()) * (row.groups.shape[1] if row.ring else 1)
    assert set(sent) == set(stated)
    for axis, one in stated.items():
        assert sent[axis] == pytest.approx(one.bytes_per_gpu * WORLD, rel=1e-9), axis
    leaving: dict[str, float] = defaultdict(float)
    nic = {one.kind: one for one in by_kind(job_loads(job))}.get("NIC to leaf")
    for family, size in (nic.by_family if nic else {}).items():
        leaving[axis_of(family)] += size
    for axis, one in stated.items():
        assert leaving[axis] == pytest.approx(one.cross_node_bytes * WORLD, rel=1e-6, abs=1.0), axis
