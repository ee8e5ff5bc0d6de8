"""Node designs, and the plain functions that stamp nodes into a graph.

A design is parts and counts; `add_nodes` lays them out: GPUs on NVSwitch (one vertex for all its chips), on a
fixed NVLink mesh, joined in pairs by NVLink bridges, or on PCIe alone; two GPUs and their NICs to a PCIe
switch; two sockets. A rack whose NVLink reaches over several nodes (NVL72) has one NVSwitch vertex for all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import networkx as nx

from traincast.catalog import Catalog, Gpu, Link, Nic, Switch, load_catalog
from traincast.errors import TopologyError

Vertex = tuple[str, dict[str, Any]]
Edge = tuple[str, str, dict[str, Any]]

# chips per NVLink domain: DGX-2, DGX A100, DGX H100, DGX B200 (their user guides); an NVL72 rack has 18
NVSWITCH_CHIPS: Final = {"NVSwitch-1": 12, "NVSwitch-2": 6, "NVSwitch-3": 4, "NVSwitch-4": 2}
_RACK_CHIPS: Final = 18
_MOST_PER_NODE: Final = 64
_NVLINK_OF_SWITCH: Final = {
    "": "nvlink2",
    "NVSwitch-1": "nvlink2",
    "NVSwitch-2": "nvlink3",
    "NVSwitch-3": "nvlink4",
    "NVSwitch-4": "nvlink5",
}
# GB200 reaches its NICs through the Grace CPU; GB300's NICs sit on the GPU's own PCIe
_ON_C2C: Final = ("GB200",)

# links between GPUs of a DGX-1 (V100): a hybrid cube mesh, six links a GPU, as nvidia-smi topo -m lists them
_CUBE_MESH: Final = {
    **{(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2},
    **{(4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2},
    **{(0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1},
}
_FULL_MESH: Final = {(0, 1): 2, (0, 2): 2, (0, 3): 2, (1, 2): 2, (1, 3): 2, (2, 3): 2}


@dataclass(frozen=True)
class NodeRequest:
    """What is known of a node; None and empty text stand for what the usual node of that GPU has.

    `nvlink_bridges`: PCIe cards in pairs, each joined by bridges. `gpus_per_pcie_switch` is 2 unless stated.
    """

    gpu: str
    gpus: int | None = None
    nics: int | None = None
    nic_gbit_per_s: float | None = None
    nic_kind: str = ""
    nic: str = ""
    nvlink_bridges: bool = False
    gpus_per_pcie_switch: int = 2


@dataclass(frozen=True)
class NodeDesign:
    """One type of node. `domain_nodes` nodes share one NVLink domain (1: the node is its own).

    `nvlink`, `nvswitch` are None where the GPUs have none; `bus` joins GPUs to their PCIe switch (or to the
    CPU over NVLink-C2C), `host` NICs to what they hang on, `root` PCIe switches to the CPU, as traffic between
    GPUs finds it, `socket` the CPUs. `bridge` joins neighbouring PCIe cards in pairs.
    """

    gpu: Gpu
    gpus: int
    nic: Nic
    nics: int
    nvlink: Link | None
    nvswitch: Switch | None
    bus: Link
    host: Link
    root: Link
    socket: Link
    bridge: Link | None = None
    gpus_per_pcie_switch: int = 2
    domain_nodes: int = 1
    assumptions: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        """Short description, equal for equal nodes."""
        text = f"{self.gpus} x {self.gpu.name}, {self.nics} x {self.nic.name}"
        if self.gpus_per_pcie_switch != 2:
            text += f", {self.gpus_per_pcie_switch} GPUs a PCIe switch"
        return text + (", NVLink bridges" if self.bridge else "")

    @property
    def pcie_switches(self) -> int:
        """None where GPUs hang on the CPU."""
        return 0 if self.bus.kind == "c2c" else max(1, self.gpus // self.gpus_per_pcie_switch)

    @property
    def sockets(self) -> int:
        """CPU sockets (NUMA domains)."""
        return 1 if self.gpus <= 2 else 2


def usual_node(request: NodeRequest, catalog: Catalog | None = None) -> NodeDesign:
    """The node of any catalogue GPU, with what the request leaves open filled from the catalogue (and said
    so).

    Raises CatalogError for a GPU or NIC that the catalogue lacks, TopologyError for counts that cannot be.
    """
    parts = catalog or load_catalog()
    gpu = parts.gpu(request.gpu)
    gpus = gpu.gpus_per_node if request.gpus is None else request.gpus
    nics = gpu.nics_per_node if request.nics is None else request.nics
    if not 1 <= gpus <= _MOST_PER_NODE:
        raise TopologyError(f"{gpus} GPUs per node", fix=f"give 1 to {_MOST_PER_NODE}")
    if not 0 <= nics <= _MOST_PER_NODE:
        raise TopologyError(f"{nics} NICs per node", fix=f"give 0 to {_MOST_PER_NODE}")
    if request.gpus_per_pcie_switch < 1:
        raise TopologyError(f"{request.gpus_per_pcie_switch} GPUs per PCIe switch", fix="give at least 1")
    nic, notes = _nic(gpu, request, parts)
    if request.gpus is None:
        notes.append(f"GPUs per node are not stated: {gpus}, the usual node of {gpu.name}")
    if request.nics is None:
        notes.append(f"NICs per node are not stated: {nics}, the usual node of {gpu.name}")
    bridge = _bridge(gpu, request, parts)
    nvswitch = _nvswitch(gpu, gpus, parts)
    rack = gpu.nvlink_domain // gpus if gpu.nvlink_domain > gpu.gpus_per_node else 1
    pcie = _nearest(parts, "pcie", gpu.pcie_bytes_per_s)
    return NodeDesign(
        gpu=gpu,
        gpus=gpus,
        nic=nic,
        nics=nics,
        nvlink=_nvlink(gpu, nvswitch, parts),
        nvswitch=nvswitch,
        bus=parts.link("nvlink-c2c") if gpu.name in _ON_C2C else pcie,
        host=pcie,
        root=parts.links.get(f"{pcie.name.partition('-')[0]}-root", pcie),
        socket=_nearest(parts, "cpu", 0.0),
        bridge=bridge,
        gpus_per_pcie_switch=request.gpus_per_pcie_switch,
        domain_nodes=max(1, rack),
        assumptions=tuple(notes),
    )


def add_nodes(graph: "nx.Graph[str]", design: NodeDesign, first: int, count: int) -> None:
    """Adds `count` nodes of one design, numbered from `first`. NICs stay without a leaf: the fabric wires
    them."""
    vertices, edges = _template(design), tuple(_edges(design))
    for node in range(first, first + count):
        domain = (node - first) // design.domain_nodes
        names = {key: f"n{node}/{key}" for key, _ in vertices}
        names["nvswitch"] = f"n{node}/nvswitch" if design.domain_nodes == 1 else f"rack{first}.{domain}/nvswitch"
        graph.add_nodes_from((names[key], {**data, "node": node}) for key, data in vertices)
        if design.nvswitch is not None:
            units = _chips(design)
            switch = {"kind": "nvswitch", "latency_s": design.nvswitch.latency_s, "units": units}
            graph.add_node(names["nvswitch"], **switch)
        graph.add_edges_from((names[a], names[b], data) for a, b, data in edges)


def link_data(link: Link, links: int = 1, bandwidth_bytes_per_s: float | None = None) -> dict[str, Any]:
    """Attributes of an edge that bundles `links` parallel links; the rate is that of one link."""
    rate = link.bandwidth_bytes_per_s if bandwidth_bytes_per_s is None else bandwidth_bytes_per_s
    return {
        "kind": link.kind,
        "bandwidth_bytes_per_s": links * rate,
        "latency_s": link.latency_s,
        "links": links,
    }


@lru_cache(maxsize=64)
def _template(design: NodeDesign) -> tuple[Vertex, ...]:
    gpus: list[Vertex] = [
        (f"gpu{g}", {"kind": "gpu", "index": g, "model": design.gpu.name, "design": design.name})
        for g in range(design.gpus)
    ]
    nics: list[Vertex] = [(f"nic{n}", {"kind": "nic", "rail": n}) for n in range(design.nics)]
    pcie: list[Vertex] = [(f"pcie{p}", {"kind": "pcie"}) for p in range(design.pcie_switches)]
    return (*gpus, *nics, *pcie, *((f"cpu{c}", {"kind": "cpu"}) for c in range(design.sockets)))


def _edges(design: NodeDesign) -> Iterator[Edge]:
    """Edges inside a node, by local names."""
    yield from _nvlink_edges(design)
    switches, sockets = design.pcie_switches, design.sockets
    hosts = [f"pcie{p}" for p in range(switches)] or [f"cpu{c}" for c in range(sockets)]
    for g in range(design.gpus):
        yield f"gpu{g}", hosts[g * len(hosts) // design.gpus], link_data(design.bus)
    for n in range(design.nics):
        yield f"nic{n}", hosts[n * len(hosts) // design.nics], link_data(design.host)
    for p in range(switches):
        yield f"pcie{p}", f"cpu{p * sockets // switches}", link_data(design.root)
    for c in range(1, sockets):
        yield "cpu0", f"cpu{c}", link_data(design.socket)


def _nvlink_edges(design: NodeDesign) -> Iterator[Edge]:
    if design.bridge is not None:
        for g in range(0, design.gpus - 1, 2):
            yield f"gpu{g}", f"gpu{g + 1}", link_data(design.bridge)
        return
    if design.nvlink is None:
        return
    if design.nvswitch is not None:
        links = max(1, round(design.gpu.nvlink_bytes_per_s / design.nvlink.bandwidth_bytes_per_s))
        one = design.gpu.nvlink_bytes_per_s / links
        for g in range(design.gpus):
            yield f"gpu{g}", "nvswitch", link_data(design.nvlink, links, one)
        return
    for (a, b), links in (_FULL_MESH if design.gpus == 4 else _CUBE_MESH).items():
        if b < design.gpus:
            yield f"gpu{a}", f"gpu{b}", link_data(design.nvlink, links)


def _chips(design: NodeDesign) -> int:
    assert design.nvswitch is not None
    return _RACK_CHIPS if design.domain_nodes > 1 else NVSWITCH_CHIPS.get(design.nvswitch.name, 1)


def _nic(gpu: Gpu, request: NodeRequest, parts: Catalog) -> tuple[Nic, list[str]]:
    """The NIC that was asked for, and what had to be assumed about it."""
    usual = parts.nic(gpu.nic)
    if request.nic:
        return parts.nic(request.nic), []
    if request.nic_gbit_per_s is not None:
        kind = request.nic_kind or usual.kind
        notes = [] if request.nic_kind else [f"the kind of network is not stated: {kind}"]
        return parts.nic_for(kind, request.nic_gbit_per_s), notes
    note = f"the NIC's rate is not stated: {usual.bandwidth_bytes_per_s * 8 / 1e9:g} Gbit/s"
    if request.nic_kind:
        nic = parts.nic_for(request.nic_kind, usual.bandwidth_bytes_per_s * 8 / 1e9)
        return nic, [f"{note}, as in the usual node of {gpu.name}"]
    return usual, [f"{note} ({usual.name}), as in the usual node of {gpu.name}"]


def _bridge(gpu: Gpu, request: NodeRequest, parts: Catalog) -> Link | None:
    """The bridge between two PCIe cards where one is asked for. Raises TopologyError for GPUs with NVLink."""
    if not request.nvlink_bridges:
        return None
    if gpu.nvlink_bytes_per_s > 0.0:
        raise TopologyError(
            f"{gpu.name} has no place for NVLink bridges", fix="leave nvlink_bridges out, or name a PCIe card"
        )
    return parts.link("nvlink-bridge")


def _nvswitch(gpu: Gpu, gpus: int, parts: Catalog) -> Switch | None:
    """The NVSwitch of a node. V100s have one from nine GPUs on (DGX-2) and a fixed mesh below."""
    if gpu.nvswitch:
        return parts.switch(gpu.nvswitch)
    if gpu.nvlink_bytes_per_s == 0.0 or gpus <= 8:
        return None
    if gpus > 16:
        raise TopologyError(f"no node of {gpus} x {gpu.name} is known", fix="use at most 16 GPUs per node")
    return parts.switch("NVSwitch-1")


def _nvlink(gpu: Gpu, nvswitch: Switch | None, parts: Catalog) -> Link | None:
    if gpu.nvlink_bytes_per_s == 0.0:
        return None
    name = _NVLINK_OF_SWITCH.get(nvswitch.name if nvswitch else "", "")
    if name in parts.links:
        return parts.links[name]
    return _nearest(parts, "nvlink", nvswitch.port_bytes_per_s if nvswitch else gpu.nvlink_bytes_per_s)


def _nearest(parts: Catalog, kind: str, bytes_per_s: float) -> Link:
    """The link of a kind whose rate is nearest."""
    links = [link for link in parts.links.values() if link.kind == kind]
    if not links:
        raise TopologyError(f"the catalogue has no link of kind {kind}", fix="add one to links.csv")
    return min(links, key=lambda link: abs(link.bandwidth_bytes_per_s - bytes_per_s))
