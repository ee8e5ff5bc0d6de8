"""What a schema found wrong -> errors with place, finding and fix."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from traincast.errors import ScenarioError, UserError, nearest_names
from traincast.scenario.text import Keys, Places

_FEW: Final = 16
"""Up to here a range is told by both its ends; the bounds above are far beyond what anybody means."""


def schema_errors(error: ValidationError, schema: type[BaseModel], places: Places) -> list[UserError]:
    """One ScenarioError for each finding."""
    return [_one(found, schema, places) for found in error.errors(include_url=False)]


def place_order(problem: UserError) -> tuple[str, int, int]:
    """Sorts problems by file, line and column; those of options and whole files come first."""
    found = re.fullmatch(r"(.*):(\d+):(\d+)", problem.where or "")
    return (found[1], int(found[2]), int(found[3])) if found else ("", 0, 0)


def _one(found: ErrorDetails, schema: type[BaseModel], places: Places) -> UserError:
    keys = tuple(found["loc"])
    message, fix = _words(found, keys, schema)
    return ScenarioError(message, where=places.where(keys), fix=fix)


def _words(found: ErrorDetails, local: Keys, schema: type[BaseModel]) -> tuple[str, str]:
    """Message and fix of one finding."""
    name = ".".join(str(key) for key in local)
    kind, given = found["type"], found["input"]
    context: Mapping[str, Any] = found.get("ctx", {})
    if kind == "extra_forbidden":
        return f"unknown key {name!r}", _unknown_fix(local, schema)
    if kind == "missing":
        inner = _section(schema, local)
        required = [key for key, field in inner.model_fields.items() if field.is_required()]
        below = f" with {', '.join(required)} below it" if inner is not _section(schema, local[:-1]) else ""
        return f"{name} is missing", f"add {local[-1]}:{below}"
    if kind == "unit":
        return f"{name}: {context['what']}", str(context["fix"])
    if kind == "name":
        names = [str(known) for known in context["names"]]
        return f"{name} is {_said(given)}", _choice_fix(given if isinstance(given, str) else "", names)
    if kind == "form":
        return f"{name} is {_said(given)}", f"write {context['form']}"
    if kind in ("model_type", "dict_type"):
        return f"{name or 'the file'} is {_named(given)}, not a mapping", "write keys below it, one a line"
    if kind.startswith(("int", "greater_than", "less_than", "float")):
        return f"{name} is {_named(given)}", _number_fix(given, context, _field(schema, local))
    if kind.startswith("bool"):
        return f"{name} is {_named(given)}", "write true or false"
    if kind.startswith("string"):
        return (
            f"{name} is {_named(given)}, not text",
            "write text, in quotes where YAML takes it for something else",
        )
    return f"{name}: {found['msg'].lower()}", "see scenarios/README.md"


def _number_fix(given: object, context: Mapping[str, Any], field: FieldInfo | None) -> str:
    """The numbers that a key takes: both bounds where somebody could count from one to the other."""
    limits = {**_limits(field), **context}
    whole = field is None or _kind_of(field) is int
    if whole and isinstance(given, str) and given.strip().lstrip("-").isdigit():
        return f"write {given.strip()} without quotes"
    number = "a whole number" if whole else "a number"
    low, high = limits.get("ge"), limits.get("le")
    if low is not None and high is not None and high <= _FEW:
        return f"give {number} from {low:g} to {high:g}"
    if high is not None and context.get("le") is not None:
        return f"give {high} or less"
    return (
        f"give {number} above {limits['gt']}" if "gt" in limits else f"give {number} of {limits.get('ge', 1)} or more"
    )


def _field(schema: type[BaseModel], local: Keys) -> FieldInfo | None:
    """The field that some keys lead to; None where they lead to none."""
    return _section(schema, local[:-1]).model_fields.get(str(local[-1])) if local else None


def _parts(annotation: Any) -> Iterator[Any]:
    """All of a type: members of unions, and what `Annotated` says beside it."""
    yield annotation
    for part in (*getattr(annotation, "__args__", ()), *getattr(annotation, "__metadata__", ())):
        yield from _parts(part)


def _limits(field: FieldInfo | None) -> dict[str, Any]:
    """The bounds of a field, by the names that pydantic has for them."""
    parts = [] if field is None else [*field.metadata, *_parts(field.annotation)]
    marks = [mark for part in parts for mark in (part.metadata if isinstance(part, FieldInfo) else (part,))]
    return {name: getattr(mark, name) for mark in marks for name in ("ge", "gt", "le", "lt") if _bounds(mark, name)}


def _bounds(mark: Any, name: str) -> bool:
    return isinstance(getattr(mark, name, None), int | float)


def _kind_of(field: FieldInfo) -> type | None:
    return next((part for part in _parts(field.annotation) if part in (int, float)), None)


def _named(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return repr(value) if not isinstance(value, bool) else str(value).lower()


def _said(value: object) -> str:
    """A value in the words of the file: YAML takes `op:` for a mapping."""
    if isinstance(value, Mapping) and len(value) == 1 and None in value.values():
        return f"'{next(iter(value))}:', which YAML takes for a mapping"
    return _named(value)


def _choice_fix(given: str, names: Sequence[str]) -> str:
    near = nearest_names(given, names, 1)
    return f"did you mean {near[0]}? It is one of {', '.join(names)}" if near else f"use one of {', '.join(names)}"


def _unknown_fix(local: Keys, schema: type[BaseModel]) -> str:
    """The nearest key of the same mapping, the section that has the key, or all keys."""
    key, here = str(local[-1]), _section(schema, local[:-1])
    fields = list(here.model_fields)
    near = nearest_names(key, fields, 1)
    if near and _alike(key, near[0]):
        return f"did you mean {near[0]}?"
    elsewhere = [section for section, inner in _sections(schema) if key in inner.model_fields and inner is not here]
    if elsewhere:
        return f"it belongs below {elsewhere[0]}"
    return f"did you mean {near[0]}?" if near else f"keys here are {', '.join(fields)}"


def _alike(key: str, other: str) -> bool:
    from difflib import SequenceMatcher

    return SequenceMatcher(None, key.lower(), other.lower()).ratio() >= 0.75


def _sections(schema: type[BaseModel]) -> list[tuple[str, type[BaseModel]]]:
    """Keys of a schema that hold mappings, and the schemas of those."""
    found = []
    for name in schema.model_fields:
        inner = _section(schema, (name,))
        if inner is not schema:
            found.append((name, inner))
    return found


def _section(schema: type[BaseModel], keys: Keys) -> type[BaseModel]:
    """The schema below some keys; the schema itself where they lead to none."""
    here = schema
    for key in keys:
        field = here.model_fields.get(str(key))
        kinds = [] if field is None else [field.annotation, *getattr(field.annotation, "__args__", ())]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not inner:
            return here
        here = inner[0]
    return here
