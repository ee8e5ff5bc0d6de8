"""YAML text to plain values, with the place of every key and value."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from traincast.errors import TopologyError

_MOST_BYTES: Final = 4_000_000
_MOST_VALUES: Final = 100_000
_MOST_DEPTH: Final = 50


@dataclass(frozen=True, eq=False)
class Document:
    """A YAML file: its values as plain Python, and the marked tree that knows lines and columns."""

    path: str
    values: dict[str, Any]
    tree: CommentedMap

    def where(self, keys: Iterable[str | int], *, key: bool = False) -> str:
        """``file:line:col`` of the value at a path of keys, or of the last key itself.

        A path that leads nowhere (a key that is missing) is placed at the deepest part that exists.
        """
        node: Any = self.tree
        line, column = _mark(node)
        for name in keys:
            spot = _spot(node, name, key)
            if spot is None:
                break
            line, column = spot
            node = node[name]
        return f"{self.path}:{line + 1}:{column + 1}"


def read_yaml(path: Path) -> Document:
    """Reads a YAML file whose top level is a mapping.

    Raises TopologyError, with file, line and column, for a missing file, for what is no text or no YAML, and
    for a key that stands twice.
    """
    text = _text(path)
    name = str(path)
    try:
        tree = YAML(typ="rt", pure=True).load(text)
        values = plain(tree)
    except DuplicateKeyError as error:
        message = str(error.problem).split(" with value")[0]
        raise TopologyError(message, where=_at(name, error), fix="say each key once") from error
    except MarkedYAMLError as error:
        message = f"not YAML: {error.problem or error.context}"
        raise TopologyError(message, where=_at(name, error), fix="mend the line") from error
    except (YAMLError, ValueError, RecursionError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TopologyError(f"not YAML: {reason}", where=name, fix="write a YAML text file") from error
    if not isinstance(values, dict):
        what = "empty" if values is None else f"a {type(values).__name__}, not a mapping"
        raise TopologyError(f"the file is {what}", where=f"{name}:1:1", fix="write key: value lines")
    return Document(name, values, tree)


def plain(node: Any) -> Any:
    """Marked nodes as plain dict, list, text and numbers. Raises ValueError where aliases multiply them."""
    return _plain(node, [_MOST_VALUES])


def _plain(node: Any, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise ValueError(f"more than {_MOST_VALUES} values")
    if isinstance(node, Mapping):
        return {_key(key): _plain(value, left) for key, value in node.items()}
    if isinstance(node, CommentedSeq):
        return [_plain(value, left) for value in node]
    if node is None or isinstance(node, bool):
        return node
    for kind in (int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return str(node)


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is not a name")
    return str(key)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes() if path.stat().st_size <= _MOST_BYTES else None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise TopologyError(f"cannot read it: {reason}", where=str(path), fix="name a cluster file") from error
    if data is None:
        raise TopologyError("too large for a cluster file", where=str(path), fix="name a cluster file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TopologyError("not a text file", where=str(path), fix="write a YAML file in UTF-8") from error
    if "\x00" in text:
        raise TopologyError("not a text file", where=str(path), fix="write a YAML file in UTF-8")
    # the parser needs seconds to find out by itself
    if text.count("[") + text.count("{") - text.count("]") - text.count("}") > _MOST_DEPTH:
        raise TopologyError("not YAML: brackets are not closed", where=str(path), fix="close them")
    return text


def _at(name: str, error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name


def _mark(node: Any) -> tuple[int, int]:
    return (node.lc.line or 0, node.lc.col or 0) if isinstance(node, CommentedMap | CommentedSeq) else (0, 0)


def _spot(node: Any, name: str | int, key: bool) -> tuple[int, int] | None:
    """Line and column, from zero, of one entry of a mapping or list; None where there is none."""
    if isinstance(node, CommentedMap) and name in node:
        line, column = node.lc.key(name) if key else node.lc.value(name)
        return int(line), int(column)
    if isinstance(node, CommentedSeq) and isinstance(name, int) and name < len(node):
        line, column = node.lc.item(name)
        return int(line), int(column)
    return None
