"""Copies to the host's memory and back: of which passes, how much, and how fast a GPU reaches the host."""

from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.memory import MemoryJob, layers_activation_bytes, leaving, overheads_of
from traincast.model.block import HostCopy
from traincast.schedule import ScheduleKey, stages_of
from traincast.topology import Cluster

Ints = npt.NDArray[np.int64]


def host_copy(job: Job, layers: int, way: Literal["out", "in"], before: int = 0) -> tuple[Segment, ...]:
    """The copies of a pass over so many layers, in front of it: beside it runs what the pass before left to copy out,
    or what the next backward pass needs. `before` as `ChunkPart` has it.

    In steady state each forward pass copies its share out beside the pass that follows, and each backward pass finds
    its own copied in beside the pass before it (Yuan et al. 2024, Megatron-Kwai), so every pass is at least as long as
    the copies of one. Both ways run at once.
    """
    share = job.recipe.offload_activations
    if share == 0.0 or layers == 0:
        return ()
    size = share * layers_activation_bytes(
        MemoryJob(job.model, job.mesh, job.recipe, overheads_of(job.profile)), layers, before
    )
    return (Segment((HostCopy(f"offload.{way}", size, way, host_bytes_per_s(job.cluster, job.seat)),)),)


def stays(job: Job, part: int) -> bool:
    """Whether the activations of all passes over a part of the model stay on the GPU, so that nothing is copied."""
    recipe, pp, v = job.recipe, job.mesh.pp, job.chunks
    if recipe.offload_activations == 0.0:
        return True
    key: ScheduleKey = (recipe.schedule, pp, job.microbatches, v)
    away = leaving(key)
    return not any(away[stage][chunk] for stage, chunk in stages_of(recipe.schedule, pp, v, part))


def host_seats(job: Job) -> Ints | None:
    """For every rank a GPU that reaches its host as fast as the rank's own does, one for each rate; None where ranks do
    not differ, or copy nothing."""
    if job.recipe.offload_activations == 0.0 and job.recipe.offload_states == "none":
        return None
    gpus = job.mesh.physical(np.arange(job.mesh.world))
    rates = np.array([host_bytes_per_s(job.cluster, gpu) for gpu in gpus.tolist()])
    _, first, kinds = np.unique(rates, return_index=True, return_inverse=True)
    return None if len(first) == 1 and rates[0] == host_bytes_per_s(job.cluster, job.seat) else gpus[first][kinds]


def host_bytes_per_s(cluster: Cluster, gpu: int = 0) -> float:
    """What each GPU of the node of `gpu` gets on its way to the host's memory when all of them copy [bytes/s]."""
    return _node_bytes_per_s(cluster, int(cluster.node_index[gpu]))


@lru_cache(maxsize=4096)
def _node_bytes_per_s(cluster: Cluster, node: int) -> float:
    uses: Counter[tuple[str, str]] = Counter()
    for gpu in _gpus(cluster)[node]:
        uses.update((min(edge), max(edge)) for edge in pairwise(_way_to_host(cluster, gpu)))
    return float(min(cluster.graph.edges[edge]["bandwidth_bytes_per_s"] / count for edge, count in uses.items()))


@lru_cache(maxsize=16)
def _gpus(cluster: Cluster) -> Mapping[int, list[str]]:
    """The GPUs of each node."""
    found: dict[int, list[str]] = defaultdict(list)
    for name, data in cluster.graph.nodes(data=True):
        if data["kind"] == "gpu":
            found[data["node"]].append(name)
    return found


def _way_to_host(cluster: Cluster, gpu: str) -> list[str]:
    """The shortest path inside the node from a GPU to a processor."""
    nodes = cluster.graph.nodes
    before, queue = {gpu: gpu}, deque([gpu])
    while queue:
        at = queue.popleft()
        if nodes[at]["kind"] == "cpu":
            way = [at]
            while way[-1] != gpu:
                way.append(before[way[-1]])
            return way
        for near in cluster.graph.adj[at]:
            if near not in before and nodes[near].get("node") == nodes[gpu]["node"]:
                before[near] = at
                queue.append(near)
    raise TopologyError(f"{gpu} has no way to a processor of its node", fix="add the processor and its links")
