"""What is wrong with a cluster, as changes to its graph: slow and dead parts, cut and missing cables.

`degraded` is pure: it copies the graph, applies the changes and flattens it anew, so that only what hangs on the
changed parts differs. Every change adds a line to the assumptions that states what is lost. The result remembers the
cluster that it was made of and what was changed, so that `clean` can undo it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import networkx as nx

from traincast.errors import TopologyError, nearest_names
from traincast.topology.cluster import Cluster, make_cluster
from traincast.units import format_bandwidth

Kind = Literal["slow_nic", "slow_link", "slow_gpu", "cut_uplinks", "missing_cable", "dead_gpu", "absent_node"]
_ABOVE: Final = {"leaf": "spine", "spine": "core"}


@dataclass(frozen=True)
class Change:
    """One thing that is wrong. `part` and `other` are keys of the graph, such as ``n0/nic3``, ``su1/leaf2``.

    - `slow_nic`, `slow_link`: `rate` of the bandwidth is left, of a NIC's cable or of the edge `part`-`other`
    - `slow_gpu`: the GPU reaches `rate` of its speed
    - `cut_uplinks`: of a leaf or spine, `count` cables to the switches above are gone
    - `missing_cable`: the edge `part`-`other` is gone, with all its parallel cables
    - `dead_gpu`, `absent_node`: the GPU, or all GPUs of the node (``n3``), cannot be used
    """

    kind: Kind
    part: str
    other: str = ""
    rate: float = 1.0
    count: int = 1
    where: str = ""
    """Place in a file, for error messages."""


@dataclass(frozen=True)
class Loss:
    """What a change takes away: the part in one word, the loss in words, and the share of the part that is left."""

    change: Change
    part: str
    words: str
    left: float


def degraded(cluster: Cluster, changes: Iterable[Change]) -> Cluster:
    """The cluster with the changes applied, in the order given.

    Raises TopologyError for a part that is not there, a rate that is not above 0 and at most 1, more cables than there
    are, and where no GPU would be left.
    """
    changes = tuple(changes)
    if not changes:
        return cluster
    graph = cluster.graph.copy()
    gpus_of: dict[int, list[str]] = {}
    for key, data in graph.nodes(data=True):
        if data["kind"] == "gpu":
            gpus_of.setdefault(data["node"], []).append(key)
    losses, absent = [], []
    for change in changes:
        try:
            if change.kind == "absent_node":
                absent.append(_absent_node(graph, gpus_of, change))
                losses.append(Loss(change, change.part, f"{change.part} is not used", 0.0))
            else:
                losses.append(_APPLY[change.kind](graph, change))
        except TopologyError as error:
            raise TopologyError(error.message, fix=error.fix, where=change.where or None) from error
    _refuse_defects_of_absent_nodes(graph, losses)
    notes = [f"degraded: {loss.words}" for loss in losses if loss.change.kind != "absent_node"]
    if absent:
        notes.append(f"nodes {ranges_text(absent)} are not used ({sum(len(gpus_of[n]) for n in set(absent))} GPUs)")
    changed = make_cluster(cluster.name, graph, (*cluster.assumptions, *notes))
    if cluster.whole is None and all(change.kind == "absent_node" for change in changes):
        return changed  # nodes that are left out on purpose are no defect
    return replace(changed, whole=cluster.whole or cluster, losses=(*cluster.losses, *losses))


def clean(cluster: Cluster) -> Cluster:
    """The cluster with nothing wrong: of the same nodes, all parts are there and do what they should.

    A cluster without defects is returned as it is.
    """
    if cluster.whole is None:
        return cluster
    return degraded(cluster.whole, [loss.change for loss in cluster.losses if loss.change.kind == "absent_node"])


def without_nodes(cluster: Cluster, nodes: Iterable[int]) -> Cluster:
    """The cluster without the GPUs of some nodes, as a job sees it whose node list has gaps."""
    return degraded(cluster, (Change("absent_node", f"n{node}") for node in nodes))


def first_nodes(cluster: Cluster, gpus: int) -> Cluster:
    """The cluster without what lies behind the first nodes that hold `gpus` living GPUs.

    Raises TopologyError where it has fewer.
    """
    if gpus > len(cluster.gpus):
        raise TopologyError(f"{cluster.name} has {len(cluster.gpus)} GPUs, {gpus} are asked for", fix="use fewer GPUs")
    last = int(cluster.node_index[gpus - 1])
    return without_nodes(cluster, sorted({node for node in cluster.node_index.tolist() if node > last}))


def ranges_text(numbers: Iterable[int]) -> str:
    """ "0-7, 9": numbers in ascending order with runs drawn together."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def _slow_nic(graph: "nx.Graph[str]", change: Change) -> Loss:
    nic = _part(graph, change.part, "nic")
    leaf = next((key for key in graph[nic] if graph.nodes[key]["kind"] == "leaf"), None)
    if leaf is None:
        raise TopologyError(f"{nic} has no cable that could be slow", fix="leave the change out")
    return _slow(graph, (nic, leaf), change, nic)


def _slow_link(graph: "nx.Graph[str]", change: Change) -> Loss:
    a, b = _edge(graph, change)
    for key in (a, b):
        # nodes with equal designs are worked out once: this one is no longer equal
        _mark_node(graph, graph.nodes[key].get("node"), f"{a}-{b} at {change.rate:g}")
    return _slow(graph, (a, b), change, f"{a}-{b}")


def _slow(graph: "nx.Graph[str]", pair: tuple[str, str], change: Change, name: str) -> Loss:
    edge, rate = graph.edges[pair], change.rate
    whole = edge["bandwidth_bytes_per_s"]
    edge["bandwidth_bytes_per_s"] = whole * _share(rate, name)
    left, was = format_bandwidth(edge["bandwidth_bytes_per_s"]), format_bandwidth(whole)
    return Loss(change, name, f"{name} carries {left} of {was} ({_percent(rate - 1.0)})", rate)


def _slow_gpu(graph: "nx.Graph[str]", change: Change) -> Loss:
    gpu = _part(graph, change.part, "gpu")
    data = graph.nodes[gpu]
    data["speed"] = data.get("speed", 1.0) * _share(change.rate, gpu)
    words = f"{gpu} computes at {100 * data['speed']:.3g} % of its speed ({_percent(data['speed'] - 1.0)})"
    return Loss(change, gpu, words, data["speed"])


def _cut_uplinks(graph: "nx.Graph[str]", change: Change) -> Loss:
    """The fullest bundles lose cables first, so that what is left stays as even as can be."""
    key = _part(graph, change.part, "leaf", "spine")
    above = _ABOVE[graph.nodes[key]["kind"]]
    up = [other for other in graph[key] if graph.nodes[other]["kind"] == above]
    have = sum(graph.edges[key, other]["links"] for other in up)
    if not 1 <= change.count <= have:
        raise TopologyError(f"{change.count} uplinks of {key} cut, which has {have}", fix=f"give 1 to {have}")
    whole = sum(graph.edges[key, other]["bandwidth_bytes_per_s"] for other in up)
    for _ in range(change.count):
        other = max((o for o in up if graph.has_edge(key, o)), key=lambda o: graph.edges[key, o]["links"])
        _remove_links(graph, key, other, 1)
    left = sum(graph.edges[key, other]["bandwidth_bytes_per_s"] for other in up if graph.has_edge(key, other))
    rates = f"{format_bandwidth(left)} of {format_bandwidth(whole)}"
    words = f"{key} lost {change.count} of {have} uplinks: {rates} ({_percent(left / whole - 1.0)})"
    return Loss(change, key, words, left / whole)


def _missing_cable(graph: "nx.Graph[str]", change: Change) -> Loss:
    a, b = _edge(graph, change)
    rate = graph.edges[a, b]["bandwidth_bytes_per_s"]
    graph.remove_edge(a, b)
    return Loss(change, f"{a}-{b}", f"no cable from {a} to {b} ({format_bandwidth(rate)} lost)", 0.0)


def _dead_gpu(graph: "nx.Graph[str]", change: Change) -> Loss:
    gpu = _part(graph, change.part, "gpu")
    graph.nodes[gpu]["dead"] = True
    return Loss(change, gpu, f"{gpu} is dead; ranks go on with the next GPU", 0.0)


def _refuse_defects_of_absent_nodes(graph: "nx.Graph[str]", losses: Iterable[Loss]) -> None:
    """Raises TopologyError for a defect of a GPU or NIC whose node is not used: nothing could show it."""
    unused = {data["node"] for _, data in graph.nodes(data=True) if data["kind"] == "gpu" and data.get("absent")}
    for loss in losses:
        part = graph.nodes.get(loss.part, {})
        if loss.change.kind != "absent_node" and part.get("kind") in ("gpu", "nic") and part.get("node") in unused:
            message = f"{loss.part} is on node {part['node']}, which is not used"
            fix = "leave the defect out, or use the node"
            raise TopologyError(message, fix=fix, where=loss.change.where or None)


def _absent_node(graph: "nx.Graph[str]", gpus_of: Mapping[int, Sequence[str]], change: Change) -> int:
    number = change.part.removeprefix("n")
    if not number.isdecimal() or int(number) not in gpus_of:
        raise TopologyError(f"no node {change.part!r} with GPUs", fix=f"nodes are n0 to n{max(gpus_of)}")
    for key in gpus_of[int(number)]:
        graph.nodes[key].update(dead=True, absent=True)
    return int(number)


_APPLY: Final[dict[Kind, Callable[["nx.Graph[str]", Change], Loss]]] = {
    "slow_nic": _slow_nic,
    "slow_link": _slow_link,
    "slow_gpu": _slow_gpu,
    "cut_uplinks": _cut_uplinks,
    "missing_cable": _missing_cable,
    "dead_gpu": _dead_gpu,
}


def _mark_node(graph: "nx.Graph[str]", node: int | None, mark: str) -> None:
    if node is None:
        return
    for key, data in graph.nodes(data=True):
        if data["kind"] == "gpu" and data["node"] == node:
            graph.nodes[key]["design"] = f"{data['design']}, {mark}"


def _remove_links(graph: "nx.Graph[str]", a: str, b: str, count: int) -> None:
    """Takes parallel cables out of a bundle, and the edge with the last of them."""
    edge: dict[str, Any] = graph.edges[a, b]
    left = edge["links"] - count
    if left <= 0:
        graph.remove_edge(a, b)
        return
    edge["bandwidth_bytes_per_s"] *= left / edge["links"]
    edge["links"] = left


def _edge(graph: "nx.Graph[str]", change: Change) -> tuple[str, str]:
    a, b = _part(graph, change.part), _part(graph, change.other)
    if not graph.has_edge(a, b):
        beside = ", ".join(sorted(graph[a])[:4])
        raise TopologyError(f"{a} and {b} are not joined", fix=f"{a} is joined to {beside}")
    return a, b


def _part(graph: "nx.Graph[str]", key: str, *kinds: str) -> str:
    """A key of the graph, of one of the kinds. Raises TopologyError with the nearest names."""
    if key in graph and (not kinds or graph.nodes[key]["kind"] in kinds):
        return key
    known = [name for name, data in graph.nodes(data=True) if not kinds or data["kind"] in kinds]
    near = nearest_names(key, known) or tuple(known[:3])
    raise TopologyError(f"no {' or '.join(kinds) or 'part'} {key!r}", fix=f"such as {', '.join(near)}")


def _share(rate: float, name: str) -> float:
    if not 0.0 < rate <= 1.0:
        raise TopologyError(f"{name} at {rate:g} of its rate", fix="give more than 0 % and at most 100 %")
    return rate


def _percent(change: float) -> str:
    return f"{100 * change:+.3g} %"
