"""Activations that wait in the host's memory: what a pass copies, and how fast a GPU reaches the host."""

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import networkx as nx

from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.memory import layer_activation_bytes
from traincast.model.block import HostCopy
from traincast.topology import Cluster


def host_copy(job: Job, layers: int, way: Literal["out", "in"]) -> tuple[Segment, ...]:
    """The copies of a pass over so many layers, in front of it: beside it runs what the pass before left to copy out,
    or what the next backward pass needs.

    In steady state each forward pass copies its share out beside the pass that follows, and each backward pass finds
    its own copied in beside the pass before it (Yuan et al. 2024, Megatron-Kwai), so every pass is at least as long as
    the copies of one. Both ways run at once.
    """
    share = job.recipe.offload_activations
    if share == 0.0 or layers == 0:
        return ()
    size = share * layers * layer_activation_bytes(job.model, job.mesh, job.recipe)
    return (Segment((HostCopy(f"offload.{way}", size, way, host_bytes_per_s(job.cluster)),)),)


@lru_cache(maxsize=64)
def host_bytes_per_s(cluster: Cluster) -> float:
    """What each GPU of the first node gets on its way to the host's memory when all of them copy [bytes/s]."""
    graph = cluster.graph
    node = graph.nodes[cluster.gpus[0]]["node"]
    inside = graph.subgraph([name for name, data in graph.nodes(data=True) if data.get("node") == node])
    kinds = {name: data["kind"] for name, data in inside.nodes(data=True)}
    uses: Counter[tuple[str, str]] = Counter()
    for gpu in (name for name, kind in kinds.items() if kind == "gpu"):
        found = nx.single_source_shortest_path(inside, gpu)
        path = min((path for name, path in found.items() if kinds[name] == "cpu"), key=len)
        uses.update((min(edge), max(edge)) for edge in pairwise(path))
    rates = [inside.edges[edge]["bandwidth_bytes_per_s"] / count for edge, count in uses.items()]
    return float(min(rates))
