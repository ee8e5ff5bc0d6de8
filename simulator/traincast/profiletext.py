"""A profile's YAML file as values that know their place, so that a message can name file, line and column.

Values are read fast; the places of a file are worked out only where something in it is wrong.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from traincast.errors import DataError, UserError, combined
from traincast.units import parse_quantity

HOW: Final = "calibration/README.md says what a profile holds"
"""What to do about a value that means nothing here."""

_T = TypeVar("_T")
_KINDS: Final = {dict: "a mapping of names", list: "a list", str: "text", float: "a number"}


@dataclass(frozen=True, eq=False)
class Source:
    """A file and its text."""

    path: Path
    text: str

    @cached_property
    def _root(self) -> Any:
        from ruamel.yaml import YAML

        return YAML(typ="safe", pure=True).compose(self.text)

    def where(self, keys: Iterable[str | int]) -> str:
        """``file:line:col`` of the value at a path of keys; of the deepest part that is there, where it is not."""
        node = self._root
        for key in keys:
            following = _child(node, key)
            if following is None:
                break
            node = following
        if node is None:
            return f"{self.path}:1:1"
        return f"{self.path}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


@dataclass(frozen=True, eq=False)
class Entry:
    """One value of a profile and its path of keys. Its methods raise DataError, with the place, for another kind."""

    value: Any
    keys: tuple[str | int, ...]
    source: Source

    @property
    def name(self) -> str:
        """The path of keys as a message shows it."""
        return ".".join(map(str, self.keys)) or "the file"

    def wrong(self, message: str, fix: str) -> DataError:
        """An error at this place."""
        return DataError(message, where=self.source.where(self.keys), fix=fix)

    def items(self) -> Iterator[tuple[str, "Entry"]]:
        """Names and values of a mapping."""
        for key, value in self._as(dict).items():
            yield str(key), Entry(value, (*self.keys, key), self.source)

    def entries(self) -> Iterator["Entry"]:
        """Values of a list."""
        for place, value in enumerate(self._as(list)):
            yield Entry(value, (*self.keys, place), self.source)

    def get(self, name: str) -> "Entry | None":
        """A value of a mapping; None where it is not stated."""
        found = self._as(dict)
        return Entry(found[name], (*self.keys, name), self.source) if found.get(name) is not None else None

    def need(self, name: str, fix: str = HOW) -> "Entry":
        """A value of a mapping that must be there."""
        found = self.get(name)
        if found is None:
            raise self.wrong(f"{self.name} has no {name!r}", fix)
        return found

    def text(self) -> str:
        """Text; a bare number stands for its digits."""
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            return str(self.value)
        return str(self._as(str))

    def number(self) -> float:
        """A finite number."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not math.isfinite(self.value):
            raise self.wrong(f"{self.name} is {_shown(self.value)}, not {_KINDS[float]}", HOW)
        return float(self.value)

    def each(self, name: str) -> tuple["Entry", ...]:
        """The list under a name of a mapping; empty where it is not stated."""
        found = self.get(name)
        return tuple(found.entries()) if found else ()

    def texts(self, name: str) -> tuple[str, ...]:
        """The list of texts under a name of a mapping; empty where it is not stated."""
        return tuple(one.text() for one in self.each(name))

    def below(self, name: str) -> tuple[tuple[str, "Entry"], ...]:
        """Names and values of the mapping under a name of a mapping; empty where it is not stated."""
        found = self.get(name)
        return tuple(found.items()) if found else ()

    def quantity(self, dimension: str, unit: str = "", what: str = "") -> float:
        """A quantity in SI; `unit` where the value is a bare number, `what` as a message calls it."""
        try:
            return parse_quantity(f"{self.text()} {unit}".strip(), dimension)
        except UserError as error:
            raise self.wrong(f"{what or self.name}: {error.message}", error.fix or HOW) from error

    def one_of(self, known: Iterable[str], what: str) -> str:
        """The last key, where it is among the known names; `what` it names."""
        name = str(self.keys[-1])
        names = list(known)
        if name in names:
            return name
        near = difflib.get_close_matches(name, names, 1)
        fix = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(names)}" if len(names) < 20 else HOW
        raise self.wrong(f"unknown {what} {name!r}", fix)

    def _as(self, kind: type) -> Any:
        if not isinstance(self.value, kind):
            raise self.wrong(f"{self.name} is {_shown(self.value)}, not {_KINDS[kind]}", HOW)
        return self.value


@dataclass(frozen=True, eq=False)
class Faults:
    """What is wrong in a file, gathered part by part, so that it is mended in one pass."""

    found: list[UserError] = field(default_factory=list)

    def tried(self, read: Callable[[], _T], otherwise: _T) -> _T:
        """What `read` gives; where it raises a user's error, that is kept and `otherwise` given."""
        try:
            return read()
        except UserError as error:
            self.found.append(error)
            return otherwise

    def known(self, entry: Entry, names: Iterable[str], what: str) -> None:
        """Keeps an error for each key of a mapping that is not among the known names; `what` these are."""
        known = list(names)
        for _, one in entry.items():
            self.tried(lambda one=one: one.one_of(known, what), "")  # type: ignore[misc]

    def end(self) -> None:
        """Raises all that was kept as one error; nothing where there is none."""
        if self.found:
            raise combined(self.found)


def read_profile_text(path: Path) -> Entry:
    """The values of a profile's file. Raises DataError, with the place where one is known, for what is no YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    fix = f"mend it; {HOW}"
    try:
        text = path.read_text(encoding="utf-8")
        value = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        reason = error.problem or error.context
        raise DataError(f"not a readable profile: {reason}", where=where, fix=fix) from error
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise DataError(f"cannot read it: {reason}", where=str(path), fix="name a profile that can be read") from error
    except (YAMLError, ValueError, RecursionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"not a readable profile: {reason}", where=str(path), fix=fix) from error
    if not isinstance(value, dict):
        what = "empty" if value is None else f"{_shown(value)}, not {_KINDS[dict]}"
        raise DataError(f"a profile cannot be {what}", where=f"{path}:1:1", fix=HOW)
    return Entry(value, (), Source(path, text))


def _child(node: Any, key: str | int) -> Any:
    """The node of an entry of a mapping or a list; None where there is none."""
    parts = node.value if isinstance(node.value, list) else []
    if isinstance(key, int):
        return parts[key] if key < len(parts) and not isinstance(parts[key], tuple) else None
    return next((one[1] for one in parts if isinstance(one, tuple) and one[0].value == key), None)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
