"""From a matrix or a system XML to the facts about one node."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from traincast.catalog import Catalog
from traincast.topology.importers import matrix as topo
from traincast.topology.importers import ncclxml
from traincast.topology.importers.facts import GpuFact, NicFact, NodeFacts, NvlinkFacts
from traincast.topology.importers.matrix import TopoMatrix
from traincast.topology.importers.ncclxml import XmlDevice, XmlSystem
from traincast.topology.importers.pci import MOST_LINKS, adapter_by_number, gpu_by_number
from traincast.topology.importers.text import Problem

T = TypeVar("T")


def facts_of_matrix(found: TopoMatrix) -> NodeFacts:
    """The node of a matrix: PIX groups are PCIe switches, PXB joins them, NUMA nodes and SYS divide CPUs."""
    devices = (*found.gpus, *found.nics)
    cpu_of = _cpus(found, devices)
    complexes = _sets(devices, lambda a, b: found.relation(a, b) in ("PIX", "PXB"))
    host: dict[str, str] = dict(cpu_of)
    tree: dict[str, str] = {}
    joined: list[tuple[str, str]] = []
    for members in complexes:
        if len(members) == 1:
            continue
        groups = _sets(members, lambda a, b: found.relation(a, b) == "PIX")
        # where all relations are PXB the tiers of the switch cannot be told apart: one switch
        lonely = [member for group in groups if len(group) == 1 for member in group]
        switches = [group for group in groups if len(group) > 1] + ([lonely] if lonely else [])
        names = [f"pcie{len(tree) + place}" for place in range(len(switches))]
        cpu = next((cpu_of[member] for member in members if member in found.gpus), cpu_of[members[0]])
        for name, switch in zip(names, switches, strict=True):
            tree[name] = cpu
            host |= dict.fromkeys(switch, name)
        joined += [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    nvlink, problems = _matrix_nvlinks(found)
    return NodeFacts(
        source=found.name,
        form=topo.FORM,
        gpus=tuple(GpuFact(gpu, host[gpu]) for gpu in found.gpus),
        nics=_matrix_nics(found, host),
        cpus=tuple(dict.fromkeys(cpu_of.values())),
        tree=tuple(tree.items()),
        joined=tuple(joined),
        tree_known=any(found.relation(gpu, other) in topo.PCIE_RELATIONS for gpu in found.gpus for other in devices),
        nvlink=nvlink,
        notes=_matrix_notes(found),
        problems=(*found.problems, *problems),
    )


def _matrix_nics(found: TopoMatrix, host: Mapping[str, str]) -> tuple[NicFact, ...]:
    """A NIC that is across sockets from every GPU, while others are not, is taken for a storage port."""
    far = {nic: all(found.relation(gpu, nic) == "SYS" for gpu in found.gpus) for nic in found.nics}
    some = any(not away for away in far.values())
    return tuple(NicFact(nic, host[nic], found.nic_names.get(nic, ""), far=far[nic] and some) for nic in found.nics)


def _matrix_notes(found: TopoMatrix) -> tuple[str, ...]:
    notes: list[str] = []
    seen = {found.relation(gpu, nic) for gpu in found.gpus for nic in found.nics}
    if len(found.gpus) > 1 and len(found.nics) > 1 and seen == {"PHB"}:
        notes.append(
            "every GPU-NIC pair is PHB, as virtual machines show it: which NIC is near which GPU cannot be told; "
            "the file of NCCL_TOPO_FILE tells it"
        )
    if len(found.gpus) > 1 and not found.numa and not any(found.relation(a, b) == "SYS" for a, b in _pairs(found.gpus)):
        notes.append("NUMA nodes of the GPUs are not in the file: they follow from the relations alone")
    return tuple(notes)


def _cpus(found: TopoMatrix, devices: Sequence[str]) -> dict[str, str]:
    """The CPU (NUMA node) of each device: by the stated NUMA node, else by what is nearer than SYS."""
    numa = found.numa
    if not any(gpu in numa for gpu in found.gpus):
        # sets, so that GPUs with NVLinks between them are divided by what their NICs and CPU lists say
        near = _sets(devices, lambda a, b: _same_cpu(found, a, b))
        return {device: f"cpu{place}" for place, members in enumerate(near) for device in members}
    cpu_of = {gpu: f"cpu{numa[gpu]}" for gpu in found.gpus if gpu in numa}
    spare = max(numa.values()) + 1
    for device in devices:
        if device in cpu_of:
            continue
        close = [other for other in cpu_of if found.relation(device, other) in ("PIX", "PXB", "PHB", "NODE")]
        if not close:
            cpu_of[device] = f"cpu{spare}"
            spare += 1
            continue
        cpu_of[device] = cpu_of[min(close, key=lambda other: topo.PCIE_RELATIONS.index(found.relation(device, other)))]
    return cpu_of


def _same_cpu(found: TopoMatrix, a: str, b: str) -> bool:
    relation = found.relation(a, b)
    if relation in ("PIX", "PXB", "PHB", "NODE"):
        return True
    lists = found.cpu_affinity.get(a), found.cpu_affinity.get(b)
    return relation != "SYS" and lists[0] is not None and lists[0] == lists[1]


def _matrix_nvlinks(found: TopoMatrix) -> tuple[NvlinkFacts, list[Problem]]:
    """Links to a switch where each GPU would need more links than a GPU has to reach its peers directly, and between
    two GPUs that show all the links that a GPU has. With links down a GPU shows fewer to all others."""
    count = len(found.gpus)
    links = {(a, b): _bonded(found.relation(found.gpus[a], found.gpus[b])) for a, b in _pairs(range(count))}
    near = [sum(links[min(a, b), max(a, b)] for b in range(count) if b != a) for a in range(count)]
    to_switch, problems = [0] * count, []
    for members in _sets(range(count), lambda a, b: links[min(a, b), max(a, b)] > 0):
        sizes = {links[pair] for pair in _pairs(members)}
        most = max(near[a] for a in members)
        if min(sizes, default=0) and (most > MOST_LINKS if len(members) > 2 else most == MOST_LINKS):
            for a in members:
                to_switch[a] = max(links[min(a, b), max(a, b)] for b in members if b != a)
            worn = [found.gpus[a] for a in members if to_switch[a] < max(sizes)]
            if worn:
                what = f"{', '.join(worn)} shows fewer NVLinks than the {max(sizes)} of others: some are down"
                problems.append(Problem(found.name, 0, what))
    for a in range(count):
        if not to_switch[a] and near[a] > MOST_LINKS:
            what = f"{found.gpus[a]} has {near[a]} NVLinks to its peers, more than any GPU: the relations are uneven"
            problems.append(Problem(found.name, 0, what))
    peers = tuple((a, b, n) for (a, b), n in links.items() if n and not (to_switch[a] and to_switch[b]))
    return NvlinkFacts(peers, tuple(to_switch) if any(to_switch) else ()), problems


def _bonded(relation: str) -> int:
    return int(relation[2:]) if relation.startswith("NV") else 0


def facts_of_system(found: XmlSystem, catalog: Catalog) -> tuple[NodeFacts, ...]:
    """The nodes of a system: one, or one for each host_hash where several machines share NVLink."""
    hosts = list(dict.fromkeys(host for host, _ in found.cpus)) or [""]
    nodes = []
    for place, host in enumerate(hosts):
        mine = {number for number, (name, _) in enumerate(found.cpus) if name == host}
        gpus = [gpu for gpu in found.gpus if gpu.cpu in mine]
        nics = [nic for nic in found.nics if nic.cpu in mine]
        if gpus:
            nodes.append(_facts_of_host(found, catalog, (gpus, nics), place == 0))
    return tuple(nodes)


def _facts_of_host(
    found: XmlSystem, catalog: Catalog, parts: tuple[list[XmlDevice], list[XmlDevice]], first: bool
) -> NodeFacts:
    gpus, nics = parts
    problems = list(found.problems) if first else []
    cpus = dict.fromkeys(f"cpu{_cpu(found, device.cpu)}" for device in (*gpus, *nics))
    tree: dict[str, str] = {}
    names: dict[str, str] = {}
    for device in (*gpus, *nics):
        if device.bridge and device.bridge not in names:
            names[device.bridge] = f"pcie{len(names)}"
            tree[names[device.bridge]] = f"cpu{_cpu(found, device.cpu)}"
    ports: list[NicFact] = []
    silent: list[float] = []
    for nic in nics:
        host = names.get(nic.bridge) or f"cpu{_cpu(found, nic.cpu)}"
        highest = adapter_by_number(nic.vendor, nic.device)
        base = NicFact(nic.busid, host, "", highest * 1e9 / 8, nic.net_kind, nic.gt_per_s, nic.lanes)
        silent += [highest for net in nic.nets or (None,) if highest and (net is None or not net.bytes_per_s)]
        ports += [
            replace(
                base,
                label=f"{nic.busid}/{net.name}",
                device=net.name,
                port_bytes_per_s=net.bytes_per_s or base.port_bytes_per_s,
            )
            for net in nic.nets
        ] or [base]
    return NodeFacts(
        source=found.name,
        form=ncclxml.FORM,
        gpus=tuple(
            GpuFact(
                gpu.busid,
                names.get(gpu.bridge) or f"cpu{_cpu(found, gpu.cpu)}",
                _known(gpu_by_number(gpu.device), catalog),
                gpu.gt_per_s,
                gpu.lanes,
            )
            for gpu in gpus
        ),
        nics=tuple(ports),
        cpus=tuple(cpus),
        tree=tuple(tree.items()),
        nvlink=_xml_nvlinks(found, gpus, problems) if found.dumped else None,
        sm=max(gpu.sm for gpu in gpus),
        notes=tuple(
            f"network ports are taken at their adapter's highest rate: {silent.count(rate)} at {rate:g} Gbit/s"
            for rate in dict.fromkeys(silent)
        ),
        problems=tuple(problems),
    )


def _known(name: str, catalog: Catalog) -> str:
    return name if name in catalog.gpus else ""


def _cpu(found: XmlSystem, place: int) -> str:
    """The NUMA id of a CPU; its place where ids are missing or stand twice."""
    host, numa = found.cpus[place]
    same = [number for number, cpu in enumerate(found.cpus) if cpu == (host, numa)]
    return numa if numa.isascii() and numa.isdigit() and len(numa) <= 3 and len(same) == 1 else f"x{place}"


def _xml_nvlinks(found: XmlSystem, gpus: Sequence[XmlDevice], problems: list[Problem]) -> NvlinkFacts:
    number = {gpu.busid: place for place, gpu in enumerate(gpus)}
    to_switch = [0] * len(gpus)
    chips: set[str] = set()
    directed: dict[tuple[int, int], int] = {}
    for place, gpu in enumerate(gpus):
        for link in gpu.nvlinks:
            if link.to_switch:
                to_switch[place] += link.count
                chips.add(link.target)
            elif link.target in number:
                directed[place, number[link.target]] = directed.get((place, number[link.target]), 0) + link.count
            else:
                what = f"{gpu.busid} has NVLinks to {link.target}, which is no GPU of the file: left out"
                problems.append(Problem(found.name, gpu.line, what))
    peers: dict[tuple[int, int], int] = {}
    for (a, b), count in directed.items():
        low, high = min(a, b), max(a, b)
        back = directed.get((b, a), 0)
        if back != count and (a < b or not back):
            what = f"{count} NVLinks from {gpus[a].busid} to {gpus[b].busid}, but {back} back: {max(count, back)} taken"
            problems.append(Problem(found.name, gpus[a].line, what))
        peers[low, high] = max(count, back)
    for place, gpu in enumerate(gpus):
        if to_switch[place] > 36:
            what = f"{gpu.busid} has {to_switch[place]} NVLinks to switches: expected at most 36"
            problems.append(Problem(found.name, gpu.line, what))
            to_switch[place] = 36
    known = tuple(to_switch) if any(to_switch) else ()
    return NvlinkFacts(tuple((a, b, n) for (a, b), n in peers.items()), known, len(chips))


def _pairs(members: Sequence[T]) -> Iterable[tuple[T, T]]:
    return ((a, b) for place, a in enumerate(members) for b in members[place + 1 :])


def _sets(members: Sequence[T], joined: Callable[[T, T], bool]) -> list[list[T]]:
    """The members in sets that `joined` makes, each in order."""
    sets: list[list[T]] = []
    for member in members:
        near = [one for one in sets if any(joined(member, other) or joined(other, member) for other in one)]
        rest = [one for one in sets if one not in near]
        merged = [other for one in near for other in one]
        sets = [*rest, [*merged, member]] if near else [*sets, [member]]
    order = {member: place for place, member in enumerate(members)}
    return sorted((sorted(one, key=order.__getitem__) for one in sets), key=lambda one: order[one[0]])
