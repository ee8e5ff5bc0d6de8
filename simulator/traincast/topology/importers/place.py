"""Hosts, what is inside them and what joins them -> the cluster written out."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final

import networkx as nx

from traincast.errors import TopologyError
from traincast.topology.clusters import cable_for, fat_tree_for
from traincast.topology.fattree import add_fat_tree
from traincast.topology.graphform import GraphForm, HostRow, NodeType, PartRow
from traincast.topology.hostlist import compress, compress_in_order, natural_key
from traincast.topology.importers.draft import Draft, Options
from traincast.topology.importers.facts import NodeFacts, merge_nodes, with_nics
from traincast.topology.importers.net import Cable, HostPort, Net, lay_out, wire_rows
from traincast.topology.importers.nodetypes import BuiltType, Hints, build_type
from traincast.topology.importers.pci import nearest_nic
from traincast.topology.importers.slurm import SlurmTopology
from traincast.topology.importers.sources import net_of_slurm, plain_hosts, plain_name
from traincast.topology.importers.text import Problem

_RACK_GPU: Final = "GB200"
_NUMBERED: Final = re.compile(r"(mlx\d+_|HCA-)(\d{1,4})$", re.I)

Wires = dict[Cable, list[tuple[str, str]]]


def on_fabric(net: Net, nodes: Sequence[NodeFacts], jobs: Sequence[NodeFacts], draft: Draft) -> GraphForm:
    """Hosts as an InfiniBand file lists them; what is inside them from `nodes` and `jobs`, where there are any."""
    _check_nodes(draft.options, len(net.hosts), "fabric")
    by_host: dict[str, list[HostPort]] = {host: [] for host in net.hosts}
    for port in net.ports:
        by_host[port.host].append(port)
    if not net.ports:
        raise TopologyError("no host has a live link", where=net.source, fix="give a file with hosts on switches")
    usual = Counter(port.bytes_per_s for port in net.ports if port.bytes_per_s).most_common(1)
    if not usual:
        raise TopologyError("no link states its rate", where=net.source, fix="give the output with rates (4xNDR)")
    rate = usual[0][0]
    nic = nearest_nic(draft.catalog, net.kind, rate)
    cable = cable_for(nic, draft.catalog)
    layout = lay_out(net, cable.latency_s, draft.switch_latency(net.kind))
    usual_set = _usual_devices(by_host)
    rail_of = _rails(net.ports)
    types: dict[tuple[object, ...], BuiltType] = {}
    type_of: list[BuiltType] = []
    wires: Wires = {}
    for place, host in enumerate(net.hosts):
        ports = sorted(by_host[host], key=lambda port: natural_key(port.device))
        own = tuple(port.device for port in ports)
        lacking = [device for device in usual_set if device not in own] if set(own) < set(usual_set) else []
        rails = tuple(usual_set.index(device) for device in own) if lacking else ()
        if lacking:
            what = f"{host}: no port on the fabric for {', '.join(lacking)}, which most hosts have"
            draft.problems.append(Problem(net.source, 0, what))
        facts = _facts_for(host, place, len(net.hosts), nodes, jobs)
        if facts is not None and not facts.nics:
            facts = with_nics(facts, len(own))
        named = tuple(rail_of[port] for port in ports if port in rail_of)
        if facts is None and len(set(named)) == len(ports):
            rails = named
        hints = Hints(draft.options.gpu, len(own), own, rails, rate * 8 / 1e9, net.kind)
        built = _type_for(types, facts, hints, draft)
        type_of.append(built)
        for number, port in _matched(ports, built, host, net.source, draft):
            link = (net.kind, 1, port.bytes_per_s or rate, cable.latency_s)
            wires.setdefault(link, []).append((f"n{place}/{built.nic_names[number]}", layout.leaf_of[port.switch]))
    draft.assumed.append(f"a cable's latency is not in the files: {cable.latency_s * 1e9:g} ns ({cable.name})")
    draft.assumed += layout.notes
    draft.switches += layout.switches
    draft.cables += (*wire_rows(wires), *layout.cables)
    return _finish(net.hosts, type_of, _consecutive_racks(type_of, draft), draft)


def _rails(ports: Sequence[HostPort]) -> dict[HostPort, int]:
    """The rail of each port: the number in its device's name (mlx5_N, HCA-N).

    mlx5_N counts from 0 and HCA-N from 1, so on each switch only the form that most ports there have counts. A port
    that tells no rail is put on the one that its switch carries, so that nothing is found wrong with it.
    """
    names: dict[HostPort, tuple[str, int]] = {}
    of_switch: dict[str, Counter[tuple[str, int]]] = {}
    for port in ports:
        found = _NUMBERED.search(port.device)
        if found:
            names[port] = found[1].lower(), int(found[2])
            of_switch.setdefault(port.switch, Counter())[names[port]] += 1
    rails: dict[HostPort, int] = {}
    for port in ports:
        if port.switch in of_switch:
            form, usual = of_switch[port.switch].most_common(1)[0][0]
            own, number = names.get(port, ("", -1))
            rails[port] = number if own == form else usual
    return rails


def _usual_devices(by_host: Mapping[str, Sequence[HostPort]]) -> tuple[str, ...]:
    """The device names that at least half of the hosts have: they number the rails where a host lacks one."""
    sets = Counter(tuple(sorted((port.device for port in ports), key=natural_key)) for ports in by_host.values())
    devices, count = sets.most_common(1)[0]
    return devices if 2 * count >= len(by_host) and all(devices) else ()


def _type_for(
    types: dict[tuple[object, ...], BuiltType], facts: NodeFacts | None, hints: Hints, draft: Draft
) -> BuiltType:
    """The type of a node, built once for equal ones."""
    stripped = replace(facts, problems=(), host="") if facts is not None else None
    key = (stripped, hints.nics, hints.rails, hints.devices if facts is None else ())
    if key not in types:
        types[key] = build_type(facts, hints, draft.catalog)
        draft.assumed += types[key].assumed
    return types[key]


def _matched(
    ports: Sequence[HostPort], built: BuiltType, host: str, source: str, draft: Draft
) -> list[tuple[int, HostPort]]:
    """Which NIC of the node each port is: by device name, the rest in order; ports without a NIC are reported."""
    free = [place for place in range(len(built.devices)) if place in built.wired]
    named = {built.devices[place]: place for place in free if built.devices[place]}
    pairs: list[tuple[int, HostPort]] = []
    rest: list[HostPort] = []
    for port in ports:
        place = named.pop(port.device, -1) if port.device else -1
        if place < 0:
            rest.append(port)
            continue
        pairs.append((place, port))
        free.remove(place)
    pairs += list(zip(free, rest, strict=False))
    lost = rest[len(free) :]
    if lost:
        what = (
            f"{host}: {len(lost)} ports on the fabric ({lost[0].device or 'no name'}) are no NIC of the node: left out"
        )
        draft.problems.append(Problem(source, 0, what))
    elif len(free) > len(rest):
        what = f"{host}: {len(free) - len(rest)} NICs of the node have no port on the fabric"
        draft.problems.append(Problem(source, 0, what))
    return pairs


def on_slurm(
    found: SlurmTopology, nodes: Sequence[NodeFacts], jobs: Sequence[NodeFacts], draft: Draft
) -> tuple[GraphForm, bool, int]:
    """Nodes as Slurm lists them, on its tree or, where the file has only blocks, on an assumed fabric.

    Returns the form, whether the file names switches, and the number of blocks.
    """
    hosts = found.nodes
    _check_nodes(draft.options, len(hosts), "Slurm topology")
    gpu = draft.options.gpu
    if not gpu and found.blocks and not nodes and not jobs and _RACK_GPU in draft.catalog.gpus:
        gpu = _RACK_GPU
        draft.assumed.append(f"the GPU is not in the files: {gpu}, as block topologies are made for its racks")
    types: dict[tuple[object, ...], BuiltType] = {}
    hints = Hints(gpu)
    type_of = [
        _type_for(types, _networked(_facts_for(host, place, len(hosts), nodes, jobs)), hints, draft)
        for place, host in enumerate(hosts)
    ]
    blocks = len(found.blocks)
    racks = _block_racks(found, hosts, type_of, draft) if blocks else _consecutive_racks(type_of, draft)
    if not found.switches:
        _assume_fabric(type_of, draft)
        return _finish(plain_hosts(hosts), type_of, racks, draft), False, blocks
    number = {host: place for place, host in enumerate(hosts)}
    nic = Counter(built.nic for built in type_of).most_common(1)[0][0]
    wired = {host: len(built.wired) for host, built in zip(hosts, type_of, strict=True)}
    net = net_of_slurm(found, wired, nic.bandwidth_bytes_per_s, nic.kind)
    cable = cable_for(nic, draft.catalog)
    layout = lay_out(net, cable.latency_s, draft.switch_latency(nic.kind))
    used: Counter[str] = Counter()
    wires: Wires = {}
    for port in net.ports:
        built = type_of[number[port.host]]
        place = built.wired[used[port.host]]
        used[port.host] += 1
        link = (nic.kind, 1, min(built.rates[place], nic.bandwidth_bytes_per_s), cable.latency_s)
        wires.setdefault(link, []).append(
            (f"n{number[port.host]}/{built.nic_names[place]}", layout.leaf_of[port.switch])
        )
    draft.assumed += [
        "rates and numbers of links are not in a Slurm topology: each switch has as many links up as NICs below it",
        "all NICs of a node are on its one Slurm switch; rails are not in the file",
        f"a cable's latency is not in the files: {cable.latency_s * 1e9:g} ns ({cable.name})",
        *layout.notes,
    ]
    draft.switches += layout.switches
    draft.cables += (*wire_rows(wires), *layout.cables)
    return _finish(plain_hosts(hosts), type_of, racks, draft), True, blocks


def without_fabric(nodes: Sequence[NodeFacts], jobs: Sequence[NodeFacts], draft: Draft) -> GraphForm:
    """Nodes that files describe, one or as many as --nodes says; several are joined by an assumed fabric."""
    wanted = draft.options.nodes
    if jobs:
        hosts = [job.host for job in jobs]
        _check_nodes(draft.options, len(hosts), "log")
        described = [_facts_for(host, place, len(hosts), nodes, jobs) for place, host in enumerate(hosts)]
    else:
        described = [*nodes]
        if wanted is not None and len(nodes) > 1:
            _check_nodes(draft.options, len(nodes), "list of files")
        described = described * wanted if wanted is not None and len(nodes) == 1 else described
        hosts = [f"node{place}" for place in range(len(described))]
    if len(described) > 1:
        described = [_networked(one) for one in described]
    types: dict[tuple[object, ...], BuiltType] = {}
    type_of = [_type_for(types, facts, Hints(draft.options.gpu), draft) for facts in described]
    if len(type_of) > 1:
        _assume_fabric(type_of, draft)
    return _finish(hosts, type_of, _consecutive_racks(type_of, draft), draft)


def _networked(facts: NodeFacts | None) -> NodeFacts | None:
    """A node of several that no file gives a NIC has the usual ones: it reaches the others somehow."""
    return replace(facts, nics_known=False) if facts is not None and not facts.nics else facts


def _facts_for(
    host: str, place: int, count: int, nodes: Sequence[NodeFacts], jobs: Sequence[NodeFacts]
) -> NodeFacts | None:
    """What is known of one host: the description whose file names it, the only one, or the one at its place."""
    named = [one for one in nodes if host and host in PurePath(one.source).name] if len(nodes) > 1 else []
    own = named[0] if len(named) == 1 else None
    if own is None and nodes:
        if len(nodes) not in (1, count):
            raise TopologyError(
                f"{len(nodes)} descriptions of nodes for {count} hosts, none for {host}",
                fix="give one for all, one for each in order, or put host names into the names of the files",
            )
        own = nodes[0 if len(nodes) == 1 else place]
    job = jobs[place] if place < len(jobs) and jobs[place].host == host else None
    if job is None and jobs:
        job = next((one for one in jobs if one.host == host), None)
    if own is None or job is None:
        return own or job
    return merge_nodes(own, job)


Rack = tuple[str, tuple[int, ...]]
"""Name and node numbers of nodes with NVLink in common."""


def _block_racks(
    found: SlurmTopology, hosts: Sequence[str], type_of: Sequence[BuiltType], draft: Draft
) -> tuple[Rack, ...]:
    number = {host: place for place, host in enumerate(hosts)}
    racks = []
    for block in found.blocks:
        members = tuple(number[host] for host in block.nodes)
        shared = [type_of[place].rack for place in members]
        if members and all(rack is not None for rack in shared):
            racks.append((plain_name(f"block-{block.name}"), members))
    if racks:
        draft.assumed.append(f"the nodes of each of the {len(racks)} blocks share one NVLink domain")
    else:
        draft.assumed.append("what the nodes of a block share is not in the file, and their GPU has no NVLink racks")
    return tuple(racks)


def _consecutive_racks(type_of: Sequence[BuiltType], draft: Draft) -> tuple[Rack, ...]:
    """Nodes whose GPUs come in NVLink racks, as many in a row as a rack has."""
    racks: list[Rack] = []
    row: list[int] = []
    for place, built in enumerate(type_of):
        full = built.rack is None or (row and (type_of[row[0]] != built or len(row) == built.rack[2]))
        if full and row:
            racks.append((f"rack{len(racks)}", tuple(row)))
            row = []
        if built.rack is not None:
            row.append(place)
    if row:
        racks.append((f"rack{len(racks)}", tuple(row)))
    if racks:
        draft.assumed.append(f"which nodes share an NVLink rack is not in the files: {len(racks)} racks, in order")
    return tuple(racks)


def _assume_fabric(type_of: Sequence[BuiltType], draft: Draft) -> None:
    """A rail-optimised fat tree without oversubscription, of the catalogue's switch for the nodes' NICs."""
    nic = Counter(built.nic for built in type_of).most_common(1)[0][0]
    rails = max(len(built.wired) for built in type_of)
    if not rails:
        raise TopologyError(f"{len(type_of)} nodes have no NIC to reach each other", fix="give a file with NICs")
    tree = fat_tree_for(nic, rails, draft.catalog)
    graph: nx.Graph[str] = nx.Graph()
    for place, built in enumerate(type_of):
        graph.add_nodes_from((f"n{place}/nic{rail}" for rail in range(len(built.wired))), kind="nic")
    add_fat_tree(graph, tree, len(type_of), [tree.cable] * len(type_of))  # a node may have fewer NICs than rails
    names: dict[tuple[str, float], list[str]] = {}
    for key, data in graph.nodes(data=True):
        if data["kind"] != "nic":
            names.setdefault((data["kind"], data["latency_s"]), []).append(key)
    wires: Wires = {}
    for a, b, edge in graph.edges(data=True):
        cable = (edge["kind"], edge["links"], edge["bandwidth_bytes_per_s"] / edge["links"], edge["latency_s"])
        low = a
        if graph.nodes[a]["kind"] == "nic":
            node, _, rail = a.partition("/nic")
            built = type_of[int(node[1:])]
            low = f"{node}/{built.nic_names[built.wired[int(rail)]]}"
        wires.setdefault(cable, []).append((low, b))
    draft.switches += [PartRow(",".join(compress(keys)), kind, latency_s=wait) for (kind, wait), keys in names.items()]
    draft.cables += wire_rows(wires)
    draft.assumed.append(
        f"no file says what joins the nodes: a rail-optimised fat tree of {tree.switch.name} without oversubscription"
    )


def _check_nodes(options: Options, count: int, what: str) -> None:
    if options.nodes is not None and options.nodes != count:
        raise TopologyError(f"{options.nodes} nodes, but the {what} has {count}", where="--nodes", fix="leave it out")


def _finish(hosts: Sequence[str], type_of: Sequence[BuiltType], racks: Sequence[Rack], draft: Draft) -> GraphForm:
    """The form: types with names of their own, hosts in rows, racks' NVSwitches, and what the draft has."""
    types: dict[NodeType, NodeType] = {}
    names: set[str] = set()
    for built in type_of:
        if built.type in types:
            continue
        name = built.type.name
        number = 2
        while name in names:
            name = f"{built.type.name} #{number}"
            number += 1
        names.add(name)
        types[built.type] = replace(built.type, name=name)
    rows: list[tuple[str, list[str]]] = []
    for host, built in zip(hosts, type_of, strict=True):
        name = types[built.type].name
        if not rows or rows[-1][0] != name:
            rows.append((name, []))
        rows[-1][1].append(host)
    wires: Wires = {}
    for rack, members in racks:
        shared = type_of[members[0]].rack
        assert shared is not None
        switch, cable, _ = shared
        draft.switches.append(replace(switch, names=f"{rack}/nvswitch"))
        for place in members:
            wires.setdefault(cable, []).extend(
                (f"n{place}/gpu{gpu}", f"{rack}/nvswitch") for gpu in range(type_of[place].gpus)
            )
    return GraphForm(
        types=tuple(types.values()),
        hosts=tuple(HostRow(name, ",".join(compress_in_order(members))) for name, members in rows),
        switches=tuple(draft.switches),
        cables=(*wire_rows(wires), *draft.cables),
    )
