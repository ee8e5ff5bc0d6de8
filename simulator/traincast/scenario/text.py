"""YAML text -> plain data, with the place of every key, and overrides laid on top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.errors import ScenarioError, UserError, combined

Keys = tuple[str | int, ...]

LARGEST_FILE_BYTES = 1 << 20
MOST_NODES = 20_000
DEEPEST = 100


@dataclass(frozen=True)
class Places:
    """Where keys were written: `file:line:col`, or the option that set them."""

    label: str
    marks: Mapping[Keys, str] = field(default_factory=dict)

    def where(self, keys: Keys) -> str:
        """The place of a key, of the nearest mapping around it where it is not written, else the file."""
        for length in range(len(keys), -1, -1):
            if keys[:length] in self.marks:
                return self.marks[keys[:length]]
        return self.label

    def grafted(self, keys: Keys, other: "Places") -> "Places":
        """With the places of another file for all that lies below `keys`."""
        below = {(*keys, *inner): place for inner, place in other.marks.items()}
        return Places(self.label, {**self.marks, **below})

    def replaced(self, keys: Keys, option: str) -> "Places":
        """With an option as the place of `keys`, of all below, and of the mappings around that stand nowhere yet."""
        kept = {place: mark for place, mark in self.marks.items() if place[: len(keys)] != keys}
        around = {keys[:length]: option for length in range(1, len(keys)) if keys[:length] not in kept}
        return Places(self.label, {**kept, **around, keys: option})

    def option(self, keys: Keys) -> bool:
        """Whether an option stated these very keys."""
        return self.marks.get(keys, "").startswith("--set ")


def read_text(path: Path, largest_bytes: int = LARGEST_FILE_BYTES) -> str:
    """The text of a file. Raises ScenarioError for one that is no text, too large, or cannot be read."""
    label = shown(path)
    try:
        if path.is_dir():
            raise ScenarioError("is a folder", where=label, fix="name a file in it")
        if path.stat().st_size > largest_bytes:
            size = f"{largest_bytes >> 20} MiB"
            raise ScenarioError(f"is larger than {size}", where=label, fix="name a scenario file")
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ScenarioError(f"cannot be read: {reason}", where=label, fix="check the path") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _no_text(f"{label}:{line}:1", f"byte 0x{raw[error.start]:02x} at offset {error.start}") from error
    for offset, letter in enumerate(text):
        if letter < " " and letter not in "\n\r\t":
            raise _no_text(_spot(text, offset, label), f"control character 0x{ord(letter):02x}")
    return text


def _spot(text: str, offset: int, label: str) -> str:
    return f"{label}:{text.count(chr(10), 0, offset) + 1}:{offset - text.rfind(chr(10), 0, offset)}"


def _no_text(where: str, what: str) -> ScenarioError:
    return ScenarioError(f"is not a text file: {what}", where=where, fix="name a YAML file in UTF-8")


def shown(path: Path) -> str:
    """A path as messages show it: relative to the working folder where it lies below."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def parse(text: str, label: str) -> tuple[dict[str, Any], Places]:
    """The mapping that YAML text holds and the place of its keys.

    Raises ScenarioError, with file:line:col, for text that is no YAML, that is not one mapping, and for keys
    that are there twice (all of them).
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    _check_depth(text, label)
    try:
        root = YAML().compose(text)
        if root is None or root.id != "mapping":
            raise ScenarioError(
                "holds no mapping of keys",
                where=f"{label}:1:1",
                fix="start with model:, cluster: and training:",
            )
        marks: dict[Keys, str] = {(): f"{label}:1:1"}
        problems: list[UserError] = []
        _walk(root, (), marks, problems, label)
        if problems:
            raise combined(problems)
        data = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{label}:{mark.line + 1}:{mark.column + 1}" if mark else label
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise ScenarioError(f"is not YAML: {what}", where=where, fix="mend the YAML there") from error
    except (YAMLError, ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ScenarioError(f"is not YAML: {reason}", where=label, fix="mend the YAML") from error
    return data, Places(label, marks)


def _check_depth(text: str, label: str) -> None:
    """Refuses brackets nested deeper than anybody writes; a YAML scanner needs quadratic time for them."""
    depth = 0
    for offset, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if depth > DEEPEST:
            where = _spot(text, offset, label)
            raise ScenarioError(f"is nested deeper than {DEEPEST}", where=where, fix="name a scenario file")


def _walk(node: Any, keys: Keys, marks: dict[Keys, str], problems: list[UserError], label: str) -> None:
    """Collects the places of all keys below a node, and the keys that are there twice."""
    if len(marks) > MOST_NODES:
        raise ScenarioError(f"has more than {MOST_NODES} keys and values", where=label, fix="name a scenario file")
    if node.id == "sequence":
        for index, item in enumerate(node.value):
            marks[*keys, index] = _place(item, label)
            _walk(item, (*keys, index), marks, problems, label)
    elif node.id == "mapping":
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                first = marks[*keys, name].removeprefix(f"{label}:")
                message = f"key {name!r} is there twice (first at {first})"
                problems.append(ScenarioError(message, where=_place(key, label), fix="keep one of them"))
                continue
            seen.add(name)
            marks[*keys, name] = _place(key, label)
            _walk(value, (*keys, name), marks, problems, label)


def _place(node: Any, label: str) -> str:
    return f"{label}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def override(
    data: Mapping[str, Any], places: Places, overrides: Sequence[tuple[str, str]]
) -> tuple[dict[str, Any], Places]:
    """A copy of `data` with keys such as `training.microbatch` replaced by YAML values.

    Raises ScenarioError, naming the option, for a value that is no YAML and a key below something that is no
    mapping.
    """
    changed = _copied(data)
    problems: list[UserError] = []
    for path, text in overrides:
        option = f"--set {path}={text}"
        try:
            keys = _set(changed, path, _value(text))
        except ScenarioError as error:
            problems.append(ScenarioError(error.message, where=option, fix=error.fix))
        else:
            places = places.replaced(keys, option)
    if problems:
        raise combined(problems)
    return changed, places


def _copied(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in data.items()}


def _value(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise ScenarioError(f"value {text!r} is not YAML", fix="quote it, or write a plain value") from error


def _set(data: dict[str, Any], path: str, value: Any) -> Keys:
    names = path.split(".")
    for name in names[:-1]:
        below = data.setdefault(name, {})
        if below is None:
            below = data[name] = {}
        if not isinstance(below, dict):
            raise ScenarioError(f"{name!r} is no mapping, so {path!r} is no key", fix="check the key")
        data = below
    data[names[-1]] = value
    return tuple(names)
