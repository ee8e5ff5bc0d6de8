"""The hardware catalogue: rows of a tidy table -> frozen parts.

`topologies/catalog/{gpus,nics,switches,links}.csv` hold one property of one part a row, each with its unit,
kind (spec, measured, derived, assumed), source, location in the source and date; `topologies/README.md`
describes the columns. A folder of the user's own with the same file names is searched first: a part found
there replaces the part of that name. Everything wrong with a folder is reported at once, with file and line.
"""

import csv
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

from traincast.errors import CatalogError, UserError, combined, nearest_names
from traincast.units import parse_quantity

COLUMNS: Final = ("part", "property", "value", "unit", "kind", "source", "location", "date")
KINDS: Final = ("spec", "measured", "derived", "assumed")
PRECISIONS: Final = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "fp4")
EXTRA_VARIABLE: Final = "TRAINCAST_CATALOG"
"""Names a folder of one's own; the command line's --catalog sets it, so that worker processes see it too."""

# how reports and data files call the kinds of network
NIC_KINDS: Final = {
    "ib": "ib",
    "infiniband": "ib",
    "ethernet": "ethernet",
    "eth": "ethernet",
    "roce": "ethernet",
    "opa": "opa",
    "omni-path": "opa",
}


@dataclass(frozen=True)
class CatalogRow:
    """One property of one part as it stands in the file; `where` is file:line."""

    table: str
    part: str
    property: str
    value: str
    unit: str
    kind: str
    source: str
    location: str
    date: str
    where: str


@dataclass(frozen=True)
class Gpu:
    """A GPU and the node it usually comes in.

    Bandwidths are raw, per direction. `nvlink_bytes_per_s` is that of one GPU over all its links (0.0 without
    NVLink). `peaks_flops_per_s` are dense, never sparse. `sm_clock_hz` is the clock at which the SMs reach
    the stated tensor peak. `nvlink_domain` counts the GPUs that reach each other over NVLink.
    """

    name: str
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    sm_count: int
    l2_bytes: float
    nvlink_bytes_per_s: float
    pcie_bytes_per_s: float
    peaks_flops_per_s: Mapping[str, float] = dataclasses.field(hash=False)  # a dict: parts cross process borders
    sm_clock_hz: float
    gpus_per_node: int
    nics_per_node: int
    nic: str
    nvswitch: str
    nvlink_domain: int

    def peak(self, precision: str) -> float:
        """Dense peak FLOP/s of `precision`. Raises CatalogError naming the precisions this part has."""
        try:
            return self.peaks_flops_per_s[precision]
        except KeyError:
            known = ", ".join(self.peaks_flops_per_s)
            raise CatalogError(f"{self.name} has no {precision} peak", fix=f"use one of {known}") from None


@dataclass(frozen=True)
class Nic:
    """A network adapter port: kind `ib`, `ethernet` or `opa`; bandwidth raw, per direction."""

    name: str
    kind: str
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class Switch:
    """A switch: ports that it has, raw bandwidth of one port per direction, port-to-port latency."""

    name: str
    kind: str
    radix: int
    port_bytes_per_s: float
    latency_s: float


@dataclass(frozen=True)
class Link:
    """A cable or bus: raw bandwidth per direction (of one NVLink; a GPU has several), one-way latency."""

    name: str
    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float


Part = TypeVar("Part", Gpu, Nic, Switch, Link)


@dataclass(frozen=True)
class Catalog:
    """All parts by name, and the rows they were read from. Lookups ignore case."""

    gpus: Mapping[str, Gpu]
    nics: Mapping[str, Nic]
    switches: Mapping[str, Switch]
    links: Mapping[str, Link]
    rows: tuple[CatalogRow, ...]

    def gpu(self, name: str) -> Gpu:
        """The GPU of that name. Raises CatalogError with the nearest names."""
        return _named(self.gpus, name, "GPU")

    def nic(self, name: str) -> Nic:
        """The NIC of that name. Raises CatalogError with the nearest names."""
        return _named(self.nics, name, "NIC")

    def switch(self, name: str) -> Switch:
        """The switch of that name. Raises CatalogError with the nearest names."""
        return _named(self.switches, name, "switch")

    def link(self, name: str) -> Link:
        """The link of that name. Raises CatalogError with the nearest names."""
        return _named(self.links, name, "link")

    def nic_for(self, kind: str, gbit_per_s: float) -> Nic:
        """The first NIC of a kind (``ib``, ``roce`` …; empty: any, InfiniBand first) and raw rate in Gbit/s.

        Raises CatalogError naming the rates that the catalogue has for the kind.
        """
        wanted = NIC_KINDS.get(kind.lower()) if kind else None
        if kind and wanted is None:
            raise CatalogError(f"unknown kind of network {kind!r}", fix=f"use one of {', '.join(NIC_KINDS)}")
        rate = gbit_per_s * 1e9 / 8
        fitting = [nic for nic in self.nics.values() if wanted in (None, nic.kind)]
        hits = [nic for nic in fitting if abs(nic.bandwidth_bytes_per_s - rate) <= 1e-3 * rate]
        if not hits:
            rates = sorted({round(nic.bandwidth_bytes_per_s * 8 / 1e9) for nic in fitting})
            known = ", ".join(str(rate) for rate in rates)
            label = f"{wanted} " if wanted else ""
            fix = f"use {known} Gbit/s, or add a NIC to nics.csv {_OWN_FOLDER}"
            raise CatalogError(f"no {label}NIC with {gbit_per_s:g} Gbit/s", fix=fix)
        return min(hits, key=lambda nic: nic.kind != "ib")


def data_dir() -> Path:
    """The folder of topologies/, scenarios/ and calibration/: the checkout's root, or traincast/data."""
    package = Path(__file__).resolve().parent
    root = package.parent.parent
    checkout = (root / "topologies").is_dir() and (root / "pyproject.toml").is_file()
    return root if checkout else package / "data"


def load_catalog(extra: Path | None = None) -> Catalog:
    """The catalogue, with the parts of folder `extra` first.

    Without `extra` the folder that the environment variable TRAINCAST_CATALOG names is used, if it is set.
    Cached by folder. Raises CatalogError that lists everything wrong, with file and line.
    """
    named = extra or os.environ.get(EXTRA_VARIABLE)
    return _load(Path(named).resolve() if named else None)


@lru_cache(maxsize=8)
def _load(extra: Path | None) -> Catalog:
    own = _read_folder(data_dir() / "topologies" / "catalog")
    mine = _read_folder(extra) if extra is not None else ()
    replaced = {(row.table, row.part.lower()) for row in mine}
    rows = (*mine, *(row for row in own if (row.table, row.part.lower()) not in replaced))
    problems: list[UserError] = []
    catalog = Catalog(
        gpus=_build(rows, "gpus", _gpu, problems),
        nics=_build(rows, "nics", _nic, problems),
        switches=_build(rows, "switches", _switch, problems),
        links=_build(rows, "links", _link, problems),
        rows=rows,
    )
    problems = problems or _reference_problems(catalog)
    if problems:
        raise combined(problems)
    return catalog


# table -> property -> dimension ("name" is text); peak_* follow
_FIELDS: Final[dict[str, dict[str, str]]] = {
    "gpus": {
        "memory": "size",
        "memory_bandwidth": "bandwidth",
        "sm_count": "count",
        "l2": "size",
        "nvlink_per_direction": "bandwidth",
        "pcie_per_direction": "bandwidth",
        "sm_clock": "frequency",
        "gpus_per_node": "count",
        "nics_per_node": "count",
        "nic": "name",
        "nvswitch": "name",
        "nvlink_domain": "count",
        **{f"peak_{precision}": "flops_per_s" for precision in PRECISIONS},
    },
    "nics": {"kind": "name", "bandwidth_per_direction": "bandwidth"},
    "switches": {"kind": "name", "radix": "count", "port_per_direction": "bandwidth", "latency": "time"},
    "links": {"kind": "name", "bandwidth_per_direction": "bandwidth", "latency": "time"},
}

_OWN_FOLDER: Final = "in a folder of your own (--catalog DIR)"
_OPTIONAL: Final = frozenset(f"peak_{precision}" for precision in PRECISIONS)
_DATE: Final = re.compile(r"\d{4}(-\d{2}){0,2}")

Values = Mapping[str, float | str]


def _read_folder(folder: Path) -> tuple[CatalogRow, ...]:
    files = [folder / f"{table}.csv" for table in _FIELDS]
    present = [file for file in files if file.is_file()]
    if not present:
        names = ", ".join(file.name for file in files)
        raise CatalogError("no catalogue here", where=str(folder), fix=f"put one of {names} into the folder")
    problems: list[UserError] = []
    rows = [row for file in present for row in _read_file(file, problems)]
    if problems:
        raise combined(problems)
    return tuple(rows)


def _read_file(file: Path, problems: list[UserError]) -> list[CatalogRow]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            return _rows(file, csv.reader(handle), problems)
    except UnicodeDecodeError as error:
        what = f"is not UTF-8 text (byte {error.start})"
    except (csv.Error, OSError) as error:
        what = f"cannot be read: {error}"
    problems.append(CatalogError(what, where=str(file), fix="give a CSV file as topologies/README.md describes it"))
    return []


def _rows(file: Path, reader: Any, problems: list[UserError]) -> list[CatalogRow]:
    header = tuple(next(reader, ()))
    if header != COLUMNS:
        problems.append(
            CatalogError(f"the header is {','.join(header)}", where=f"{file}:1", fix=f"write {','.join(COLUMNS)}")
        )
        return []
    rows: list[CatalogRow] = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        where = f"{file}:{reader.line_num}"
        if len(cells) != len(COLUMNS):
            problems.append(
                CatalogError(f"{len(cells)} cells, not {len(COLUMNS)}", where=where, fix="quote cells with commas")
            )
            continue
        row = CatalogRow(file.stem, **dict(zip(COLUMNS, map(str.strip, cells), strict=True)), where=where)
        problems.extend(_row_problems(row))
        rows.append(row)
    return rows


def _row_problems(row: CatalogRow) -> list[UserError]:
    found: list[tuple[str, str]] = []
    if row.kind not in KINDS:
        found.append((f"kind {row.kind!r} is not known", f"use one of {', '.join(KINDS)}"))
    if row.property not in _FIELDS[row.table]:
        alike = nearest_names(row.property, _FIELDS[row.table]) or tuple(_FIELDS[row.table])
        found.append((f"property {row.property!r} is not known", f"did you mean {', '.join(alike)}?"))
    if not row.part:
        found.append(("the part has no name", "give it one"))
    if not row.source or not row.location:
        found.append((f"{row.part} {row.property} has no source or no location in it", "say where the value stands"))
    if not _DATE.fullmatch(row.date):
        found.append((f"date {row.date!r} is not a date", "write YYYY, YYYY-MM or YYYY-MM-DD"))
    return [CatalogError(message, where=row.where, fix=fix) for message, fix in found]


def _build(
    rows: Sequence[CatalogRow], table: str, make: Callable[[str, Values], Part], problems: list[UserError]
) -> dict[str, Part]:
    by_part: dict[str, dict[str, CatalogRow]] = {}
    for row in rows:
        if row.table != table:
            continue
        properties = by_part.setdefault(row.part, {})
        if row.property in properties:
            message, fix = f"{row.part} {row.property} stands twice", f"see {properties[row.property].where}"
            problems.append(CatalogError(message, where=row.where, fix=fix))
        properties[row.property] = row
    parts: dict[str, Part] = {}
    for name, properties in by_part.items():
        before = len(problems)
        values = _values(table, name, properties, problems)
        if len(problems) == before:
            parts[name] = make(name, values)
    return parts


def _values(table: str, name: str, properties: Mapping[str, CatalogRow], problems: list[UserError]) -> Values:
    fields = _FIELDS[table]
    some_row = next(iter(properties.values()))
    missing = [field for field in fields if field not in properties and field not in _OPTIONAL]
    if table == "gpus" and not _OPTIONAL & properties.keys():
        missing.append("peak_bf16 or another peak")
    if missing:
        problems.append(
            CatalogError(f"{name} lacks {', '.join(missing)}", where=some_row.where, fix="add a row for each")
        )
    values: dict[str, float | str] = {}
    for field, row in properties.items():
        dimension = fields[field]
        if dimension == "name":
            values[field] = row.value
            continue
        try:
            values[field] = parse_quantity(f"{row.value} {'' if dimension == 'count' else row.unit}", dimension)
        except UserError as error:
            problems.append(CatalogError(f"{name} {field}: {error.message}", where=row.where, fix=error.fix))
    return values


def _reference_problems(catalog: Catalog) -> list[UserError]:
    """A GPU's usual NIC and NVSwitch must be in the catalogue themselves."""
    problems: list[UserError] = []
    for row in catalog.rows:
        if row.table != "gpus" or row.property not in ("nic", "nvswitch") or not row.value:
            continue
        table, names = ("nics", catalog.nics) if row.property == "nic" else ("switches", catalog.switches)
        if row.value not in names:
            near = ", ".join(nearest_names(row.value, names)) or "none"
            message = f"{row.part}: no {row.property} {row.value!r} in {table}.csv"
            problems.append(CatalogError(message, where=row.where, fix=f"nearest names: {near}"))
    return problems


def _named(parts: Mapping[str, Part], name: str, what: str) -> Part:
    by_lower = {key.lower(): part for key, part in parts.items()}
    part = by_lower.get(name.lower())
    if part is None:
        near = nearest_names(name, parts)
        fix = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(parts)};"
        table = next(table for table in _FIELDS if table.startswith(what.lower()))
        whose = ", which holds NVIDIA parts" if what == "GPU" else ""
        fix += f" or add it to {table}.csv {_OWN_FOLDER}"
        raise CatalogError(f"no {what} {name!r} in the catalogue{whose}", fix=fix)
    return part


def _gpu(name: str, values: Values) -> Gpu:
    peaks = {p: float(values[f"peak_{p}"]) for p in PRECISIONS if f"peak_{p}" in values}
    return Gpu(
        name=name,
        memory_bytes=float(values["memory"]),
        memory_bandwidth_bytes_per_s=float(values["memory_bandwidth"]),
        sm_count=int(values["sm_count"]),
        l2_bytes=float(values["l2"]),
        nvlink_bytes_per_s=float(values["nvlink_per_direction"]),
        pcie_bytes_per_s=float(values["pcie_per_direction"]),
        peaks_flops_per_s=peaks,
        sm_clock_hz=float(values["sm_clock"]),
        gpus_per_node=int(values["gpus_per_node"]),
        nics_per_node=int(values["nics_per_node"]),
        nic=str(values["nic"]),
        nvswitch=str(values["nvswitch"]),
        nvlink_domain=int(values["nvlink_domain"]),
    )


def _nic(name: str, values: Values) -> Nic:
    return Nic(name, str(values["kind"]), float(values["bandwidth_per_direction"]))


def _switch(name: str, values: Values) -> Switch:
    port, latency = float(values["port_per_direction"]), float(values["latency"])
    return Switch(name, str(values["kind"]), int(values["radix"]), port, latency)


def _link(name: str, values: Values) -> Link:
    return Link(name, str(values["kind"]), float(values["bandwidth_per_direction"]), float(values["latency"]))
