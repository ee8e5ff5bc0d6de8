"""Slurm's topology.conf and topology.yaml: which nodes hang on which switches, or form which blocks.

A tree names switches with their nodes or with the switches below them. A block topology names blocks of nodes
that share a fast interconnect (NVL72 racks) and no switches. Names are lists in bracket form (`hostlist`). Slurm
knows no rates: LinkSpeed is for people to read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from traincast.errors import TopologyError, UserError
from traincast.topology.hostlist import MOST_NAMES, expand
from traincast.topology.importers.text import Problem, damaged, lines_of, shown

CONF_FORM: Final = "slurm-conf"
YAML_FORM: Final = "slurm-yaml"
CONF_LINE: Final = re.compile(r"\s*(SwitchName|BlockName|BlockSizes)\s*=", re.I)
_FIX: Final = "see the manual page of topology.conf"
_FORMS: Final = "SwitchName=s1 Nodes=n[01-20], SwitchName=s0 Switches=s[1-4], BlockName=b1 Nodes=..., or BlockSizes=..."
_PAIR: Final = re.compile(r"([A-Za-z]\w*)\s*=\s*(\"[^\"]*\"|\S*)")


@dataclass(frozen=True)
class SlurmSwitch:
    """A switch with the nodes and switches directly below it."""

    name: str
    nodes: tuple[str, ...]
    switches: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class SlurmBlock:
    """Nodes that share a fast interconnect."""

    name: str
    nodes: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class SlurmTopology:
    """What a file says. `heights` counts levels from the leaves: 1 for a switch with nodes alone."""

    name: str
    form: str
    switches: tuple[SlurmSwitch, ...]
    blocks: tuple[SlurmBlock, ...]
    block_sizes: tuple[int, ...]
    heights: Mapping[str, int]
    problems: tuple[Problem, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in the order of the file."""
        holders: tuple[SlurmSwitch | SlurmBlock, ...] = (*self.switches, *self.blocks)
        return tuple(dict.fromkeys(node for holder in holders for node in holder.nodes))


@dataclass
class Draft:
    """A topology while its file is read. `budget` bounds all names together."""

    name: str
    form: str
    switches: dict[str, SlurmSwitch] = field(default_factory=dict)
    blocks: dict[str, SlurmBlock] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    sizes_line: int = 0
    problems: list[Problem] = field(default_factory=list)
    budget: int = MOST_NAMES

    def note(self, line: int, what: str) -> None:
        """One more problem."""
        self.problems.append(Problem(self.name, line, what))

    def names(self, text: str, line: int) -> tuple[str, ...]:
        """A list of names, expanded; repeated ones once."""
        try:
            found = expand(text, self.budget)
        except UserError as error:
            raise TopologyError(error.message, where=f"{self.name}:{line}", fix=error.fix) from error
        self.budget -= len(found)
        once = tuple(dict.fromkeys(found))
        if len(once) < len(found):
            self.note(line, f"{len(found) - len(once)} names of {shown(text)} stand twice in it: taken once")
        return once

    def add_switch(self, name: str, nodes: str, switches: str, line: int) -> None:
        """A switch, or several of one list, with what is below it."""
        below, children = self.names(nodes, line), self.names(switches, line)
        if not below and not children:
            raise damaged(self.name, line, f"switch {name} has neither Nodes nor Switches", _FORMS, _FIX)
        for one in self.names(name, line):
            if one in self.switches:
                self.note(line, f"switch {one} stands twice (first in line {self.switches[one].line}): left out")
            else:
                self.switches[one] = SlurmSwitch(one, below, children, line)

    def add_block(self, name: str, nodes: str, line: int) -> None:
        """A block of nodes."""
        if name in self.blocks:
            self.note(line, f"block {name} stands twice (first in line {self.blocks[name].line}): left out")
            return
        members = self.names(nodes, line)
        if not members:
            raise damaged(self.name, line, f"block {name} has no Nodes", _FORMS, _FIX)
        self.blocks[name] = SlurmBlock(name, members, line)

    def add_sizes(self, words: Iterable[str], line: int) -> None:
        """The sizes of blocks."""
        for word in words:
            if not (word.isascii() and word.isdigit() and len(word) <= 9 and int(word)):
                raise damaged(self.name, line, f"BlockSizes holds {shown(word)}", "whole numbers above 0", _FIX)
            self.sizes.append(int(word))
        self.sizes_line = line


def parse_slurm_conf(text: str, name: str = "input", first_line: int = 1, form: str = CONF_FORM) -> SlurmTopology:
    """The topology of a topology.conf, whose first line has the number `first_line` in its file.

    Raises TopologyError, with the line, for lines that are none of Slurm's, for lists that cannot be read, and for
    switches that stand above themselves.
    """
    draft = Draft(name, form)
    pending, start = "", 0
    for number, raw in enumerate(lines_of(text), first_line):
        line = raw.split("#", 1)[0].rstrip()
        start = start if pending else number
        if line.endswith("\\"):
            pending += f"{line[:-1]} "
            continue
        line, pending = pending + line, ""
        if line.strip():
            _conf_line(draft, line.strip(), start)
    if pending.strip():
        raise damaged(name, start, "the file ends in a continued line", "the rest of the line", _FIX)
    return finish(draft)


def _conf_line(draft: Draft, line: str, number: int) -> None:
    said: dict[str, str] = {}
    rest = line
    for found in _PAIR.finditer(line):
        key = found.group(1).lower()
        if key in said:
            raise damaged(draft.name, number, f"{found.group(1)} stands twice in a line", "each key once", _FIX)
        said[key] = found.group(2).strip('"')
        rest = rest.replace(found.group(0), "", 1)
    first = next(iter(said), "")
    if rest.strip() or first not in ("switchname", "blockname", "blocksizes"):
        raise damaged(draft.name, number, shown(line), _FORMS, _FIX)
    known = {"switchname": ("switchname", "nodes", "switches", "linkspeed"), "blockname": ("blockname", "nodes")}
    for key in said:
        if key not in known.get(first, (first,)):
            draft.note(number, f"{key}={said[key][:40]}: not a key of a line of this kind, left out")
    if first == "blocksizes":
        draft.add_sizes([word for word in said[first].split(",") if word], number)
        return
    if not said[first]:
        raise damaged(draft.name, number, "a name is empty", _FORMS, _FIX)
    if "linkspeed" in said:
        draft.note(number, f"LinkSpeed={said['linkspeed'][:20]} has no unit and Slurm ignores it: not used")
    if first == "switchname":
        draft.add_switch(said[first], said.get("nodes", ""), said.get("switches", ""), number)
    else:
        draft.add_block(said[first], said.get("nodes", ""), number)


def finish(draft: Draft) -> SlurmTopology:
    """The checked topology: children that exist, nodes on one leaf, heights, block sizes that fit."""
    if not draft.switches and not draft.blocks:
        raise damaged(draft.name, 1, "no switch and no block", _FORMS, _FIX)
    switches = _known_children(draft)
    placed: dict[str, str] = {}
    kept: list[SlurmSwitch] = []
    for switch in switches.values():
        nodes = _first_place(draft, placed, switch.name, switch.nodes, switch.line)
        kept.append(SlurmSwitch(switch.name, nodes, switch.switches, switch.line))
    in_block: dict[str, str] = {}
    blocks = [
        SlurmBlock(one.name, _first_place(draft, in_block, one.name, one.nodes, one.line), one.line)
        for one in draft.blocks.values()
    ]
    if draft.switches and draft.blocks:
        draft.note(next(iter(draft.blocks.values())).line, "blocks and switches in one file: Slurm takes only one kind")
    heights = _heights(draft, {switch.name: switch for switch in kept})
    if not placed and not in_block:
        raise damaged(draft.name, kept[0].line, "no switch has nodes", _FORMS, _FIX)
    _check_shape(draft, kept, heights)
    total = len(in_block) or len(placed)
    for size in draft.sizes:
        if size > total:
            draft.note(draft.sizes_line, f"block size {size} exceeds the {total} nodes of the file")
    return SlurmTopology(
        draft.name, draft.form, tuple(kept), tuple(blocks), tuple(draft.sizes), heights, tuple(draft.problems)
    )


def _known_children(draft: Draft) -> dict[str, SlurmSwitch]:
    """The switches without children that no line defines."""
    known: dict[str, SlurmSwitch] = {}
    for switch in draft.switches.values():
        lacking = [child for child in switch.switches if child not in draft.switches]
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            draft.note(switch.line, f"{switch.name}: no line defines switch {lacking[0]}{more}: left out")
        children = tuple(child for child in switch.switches if child in draft.switches)
        known[switch.name] = SlurmSwitch(switch.name, switch.nodes, children, switch.line)
    return known


def _first_place(draft: Draft, placed: dict[str, str], holder: str, nodes: Sequence[str], line: int) -> tuple[str, ...]:
    """The nodes that no earlier line has placed."""
    twice = [node for node in nodes if node in placed]
    if twice:
        more = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        draft.note(line, f"node {twice[0]}{more} is already on {placed[twice[0]]}: not also on {holder}")
    fresh = tuple(node for node in nodes if node not in placed)
    placed |= dict.fromkeys(fresh, holder)
    return fresh


def _heights(draft: Draft, switches: Mapping[str, SlurmSwitch]) -> dict[str, int]:
    """Levels above the nodes: children before parents, without recursion. Raises TopologyError for a circle."""
    parents: dict[str, list[str]] = {name: [] for name in switches}
    waiting = {name: len(switch.switches) for name, switch in switches.items()}
    for name, switch in switches.items():
        for child in switch.switches:
            parents[child].append(name)
    heights = {name: 1 for name, count in waiting.items() if not count}
    ready = list(heights)
    while ready:
        child = ready.pop()
        for parent in parents[child]:
            heights[parent] = max(heights.get(parent, 0), heights[child] + 1)
            waiting[parent] -= 1
            if not waiting[parent]:
                ready.append(parent)
    circle = next((name for name, count in waiting.items() if count > 0), None)
    if circle is not None:
        line = switches[circle].line
        raise damaged(draft.name, line, f"switch {circle} stands above itself", "a tree of switches", _FIX)
    return heights


def _check_shape(draft: Draft, switches: Sequence[SlurmSwitch], heights: Mapping[str, int]) -> None:
    parent: dict[str, str] = {}
    for switch in switches:
        for child in switch.switches:
            if parent.setdefault(child, switch.name) != switch.name:
                draft.note(
                    switch.line, f"switch {child} is below {parent[child]} and {switch.name}: Slurm wants a tree"
                )
        below = {heights[child] for child in switch.switches}
        if len(below) > 1:
            draft.note(switch.line, f"the switches below {switch.name} have different depths: the tree is unbalanced")
        if switch.nodes and switch.switches:
            draft.note(switch.line, f"{switch.name} has nodes and switches below it")
        if not switch.nodes and not switch.switches:
            draft.note(switch.line, f"{switch.name} has nothing below it")
    roots = [switch for switch in switches if switch.name not in parent]
    if len(roots) > 1:
        what = f"{len(roots)} trees ({', '.join(root.name for root in roots[:3])}): nothing joins them"
        draft.note(roots[1].line, what)
