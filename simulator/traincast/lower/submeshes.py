"""The sub-meshes of a job: ranks that share states, and the two kinds of context-parallel groups inside one."""

from traincast.lower.job import Job
from traincast.lower.rings import head_groups, split_of
from traincast.lower.sharded import sharding_of
from traincast.lower.spans import gradient_groups
from traincast.mesh import SubMesh


def sharding_mesh(job: Job) -> SubMesh | None:
    """Ranks that share states, along `shard`, and the ranks with the same share, along `replicate`; None where each
    rank has all of its own."""
    how, mesh = sharding_of(job), job.mesh
    if how.shards == 1:
        return None
    members = gradient_groups(mesh, job.recipe.schedule)
    axes = ("dp", "cp") if mesh.cp > 1 else ("dp",)
    if how.replicas == 1:
        return SubMesh(("shard",), axes, members)
    return SubMesh(("replicate", "shard"), axes, members.reshape(len(members), -1, how.shards))


def context_mesh(job: Job) -> SubMesh | None:
    """Ranks that exchange heads, along `heads`, and those that pass blocks round, along `ring`; None where all ranks of
    a context-parallel group do the same."""
    split, cp = split_of(job.mesh, job.recipe), job.mesh.cp
    if split.ulysses in (1, cp):
        return None
    # one row of (ring, heads) a group, whichever of the two is nearer
    ranks = head_groups(job.mesh, split).reshape(-1, cp // split.ulysses, split.ulysses)
    return SubMesh(("ring", "heads"), ("cp",), ranks)
