"""Slurm's topology.yaml, and a Kubernetes ConfigMap that holds a topology.conf or topology.yaml.

A topology.yaml lists topologies, each with one of `tree` (switches), `block` (blocks and their sizes) or `flat`.
Of several, the first with `cluster_default: true` is taken, else the first.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from traincast.errors import TopologyError
from traincast.topology.importers.slurm import YAML_FORM, Draft, SlurmTopology, finish, parse_slurm_conf
from traincast.topology.importers.text import damaged, lines_of
from traincast.topology.yamltext import plain

_FIX: Final = "see the manual page of topology.yaml"
_KINDS: Final = ("tree", "block", "flat")
_MOST_BYTES: Final = 2_000_000
_MOST_DEPTH: Final = 50
_FORM_TEXT: Final = "a list of topologies, each with tree, block or flat"


def parse_slurm_yaml(text: str, name: str = "input", first_line: int = 1) -> SlurmTopology:
    """The topology of a file. Raises TopologyError, with the line, for what is no YAML or no topology."""
    tree = _loaded(text, name, first_line)
    if isinstance(tree, CommentedMap) and "data" in tree:
        return _config_map(tree, text, name, first_line)
    listed = tree if isinstance(tree, CommentedSeq) else [tree]
    topologies = [one for one in listed if isinstance(one, CommentedMap) and any(kind in one for kind in _KINDS)]
    if not topologies:
        raise damaged(name, first_line, "no topology in the file", _FORM_TEXT, _FIX)
    chosen = next((one for one in topologies if one.get("cluster_default") is True), topologies[0])
    draft = Draft(name, YAML_FORM)
    line = first_line + (chosen.lc.line or 0)
    if len(listed) > 1:
        what = (
            f"{len(listed)} topologies: {str(chosen.get('topology', '(no name)'))[:40]} is taken, the others left out"
        )
        draft.note(line, what)
    if "tree" in chosen:
        _switches(draft, chosen["tree"], first_line, line)
    elif "block" in chosen:
        _blocks(draft, chosen["block"], first_line, line)
    else:
        raise damaged(name, line, "a flat topology", "tree or block: a flat one says nothing about switches", _FIX)
    return finish(draft)


def _loaded(text: str, name: str, first_line: int) -> Any:
    clean = "\n".join(lines_of(text)).replace("\x00", "")
    opened = clean.count("[") + clean.count("{") - clean.count("]") - clean.count("}")
    if len(clean) > _MOST_BYTES or opened > _MOST_DEPTH:
        raise damaged(name, first_line, "a file that is too large or leaves brackets open", _FORM_TEXT, _FIX)
    try:
        tree = YAML(typ="rt", pure=True).load(clean)
        plain(tree)  # bounds what aliases multiply
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = first_line + (mark.line if mark else 0)
        raise damaged(name, line, f"not YAML: {error.problem or error.context}", _FORM_TEXT, _FIX) from error
    except (YAMLError, ValueError, RecursionError, TypeError, AttributeError, LookupError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise damaged(name, first_line, f"not YAML: {reason[:100]}", _FORM_TEXT, _FIX) from error
    return tree


def _config_map(tree: CommentedMap, text: str, name: str, first_line: int) -> SlurmTopology:
    """The topology inside a ConfigMap's data."""
    data = tree["data"]
    for key, parse in (("topology.yaml", "yaml"), ("topology.conf", "conf")):
        if isinstance(data, Mapping) and isinstance(data.get(key), str):
            # a block scalar starts on the line after its key
            spot = next((n for n, line in enumerate(lines_of(text)) if re.match(rf"\s*{re.escape(key)}\s*:", line)), 0)
            start = first_line + spot + 1
            if parse == "yaml":
                return parse_slurm_yaml(str(data[key]), name, start)
            return parse_slurm_conf(str(data[key]), name, start, YAML_FORM)
    raise damaged(name, first_line, "a ConfigMap without a topology", "data with topology.conf or topology.yaml", _FIX)


def _switches(draft: Draft, tree: Any, first_line: int, line: int) -> None:
    listed = tree.get("switches") if isinstance(tree, CommentedMap) else None
    if not isinstance(listed, CommentedSeq):
        raise damaged(draft.name, line, "a tree without a list of switches", "tree: {switches: [...]}", _FIX)
    for place, one in enumerate(listed):
        where = first_line + int(listed.lc.item(place)[0])
        name = _text(draft, one, "switch", where)
        for key in one:
            if key not in ("switch", "children", "nodes"):
                draft.note(where, f"{str(key)[:40]}: not a key of a switch, left out")
        draft.add_switch(name, _optional(draft, one, "nodes", where), _optional(draft, one, "children", where), where)


def _blocks(draft: Draft, block: Any, first_line: int, line: int) -> None:
    listed = block.get("blocks") if isinstance(block, CommentedMap) else None
    if not isinstance(listed, CommentedSeq):
        raise damaged(
            draft.name, line, "a block topology without blocks", "block: {block_sizes: [...], blocks: [...]}", _FIX
        )
    for place, one in enumerate(listed):
        where = first_line + int(listed.lc.item(place)[0])
        draft.add_block(_text(draft, one, "block", where), _optional(draft, one, "nodes", where), where)
    sizes = block.get("block_sizes")
    if isinstance(sizes, CommentedSeq):
        draft.add_sizes([str(size) for size in sizes], first_line + (sizes.lc.line or 0))
    elif sizes is not None:
        draft.add_sizes([str(sizes)], line)


def _text(draft: Draft, entry: Any, key: str, line: int) -> str:
    found = entry.get(key) if isinstance(entry, CommentedMap) else None
    if not isinstance(found, str | int) or isinstance(found, bool) or not str(found):
        raise TopologyError(f"an entry without {key}, expected {key}: name", where=f"{draft.name}:{line}", fix=_FIX)
    return str(found)


def _optional(draft: Draft, entry: CommentedMap, key: str, line: int) -> str:
    found = entry.get(key)
    if isinstance(found, CommentedSeq):
        return ",".join(str(item) for item in found)
    if found is None or isinstance(found, str | int):
        return "" if found is None else str(found)
    raise TopologyError(f"{key} is no list of names, expected n[01-04]", where=f"{draft.name}:{line}", fix=_FIX)
