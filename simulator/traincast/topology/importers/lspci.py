"""lspci: the PCI devices of one node, as a list (`lspci`, `-D`, `-nn`, `-vv`) or as a tree (`-tv`).

The tree, and the bus numbers of `-vv`, tell which GPU and NIC share a PCIe switch: behind a root port stands the
switch's upstream port, behind that its downstream ports. A bare list tells only which devices there are. NUMA nodes
and the speed of links stand in `-vv` alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from traincast.catalog import Catalog
from traincast.topology.importers.facts import GpuFact, NicFact, NodeFacts, NvlinkFacts
from traincast.topology.importers.pci import adapter_by_text, gpu_by_number, gpu_by_text
from traincast.topology.importers.text import Problem, damaged, lines_of, shown

FORM: Final = "lspci"
_SLOT: Final = r"(?:[0-9a-f]{4,5}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
DEVICE_LINE: Final = re.compile(rf"({_SLOT})\s+(?:\"?)([A-Z0-9][^:\"\[]*?)(?:\s*\[([0-9a-f]{{4}})\])?\"?:\s+(.*)")
TREE_LINE: Final = re.compile(r"[-+|\\ ]*[-+\\]-?\[([0-9a-f]{4}):([0-9a-f]{2})(?:-[0-9a-f]{2})?\]")
_TREE_PIECE: Final = re.compile(
    r"\[([0-9a-f]{4,5}):([0-9a-f]{2})(?:-[0-9a-f]{2})?\]"
    r"|(?<![0-9a-f.:])([0-9a-f]{2}\.[0-7])(?:-\[(?:[0-9a-f]{4,5}:)?([0-9a-f]{2})(?:-([0-9a-f]{2}))?\])?"
    r"(?: {2}(\S.*))?"
)
_BUSES: Final = re.compile(r"Bus: primary=([0-9a-f]{2}), secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_LINK: Final = re.compile(r"LnkSta:\s+Speed ([\d.]{1,5})\s?GT/s[^,]*, Width x(\d{1,2})")
_NUMBERS: Final = re.compile(r"\[10de:([0-9a-f]{4})\]")
_NVSWITCH: Final = re.compile(r"NVIDIA.*(NVSwitch|Device (1af1|1af0|22a3|1ac2)|\[10de:(1af1|1af0|22a3|1ac2)\])", re.I)
_EXPECTED: Final = "lines like '0f:00.0 3D controller: NVIDIA ...' or the tree of lspci -tv"
_FIX: Final = "save the output of lspci -tv, or of sudo lspci -vv"


@dataclass(frozen=True)
class PciDevice:
    """One device or bridge; `path` are the slots of the bridges above it, from the root port on.

    `numa` is -1 where it is not stated; GT/s and lanes are 0 where they are not.
    """

    slot: str
    line: int
    kind: str
    text: str
    path: tuple[str, ...] = ()
    numa: int = -1
    gt_per_s: float = 0.0
    lanes: int = 0
    buses: tuple[int, int] | None = None


@dataclass(frozen=True)
class PciList:
    """What an lspci output says. `tree_known`: paths are from the file; else they are empty."""

    name: str
    devices: tuple[PciDevice, ...]
    tree_known: bool
    problems: tuple[Problem, ...]


def parse_lspci(text: str, name: str = "input") -> PciList:
    """The devices of an output. Raises TopologyError where there is none."""
    lines = lines_of(text)
    is_tree = any(TREE_LINE.match(line) for line in lines)
    devices, problems = _tree(lines, name) if is_tree else _listed(lines, name)
    if not devices:
        raise damaged(name, 1, "no PCI device", _EXPECTED, _FIX)
    if not is_tree:
        devices = _with_paths(devices)
    known = is_tree or any(device.buses for device in devices)
    return PciList(name, tuple(devices), known, tuple(problems))


def _listed(lines: Sequence[str], name: str) -> tuple[list[PciDevice], list[Problem]]:
    devices: list[PciDevice] = []
    problems: list[Problem] = []
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        found = DEVICE_LINE.match(line)
        if found:
            slot = found.group(1) if found.group(1).count(":") == 2 else f"0000:{found.group(1)}"
            if slots.setdefault(slot, number) != number:
                what = f"{slot} stands twice (first in line {slots[slot]}): left out"
                problems.append(Problem(name, number, what))
                continue
            devices.append(PciDevice(slot, number, found.group(2).strip(), found.group(4).strip()))
        elif line[:1] in (" ", "\t") and devices:
            devices[-1] = _detail(devices[-1], line)
        elif line.strip() and "lspci" not in line:
            problems.append(Problem(name, number, f"{shown(line)} is no device: left out"))
    return devices, problems


def _detail(device: PciDevice, line: str) -> PciDevice:
    """The device with what an indented line of -v adds."""
    if buses := _BUSES.search(line):
        return replace(device, buses=(int(buses.group(2), 16), int(buses.group(3), 16)))
    if link := _LINK.search(line):
        speed = link.group(1)
        rate = float(speed) if speed.count(".") <= 1 and speed != "." else 0.0
        return replace(device, gt_per_s=rate, lanes=int(link.group(2)))
    if numa := re.search(r"NUMA node: (\d{1,3})\s*$", line):
        return replace(device, numa=int(numa.group(1)))
    return device


def _with_paths(devices: Sequence[PciDevice]) -> list[PciDevice]:
    """The bridges above each device, from the bus ranges of -vv."""
    bridges = [(device.slot.split(":")[0], device.buses, device.slot) for device in devices if device.buses]
    placed = []
    for device in devices:
        domain, bus, _ = device.slot.split(":")
        above = [(b, slot) for own, b, slot in bridges if own == domain and b[0] <= int(bus, 16) <= b[1]]
        above.sort(key=lambda item: (item[0][0] - item[0][1], item[0][0]))
        placed.append(replace(device, path=tuple(slot for _, slot in above if slot != device.slot)))
    return placed


def _tree(lines: Sequence[str], name: str) -> tuple[list[PciDevice], list[Problem]]:
    """Devices of a tree: what stands farther right on a line, or below at a deeper column, hangs on what is left."""
    devices: list[PciDevice] = []
    problems: list[Problem] = []
    stack: list[tuple[int, str, str]] = []  # column, slot, bus below
    domain = "0000"
    for number, line in enumerate(lines, 1):
        pieces = list(_pieces(line))
        if not pieces and line.strip(" |") and "lspci" not in line:
            problems.append(Problem(name, number, f"{shown(line)} is no part of the tree: left out"))
        for column, found in pieces:
            while stack and stack[-1][0] >= column:
                stack.pop()
            if found.group(1):
                domain = found.group(1)
                stack.append((column, "", found.group(2)))
                continue
            bus = stack[-1][2] if stack else "00"
            slot = f"{domain}:{bus}:{found.group(3)}"
            path = tuple(slot for _, slot, _ in stack if slot)
            below = found.group(4)
            kind = "PCI bridge" if below else ""
            devices.append(PciDevice(slot, number, kind, (found.group(6) or "").strip(), path))
            stack.append((column, slot, below or bus))
    return devices, problems


def _pieces(line: str) -> Iterator[tuple[int, re.Match[str]]]:
    place = 0
    while found := _TREE_PIECE.search(line, place):
        yield found.start(), found
        place = found.end()


def facts_of_pci(found: PciList, catalog: Catalog) -> NodeFacts:
    """The node of an output. Raises TopologyError where no GPU is in it."""
    problems = list(found.problems)
    gpus = [device for device in found.devices if _is_gpu(device)]
    if not gpus:
        bare = not any(device.text for device in found.devices)
        what = "the tree names no devices" if bare else f"no NVIDIA GPU among {len(found.devices)} PCI devices"
        raise damaged(found.name, 1, what, "a 3D controller of NVIDIA", _FIX)
    nics = _nics(found, problems)
    numa = any(device.numa >= 0 for device in gpus)
    where = {device.slot: _cpu(device, numa) for device in (*gpus, *(nic for nic, _ in nics))}
    names: dict[str, str] = {}
    tree: dict[str, str] = {}
    for device in (*gpus, *(nic for nic, _ in nics)):
        # a root port alone is the CPU's; the bridge behind it is a switch's upstream port
        if len(device.path) > 1 and device.path[1] not in names:
            names[device.path[1]] = f"pcie{len(names)}"
            tree[names[device.path[1]]] = where[device.slot]

    def host(device: PciDevice) -> str:
        return names[device.path[1]] if len(device.path) > 1 else where[device.slot]

    switches = sum(1 for device in found.devices if _NVSWITCH.search(device.text))
    notes = (
        [] if numa or not found.tree_known else ["sockets are not in the file: buses below 80 are taken as socket 0"]
    )
    return NodeFacts(
        source=found.name,
        form=FORM,
        gpus=tuple(
            GpuFact(device.slot, host(device), _model(device, catalog, problems, found.name), *_speed(device))
            for device in gpus
        ),
        nics=tuple(
            NicFact(device.slot, host(device), "", gbit * 1e9 / 8, kind, *_speed(device))
            for device, (kind, gbit) in nics
        ),
        cpus=tuple(dict.fromkeys(where.values())),
        tree=tuple(tree.items()),
        tree_known=found.tree_known or numa,
        nvlink=NvlinkFacts((), (), switches) if switches else None,
        notes=(*notes, *_rate_notes([kind for _, kind in nics])),
        problems=tuple(problems),
    )


def _is_gpu(device: PciDevice) -> bool:
    if "NVIDIA" not in device.text.upper() or _NVSWITCH.search(device.text):
        return False
    if device.kind:
        return device.kind in ("3D controller", "VGA compatible controller", "Display controller")
    return not re.search(r"audio|usb|serial bus|ucsi|bridge", device.text, re.I)


def _nics(found: PciList, problems: list[Problem]) -> list[tuple[PciDevice, tuple[str, float]]]:
    nics: list[tuple[PciDevice, tuple[str, float]]] = []
    left_out: list[PciDevice] = []
    virtual: list[PciDevice] = []
    for device in found.devices:
        named = adapter_by_text(device.text)
        is_net = device.kind in ("Infiniband controller", "InfiniBand controller", "Ethernet controller")
        is_net = is_net or (not device.kind and (named is not None or "Ethernet" in device.text))
        if not is_net:
            continue
        if "Virtual Function" in device.text:
            virtual.append(device)
        elif named is None:
            left_out.append(device)
        else:
            # the class tells what the port runs now, where the family can do both
            kind = "ethernet" if device.kind == "Ethernet controller" and named[0] == "ib" else named[0]
            nics.append((device, (kind, named[1])))
    for device in left_out:
        what = f"{shown(device.text)} is no adapter of a cluster's fabric: left out"
        problems.append(Problem(found.name, device.line, what))
    if virtual:
        what = f"virtual functions of adapters: {len(virtual)}, left out"
        problems.append(Problem(found.name, virtual[0].line, what))
    return nics


def _rate_notes(kinds: Sequence[tuple[str, float]]) -> list[str]:
    return [
        f"network ports are taken at their adapter's highest: {kinds.count((kind, rate))} at {rate:g} Gbit/s ({kind})"
        for kind, rate in dict.fromkeys(kinds)
    ]


def _model(device: PciDevice, catalog: Catalog, problems: list[Problem], name: str) -> str:
    number = _NUMBERS.search(device.text)
    model = (gpu_by_number(number.group(1)) if number else "") or gpu_by_text(device.text, catalog)
    if model not in catalog.gpus:
        problems.append(Problem(name, device.line, f"{shown(device.text)} is not in the catalogue"))
        return ""
    return model


def _cpu(device: PciDevice, numa: bool) -> str:
    if numa:
        return f"cpu{max(0, device.numa)}"
    return f"cpu{int(int(device.slot.split(':')[1], 16) >= 0x80)}"


def _speed(device: PciDevice) -> tuple[float, int]:
    """GT/s and lanes; not where the link idles below PCIe 3."""
    lanes_fit = device.lanes in (1, 2, 4, 8, 16, 32)
    return (device.gt_per_s, device.lanes) if 8.0 <= device.gt_per_s <= 128.0 and lanes_fit else (0.0, 0)
