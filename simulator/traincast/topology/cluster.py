"""The frozen Cluster: a networkx graph that describes everything, and the arrays flattened out of it once.

Vocabulary of the graph, which every builder and importer keeps to. Vertices are strings; by ``kind`` they
have

- ``gpu``: ``node`` (int), ``index`` in the node, ``model`` (catalogue name), ``design`` (the node's type);
  where it is not as it should be also ``speed`` (share of its rate that it reaches) or ``dead`` (true;
  with ``absent`` where its whole node is left out on purpose)
- ``nvswitch``: ``latency_s``, ``units``; all NVSwitch chips of one NVLink domain are one vertex
- ``pcie`` (a PCIe switch), ``cpu`` (a socket or NUMA domain): ``node``
- ``nic``: ``node``, ``rail`` (its index in the node)
- ``leaf``: ``latency_s``, ``unit`` (scalable unit), ``rail`` (-1: not rail-optimised)
- ``spine``: ``latency_s``, ``pod``, ``block`` (leaves and spines that reach each other without a core switch)
- ``core``: ``latency_s``

Imported clusters add ``host`` (the node's own name) to GPUs, ``port_bytes_per_s`` to NICs, ``units`` to switches
that stand for several boxes, or for none, and ``seen`` to switches (``whole``: the file lists all their ports;
``partly``: only their peers show them).

Every edge has ``bandwidth_bytes_per_s`` (raw, per direction, all parallel
links together), ``latency_s`` (one way, of the link alone), ``kind`` (``nvlink``, ``pcie``, ``c2c``, ``cpu``,
``ib``, ``ethernet``, ``opa``) and ``links`` (how many parallel links it bundles). A bundle carries what ideal
adaptive routing would: traffic is spread over it evenly.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import networkx as nx
import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.topology.flat import Fabric, flatten

if TYPE_CHECKING:
    from traincast.topology.degrade import Loss

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Tier = Literal["self", "nvlink", "pcie", "leaf", "spine", "core"]
TIERS: Final[tuple[Tier, ...]] = ("self", "nvlink", "pcie", "leaf", "spine", "core")
"""What a path or a group crosses at most, from nothing to the core of the fabric."""

PLACES: Final = ("node", "domain", "leaf", "spine", "core")


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster. Compared by identity: it is built once and shared.

    `gpus` are graph keys in physical order (node by node) without the dead ones, `gpu_model` the catalogue
    name of each, `node_index` the node of each (numbers may have gaps). `gpus_per_node` and `nics_per_node`
    are those of most nodes. `fabric` holds the flattened arrays. `gpu_speed` is the share of its rate that
    each GPU reaches, 1.0 unless it is degraded; it cannot be written to. A cluster with defects has in `whole`
    the one that it was made of, and in `losses` what was changed about that, in order.
    """

    name: str
    graph: "nx.Graph[str]"
    gpus: tuple[str, ...]
    gpu_model: tuple[str, ...]
    node_index: Ints
    gpus_per_node: int
    nics_per_node: int
    assumptions: tuple[str, ...]
    fabric: Fabric
    gpu_speed: Floats
    whole: "Cluster | None" = field(default=None, repr=False)
    losses: "tuple[Loss, ...]" = ()

    @property
    def nodes(self) -> int:
        """How many nodes the cluster has."""
        return len(np.unique(self.node_index))

    def place(self, tier: str) -> Ints:
        """Group number of each GPU at a tier, shape (GPUs,).

        `node`; `domain`: GPUs that reach each other over NVLink, the node or the rack; `leaf`: nodes on the
        same set of leaves (a scalable unit); `spine`: nodes that meet below the core (a pod); `core`:
        everything. Raises TopologyError for another tier.
        """
        if tier == "node":
            return self.node_index
        if tier == "domain":
            return self.fabric.gpu_domain
        if tier == "core":
            return np.zeros(len(self.gpus), dtype=np.int64)
        if tier in ("leaf", "spine"):
            return self.fabric.gpu_unit if tier == "leaf" else self.fabric.gpu_pod
        raise TopologyError(f"no tier {tier!r}", fix=f"use one of {', '.join(PLACES)}")


def make_cluster(name: str, graph: "nx.Graph[str]", assumptions: tuple[str, ...] = ()) -> Cluster:
    """A cluster from a graph in the vocabulary above. Raises TopologyError for a graph without a GPU."""
    physical: list[tuple[str, dict[str, Any]]] = [
        (key, data) for key, data in graph.nodes(data=True) if data["kind"] == "gpu"
    ]
    physical.sort(key=lambda item: (item[1]["node"], item[1]["index"]))
    found = [item for item in physical if not item[1].get("dead", False)]
    if not found:
        raise TopologyError(f"{name} has no GPU", fix="give it at least one node with a GPU")
    gpus = tuple(key for key, _ in found)
    everyone = gpus if len(found) == len(physical) else tuple(key for key, _ in physical)
    node_index = np.array([data["node"] for _, data in found], dtype=np.int64)
    nodes, gpus_of_node = np.unique(node_index, return_counts=True)
    nics = Counter(data["node"] for _, data in graph.nodes(data=True) if data["kind"] == "nic")
    speed = np.array([data.get("speed", 1.0) for _, data in found], dtype=np.float64)
    speed.setflags(write=False)
    return Cluster(
        name=name,
        graph=graph,
        gpus=gpus,
        gpu_model=tuple(data["model"] for _, data in found),
        node_index=node_index,
        gpus_per_node=_most_common(gpus_of_node.tolist()),
        nics_per_node=_most_common([nics[node] for node in nodes.tolist()]),
        assumptions=assumptions,
        fabric=flatten(graph, gpus, everyone),
        gpu_speed=speed,
    )


def _most_common(counts: list[int]) -> int:
    return Counter(counts).most_common(1)[0][0]
