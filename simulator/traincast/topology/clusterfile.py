"""The form of a cluster file, checked by pydantic; every problem becomes a line with its place and a fix."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from traincast.errors import TopologyError, UserError, combined, nearest_names
from traincast.topology.yamltext import Document
from traincast.units import parse_quantity


def _quantity(dimension: str) -> BeforeValidator:
    """Unit text to SI; a bare number is refused."""

    def parse(value: object) -> float:
        try:
            return parse_quantity(value, dimension)
        except UserError as error:
            context = {"message": error.message, "fix": error.fix or ""}
            raise PydanticCustomError("quantity", "{message}", context) from error

    return BeforeValidator(parse)


Bandwidth = Annotated[float, _quantity("bandwidth")]
Time = Annotated[float, _quantity("time")]
Count = Annotated[int, Field(ge=1)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, _quantity("ratio")]
Pair = Annotated[list[str], Field(min_length=2, max_length=2)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NodeEntry(_Strict):
    """The nodes: a GPU of the catalogue; the rest as its usual node has it, unless stated."""

    gpu: str
    gpus: Count | None = None
    nics: Annotated[int, Field(ge=0)] | None = None
    nic: str | None = None
    nvlink_bridges: bool = False
    gpus_per_pcie_switch: Count = 2


class GroupEntry(NodeEntry):
    """So many nodes of one kind."""

    nodes: Count


class FabricEntry(_Strict):
    """The fat tree; what is not stated is chosen to fit."""

    levels: Literal[2, 3] | None = None
    switch: str | None = None
    spine_switch: str | None = None
    core_switch: str | None = None
    rail_optimised: bool = True
    nodes_per_unit: Count | None = None
    units_per_pod: Count | None = None
    leaf_oversubscription: Ratio = 1.0
    spine_oversubscription: Ratio = 1.0
    port_bandwidth: Bandwidth | None = None
    cable_latency: Time | None = None


_WRONGS: Final[Mapping[str, str | None]] = {
    **{"nic": "rate", "link": "rate", "gpu": "speed", "leaf": "uplinks_cut", "spine": "uplinks_cut"},
    "missing_cable": None,
}


class DegradedEntry(_Strict):
    """One part that is not as it should be, and what is left of it."""

    nic: str | None = None
    link: Pair | None = None
    gpu: str | None = None
    leaf: str | None = None
    spine: str | None = None
    missing_cable: Pair | None = None
    rate: Share | None = None
    speed: Share | None = None
    uplinks_cut: Count | None = None

    @model_validator(mode="after")
    def _one_part(self) -> "DegradedEntry":
        """Refuses entries without a part, with two, or without the figure that belongs to it."""
        said = {key for key, value in self if value is not None}
        parts = said & set(_WRONGS)
        figure = _WRONGS[next(iter(parts))] if len(parts) == 1 else None
        if len(parts) != 1 or said - parts != ({figure} if figure else set()):
            context = {
                "message": f"{{{', '.join(sorted(said))}}} does not say one thing",
                "fix": "write one of {nic, rate}, {link, rate}, {gpu, speed}, {leaf, uplinks_cut}, "
                "{spine, uplinks_cut}, {missing_cable}",
            }
            raise PydanticCustomError("quantity", "{message}", context)
        return self


class DescribedEntry(_Strict):
    """What every cluster file may say."""

    description: str = ""
    source: str = ""
    assumptions: list[str] = []
    degraded: list[DegradedEntry] = []
    dead_gpus: list[str] = []
    absent_nodes: list[int | str] = []


class ClusterEntry(DescribedEntry):
    """What every file about equal nodes may say."""

    nodes: Count


class NamedFile(ClusterEntry):
    """A cluster that a function of this package builds."""

    builder: Literal["selene", "hdr4_a100"]


class TreeFile(ClusterEntry):
    """Equal nodes on a fat tree that the file describes."""

    builder: Literal["fat_tree"]
    node: NodeEntry
    fabric: FabricEntry = FabricEntry()


class MixedFile(DescribedEntry):
    """Groups of different nodes on one fat tree."""

    builder: Literal["mixed"]
    groups: Annotated[list[GroupEntry], Field(min_length=1)]
    fabric: FabricEntry = FabricEntry()

    @property
    def nodes(self) -> int:
        """All nodes."""
        return sum(group.nodes for group in self.groups)


ClusterFile = NamedFile | TreeFile | MixedFile

_FORMS: Final[Mapping[str, type[NamedFile] | type[TreeFile] | type[MixedFile]]] = {
    "selene": NamedFile,
    "hdr4_a100": NamedFile,
    "fat_tree": TreeFile,
    "mixed": MixedFile,
}
GRAPH_BUILDER: Final = "graph"
"""The builder of a cluster that is written out (`graphfile`)."""

Form = TypeVar("Form", bound=BaseModel)
Parts = Mapping[str, type[BaseModel]]

_PARTS: Final[Parts] = {
    "node": NodeEntry,
    "groups": GroupEntry,
    "fabric": FabricEntry,
    "degraded": DegradedEntry,
}


def parse_cluster_file(document: Document) -> ClusterFile:
    """The contents of a cluster file. Raises one TopologyError that lists everything wrong, a line each."""
    builder = document.values.get("builder")
    known = ", ".join((*_FORMS, GRAPH_BUILDER))
    if builder is None:
        raise TopologyError("the key builder is missing", where=document.where(()), fix=f"use one of {known}")
    if not isinstance(builder, str) or builder not in _FORMS:
        where = document.where(["builder"])
        raise TopologyError(f"no builder {builder!r}", where=where, fix=f"use one of {known}")
    return parse_as(document, _FORMS[builder], _PARTS)


def parse_as(document: Document, form: type[Form], parts: Parts) -> Form:
    """The contents of a file of one form; `parts` has the form of the entries below a key.

    Raises one TopologyError that lists everything wrong, a line each.
    """
    try:
        return form.model_validate(document.values)
    except ValidationError as error:
        raise combined([_problem(document, form, parts, detail) for detail in error.errors()]) from error


def _problem(document: Document, form: type[BaseModel], parts: Parts, detail: ErrorDetails) -> TopologyError:
    loc = detail["loc"]
    name = ".".join(str(part) for part in loc)
    kind = detail["type"]
    below = next((str(key) for key in reversed(loc[:-1]) if isinstance(key, str)), "")
    fields = parts[below].model_fields if below in parts else form.model_fields
    if kind == "extra_forbidden":
        return TopologyError(
            f"unknown key {name}", where=document.where(loc, key=True), fix=_alike(str(loc[-1]), fields)
        )
    if kind == "missing":
        return TopologyError(f"the key {name} is missing", where=document.where(loc), fix=f"add {name}: …")
    if kind == "quantity":
        context: Mapping[str, Any] = detail.get("ctx", {})
        return TopologyError(f"{name}: {context['message']}", where=document.where(loc), fix=context["fix"] or None)
    return TopologyError(
        f"{name} is {_shown(detail['input'])}", where=document.where(loc), fix=f"write {_wanted(detail)}"
    )


def _alike(name: str, fields: Mapping[str, Any]) -> str:
    near = nearest_names(name, fields)
    return f"did you mean {' or '.join(near)}?" if near else f"known keys: {', '.join(fields)}"


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return "empty" if value is None else repr(value)


_WANTED: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "model_type": "a mapping",
    "too_short": "more entries",
    "too_long": "fewer entries",
}


def _wanted(detail: ErrorDetails) -> str:
    if detail["type"] in _WANTED:
        return _WANTED[detail["type"]]
    message = detail["msg"].removeprefix("Input should be ")
    return f"a value that is {message}" if message.startswith(("greater", "less")) else message
