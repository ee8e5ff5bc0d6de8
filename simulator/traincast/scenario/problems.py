"""What a schema found wrong -> errors with place, finding and fix."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from traincast.errors import ScenarioError, UserError, nearest_names
from traincast.scenario.text import Keys, Places


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
        return f"{name} is {given!r}", _choice_fix(str(given), names)
    if kind == "form":
        return f"{name} is {given!r}", f"write {context['form']}"
    if kind in ("model_type", "dict_type"):
        return f"{name or 'the file'} is {_named(given)}, not a mapping", "write keys below it, one a line"
    if kind.startswith(("int", "greater_than", "less_than", "float")):
        return f"{name} is {_named(given)}", _number_fix(kind, given, context)
    if kind.startswith("bool"):
        return f"{name} is {_named(given)}", "write true or false"
    if kind.startswith("string"):
        return (
            f"{name} is {_named(given)}, not text",
            "write text, in quotes where YAML takes it for something else",
        )
    return f"{name}: {found['msg'].lower()}", "see scenarios/README.md"


def _number_fix(kind: str, given: object, context: Mapping[str, Any]) -> str:
    if kind.startswith("less"):
        return f"give {context.get('le', context.get('lt'))} or less"
    if isinstance(given, str) and given.strip().lstrip("-").isdigit():
        return f"write {given.strip()} without quotes"
    if kind.startswith("float") or "gt" in context:
        return "give a number above 0"
    return f"give a whole number of {context.get('ge', 1)} or more"


def _named(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return repr(value) if not isinstance(value, bool) else str(value).lower()


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
