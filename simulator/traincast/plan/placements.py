"""Other ways to lay the same ranks on the same GPUs: nodes as blocks, dealt out or sorted."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from traincast.mesh import Mesh
from traincast.topology import Cluster

Ints = npt.NDArray[np.int64]
GIVEN = "as given"


def node_blocks(mesh: Mesh, cluster: Cluster) -> list[tuple[int, ...]]:
    """The GPUs of the ranks in runs of consecutive ranks on one node."""
    gpus = mesh.physical(np.arange(mesh.world))
    cuts = np.flatnonzero(np.diff(cluster.node_index[gpus])) + 1
    return [tuple(run.tolist()) for run in np.split(gpus, cuts)]


def placements(mesh: Mesh, cluster: Cluster) -> dict[str, tuple[int, ...]]:
    """Name -> the GPU of each rank, without those that come out as another: first as given.

    `by node`: GPUs in their physical order; `leaves in turn`, `pods in turn`: nodes dealt out to them;
    `models reversed`: the runs of nodes with one GPU model in reverse; `slow nodes last`: nodes by their slowest GPU.
    """
    blocks = node_blocks(mesh, cluster)
    given = tuple(gpu for block in blocks for gpu in block)
    found = {GIVEN: given}
    for name, placed in _others(blocks, cluster):
        if placed not in found.values():
            found[name] = placed
    return found


def _others(blocks: Sequence[tuple[int, ...]], cluster: Cluster) -> Iterator[tuple[str, tuple[int, ...]]]:
    physical = sorted(gpu for block in blocks for gpu in block)
    yield "by node", tuple(physical)
    by_node: dict[int, list[int]] = {}
    for gpu in physical:
        by_node.setdefault(int(cluster.node_index[gpu]), []).append(gpu)
    nodes = list(by_node.values())
    for name, tier in (("leaves in turn", "leaf"), ("pods in turn", "spine")):
        yield name, _flat(_dealt(nodes, cluster.place(tier)))
    runs: list[list[list[int]]] = []
    for node in nodes:
        model = cluster.gpu_model[node[0]]
        if not runs or cluster.gpu_model[runs[-1][-1][0]] != model:
            runs.append([])
        runs[-1].append(node)
    yield "models reversed", _flat([node for run in reversed(runs) for node in run])
    yield "slow nodes last", _flat(sorted(nodes, key=lambda node: -float(cluster.gpu_speed[node].min())))


def _dealt(nodes: Sequence[list[int]], place: Ints) -> list[list[int]]:
    """One node of each place in turn."""
    decks: dict[int, list[list[int]]] = {}
    for node in nodes:
        decks.setdefault(int(place[node[0]]), []).append(node)
    return [node for turn in zip_longest(*decks.values()) for node in turn if node is not None]


def _flat(nodes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(gpu for node in nodes for gpu in node)


def swaps(blocks: Sequence[tuple[int, ...]], count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Pairs of blocks to try to swap, the same for the same seed; only blocks of equal size."""
    draw = np.random.default_rng(seed)
    if len(blocks) < 2:
        return
    for _ in range(count):
        one, other = sorted(draw.choice(len(blocks), size=2, replace=False).tolist())
        if len(blocks[one]) == len(blocks[other]):
            yield one, other
