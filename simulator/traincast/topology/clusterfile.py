"""The form of a cluster file, checked by pydantic; every problem becomes a line with its place and a fix."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
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


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NodeEntry(_Strict):
    """The nodes: a GPU of the catalogue; the rest as its usual node has it, unless stated."""

    gpu: str
    gpus: Count | None = None
    nics: Annotated[int, Field(ge=0)] | None = None
    nic: str | None = None


class FabricEntry(_Strict):
    """The fat tree; what is not stated is chosen to fit."""

    levels: Literal[2, 3] | None = None
    switch: str | None = None
    rail_optimised: bool = True
    nodes_per_unit: Count | None = None
    units_per_pod: Count | None = None
    leaf_oversubscription: Ratio = 1.0
    spine_oversubscription: Ratio = 1.0
    port_bandwidth: Bandwidth | None = None
    cable_latency: Time | None = None


class ClusterEntry(_Strict):
    """What every cluster file may say."""

    nodes: Count
    description: str = ""
    source: str = ""
    assumptions: list[str] = []


class NamedFile(ClusterEntry):
    """A cluster that a function of this package builds."""

    builder: Literal["selene", "hdr4_a100"]


class TreeFile(ClusterEntry):
    """Equal nodes on a fat tree that the file describes."""

    builder: Literal["fat_tree"]
    node: NodeEntry
    fabric: FabricEntry = FabricEntry()


ClusterFile = NamedFile | TreeFile

_FORMS: Final[Mapping[str, type[NamedFile] | type[TreeFile]]] = {
    "selene": NamedFile,
    "hdr4_a100": NamedFile,
    "fat_tree": TreeFile,
}
_PARTS: Final[Mapping[str, type[BaseModel]]] = {"node": NodeEntry, "fabric": FabricEntry}


def parse_cluster_file(document: Document) -> ClusterFile:
    """The contents of a cluster file. Raises one TopologyError that lists everything wrong, a line each."""
    builder = document.values.get("builder")
    known = ", ".join(_FORMS)
    if builder is None:
        raise TopologyError("the key builder is missing", where=document.where(()), fix=f"use one of {known}")
    if not isinstance(builder, str) or builder not in _FORMS:
        where = document.where(["builder"])
        raise TopologyError(f"no builder {builder!r}", where=where, fix=f"use one of {known}")
    form = _FORMS[builder]
    try:
        return form.model_validate(document.values)
    except ValidationError as error:
        raise combined([_problem(document, form, detail) for detail in error.errors()]) from error


def _problem(document: Document, form: type[BaseModel], detail: ErrorDetails) -> TopologyError:
    loc = detail["loc"]
    name = ".".join(str(part) for part in loc)
    kind = detail["type"]
    fields = _PARTS[str(loc[0])].model_fields if len(loc) > 1 and loc[0] in _PARTS else form.model_fields
    if kind == "extra_forbidden":
        return TopologyError(
            f"unknown key {name}", where=document.where(loc, key=True), fix=_alike(str(loc[-1]), fields)
        )
    if kind == "missing":
        return TopologyError(f"the key {name} is missing", where=document.where(loc), fix=f"add {name}: …")
    if kind == "quantity":
        context: Mapping[str, Any] = detail.get("ctx", {})
        return TopologyError(
            f"{name}: {context['message']}", where=document.where(loc), fix=context["fix"] or None
        )
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
}


def _wanted(detail: ErrorDetails) -> str:
    if detail["type"] in _WANTED:
        return _WANTED[detail["type"]]
    message = detail["msg"].removeprefix("Input should be ")
    return f"a value that is {message}" if message.startswith(("greater", "less")) else message
