"""Where a log's collective ran: its cluster and the wires of its group, from what the log says of GPU and network."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from traincast.calibration.hardware import NamedGpu, gpu_of
from traincast.calibration.nets import Net, net_of
from traincast.errors import TraincastError

if TYPE_CHECKING:
    from traincast.catalog import Gpu
    from traincast.topology import Cluster, Span


class NoPlaceError(Exception):
    """A measurement whose hardware is not known well enough; the text is the reason that reports show."""


@dataclass(frozen=True)
class Place:
    """Hardware of one group: GPU, spans, and tags for the choice of a profile.

    `span` is that of the group, `pair` that of two neighbours that exchange a message. `gpus_per_node` is that of the
    nodes it ran on, `siblings` whether groups on the same nodes ran at the same time; `notes` say what was assumed.
    """

    gpu: "Gpu"
    span: "Span"
    pair: "Span"
    tags: tuple[str, ...]
    gpus_per_node: int
    notes: tuple[str, ...]
    siblings: bool = False


@dataclass(frozen=True)
class Layout:
    """What a run says of where its groups lie; a log of one group says nothing.

    `node_gpus`: GPUs of a node that take part in the run. `groups`: all groups that ran at once, as ranks that fill one
    node after the other.
    """

    node_gpus: int | None = None
    groups: tuple[tuple[int, ...], ...] = ()


UNTOLD = Layout()


def place_of(gpu: str, net: str, nodes: int | None, ranks: int, layout: Layout = UNTOLD) -> Place:
    """Place of a group of `ranks` GPUs on `nodes` hosts (None: not told; one where the ranks fit into one node).

    Raises NoPlaceError where the GPU is not in the catalogue or the counts cannot be.
    """
    named = gpu_of(gpu, net)
    if named is None:
        raise NoPlaceError(f"GPU {gpu.strip() or '(not stated)'!r} is not one GPU of the catalogue")
    if ranks < 2:
        raise NoPlaceError("one rank has nobody to communicate with")
    try:
        return _place(named, net_of(net), nodes, ranks, layout)
    except TraincastError as error:
        raise NoPlaceError(error.message) from error


@lru_cache(maxsize=512)
def _place(named: NamedGpu, net: Net, nodes: int | None, ranks: int, layout: Layout) -> Place:
    from traincast.catalog import load_catalog
    from traincast.topology import family_spans

    gpu = load_catalog().gpu(named.name)
    notes = [named.note] if named.note else []
    if nodes is None:
        nodes = max(1, -(-ranks // gpu.gpus_per_node))
        notes.append(f"hosts are not stated: {nodes}")
    racked = gpu.nvlink_domain > gpu.gpus_per_node
    if layout.groups and (not racked or layout.node_gpus == gpu.gpus_per_node):
        groups: Sequence[Sequence[int]] = layout.groups
        world = 1 + max(max(group) for group in groups)
        cluster = _hosts(named, net, layout.node_gpus or gpu.gpus_per_node, world)
    elif len(layout.groups) > 1:
        raise NoPlaceError(f"a node has {gpu.gpus_per_node} {gpu.name}, this run {layout.node_gpus} a node")
    elif racked:
        cluster, members = _racks(named, net, ranks)
        groups = [members]
    else:
        cluster, members = _nodes(named, net, (nodes, ranks), layout.node_gpus, notes)
        groups = [members]
    spans = family_spans(cluster, groups)
    if len(set(spans)) > 1:
        raise NoPlaceError("groups of different kinds ran at once")
    pairs = family_spans(cluster, _pairs(cluster, groups))
    slowest = min(pairs, key=lambda one: (-one.nodes, one.inter_bytes_per_s))
    return Place(
        gpu=gpu,
        span=spans[0],
        pair=slowest,
        tags=net.tags(spans[0].nodes),
        gpus_per_node=gpu.nvlink_domain if racked else cluster.gpus_per_node,
        notes=tuple(dict.fromkeys([*notes, *(note for note in cluster.assumptions if spans[0].nodes > 1)])),
        siblings=len(groups) > 1,
    )


def _pairs(cluster: "Cluster", groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Neighbours that exchange messages at once: those of different nodes in the rings of all groups, else the first
    two of each group."""
    found: dict[tuple[int, int], None] = {}
    for group in groups:
        edges = [(min(edge), max(edge)) for edge in pairwise((*group, group[0]))]
        apart = [edge for edge in edges if cluster.node_index[edge[0]] != cluster.node_index[edge[1]]]
        found |= dict.fromkeys(apart or edges[:1])
    return list(found)


def _hosts(named: NamedGpu, net: Net, each: int, world: int) -> "Cluster":
    """The nodes that a run fills, `each` of its ranks on a node; whole racks where nodes form them."""
    from traincast.catalog import load_catalog

    gpu = load_catalog().gpu(named.name)
    nodes = -(-world // each)
    if gpu.nvlink_domain > gpu.gpus_per_node:
        rack = gpu.nvlink_domain // gpu.gpus_per_node
        nodes = -(-nodes // rack) * rack
    return _cluster(named, net, each, nodes)


def _nodes(
    named: NamedGpu, net: Net, counts: tuple[int, int], node_gpus: int | None, notes: list[str]
) -> tuple["Cluster", list[int]]:
    """Nodes with an NVLink domain of their own, for counts of hosts and ranks.

    Where adapters are counted and nobody says how many GPUs a node has, they are taken as those of the ranks.
    """
    from traincast.catalog import load_catalog

    gpu = load_catalog().gpu(named.name)
    nodes, ranks = counts
    if ranks % nodes:
        raise NoPlaceError(f"{ranks} ranks are not spread evenly over {nodes} hosts")
    each = ranks // nodes
    size = gpu.gpus_per_node if node_gpus is None else node_gpus
    told = node_gpus is not None
    if each > size or (not told and ((nodes > 1 and net.nics is not None) or (net.mesh and each < size))):
        size = each
        if nodes > 1:
            notes.append(f"a node is taken to have the {each} GPUs that take part")
    cluster = _cluster(named, net, size, nodes)
    return cluster, [node * size + g for node in range(nodes) for g in range(each)]


def _racks(named: NamedGpu, net: Net, ranks: int) -> tuple["Cluster", list[int]]:
    """Racks of one NVLink domain each, the ranks spread evenly over them."""
    from traincast.catalog import load_catalog

    gpu = load_catalog().gpu(named.name)
    racks = net.racks or -(-ranks // gpu.nvlink_domain)
    if ranks % racks:
        raise NoPlaceError(f"{ranks} ranks are not spread evenly over {racks} racks")
    each = ranks // racks
    if each > gpu.nvlink_domain:
        raise NoPlaceError(f"{each} ranks do not fit into one domain of {gpu.nvlink_domain}")
    cluster = _cluster(named, net, gpu.gpus_per_node, racks * gpu.nvlink_domain // gpu.gpus_per_node)
    return cluster, [rack * gpu.nvlink_domain + g for rack in range(racks) for g in range(each)]


@lru_cache(maxsize=64)
def _cluster(named: NamedGpu, net: Net, gpus: int, nodes: int) -> "Cluster":
    from traincast.topology import NodeRequest, node_cluster, usual_node

    request = NodeRequest(
        gpu=named.name,
        gpus=gpus,
        nics=net.nics if nodes > 1 else None,
        nic_gbit_per_s=net.gbit_per_s if nodes > 1 else None,
        nic_kind=net.nic_kind if nodes > 1 else "",
        nvlink_bridges=named.bridged,
    )
    return node_cluster(usual_node(request), nodes)
