"""`nvidia-smi topo -m`: which GPUs and NICs of one node are how far apart.

The command prints a square table of relations; tabs or blanks divide the cells. Relations, from near to far: NV#
(# bonded NVLinks), PIX (one PCIe switch), PXB (several PCIe switches), PHB (a PCIe host bridge, one CPU), NODE
(host bridges of one NUMA node), SYS (over the link between sockets). Behind the relations stand CPU and NUMA
affinities, in an order that depends on the driver. A legend may name the NICs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from traincast.errors import TopologyError
from traincast.topology.importers.text import Problem, damaged, lines_of, shown

FORM: Final = "topo-m"
PCIE_RELATIONS: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")
_EXPECTED: Final = "X, NV#, PIX, PXB, PHB, NODE or SYS"
# what `nvidia-smi topo -p2p` prints in the same layout
_STATUS: Final = ("OK", "NS", "CNS", "TNS", "GNS", "DR", "NA", "U")
# an interconnect of another maker, printed by its own command in the same layout
_FOREIGN: Final = {"MX": "MetaXLink"}
_OLD_NAMES: Final = {"SOC": "SYS"}
_RELATION: Final = re.compile(r"X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS")
_AFFINITY: Final = re.compile(r"(CPU Affinity|NUMA Affinity|Node Affinity|GPU NUMA ID)")
_LEGEND: Final = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")


@dataclass(frozen=True)
class TopoMatrix:
    """What a matrix says. `relations` has both directions; `numa` the NUMA node of a GPU where it is stated.

    `nic_names` maps a NIC's column to its device where the legend, or the column itself, says so.
    """

    name: str
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    relations: Mapping[tuple[str, str], str]
    numa: Mapping[str, int]
    cpu_affinity: Mapping[str, str]
    nic_names: Mapping[str, str]
    problems: tuple[Problem, ...]

    def relation(self, a: str, b: str) -> str:
        """The relation of two devices; empty where the file does not have it."""
        return self.relations.get((a, b)) or self.relations.get((b, a), "")


@dataclass(frozen=True)
class _Header:
    """The line that names the columns: devices, then affinities."""

    line: int
    devices: tuple[str, ...]
    affinities: tuple[str, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """The columns of GPUs."""
        return tuple(device for device in self.devices if _is_gpu(device))


def parse_matrix(text: str, name: str = "input") -> TopoMatrix:
    """The matrix in a text. Raises TopologyError, with the line, for one that is damaged or no topology."""
    lines = lines_of(text)
    header = find_header(lines, name)
    rows, problems = _rows(lines, header, name)
    relations: dict[tuple[str, str], str] = {}
    numa: dict[str, int] = {}
    cpus: dict[str, str] = {}
    for label, (line, cells) in rows.items():
        for column, cell in zip(header.devices, cells, strict=False):
            if column != label:
                relations[label, column] = _relation(cell, f"{name}:{line}", column, label)
            elif cell != "X":
                raise damaged(name, line, f"column {column}: {cell!r}", "X where a device meets itself")
        for title, cell in zip(header.affinities, cells[len(header.devices) :], strict=False):
            if title in ("NUMA Affinity", "Node Affinity") and cell.isascii() and cell.isdigit():
                numa[label] = int(cell[:6])
            elif title == "CPU Affinity" and cell != "N/A":
                cpus[label] = cell
    nics = tuple(device for device in header.devices if not _is_gpu(device))
    names, unnamed = _nic_names(lines, header, nics, name)
    found = (*problems, *_disagreements(header, rows, relations, name), *_foreign(relations, rows, name), *unnamed)
    return TopoMatrix(name, header.gpus, nics, relations, numa, cpus, names, found)


def find_header(lines: Sequence[str], name: str) -> _Header:
    """The line that names the columns. Raises TopologyError where there is none."""
    for number, line in enumerate(lines, 1):
        tokens = line.split()
        if not tokens or not _is_gpu(tokens[0]):
            continue
        cell = tokens[1] if len(tokens) > 1 else ""
        if _RELATION.fullmatch(cell) or cell in (*_STATUS, *_FOREIGN, *_OLD_NAMES):
            raise damaged(name, number, f"the row of {tokens[0]} without a header", "a line that names the columns")
        affinity = _AFFINITY.search(line)
        devices = tuple(line[: affinity.start() if affinity else None].split())
        twice = [device for device in devices if devices.count(device) > 1]
        if twice:
            raise damaged(name, number, f"{twice[0]} names two columns", "each device once")
        return _Header(number, devices, tuple(_AFFINITY.findall(line)))
    raise damaged(name, 1, "no line names GPU columns", "the header GPU0 GPU1 ... of nvidia-smi topo -m")


Rows = dict[str, tuple[int, tuple[str, ...]]]


def _rows(lines: Sequence[str], header: _Header, name: str) -> tuple[Rows, list[Problem]]:
    rows: Rows = {}
    problems: list[Problem] = []
    for number, line in enumerate(lines[: header.line - 1], 1):
        if line.strip() and not re.search(r"nvidia-smi|mx-smi|topo", line):
            problems.append(Problem(name, number, f"before the matrix: {shown(line)} was not read"))
    for number, line in enumerate(lines[header.line :], header.line + 1):
        tokens = tuple(line.split())
        if not tokens:
            continue
        if tokens[0].rstrip(":") in ("Legend", "NIC"):
            break
        label, cells = tokens[0], tokens[1:]
        if label not in header.devices:
            if _is_gpu(label) or (cells and _RELATION.fullmatch(cells[0])):
                raise damaged(name, number, f"the row {shown(label)}", f"one of {_few(header.devices)}")
            problems.append(Problem(name, number, f"after the matrix: {shown(line)} was not read"))
            continue
        if label in rows:
            raise damaged(name, number, f"a second row {label} (the first is line {rows[label][0]})", "each row once")
        if len(cells) < len(header.devices):
            what = f"the row {label} has {len(cells)} cells"
            raise damaged(name, number, what, f"{len(header.devices)}, one for each of {_few(header.devices)}")
        rows[label] = (number, cells)
    _check_rows(rows, header, name, problems, len(lines))
    return rows, problems


def _check_rows(rows: Rows, header: _Header, name: str, problems: list[Problem], last: int) -> None:
    lacking = [device for device in header.devices if device not in rows]
    gpus = [device for device in lacking if _is_gpu(device)]
    if gpus:
        raise damaged(name, last, f"{_few(gpus)} has a column and no row", "a row for each GPU")
    if lacking:
        problems.append(Problem(name, header.line, f"{_few(lacking)} has a column and no row: NIC-NIC relations lack"))


def _relation(cell: str, where: str, column: str, row: str) -> str:
    cell = _OLD_NAMES.get(cell, cell)
    if (_RELATION.fullmatch(cell) and cell != "X") or cell in _FOREIGN:
        return cell
    if cell in _STATUS:
        note = " (chipset not supported)" if cell == "CNS" else ""
        raise TopologyError(
            f"column {column}: {cell!r}{note} is a P2P status (nvidia-smi topo -p2p), expected {_EXPECTED}",
            where=where,
            fix="save the output of nvidia-smi topo -m",
        )
    raise TopologyError(
        f"column {column} of row {row}: {shown(cell)} is no relation, expected {_EXPECTED}",
        where=where,
        fix="save the output of nvidia-smi topo -m again",
    )


def _nic_names(
    lines: Sequence[str], header: _Header, nics: Sequence[str], name: str
) -> tuple[dict[str, str], list[Problem]]:
    """Devices of the NIC columns, from the legend or the column's own name, and those that are not named."""
    names = {nic: nic for nic in nics if not re.fullmatch(r"NIC\d+", nic)}
    problems: list[Problem] = []
    for number, line in enumerate(lines[header.line :], header.line + 1):
        found = _LEGEND.fullmatch(line)
        if found is None:
            continue
        if found.group(1) in nics:
            names[found.group(1)] = found.group(2)
        else:
            problems.append(Problem(name, number, f"the legend names {found.group(1)}, which has no column"))
    unnamed = [nic for nic in nics if nic not in names]
    if unnamed:
        problems.append(Problem(name, header.line, f"no legend names {_few(unnamed)}: devices unknown"))
    return names, problems


def _disagreements(
    header: _Header, rows: Rows, relations: Mapping[tuple[str, str], str], name: str
) -> Iterator[Problem]:
    for place, a in enumerate(header.devices):
        for b in header.devices[place + 1 :]:
            one, other = relations.get((a, b)), relations.get((b, a))
            if one and other and one != other:
                yield Problem(name, rows[b][0], f"{b}-{a} is {other}, but line {rows[a][0]} says {one}: {one} is taken")


def _foreign(relations: Mapping[tuple[str, str], str], rows: Rows, name: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for (row, column), cell in relations.items():
        if cell in _FOREIGN and cell not in seen:
            seen.add(cell)
            what = f"column {column}: {cell!r} ({_FOREIGN[cell]}) is not NVLink: its bandwidth is unknown"
            yield Problem(name, rows[row][0], f"{what}, so no such link is built")


def _is_gpu(label: str) -> bool:
    return re.fullmatch(r"GPU\d{1,4}", label) is not None


def _few(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= 4 else f"{labels[0]} ... {labels[-1]}"
