"""Facts about a node, the catalogue for what they leave open -> a type of node for the graph."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Final

import networkx as nx

from traincast.catalog import Catalog, Gpu, Link, Nic
from traincast.topology.graphform import NodeType, PartRow
from traincast.topology.hostlist import compress_in_order
from traincast.topology.importers.facts import GpuFact, NicFact, NodeFacts, NvlinkFacts, with_nics
from traincast.topology.importers.net import Cable, wire_rows
from traincast.topology.importers.pci import (
    MOST_LINKS,
    NO_BRIDGE,
    WITHOUT_NVLINK,
    gpu_by_evidence,
    most_common,
    nearest_nic,
)
from traincast.topology.nodes import NodeDesign, NodeRequest, add_nodes, usual_node

# GT/s -> generation, as the catalogue's links are named
_PCIE: Final = {8: "pcie3", 16: "pcie4", 32: "pcie5", 64: "pcie6"}


@dataclass(frozen=True)
class BuiltType:
    """A type of node. `devices` are its NICs' names in the system, `nic_names` in the graph, by number.

    `wired` are the numbers of those that belong on the fabric, `nic` is the catalogue's NIC nearest to them. `rack`
    is an NVSwitch that several nodes share, with each GPU's NVLinks to it and the number of nodes; None where the
    node has its own or none.
    """

    type: NodeType
    gpus: int
    devices: tuple[str, ...]
    nic_names: tuple[str, ...]
    wired: tuple[int, ...]
    rates: tuple[float, ...]
    nic: Nic
    rack: tuple[PartRow, Cable, int] | None
    assumed: tuple[str, ...]


@dataclass(frozen=True)
class Hints:
    """What is known from outside the node: the GPU that the user names, NICs, their rails and rate on the fabric."""

    gpu: str = ""
    nics: int | None = None
    devices: tuple[str, ...] = ()
    rails: tuple[int, ...] = ()
    gbit_per_s: float = 0.0
    nic_kind: str = ""


@dataclass
class _Local:
    """Parts and wires of a node by local names, while they are put together."""

    parts: dict[str, PartRow]
    wires: dict[Cable, list[tuple[str, str]]]

    def wire(self, a: str, b: str, cable: Cable) -> None:
        """One more wire between two parts."""
        self.wires.setdefault(cable, []).append((a, b))


def build_type(facts: NodeFacts | None, hints: Hints, catalog: Catalog) -> BuiltType:
    """The type of a node; without facts, the usual node of the GPU that the hints make likely.

    Raises CatalogError for a GPU that the catalogue lacks, TopologyError for counts that no node has.
    """
    models, assumed = _models(facts, hints, catalog)
    gpu = catalog.gpu(most_common(models) or "") if models else catalog.gpu(_assumed_gpu(facts, hints, catalog)[0])
    nics = len(facts.nics) if facts is not None and facts.nics_known else hints.nics
    if nics is None and models:  # the usual node's NICs, for as many GPUs as there are
        nics = max(1, round(gpu.nics_per_node * len(models) / gpu.gpus_per_node))
        assumed.append(f"NICs are not in the files: {nics} a node, as the usual node of {gpu.name} has for each GPU")
    design = usual_node(NodeRequest(gpu.name, len(models) or None, nics), catalog)
    models = models or [gpu.name] * design.gpus
    if facts is None:
        assumed.append(f"GPUs per node are not in the files: {design.gpus}, as in the usual node of {gpu.name}")
    if nics is None:
        assumed.append(f"NICs are not in the files: {design.nics} a node, as in the usual node of {gpu.name}")
    if facts is not None and not facts.nics_known:
        facts = with_nics(facts, design.nics)
    if facts is not None and facts.tree_known:
        local = _from_facts(facts, design, catalog)
        assumed += _bus_notes(facts, gpu)
    else:
        local = _from_design(design)
        assumed.append(f"which PCIe switch and CPU the parts hang on is as in the usual node of {gpu.name}")
    rack = _add_nvlinks(local, facts, design, catalog, assumed)
    for place, model in enumerate(models):
        local.parts[f"gpu{place}"] = PartRow(f"gpu{place}", "gpu", model)
    count = sum(1 for row in local.parts.values() if row.kind == "nic")
    stated = facts.nics if facts is not None else (NicFact("", ""),) * count
    rates, nic, notes = _ports(stated, hints, design, catalog)
    assumed += notes
    for place, rate in enumerate(rates):
        local.parts[f"nic{place}"] = replace(local.parts[f"nic{place}"], port_bytes_per_s=rate)
    named = dict(enumerate(hints.devices))
    devices = tuple(one.device or named.get(place, "") for place, one in enumerate(stated))
    nic_names = _on_rails(local, hints.rails if len(hints.rails) == count else tuple(range(count)))
    far = [place for place in range(count) if facts is not None and facts.nics and facts.nics[place].far]
    if far:
        names = ", ".join(devices[place] or f"NIC {place}" for place in far)
        assumed.append(f"across sockets from every GPU, so taken for storage, not on the compute fabric: {names}")
    return BuiltType(
        type=_node_type(local, models, nic, count),
        gpus=len(models),
        devices=devices,
        nic_names=nic_names,
        wired=tuple(place for place in range(count) if place not in far),
        rates=rates,
        nic=nic,
        rack=rack,
        assumed=tuple(dict.fromkeys((*assumed, *(facts.notes if facts else ())))),
    )


def _models(facts: NodeFacts | None, hints: Hints, catalog: Catalog) -> tuple[list[str], list[str]]:
    """Catalogue names of the node's GPUs, and what was assumed about them."""
    if facts is None:
        name, why = _assumed_gpu(None, hints, catalog)
        return [], [] if hints.gpu else [f"the GPU is not in the files: {name} ({why}); --gpu names another"]
    if hints.gpu:
        return [catalog.gpu(hints.gpu).name] * len(facts.gpus), []
    unknown = [gpu for gpu in facts.gpus if not gpu.model]
    if not unknown:
        return [gpu.model for gpu in facts.gpus], []
    known = most_common(gpu.model for gpu in facts.gpus if gpu.model)
    name, why = (known, "like the others of its node") if known else _assumed_gpu(facts, hints, catalog)
    note = f"the GPU model is not in {PurePath(facts.source).name}: {name} ({why}); --gpu names another"
    return [gpu.model or name for gpu in facts.gpus], [note]


def _assumed_gpu(facts: NodeFacts | None, hints: Hints, catalog: Catalog) -> tuple[str, str]:
    if hints.gpu:
        return catalog.gpu(hints.gpu).name, "named by --gpu"
    if facts is None:
        return gpu_by_evidence(catalog, gbit_per_s=hints.gbit_per_s)
    links = 0
    if facts.nvlink is not None:
        links, most_peers = _links_of(facts.nvlink, len(facts.gpus))
        bridged = links and links not in NO_BRIDGE and not facts.nvlink.to_switch and most_peers == 1
        if (bridged or (not links and not facts.nvlink.chips)) and len(facts.gpus) > 1:
            why = "NVLink bridges in pairs" if bridged else "no NVLink between the GPUs"
            return WITHOUT_NVLINK, f"a PCIe card: {why}"
    speed = max((gpu.gt_per_s for gpu in facts.gpus), default=0.0)
    rate = max((nic.port_bytes_per_s for nic in facts.nics), default=0.0) * 8 / 1e9 or hints.gbit_per_s
    return gpu_by_evidence(catalog, sm=facts.sm, links=links, gt_per_s=speed, gbit_per_s=rate)


def _links_of(known: NvlinkFacts, gpus: int) -> tuple[int, int]:
    """NVLinks of the GPU that has most, and the most peers that one is joined to directly.

    What looks like more links than a GPU has goes to a switch; so do 6 to each of two peers, since a GPU with 12 links
    has no more than 4 for each of three.
    """
    near, peers = [0] * gpus, [0] * gpus
    for a, b, count in known.peers:
        near[a], near[b] = near[a] + count, near[b] + count
        peers[a], peers[b] = peers[a] + 1, peers[b] + 1
    widest = max((count for _, _, count in known.peers), default=0)
    direct = max(near, default=0)
    if direct > MOST_LINKS or (widest == 6 and direct == 12):
        direct = widest
    return max((direct, *known.to_switch)), max(peers, default=0)


def _from_design(design: NodeDesign) -> _Local:
    """The usual node without its NVLinks; `_add_nvlinks` decides about these."""
    graph: nx.Graph[str] = nx.Graph()
    add_nodes(graph, design, 0, 1)
    local = _Local({}, {})
    names = {key: key.partition("/")[2] for key in graph}
    for key, data in graph.nodes(data=True):
        if data["kind"] != "nvswitch":
            local.parts[names[key]] = PartRow(names[key], data["kind"], data.get("model", ""))
    for a, b, edge in graph.edges(data=True):
        if edge["kind"] != "nvlink":
            local.wire(names[a], names[b], _cable_of(edge))
    return local


def _cable_of(edge: Mapping[str, Any]) -> Cable:
    links = int(edge["links"])
    return str(edge["kind"]), links, float(edge["bandwidth_bytes_per_s"]) / links, float(edge["latency_s"])


def _from_facts(facts: NodeFacts, design: NodeDesign, catalog: Catalog) -> _Local:
    """The parts and the PCIe tree of a node that the files describe.

    What passes a CPU is slower than a switch's port: the catalogue's root link of that PCIe generation.
    """
    local = _Local({}, {})
    fastest: dict[str, tuple[Link, Link, float]] = {}
    devices: list[tuple[str, GpuFact | NicFact]] = [(f"gpu{place}", gpu) for place, gpu in enumerate(facts.gpus)]
    devices += [(f"nic{place}", nic) for place, nic in enumerate(facts.nics)]
    switches = dict(facts.tree)
    for name, part in devices:
        local.parts[name] = PartRow(name, name[:3])
        bus, root, share = _pcie(catalog, part, design)
        local.wire(name, part.host, _bus_cable(bus if part.host in switches else root, share))
        best = fastest.setdefault(part.host, (bus, root, share))
        if bus.bandwidth_bytes_per_s * share > best[0].bandwidth_bytes_per_s * best[2]:
            fastest[part.host] = (bus, root, share)
    usual = (design.host, design.root, 1.0)
    for switch, cpu in facts.tree:
        local.parts[switch] = PartRow(switch, "pcie")
        _, root, share = fastest.get(switch, usual)
        local.wire(switch, cpu, _bus_cable(root, share))
    for a, b in facts.joined:
        ends = (fastest.get(a, usual), fastest.get(b, usual))
        bus, _, share = min(ends, key=lambda end: end[0].bandwidth_bytes_per_s * end[2])
        local.wire(a, b, _bus_cable(bus, share))
    for place, cpu in enumerate(facts.cpus):
        local.parts[cpu] = PartRow(cpu, "cpu")
        for other in facts.cpus[place + 1 :]:
            local.wire(cpu, other, _bus_cable(design.socket, 1.0))
    return local


def _bus_cable(link: Link, share: float) -> Cable:
    return link.kind, 1, link.bandwidth_bytes_per_s * share, link.latency_s


def _pcie(catalog: Catalog, part: GpuFact | NicFact, design: NodeDesign) -> tuple[Link, Link, float]:
    """The bus of a device below a switch and below a CPU, and the share of sixteen lanes that it has."""
    generation = _PCIE.get(round(part.gt_per_s), "")
    bus = catalog.links.get(f"{generation}-x16")
    if bus is None or not part.lanes:
        return design.host, design.root, 1.0
    return bus, catalog.links.get(f"{generation}-root", bus), min(part.lanes, 16) / 16


def _bus_notes(facts: NodeFacts, gpu: Gpu) -> list[str]:
    devices: tuple[GpuFact | NicFact, ...] = (*facts.gpus, *facts.nics)
    silent = [part for part in devices if not part.gt_per_s]
    notes = []
    if silent:
        rate = f"{gpu.pcie_bytes_per_s / 1e9:g} GB/s"
        notes.append(f"PCIe rates are not in the files: {len(silent)} devices of a node at {rate}, as {gpu.name} has")
    if len(facts.cpus) > 1:
        notes.append("the links between CPUs are not in the files: the catalogue's socket-link")
    return notes


def _add_nvlinks(
    local: _Local, facts: NodeFacts | None, design: NodeDesign, catalog: Catalog, assumed: list[str]
) -> tuple[PartRow, Cable, int] | None:
    """NVLinks as the files have them, else those of the usual node; returns a switch that other nodes share."""
    known = facts.nvlink if facts is not None else None
    if known is None or (known.chips and not known.to_switch and not known.peers):
        return _usual_nvlinks(local, design, known.chips if known else 0, assumed)
    link = design.nvlink or catalog.link("nvlink3")
    one = link.bandwidth_bytes_per_s
    if known.peers or known.to_switch:
        assumed.append(f"the rate of an NVLink is not in the files: {one / 1e9:g} GB/s per direction ({link.name})")
    for a, b, count in known.peers:
        local.wire(f"gpu{a}", f"gpu{b}", (link.kind, count, one, link.latency_s))
    if known.to_switch:
        switch = design.nvswitch or catalog.switch("NVSwitch-1")
        chips = known.chips or _usual_chips(design)
        if not known.chips:
            assumed.append(f"how many NVSwitch chips there are is not in the files: {chips}")
        local.parts["nvswitch"] = PartRow("nvswitch", "nvswitch", units=chips, latency_s=switch.latency_s)
        for place, count in enumerate(known.to_switch):
            if count:
                local.wire(f"gpu{place}", "nvswitch", (link.kind, count, one, link.latency_s))
    return None


def _usual_nvlinks(
    local: _Local, design: NodeDesign, chips: int, assumed: list[str]
) -> tuple[PartRow, Cable, int] | None:
    graph: nx.Graph[str] = nx.Graph()
    add_nodes(graph, design, 0, 1)
    shared: tuple[PartRow, Cable, int] | None = None
    found = False
    for a, b, edge in graph.edges(data=True):
        if edge["kind"] != "nvlink":
            continue
        found = True
        ends = [key.partition("/")[2] for key in (a, b)]
        switch = next((key for key in (a, b) if graph.nodes[key]["kind"] == "nvswitch"), None)
        if switch is not None:
            data = graph.nodes[switch]
            row = PartRow("nvswitch", "nvswitch", units=chips or data["units"], latency_s=data["latency_s"])
            if design.domain_nodes > 1:
                shared = (row, _cable_of(edge), design.domain_nodes)
                continue
            local.parts["nvswitch"] = row
        local.wire(ends[0], ends[1], _cable_of(edge))
    if found:
        assumed.append(f"NVLinks are not in the files: those of the usual node of {design.gpu.name}")
    return shared


def _usual_chips(design: NodeDesign) -> int:
    graph: nx.Graph[str] = nx.Graph()
    add_nodes(graph, design, 0, 1)
    return next((data["units"] for _, data in graph.nodes(data=True) if data["kind"] == "nvswitch"), 1)


def _ports(
    stated: Sequence[NicFact], hints: Hints, design: NodeDesign, catalog: Catalog
) -> tuple[tuple[float, ...], Nic, list[str]]:
    """Rate of each NIC, the catalogue's NIC that comes nearest, and what is assumed about rates."""
    kind = hints.nic_kind or most_common(nic.kind for nic in stated if nic.kind) or design.nic.kind
    spare = hints.gbit_per_s * 1e9 / 8 or max((nic.port_bytes_per_s for nic in stated), default=0.0)
    spare = spare or design.nic.bandwidth_bytes_per_s
    nic = nearest_nic(catalog, kind, spare)
    silent = sum(1 for one in stated if not one.port_bytes_per_s)
    rate = f"{silent} a node at {spare * 8 / 1e9:g} Gbit/s ({nic.name})"
    notes = [f"rates of NICs are not in the files: {rate}"] if silent and not hints.gbit_per_s else []
    return tuple(one.port_bytes_per_s or spare for one in stated), nic, notes


def _on_rails(local: _Local, rails: Sequence[int]) -> tuple[str, ...]:
    """Names the NICs by their rails."""
    names = {f"nic{place}": f"nic{rail}" for place, rail in enumerate(rails)}
    local.parts = {names.get(key, key): replace(row, names=names.get(key, key)) for key, row in local.parts.items()}
    local.wires = {
        cable: [(names.get(a, a), names.get(b, b)) for a, b in pairs] for cable, pairs in local.wires.items()
    }
    return tuple(names.values())


def _node_type(local: _Local, models: Sequence[str], nic: Nic, nics: int) -> NodeType:
    model = most_common(models)
    rows: dict[PartRow, list[str]] = {}
    order = ("gpu", "nic", "pcie", "cpu", "nvswitch")
    for name, row in sorted(local.parts.items(), key=lambda item: order.index(item[1].kind)):
        rows.setdefault(replace(row, names=""), []).append(name)
    mixed = "" if len(set(models)) == 1 else " and others"
    return NodeType(
        name=f"{len(models)} x {model}{mixed}, {nics} x {nic.name}",
        parts=tuple(replace(row, names=text) for row, names in _in_order(rows) for text in names),
        wires=wire_rows(local.wires),
    )


def _in_order(rows: Mapping[PartRow, Sequence[str]]) -> Iterable[tuple[PartRow, tuple[str, ...]]]:
    return ((row, compress_in_order(names)) for row, names in rows.items())
