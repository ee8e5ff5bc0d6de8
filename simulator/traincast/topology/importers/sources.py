"""Records of multi-node files -> hosts: what a fabric, a Slurm tree or a log says about nodes and their ports."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from traincast.catalog import Catalog
from traincast.topology.hostlist import natural_key
from traincast.topology.importers import nccllog
from traincast.topology.importers.fabric import Fabric, FabricLink, FabricNode, host_of
from traincast.topology.importers.facts import GpuFact, NicFact, NodeFacts
from traincast.topology.importers.nccllog import LogNic, LogRank, NcclLog, gpus_per_host, ranks_by_host
from traincast.topology.importers.net import HostPort, Net, NetLink
from traincast.topology.importers.pci import gpu_by_text
from traincast.topology.importers.slurm import SlurmTopology
from traincast.topology.importers.text import Problem

_MOST_GPUS: Final = 64
_PLAIN: Final = re.compile(r"[^A-Za-z0-9_.:;/+@-]+")


def net_of_fabric(found: Fabric, guid_hosts: Mapping[str, str]) -> Net:
    """The fabric with hosts by name; `guid_hosts` names the hosts of adapters by GUID, from a side file."""
    switches = _names(found.of_kind("switch"))
    hosts: dict[str, tuple[str, str]] = {}
    nameless: set[str] = set()
    taken = set(switches.values())
    for node in found.of_kind("ca"):
        host, device = host_of(node)
        host = guid_hosts.get(node.key.lstrip("0"), host)
        if not host:
            host = f"adapter-{node.key.replace(' ', '-')}"
            nameless.add(plain_name(host))
        host = plain_name(host)
        hosts[node.key] = (f"host-{host}" if host in taken else host, plain_name(device) if device else "")
    ports: list[HostPort] = []
    bundles: Counter[tuple[str, str, float]] = Counter()
    several = Counter(end for link in found.links for end in (link.a, link.b) if end in hosts)
    for link in found.links:
        a, b = (link.a, link.b) if link.a in switches else (link.b, link.a)
        port = link.b_port if b == link.b else link.a_port
        if a in switches and b in switches:
            bundles[*sorted((switches[a], switches[b])), link.bytes_per_s] += 1  # type: ignore[index]
        elif a in switches and b in hosts:
            host, device = hosts[b]
            label = f"{device}/{port}" if several[b] > 1 else device
            ports.append(HostPort(host, label, switches[a], link.bytes_per_s))
    used = {port.host for port in ports}
    return Net(
        source=found.name,
        kind="ib",
        hosts=tuple(sorted(used, key=lambda host: (host in nameless, natural_key(host)))),
        ports=tuple(ports),
        switches=tuple(switches.values()),
        links=tuple(NetLink(a, b, count, rate) for (a, b, rate), count in bundles.items()),
        seen={switches[node.key]: "whole" if node.recorded else "partly" for node in found.of_kind("switch")},
    )


def _names(nodes: Iterable[FabricNode]) -> dict[str, str]:
    """Graph keys of switches by their file key: the plain description, with the key where two are equal."""
    listed = list(nodes)
    count = Counter(plain_name(node.name) for node in listed)
    return {
        node.key: plain_name(node.name) + (f"@{node.key.replace(' ', '')}" if count[plain_name(node.name)] > 1 else "")
        for node in listed
    }


def plain_hosts(names: Sequence[str]) -> tuple[str, ...]:
    """Node names that a cluster file can hold, still distinct."""
    taken: set[str] = set()
    plain: list[str] = []
    for name in names:
        label, number = plain_name(name), 2
        while label in taken:
            label, number = f"{plain_name(name)}@{number}", number + 1
        taken.add(label)
        plain.append(label)
    return tuple(plain)


def plain_name(text: str) -> str:
    """A description as a name without blanks, brackets and commas, that is not of the form of a node's part."""
    name = _PLAIN.sub("_", text.strip()).strip("_") or "unnamed"
    return f"switch-{name}" if re.match(r"n\d+/", name) else name


def merge_fabrics(found: Sequence[Fabric]) -> Fabric:
    """Several files of one form as one fabric: nodes by key, links once."""
    if len(found) == 1:
        return found[0]
    nodes: dict[str, FabricNode] = {}
    links: dict[frozenset[tuple[str, int]], FabricLink] = {}
    for fabric in found:
        for node in fabric.nodes:
            if node.key not in nodes or (node.recorded and not nodes[node.key].recorded):
                nodes[node.key] = node
        for link in fabric.links:
            links.setdefault(frozenset({(link.a, link.a_port), (link.b, link.b_port)}), link)
    return replace(
        found[0],
        nodes=tuple(nodes.values()),
        links=tuple(links.values()),
        aggregation_links=sum(fabric.aggregation_links for fabric in found),
        port_lines=sum(fabric.port_lines for fabric in found),
        problems=tuple(problem for fabric in found for problem in fabric.problems),
    )


def net_of_slurm(found: SlurmTopology, nics: Mapping[str, int], bytes_per_s: float, kind: str) -> Net:
    """The tree with `nics` ports a node of that rate; links between switches carry what is below them, non-blocking.

    A switch below several gets its share of links to each.
    """
    keys = {switch.name: plain_name(switch.name) for switch in found.switches}
    ports = [
        HostPort(node, "", keys[switch.name], bytes_per_s)
        for switch in found.switches
        for node in switch.nodes
        for _ in range(nics[node])
    ]
    own = {switch.name: sum(nics[node] for node in switch.nodes) for switch in found.switches}
    parents = Counter(child for switch in found.switches for child in switch.switches)
    below = dict(own)
    children = {switch.name: switch.switches for switch in found.switches}
    links: list[NetLink] = []
    for name in sorted(children, key=lambda one: found.heights[one]):
        for child in children[name]:
            count = max(1, -(-below[child] // parents[child]))
            below[name] += count
            links.append(NetLink(keys[child], keys[name], count, bytes_per_s))
    return Net(
        source=found.name,
        kind=kind,
        hosts=tuple(node for switch in found.switches for node in switch.nodes),
        ports=tuple(ports),
        switches=tuple(keys.values()),
        links=tuple(links),
        heights={keys[name]: height for name, height in found.heights.items()},
    )


def merge_logs(found: Sequence[NcclLog]) -> NcclLog:
    """The logs of the processes of one job as one."""
    if len(found) == 1:
        return found[0]
    nics: dict[str, tuple[LogNic, ...]] = {}
    for log in found:
        nics |= log.nics
    return NcclLog(
        found[0].name,
        found[0].version,
        tuple(rank for log in found for rank in log.ranks),
        tuple(ring for log in found for ring in log.rings),
        tuple(tree for log in found for tree in log.trees),
        tuple(hop for log in found for hop in log.hops),
        nics,
        tuple(problem for log in found for problem in log.problems),
    )


def facts_of_log(found: NcclLog, catalog: Catalog) -> tuple[NodeFacts, ...]:
    """The nodes of a log, by rank. Ranks that are not in it are taken to run on nodes like the others."""
    world = found.world()
    hosts = ranks_by_host(world)
    problems = list(found.problems)
    facts = [_facts_of_host(found, host, ranks, catalog, problems) for host, ranks in hosts.items()]
    size = world[0].nranks
    if len(world) < size:
        full = min(gpus_per_host(world), _MOST_GPUS)
        what = f"{size - len(world)} of {size} ranks are not in the log: taken to run on nodes of {full} GPUs"
        problems.append(Problem(found.name, world[0].line, what))
        facts = _filled(facts, size, full)
    return (replace(facts[0], problems=tuple(problems)), *facts[1:])


def _filled(facts: Sequence[NodeFacts], size: int, full: int) -> list[NodeFacts]:
    """Nodes for all ranks: the known ones with all their GPUs, then more of the same."""
    largest = max(facts, key=lambda one: len(one.gpus))
    extra_gpus = (replace(largest.gpus[0], label=""),) * (full - len(largest.gpus))
    largest = replace(largest, gpus=(*largest.gpus, *extra_gpus))
    nodes = -(-size // full)
    filled = [replace(one, gpus=largest.gpus) for one in facts[:nodes]]
    extra = [replace(largest, host=f"{largest.host}-{number}") for number in range(len(filled) + 1, nodes + 1)]
    return [*filled, *extra]


def _facts_of_host(
    found: NcclLog, host: str, ranks: Sequence[LogRank], catalog: Catalog, problems: list[Problem]
) -> NodeFacts:
    """GPUs of one host in order of their bus ids, NICs as NCCL numbers them."""
    nics = found.nics.get(ranks[0].host, ())
    gpus = []
    for rank in sorted(ranks, key=lambda one: natural_key(one.gpu)):
        model = gpu_by_text(rank.model, catalog)
        if rank.model and not model:
            problems.append(Problem(found.name, rank.line, f"{rank.model[:60]!r} is not in the catalogue"))
        gpus.append(GpuFact(rank.gpu, "", model))
    return NodeFacts(
        source=found.name,
        form=nccllog.FORM,
        gpus=tuple(gpus),
        nics=tuple(NicFact(nic.name, "", nic.name, nic.bytes_per_s, nic.kind) for nic in nics),
        tree_known=False,
        nics_known=bool(nics),
        host=plain_name(host),
    )
