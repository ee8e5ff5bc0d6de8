"""Which GPU each rank runs on: a list, a rank file, or a list of nodes with gaps, on the GPUs that are alive."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traincast.errors import ScenarioError, TopologyError, UserError, combined, nearest_names
from traincast.scenario.rankfile import Seat, read_rank_file, seat_of
from traincast.scenario.text import Keys, Places

if TYPE_CHECKING:
    from traincast.scenario.schema import PlacementSection
    from traincast.topology import Cluster

KEYS: Final[Keys] = ("parallelism", "placement")
MOST_GPUS: Final = 4_000_000
_RANGES: Final = re.compile(r"\s*\d+(\s*-\s*\d+)?(\s*,\s*\d+(\s*-\s*\d+)?)*\s*")


@dataclass(frozen=True)
class Placing:
    """What a scenario asks for: seats of ranks, or the GPUs of nodes in order. `places` finds a key in the file."""

    seats: tuple[Seat, ...]
    nodes: tuple[str, ...]
    dead: tuple[str, ...]
    cyclic: bool
    places: Places

    @property
    def needs_cluster(self) -> bool:
        """Whether GPUs are named by their nodes."""
        return bool(self.nodes or self.dead) or any(seat.gpu is None for seat in self.seats)


def in_full(data: Mapping[str, Any], places: Places) -> tuple[dict[str, Any], Places]:
    """The data with the short forms of a placement (a list, ranges, a file's name) as a mapping."""
    shape = data.get("parallelism")
    short = shape.get("placement") if isinstance(shape, Mapping) else None
    if not isinstance(shape, Mapping) or short is None or isinstance(short, Mapping):
        return dict(data), places
    key = "gpus"
    if isinstance(short, str):
        key = "gpus" if _RANGES.fullmatch(short) else "file"
        short = list(ranges(short, places.where(KEYS))) if key == "gpus" else short
    elif not isinstance(short, list):
        key = "file"  # the schema says what is wrong with it
    marks = dict(places.marks)
    below = {(*KEYS, key, *keys[len(KEYS) :]): mark for keys, mark in places.marks.items() if keys[: len(KEYS)] == KEYS}
    full = {**data, "parallelism": {**shape, "placement": {key: short}}}
    return full, Places(places.label, marks | below)


def ranges(text: str, where: str) -> tuple[int, ...]:
    """The numbers of "8-15,0-7" in the order written. Raises ScenarioError for a range that cannot be meant."""
    found: list[int] = []
    for word in text.split(","):
        first, _, last = (part.strip() for part in word.partition("-"))
        low, high = int(first), int(last or first)
        if not low <= high < MOST_GPUS:
            raise ScenarioError(f"{word.strip()!r} is no range of GPUs", where=where, fix='write "8-15,0-7"')
        found += range(low, high + 1)
    return tuple(found)


def placing(section: "PlacementSection", folder: Path, places: Places) -> Placing:
    """What a section asks for. Raises ScenarioError with its place."""
    stated = [name for name in ("gpus", "file", "nodes") if getattr(section, name)]
    if len(stated) != 1:
        found = " and ".join(stated) or "nothing"
        where = places.where((*KEYS, stated[1]) if stated else KEYS)
        raise ScenarioError(f"the placement states {found}", where=where, fix="state one of gpus, file and nodes")
    if not section.nodes and (section.distribution != "block" or section.dead_gpus):
        key = "dead_gpus" if section.dead_gpus else "distribution"
        raise ScenarioError(f"{key} without nodes", where=places.where((*KEYS, key)), fix="name nodes instead")
    seats: tuple[Seat, ...] = ()
    if section.gpus:
        wheres = [places.where((*KEYS, "gpus", place)) for place in range(len(section.gpus))]
        seats = tuple(seat_of(gpu, where) for gpu, where in zip(section.gpus, wheres, strict=True))
    elif section.file:
        seats = read_rank_file(_file(section.file, folder, places))
    return Placing(seats, section.nodes or (), section.dead_gpus, section.distribution == "cyclic", places)


def _file(name: str, folder: Path, places: Places) -> Path:
    for path in (folder / name, Path(name)):
        if path.is_file():
            return path
    where = places.where((*KEYS, "file"))
    raise ScenarioError(f"no rank file {name!r}", where=where, fix="give its path as seen from the scenario's folder")


def numbers(placing: Placing) -> tuple[int, ...]:
    """The GPUs of ranks that are all given by number."""
    return tuple(seat.gpu for seat in placing.seats if seat.gpu is not None)


def on_cluster(placing: Placing, cluster: "Cluster") -> tuple[int, ...]:
    """GPU numbers of the ranks, or of all living GPUs of the nodes that are named, in order.

    Raises one UserError for all names that the cluster does not have.
    """
    rooms = _rooms(cluster)
    if placing.nodes:
        return _of_nodes(placing, cluster, rooms)
    found: list[int] = []
    taken: dict[str, int] = {}
    problems: list[UserError] = []
    for seat in placing.seats:
        try:
            found.append(seat.gpu if seat.gpu is not None else _seated(seat, cluster, rooms, taken))
        except UserError as error:
            problems.append(error)
    if problems:
        raise combined(problems)
    return tuple(found)


def _of_nodes(placing: Placing, cluster: "Cluster", rooms: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    from traincast.topology.hostlist import expand

    problems: list[UserError] = []
    dead = set()
    for place, name in enumerate(placing.dead):
        where = placing.places.where((*KEYS, "dead_gpus", place))
        try:
            dead.add(_seated(seat_of(name, where), cluster, rooms, {}))
        except UserError as error:
            problems.append(error)
    named: dict[str, list[int]] = {}
    for place, text in enumerate(placing.nodes):
        where = placing.places.where((*KEYS, "nodes", place))
        try:
            for name in expand(text):
                key = _room(name, where, rooms, cluster.name)
                if key in named:
                    raise ScenarioError(f"node {name} is named twice", where=where, fix="name each node once")
                named[key] = [gpu for gpu in rooms[key] if gpu not in dead]
        except TopologyError as error:
            problems.append(ScenarioError(error.message, where=error.where or where, fix=error.fix))
        except UserError as error:
            problems.append(error)
    if problems:
        raise combined(problems)
    rows = list(named.values())
    if not placing.cyclic:
        return tuple(gpu for row in rows for gpu in row)
    deepest = max(map(len, rows), default=0)
    return tuple(row[turn] for turn in range(deepest) for row in rows if turn < len(row))


def _rooms(cluster: "Cluster") -> dict[str, list[int]]:
    """Living GPUs of each node, by the name that its host has or else its number (``n3``)."""
    found: dict[str, list[int]] = {}
    for number, key in enumerate(cluster.gpus):
        host = cluster.graph.nodes[key].get("host") or f"n{cluster.node_index[number]}"
        found.setdefault(host, []).append(number)
    return found


def _room(name: str, where: str, rooms: Mapping[str, Sequence[int]], cluster: str) -> str:
    """The node of a name; leading zeros of its number do not count."""
    if name in rooms:
        return name
    found = re.fullmatch(r"(.*?)0*(\d+)", name)
    if found and f"{found[1]}{found[2]}" in rooms:
        return f"{found[1]}{found[2]}"
    known = list(rooms)
    near = nearest_names(name, known) or (known[0], known[-1])
    fix = f"use {', '.join(near)}; nodes are {known[0]} to {known[-1]}"
    raise ScenarioError(f"{cluster} has no node {name} with a living GPU", where=where, fix=fix)


def _seated(seat: Seat, cluster: "Cluster", rooms: Mapping[str, Sequence[int]], taken: dict[str, int]) -> int:
    """The GPU of a seat by node; `taken` counts the GPUs of each node that ranks have without a slot."""
    key = _room(seat.node, seat.where, rooms, cluster.name)
    room = rooms[key]
    if seat.slot is None:
        taken[key] = taken.get(key, 0) + 1
        if taken[key] > len(room):
            message = f"node {seat.node} has {len(room)} living GPUs, but {taken[key]} ranks or more"
            raise ScenarioError(message, where=seat.where, fix="give it fewer ranks")
        return room[taken[key] - 1]
    indices = [cluster.graph.nodes[cluster.gpus[gpu]]["index"] for gpu in room]
    if seat.slot not in indices:
        message = f"node {seat.node} has no living GPU {seat.slot}"
        raise ScenarioError(message, where=seat.where, fix=f"use one of {', '.join(map(str, indices))}")
    return room[indices.index(seat.slot)]
