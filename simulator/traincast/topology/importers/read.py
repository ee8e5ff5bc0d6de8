"""Any text -> the record of its form, and what the record says in figures."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from traincast.errors import TopologyError
from traincast.topology.importers import iblinkinfo, ibnetdiscover, lspci, matrix, nccllog, ncclxml, slurm
from traincast.topology.importers.detect import IBSTAT_FORM, form_of
from traincast.topology.importers.fabric import Fabric
from traincast.topology.importers.lspci import PciList
from traincast.topology.importers.matrix import PCIE_RELATIONS, TopoMatrix
from traincast.topology.importers.nccllog import NcclLog
from traincast.topology.importers.ncclxml import XmlSystem
from traincast.topology.importers.slurm import SlurmTopology
from traincast.topology.importers.slurmyaml import parse_slurm_yaml
from traincast.topology.importers.text import lines_of

_MOST_SAID: Final = 64
_NEAREST: Final = ("NV", "MX", *PCIE_RELATIONS)


@dataclass(frozen=True)
class GuidHosts:
    """A list of hosts and the GUIDs of their adapters: it names the hosts of a fabric, and is none itself."""

    name: str
    hosts: Mapping[str, str]


Record = TopoMatrix | XmlSystem | PciList | Fabric | SlurmTopology | NcclLog | GuidHosts

_PARSERS: Final[Mapping[str, Callable[[str, str], Record]]] = {
    matrix.FORM: matrix.parse_matrix,
    ncclxml.FORM: ncclxml.parse_nccl_xml,
    lspci.FORM: lspci.parse_lspci,
    ibnetdiscover.FORM: ibnetdiscover.parse_ibnetdiscover,
    iblinkinfo.FORM: iblinkinfo.parse_iblinkinfo,
    slurm.CONF_FORM: slurm.parse_slurm_conf,
    slurm.YAML_FORM: parse_slurm_yaml,
    nccllog.FORM: nccllog.parse_nccl_log,
}


def read_topology(text: str, name: str = "input") -> Record:
    """The record of a text in any form that is known. Raises TopologyError with the line and what was expected."""
    form = form_of(text, name)
    return _guid_hosts(text, name) if form == IBSTAT_FORM else _PARSERS[form](text, name)


def _guid_hosts(text: str, name: str) -> GuidHosts:
    hosts: dict[str, str] = {}
    host = ""
    for line in lines_of(text):
        words = line.split()
        if len(words) == 2 and words[0] == "VM_hostname":
            host = words[1]
        elif host and len(words) == 1 and re.fullmatch(r"(0x)?[0-9a-f]{8,16}", words[0]):
            hosts[words[0].removeprefix("0x").lstrip("0")] = host
    return GuidHosts(name, hosts)


def refuse_alone(record: GuidHosts) -> TopologyError:
    """The error of a side file without the fabric that it belongs to."""
    what = (
        f"{len(record.hosts)} hosts and guids without links (VM_hostname)"
        if record.hosts
        else "ibstat: ports, no links"
    )
    return TopologyError(
        f"{what}: no topology by itself, expected ibnetdiscover's output",
        where=f"{record.name}:1",
        fix="give both files",
    )


def says(record: Record) -> dict[str, Any]:
    """What a record holds, in figures and short lists, for reports."""
    if isinstance(record, TopoMatrix):
        return _matrix_says(record)
    if isinstance(record, XmlSystem):
        return {
            "gpus": len(record.gpus),
            "adapters": len(record.nics),
            "ports": record.ports,
            "numa_nodes": len(record.cpus),
            "nvlinks": sum(link.count for gpu in record.gpus for link in gpu.nvlinks),
            "dump": record.dumped,
        }
    if isinstance(record, PciList):
        return {"devices": len(record.devices), "tree": record.tree_known}
    if isinstance(record, Fabric):
        return {
            "switch_records": len(record.of_kind("switch", recorded=True)),
            "adapter_records": len(record.of_kind("ca", recorded=True)),
            "switches": len(record.of_kind("switch")),
            "adapters": len(record.of_kind("ca")),
            "aggregation_nodes": len(record.of_kind("aggregation")),
            "port_lines": record.port_lines,
            "links": len(record.links) + record.aggregation_links,
        }
    if isinstance(record, SlurmTopology):
        return {
            "switches": len(record.switches),
            "blocks": len(record.blocks),
            "block_sizes": list(record.block_sizes),
            "nodes": len(record.nodes),
            "levels": max(record.heights.values(), default=0),
        }
    if isinstance(record, NcclLog):
        return _log_says(record)
    return {"hosts": len(record.hosts)}


def form_name(record: Record) -> str:
    """The form of a record."""
    if isinstance(record, Fabric | SlurmTopology):
        return record.form
    kinds = {TopoMatrix: matrix.FORM, XmlSystem: ncclxml.FORM, PciList: lspci.FORM, NcclLog: nccllog.FORM}
    return kinds.get(type(record), IBSTAT_FORM)


def _matrix_says(record: TopoMatrix) -> dict[str, Any]:
    devices = (*record.gpus, *record.nics)
    return {
        "gpus": len(record.gpus),
        "nics": len(record.nics),
        "relations": {
            gpu: {other: record.relation(gpu, other) for other in devices if other != gpu} for gpu in record.gpus
        },
        "nearest_nics": {gpu: nearest_of(record, gpu) for gpu in record.gpus},
    }


def nearest_of(record: TopoMatrix, gpu: str) -> list[str]:
    """The NICs nearest to a GPU, all that are equally near."""
    far = {
        nic: _NEAREST.index(record.relation(gpu, nic)) for nic in record.nics if record.relation(gpu, nic) in _NEAREST
    }
    return [nic for nic, distance in far.items() if distance == min(far.values())]


def _log_says(record: NcclLog) -> dict[str, Any]:
    world = record.world()
    main = world[0].comm if world else ""
    rings = [ring for ring in record.rings if ring.comm == main]
    nic_of = {hop.channel: hop.nic for hop in reversed(record.hops) if hop.nic >= 0}
    return {
        "nccl_version": record.version,
        "ranks": world[0].nranks if world else 0,
        "ranks_listed": len(world),
        "hosts": list(dict.fromkeys(rank.host for rank in world))[:_MOST_SAID],
        "communicators": len({rank.comm for rank in record.ranks}),
        "rings": {str(ring.channel): list(ring.ranks) for ring in rings[:_MOST_SAID]},
        "trees": len({tree.channel for tree in record.trees if tree.comm == main}),
        "nic_of_channel": {str(channel): nic for channel, nic in sorted(nic_of.items())},
        "nics": {host: [nic.name for nic in nics] for host, nics in list(record.nics.items())[:_MOST_SAID]},
    }
