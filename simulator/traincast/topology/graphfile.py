"""Cluster files of the form ``builder: graph``: entries as they stand in the file <-> `graphform`.

Quantities are written as unit text that reads back to the same number, so that a cluster that is written and
loaded again is equal to the first.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

from traincast.catalog import Catalog
from traincast.errors import TopologyError, UserError, combined
from traincast.topology.clusterfile import Bandwidth, ClusterEntry, Count, Time
from traincast.topology.graphform import (
    SWITCH_KINDS,
    GraphForm,
    HostRow,
    NodeType,
    PartRow,
    WireRow,
    expand_graph,
)
from traincast.topology.hostlist import expand
from traincast.topology.yamltext import Document
from traincast.units import parse_quantity

LinkKind = Literal["nvlink", "pcie", "c2c", "cpu", "ib", "ethernet", "opa"]
Name = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    """Entries that take no other keys and no other types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PartEntry(_Strict):
    """Parts of a node, or switches."""

    names: Name
    kind: Literal["gpu", "nic", "pcie", "cpu", "nvswitch", "leaf", "spine", "core"]
    model: str = ""
    units: Annotated[int, Field(ge=0)] = 1
    latency: Time = 0.0
    port: Bandwidth = 0.0
    seen: Literal["whole", "partly"] | None = None


class WireEntry(_Strict):
    """Bundles of links; bandwidth of one link, per direction."""

    kind: LinkKind
    links: Count = 1
    bandwidth: Bandwidth
    latency: Time
    between: list[str]


class TypeEntry(_Strict):
    """A type of node."""

    name: Name
    parts: list[PartEntry]
    wires: list[WireEntry]


class HostEntry(_Strict):
    """Nodes of one type, in order."""

    type: str
    names: Name


class GraphFile(ClusterEntry):
    """A cluster written out."""

    builder: Literal["graph"]
    types: Annotated[list[TypeEntry], Field(min_length=1)]
    hosts: Annotated[list[HostEntry], Field(min_length=1)]
    switches: Annotated[list[PartEntry], Field(default_factory=list)]
    cables: Annotated[list[WireEntry], Field(default_factory=list)]


PARTS: Final[Mapping[str, type[BaseModel]]] = {
    "types": TypeEntry,
    "parts": PartEntry,
    "wires": WireEntry,
    "hosts": HostEntry,
    "switches": PartEntry,
    "cables": WireEntry,
}
"""The form of the entries of each list, by the key that it stands under."""


def to_form(entry: GraphFile) -> GraphForm:
    """The entries of a file as a form."""
    return GraphForm(
        types=tuple(NodeType(one.name, _parts(one.parts), _wires(one.wires)) for one in entry.types),
        hosts=tuple(HostRow(one.type, one.names) for one in entry.hosts),
        switches=_parts(entry.switches),
        cables=_wires(entry.cables),
    )


def check_form(entry: GraphFile, document: Document, catalog: Catalog) -> GraphForm:
    """The form of a file whose names all lead somewhere. Raises TopologyError or CatalogError with the place."""
    form = to_form(entry)
    problems: list[UserError] = []
    known = [one.name for one in entry.types]
    for keys, check in _checks(entry, form, catalog, known):
        try:
            check()
        except UserError as error:
            problems.append(type(error)(error.message, fix=error.fix, where=document.where(keys)))
    if problems:
        raise combined(problems)
    if (count := len(form.host_names)) != entry.nodes:
        message = f"nodes is {entry.nodes}, but hosts lists {count}"
        raise TopologyError(message, where=document.where(["nodes"]), fix="make them equal")
    return form


Check = tuple[list[str | int], Callable[[], object]]


def _checks(entry: GraphFile, form: GraphForm, catalog: Catalog, known: Sequence[str]) -> Iterator[Check]:
    for place, one in enumerate(entry.types):
        alone = GraphForm((form.types[place],), (HostRow(one.name, "one"),))
        yield ["types", place], partial(expand_graph, alone)
        for row, part in enumerate(one.parts):
            if part.kind == "gpu":
                last = "model" if part.model else "kind"
                yield ["types", place, "parts", row, last], partial(catalog.gpu, part.model)
            if part.seen is not None:
                yield ["types", place, "parts", row, "seen"], partial(_not_seen, part.names)
    for place, host in enumerate(entry.hosts):
        yield ["hosts", place, "names"], partial(expand, host.names)
        yield ["hosts", place, "type"], partial(_known_type, host.type, known)
    for place, switch in enumerate(entry.switches):
        yield ["switches", place, "kind"], partial(_known_switch, switch.kind)


def _not_seen(names: str) -> None:
    raise TopologyError(f"{names} of a node with 'seen'", fix="state it for switches only")


def _known_switch(kind: str) -> None:
    if kind not in SWITCH_KINDS:
        raise TopologyError(f"a {kind} among the switches", fix=f"use one of {', '.join(SWITCH_KINDS)}")


def _known_type(name: str, known: Sequence[str]) -> None:
    if known.count(name) != 1:
        what = "no type" if name not in known else "several types"
        raise TopologyError(f"{what} {name!r}", fix=f"use one of {', '.join(dict.fromkeys(known))}")


def _parts(entries: Iterable[PartEntry]) -> tuple[PartRow, ...]:
    return tuple(PartRow(e.names, e.kind, e.model, e.units, e.latency, e.port, e.seen or "") for e in entries)


def _wires(entries: Iterable[WireEntry]) -> tuple[WireRow, ...]:
    return tuple(WireRow(e.kind, e.links, e.bandwidth, e.latency, tuple(e.between)) for e in entries)


def write_form(form: GraphForm, head: Mapping[str, Any]) -> str:
    """The YAML text of a cluster file; `head` holds description, source and assumptions."""
    content: dict[str, Any] = {"builder": "graph", "nodes": len(form.host_names), **head}
    content["types"] = [
        {"name": one.name, "parts": [_part(row) for row in one.parts], "wires": [_wire(row) for row in one.wires]}
        for one in form.types
    ]
    content["hosts"] = [{"type": row.type, "names": row.names} for row in form.hosts]
    if form.switches:
        content["switches"] = [_part(row) for row in form.switches]
    if form.cables:
        content["cables"] = [_wire(row) for row in form.cables]
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.width = 10_000
    writer.allow_unicode = True
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    stream = io.StringIO()
    writer.dump(content, stream)
    return stream.getvalue()


def _part(row: PartRow) -> dict[str, Any]:
    entry: dict[str, Any] = {"names": row.names, "kind": row.kind}
    if row.model:
        entry["model"] = row.model
    if row.units != 1:
        entry["units"] = row.units
    if row.latency_s:
        entry["latency"] = exact_text(row.latency_s, "time")
    if row.port_bytes_per_s:
        entry["port"] = exact_text(row.port_bytes_per_s, "bandwidth")
    if row.seen:
        entry["seen"] = row.seen
    return entry


def _wire(row: WireRow) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "links": row.links,
        "bandwidth": exact_text(row.bandwidth_bytes_per_s, "bandwidth"),
        "latency": exact_text(row.latency_s, "time"),
        "between": list(row.between),
    }


_UNITS: Final[Mapping[str, tuple[tuple[str, float], ...]]] = {
    "bandwidth": (("Gbit/s", 1e9 / 8), ("GB/s", 1e9), ("B/s", 1.0)),
    "time": (("us", 1e-6), ("ns", 1e-9), ("s", 1.0)),
}


def exact_text(value: float, dimension: str) -> str:
    """Unit text that `parse_quantity` reads back to exactly `value`, the shortest of the usual units."""
    texts = []
    for unit, scale in _UNITS[dimension]:
        for digits in (6, 12, 17):
            text = f"{value / scale:.{digits}g} {unit}"
            if parse_quantity(text, dimension) == value:
                texts.append(text)
                break
    return min(texts or [f"{value!r} {_UNITS[dimension][-1][0]}"], key=len)
