"""Where the parts of a cluster stand in its picture. Numbers only: nothing is drawn here.

A cluster is too large to draw whole: of many alike pods and units the first ones and the last one are shown, and the
gap says how many it stands for. Units that hold the groups to be shown come first.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.topology import Cluster

Ints = npt.NDArray[np.int64]

MOST_UNITS = 14
MOST_PODS = 4
GAP = 0.62
POD_GAP = 0.5
UNIT_GAP = 0.18


@dataclass(frozen=True, eq=False)
class UnitBox:
    """A scalable unit: its GPUs as a grid (nodes, GPUs a node) of GPU numbers, -1 where there is none; its leaves."""

    number: int
    left: float
    grid: Ints
    leaves: tuple[int, ...]


@dataclass(frozen=True)
class Gap:
    """Parts that are left out, in words, at a place."""

    middle: float
    text: str


@dataclass(frozen=True, eq=False)
class PodBox:
    """A pod from `left` to `right`: its spines and the units shown of it."""

    number: int
    left: float
    right: float
    spines: int
    units: tuple[UnitBox, ...]


@dataclass(frozen=True, eq=False)
class Layout:
    """The pods and gaps from left to right, and the width of all."""

    pods: tuple[PodBox, ...]
    gaps: tuple[Gap, ...]
    width: float


def chosen(numbers: Sequence[int], most: int, wanted: Collection[int] = ()) -> list[int]:
    """At most `most` of the numbers in their order: those wanted, then the first ones, and the last one."""
    if len(numbers) <= most:
        return list(numbers)
    order = [*(n for n in numbers if n in wanted), numbers[0], numbers[-1], *numbers]
    return sorted(list(dict.fromkeys(order))[:most])


def plan_layout(cluster: Cluster, shown: Collection[int] = ()) -> Layout:
    """The layout; `shown` are GPUs whose units should be among those drawn."""
    unit_of, pod_of = cluster.place("leaf"), cluster.place("spine")
    wanted_units = {int(unit_of[gpu]) for gpu in shown}
    wanted_pods = {int(pod_of[gpu]) for gpu in shown}
    all_pods = np.unique(pod_of).tolist()
    pods: list[PodBox] = []
    gaps: list[Gap] = []
    left = 0.0
    last = -1
    picked = chosen(all_pods, MOST_PODS, wanted_pods)
    for pod in picked:
        if last >= 0 and all_pods.index(pod) > last + 1:
            gaps.append(Gap(left + GAP / 2, _left_out(all_pods.index(pod) - last - 1, "pod")))
            left += GAP + POD_GAP
        box, inner = _pod(cluster, pod, left, (len(picked), wanted_units))
        pods.append(box)
        gaps += inner
        left = box.right + POD_GAP
        last = all_pods.index(pod)
    return Layout(tuple(pods), tuple(gaps), left - POD_GAP)


def _pod(cluster: Cluster, pod: int, left: float, asked: tuple[int, Collection[int]]) -> tuple[PodBox, list[Gap]]:
    drawn, wanted = asked
    unit_of, pod_of = cluster.place("leaf"), cluster.place("spine")
    numbers = np.unique(unit_of[pod_of == pod]).tolist()
    units: list[UnitBox] = []
    gaps: list[Gap] = []
    at, last = left, -1
    for unit in chosen(numbers, max(2, MOST_UNITS // drawn), wanted):
        place = numbers.index(unit)
        if place > last + 1:
            gaps.append(Gap(at + GAP / 2, _left_out(place - last - 1, "unit")))
            at += GAP + UNIT_GAP
        units.append(UnitBox(unit, at, _grid(cluster, np.flatnonzero(unit_of == unit)), _leaves(cluster, unit)))
        at += 1.0 + UNIT_GAP
        last = place
    spines = {key for unit in units for leaf in unit.leaves for key in _above(cluster, leaf)}
    return PodBox(pod, left, at - UNIT_GAP, len(spines), tuple(units)), gaps


def _left_out(count: int, what: str) -> str:
    return f"{count}\nmore\n{what}{'s' if count > 1 else ''}"


def _grid(cluster: Cluster, gpus: Ints) -> Ints:
    nodes = np.unique(cluster.node_index[gpus])
    index = np.array([cluster.graph.nodes[cluster.gpus[gpu]]["index"] for gpu in gpus.tolist()], dtype=np.int64)
    grid = np.full((len(nodes), int(index.max()) + 1), -1, dtype=np.int64)
    grid[np.searchsorted(nodes, cluster.node_index[gpus]), index] = gpus
    return grid


def _leaves(cluster: Cluster, unit: int) -> tuple[int, ...]:
    fabric = cluster.fabric
    nics = fabric.gpu_nics[cluster.place("leaf") == unit]
    leaves = fabric.nic_leaf[nics[nics >= 0]]
    return tuple(np.unique(leaves[leaves >= 0]).tolist())


def _above(cluster: Cluster, leaf: int) -> list[str]:
    graph = cluster.graph
    return [key for key in graph[cluster.fabric.leaf_keys[leaf]] if graph.nodes[key]["kind"] == "spine"]
