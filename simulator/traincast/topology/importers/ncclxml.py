"""NCCL topology XML: dumps (NCCL_TOPO_DUMP_FILE) and the files that clouds inject (NCCL_TOPO_FILE).

A `system` holds `cpu`s (NUMA nodes), these `pci` devices and bridges, these a `gpu` with its `nvlink`s or a `nic`
with its `net` ports. Injection files leave out gpu, nic and nvlink; their devices are told apart by PCI class:
0x0302 is a GPU, 0x0200 and 0x0207 are Ethernet and InfiniBand adapters, 0x0604 is a bridge. An NVLink's target is a
peer GPU (tclass 0x030200) or an NVSwitch (0x068000). `link_speed` is the speed now: an idle link says 2.5 GT/s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from xml.parsers import expat

from traincast.errors import TopologyError
from traincast.topology.importers.text import Problem, damaged

FORM: Final = "nccl-xml"
GRAPH_FORM: Final = "nccl-graph-xml"
_MOST_DEPTH: Final = 40
_LAST: Final = 10**9
_GPU, _SWITCH = "0x0302", "0x0680"
_NIC_CLASSES: Final = {"0x0200": "ethernet", "0x0207": "ib"}
_BRIDGE: Final = "0x0604"
_FIX: Final = "dump with NCCL_TOPO_DUMP_FILE on a node with GPUs, or name the machine"
# a speed below 8 GT/s (PCIe 3) is an idle link: no server with these GPUs runs slower
_SLOWEST_GT_PER_S: Final = 8.0


@dataclass(frozen=True)
class XmlNvlink:
    """NVLinks of one GPU to one target; `to_switch` where that is an NVSwitch."""

    target: str
    count: int
    to_switch: bool


@dataclass(frozen=True)
class XmlNet:
    """One network port; rate in bytes/s, 0.0 where it is not stated."""

    name: str
    bytes_per_s: float
    guid: str
    line: int


@dataclass(frozen=True)
class XmlDevice:
    """A GPU or NIC, and where it hangs: CPU (place in `cpus`) and the topmost bridge above it (empty: none).

    `dev` is NCCL's number, -1 where the file has none. `gt_per_s` and `lanes` are 0 where they are not stated or the
    link was idle.
    """

    busid: str
    line: int
    cpu: int
    bridge: str
    kind: str
    gt_per_s: float = 0.0
    lanes: int = 0
    device: str = ""
    vendor: str = ""
    sm: int = 0
    dev: int = -1
    nets: tuple[XmlNet, ...] = ()
    nvlinks: tuple[XmlNvlink, ...] = ()
    net_kind: str = ""


@dataclass(frozen=True)
class XmlSystem:
    """What a file says. `cpus` are (host, NUMA id); `dumped` tells a dump, with GPUs, from an injection file."""

    name: str
    version: str
    cpus: tuple[tuple[str, str], ...]
    gpus: tuple[XmlDevice, ...]
    nics: tuple[XmlDevice, ...]
    dumped: bool
    problems: tuple[Problem, ...]

    @property
    def ports(self) -> int:
        """Network ports: the stated ones, and one for each adapter that states none."""
        return sum(max(1, len(nic.nets)) for nic in self.nics)


@dataclass
class _Open:
    """An element that is being read."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    children: list["_Open"] = field(default_factory=list)

    def find(self, tag: str) -> list["_Open"]:
        """The children of a tag."""
        return [child for child in self.children if child.tag == tag]


def parse_nccl_xml(text: str, name: str = "input") -> XmlSystem:
    """The system that a file describes.

    Raises TopologyError, with the line, for text that is no XML, for another root element, and where GPUs and
    NICs cannot be told apart.
    """
    root = _read(text, name)
    if root.tag == "graphs":
        raise TopologyError(
            "root element <graphs>: an NCCL graph file (NCCL_GRAPH_FILE), expected <system>",
            where=f"{name}:{root.line}",
            fix="give the file of NCCL_TOPO_FILE or NCCL_TOPO_DUMP_FILE",
        )
    if root.tag != "system":
        raise damaged(name, root.line, f"root element <{root.tag[:40]}>", "<system> of an NCCL topology", _FIX)
    reader = _Reader(name)
    cpus = root.find("cpu")
    for place, cpu in enumerate(cpus):
        reader.devices(cpu, place, "")
    reader.others(root)
    version = root.attributes.get("version", "")
    if version not in ("1", "2"):
        reader.note(root.line, f"version {version!r}: expected 1 or 2; read as such")
    _refuse_unclear(reader, root, name)
    named = tuple((cpu.attributes.get("host_hash", ""), cpu.attributes.get("numaid", "")) for cpu in cpus)
    dumped = any(device.dev >= 0 for device in reader.gpus)
    gpus = sorted(reader.gpus, key=lambda gpu: (gpu.dev if gpu.dev >= 0 else _LAST, "" if dumped else gpu.busid))
    # NCCL numbers ports as the dump says, devices of an injection file by bus id
    nics = sorted(reader.nics, key=lambda nic: (nic.dev if nic.dev >= 0 else _LAST, "" if nic.nets else nic.busid))
    return XmlSystem(name, version, named, tuple(gpus), tuple(nics), dumped, tuple(reader.problems))


def _refuse_unclear(reader: "_Reader", root: _Open, name: str) -> None:
    if reader.gpus and not reader.unclassified:
        return
    if reader.gpus:
        for device in reader.unclassified:
            busid = device.attributes.get("busid", "?")
            reader.note(device.line, f"<pci busid={busid!r}> has no class, <gpu> or <nic>: left out")
        return
    if reader.unclassified:
        raise TopologyError(
            "<pci> without class; no <gpu> in the file: an injection file, GPUs must come from elsewhere: "
            f"GPUs and NICs cannot be told apart among its {len(reader.unclassified)} devices, expected class or <gpu>",
            where=f"{name}:{reader.first_unclear}",
            fix=_FIX,
        )
    raise damaged(name, root.line, "the system has no GPU", "<gpu> or <pci> of class 0x030200", _FIX)


class _Reader:
    """Collects devices while the tree of elements is walked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gpus: list[XmlDevice] = []
        self.nics: list[XmlDevice] = []
        self.unclassified: list[_Open] = []
        self.first_unclear = 0
        self.problems: list[Problem] = []
        self.seen: dict[str, int] = {}

    def note(self, line: int, what: str) -> None:
        """One more problem."""
        self.problems.append(Problem(self.name, line, what))

    def others(self, root: _Open) -> None:
        """Says what else stands beside the CPUs."""
        for child in root.children:
            if child.tag != "cpu":
                self.note(child.line, f"<{child.tag[:40]}> inside <system>: left out, expected <cpu>")

    def devices(self, parent: _Open, cpu: int, bridge: str) -> None:
        """The devices below a CPU or bridge; nested bridges count as the topmost one."""
        for child in parent.children:
            if child.tag == "pci":
                self._pci(child, cpu, bridge)
            elif child.tag == "nic":
                self._add_nic(XmlDevice("", child.line, cpu, bridge, "nic"), child)
            elif child.tag not in ("gpu", "net"):
                self.note(child.line, f"<{child.tag[:40]}>: left out, expected <pci> or <nic>")

    def _pci(self, element: _Open, cpu: int, bridge: str) -> None:
        said = element.attributes
        kind = said.get("class", "").lower()
        busid = said.get("busid", "")
        if not busid:
            self.note(element.line, "<pci> without busid")
        elif self.seen.setdefault(busid.lower(), element.line) != element.line:
            first = self.seen[busid.lower()]
            self.note(element.line, f"<pci busid={busid[:40]!r}> stands twice (first in line {first}): left out")
            return
        gpus, nics, inner = element.find("gpu"), element.find("nic"), element.find("pci")
        speed = self._speed(element)
        base = XmlDevice(busid.lower(), element.line, cpu, bridge, "gpu", *speed, said.get("device", "").lower())
        base = replace(base, vendor=said.get("vendor", "").lower())
        if gpus or kind.startswith(_GPU):
            self._add_gpu(base, gpus[0] if gpus else element)
        elif nics or kind[:6] in _NIC_CLASSES:
            for nic in nics or [element]:
                self._add_nic(replace(base, kind="nic", net_kind=_NIC_CLASSES.get(kind[:6], "")), nic)
        elif inner or kind.startswith(_BRIDGE):
            self.first_unclear = self.first_unclear or (0 if kind else element.line)
            self.devices(element, cpu, bridge or busid or f"line {element.line}")
            return
        elif kind:
            if not kind.startswith(_SWITCH):
                self.note(
                    element.line, f"<pci busid={busid[:40]!r}> of class {kind[:20]}: neither GPU nor NIC, left out"
                )
        else:
            self.first_unclear = self.first_unclear or element.line
            self.unclassified.append(element)
        for child in inner:
            self._pci(child, cpu, bridge or busid)

    def _speed(self, element: _Open) -> tuple[float, int]:
        """GT/s and lanes; 0 where they are not stated or the link is idle."""
        text = element.attributes.get("link_speed", "")
        lanes = whole(element.attributes.get("link_width", ""))
        found = re.match(r"\s*(\d{1,3}(?:\.\d{1,3})?)\s*GT/s", text)
        if found is None:
            if text.strip() and text.strip().lower() != "unknown":
                self.note(element.line, f"link_speed {text[:30]!r}: expected a number of GT/s; taken as not stated")
            return 0.0, 0
        rate = float(found.group(1))
        if rate < _SLOWEST_GT_PER_S:
            bridge = "; a bridge must not cap what hangs on it" if element.find("pci") else ""
            self.note(element.line, f"link_speed {text.strip()[:30]} is that of an idle link: not used{bridge}")
            return 0.0, 0
        if lanes not in (1, 2, 4, 8, 16, 32):
            self.note(element.line, f"link_width {lanes}: expected 1 to 32 lanes; taken as not stated")
            return 0.0, 0
        return rate, lanes

    def _add_gpu(self, device: XmlDevice, element: _Open) -> None:
        said = element.attributes if element.tag == "gpu" else {}
        links: list[XmlNvlink] = []
        for child in element.children if element.tag == "gpu" else ():
            if child.tag != "nvlink":
                self.note(child.line, f"<{child.tag[:40]}> of a GPU: left out, expected <nvlink>")
            elif link := self._nvlink(child, device.busid):
                links.append(link)
        self.gpus.append(
            replace(
                device,
                sm=whole(said.get("sm", "")),
                dev=whole(said.get("dev", ""), -1) if said else -1,
                nvlinks=tuple(links),
            )
        )

    def _nvlink(self, element: _Open, own: str) -> XmlNvlink | None:
        target = element.attributes.get("target", "").lower()
        count = whole(element.attributes.get("count", ""))
        kind = element.attributes.get("tclass", "").lower()
        if target == own:
            self.note(element.line, f"{count} NVLinks from {own} to itself: no link is built")
            return None
        if not 1 <= count <= 36 or not kind.startswith((_GPU, _SWITCH)):
            what = f"nvlink target={target[:20]!r} count={count} tclass={kind[:10]!r}"
            self.note(element.line, f"{what}: left out, expected 1 to 36 links to a GPU (0x0302) or NVSwitch (0x0680)")
            return None
        return XmlNvlink(target, count, kind.startswith(_SWITCH))

    def _add_nic(self, device: XmlDevice, element: _Open) -> None:
        nets: list[XmlNet] = []
        for net in element.find("net") if element.tag == "nic" else ():
            speed = whole(net.attributes.get("speed", ""))
            if not speed:
                self.note(net.line, f"speed {net.attributes.get('speed', '')[:20]!r}: expected Mbit/s; not known")
            guid = net.attributes.get("guid", "")
            nets.append(XmlNet(net.attributes.get("name", ""), speed * 1e6 / 8, guid, net.line))
        numbers = [whole(net.attributes.get("dev", ""), _LAST) for net in element.find("net")]
        self.nics.append(replace(device, nets=tuple(nets), dev=min(numbers, default=-1)))


def whole(text: str, default: int = 0) -> int:
    """A whole number of at most nine digits; `default` for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else default


def _read(text: str, name: str) -> _Open:
    """The elements of a document. No entities are expanded: a topology file declares none."""
    # the declaration may only stand first, and pasted files often begin with a blank line
    body = text.lstrip()
    skipped = text[: len(text) - len(body)].count("\n")
    parser = expat.ParserCreate()
    top: list[_Open] = []
    stack: list[_Open] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = _Open(tag, attributes, parser.CurrentLineNumber + skipped)
        if len(stack) >= _MOST_DEPTH:
            raise damaged(name, element.line, "elements nested too deep", f"at most {_MOST_DEPTH} levels", _FIX)
        (stack[-1].children if stack else top).append(element)
        stack.append(element)

    def end(_: str) -> None:
        stack.pop()

    def doctype(*_: object) -> None:
        line = parser.CurrentLineNumber + skipped
        raise damaged(name, line, "a document type declaration", "a plain topology file", _FIX)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(body.encode("utf-8", errors="replace"), True)
    except expat.ExpatError as error:
        line, column = error.lineno + skipped, error.offset + 1
        where = f"{name}:{line}:{column}"
        reason = expat.ErrorString(error.code)
        unclosed = f" (<{stack[-1].tag[:40]}> of line {stack[-1].line} is open)" if stack else ""
        raise TopologyError(
            f"not well-formed XML: {reason}{unclosed}, expected a whole <system> element", where=where, fix=_FIX
        ) from error
    return top[0]
