"""Where a log's collective ran: its cluster and the wires of its group, from what the log says of GPU and network."""

from dataclasses import dataclass
from functools import lru_cache
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
    nodes it ran on; `notes` say what was assumed.
    """

    gpu: "Gpu"
    span: "Span"
    pair: "Span"
    tags: tuple[str, ...]
    gpus_per_node: int
    notes: tuple[str, ...]


def place_of(gpu: str, net: str, nodes: int | None, ranks: int) -> Place:
    """Place of a group of `ranks` GPUs on `nodes` hosts (None: not told; one where the ranks fit into one node).

    Raises NoPlaceError where the GPU is not in the catalogue or the counts cannot be.
    """
    named = gpu_of(gpu, net)
    if named is None:
        raise NoPlaceError(f"GPU {gpu.strip() or '(not stated)'!r} is not one GPU of the catalogue")
    if ranks < 2:
        raise NoPlaceError("one rank has nobody to communicate with")
    try:
        return _place(named, net_of(net), nodes, ranks)
    except TraincastError as error:
        raise NoPlaceError(error.message) from error


@lru_cache(maxsize=512)
def _place(named: NamedGpu, net: Net, nodes: int | None, ranks: int) -> Place:
    from traincast.catalog import load_catalog
    from traincast.topology import span

    gpu = load_catalog().gpu(named.name)
    notes = [named.note] if named.note else []
    if nodes is None:
        nodes = max(1, -(-ranks // gpu.gpus_per_node))
        notes.append(f"hosts are not stated: {nodes}")
    racked = gpu.nvlink_domain > gpu.gpus_per_node
    if racked:
        cluster, members = _racks(named, net, ranks)
    else:
        cluster, members = _nodes(named, net, nodes, ranks, notes)
    chosen = span(cluster, members)
    far = next((g for g in members if cluster.node_index[g] != cluster.node_index[members[0]]), members[1])
    pair = span(cluster, [members[0], far])
    per_node = gpu.nvlink_domain if racked else cluster.gpus_per_node
    notes += [note for note in cluster.assumptions if chosen.nodes > 1]
    return Place(gpu, chosen, pair, net.tags(chosen.nodes), per_node, tuple(dict.fromkeys(notes)))


def _nodes(named: NamedGpu, net: Net, nodes: int, ranks: int, notes: list[str]) -> tuple["Cluster", list[int]]:
    """Nodes with an NVLink domain of their own. Where adapters are counted, they are taken as those of the ranks."""
    from traincast.catalog import load_catalog

    gpu = load_catalog().gpu(named.name)
    if ranks % nodes:
        raise NoPlaceError(f"{ranks} ranks are not spread evenly over {nodes} hosts")
    each = ranks // nodes
    size = gpu.gpus_per_node
    if each > size or (nodes > 1 and net.nics is not None) or (net.mesh and each < size):
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
