"""Rank maps: the ordered groups of each family, from a mesh, a file that somebody has, or a log of NCCL.

Groups are ordered lists: the place of a rank in its group is its rank in the communicator.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from traincast.errors import DataError, UserError
from traincast.mesh import DEFAULT_ORDER, DENSE_AXES, EXPERT_AXES, Mesh, families_of, family_groups

Group = tuple[int, ...]
Groups = Mapping[str, tuple[Group, ...]]

COORDINATE_AXES: Final = ("tp", "cp", "dp", "pp", "etp", "ep", "edp")
LARGEST_BYTES: Final = 1 << 28
MOST_RANKS: Final = 1_000_000
_SPEC: Final = re.compile(r"((?:tp|cp|ep|etp|dp|pp)\d{1,7}(?:-(?:tp|cp|ep|etp|dp|pp)\d{1,7})*)(?:@([a-z-]+))?")
_FORMS: Final = (
    "give a mesh such as tp2-pp4-dp2@tp-cp-ep-dp-pp, what 'traincast mesh --format json' writes, JSON or CSV with the "
    "coordinates of each rank, a scenario, or a log of NCCL_DEBUG=INFO"
)


@dataclass(frozen=True)
class RankMap:
    """`families` has the groups of each family. A log's communicators have no family: they are in `unnamed`, largest
    first, each with what it is called there."""

    name: str
    world: int
    families: Groups = field(default_factory=dict)
    unnamed: tuple[tuple[str, Group], ...] = ()
    notes: tuple[str, ...] = ()


def read_rank_map(text: str) -> RankMap:
    """The rank map of a mesh's spelling, or of a file. Raises UserError with the forms there are."""
    spelled = _SPEC.fullmatch(text.strip().lower())
    if spelled:
        return of_mesh(mesh_of(spelled[1], spelled[2]), text.strip())
    path = Path(text)
    if path.is_file() and path.suffix.lower() not in (".yaml", ".yml"):
        return _of_file(path)
    from traincast.scenario import load_scenario

    try:
        scenario = load_scenario(text)
    except UserError as error:
        if _is_cluster(path, text):
            raise DataError(f"{text} is a cluster file, not a rank map", fix=_FORMS) from error
        if path.is_file():
            raise
        raise DataError(f"no rank map {text!r}", fix=_FORMS) from error
    return of_mesh(scenario.mesh, scenario.name)


def _is_cluster(path: Path, text: str) -> bool:
    """Whether a file names the builder of a cluster, or a text is the name of one that comes along."""
    from traincast.scenario.text import parse, read_text
    from traincast.topology.load import cluster_path

    try:
        return "builder" in parse(read_text(path), str(path))[0] if path.is_file() else cluster_path(text).is_file()
    except UserError:
        return False


def mesh_of(sizes: str, order: str | None) -> Mesh:
    """The mesh of "tp2-pp4-dp2", in the usual order unless one is given. Raises ShapeError."""
    found: dict[str, int] = {}
    for word in sizes.split("-"):
        axis = word.rstrip("0123456789")
        if axis in found:
            raise DataError(f"{axis} is there twice in {sizes!r}", fix="give each axis once")
        found[axis] = int(word[len(axis) :])
    tp, cp, pp, dp, ep, etp = (found.get(axis, 1) for axis in ("tp", "cp", "pp", "dp", "ep", "etp"))
    return Mesh(tp, cp, pp, dp, ep, etp, order or DEFAULT_ORDER)


def of_mesh(mesh: Mesh, name: str) -> RankMap:
    """The groups of a mesh's families, ascending as communicators are made. Raises DataError beyond a million ranks."""
    if mesh.world > MOST_RANKS:
        raise DataError(f"a mesh of {mesh.world} ranks is too large to compare", fix=f"stay at {MOST_RANKS} or below")
    families = {
        family.name: tuple(tuple(group) for group in family_groups(mesh, family.name).tolist())
        for family in families_of(mesh)
    }
    return RankMap(name, mesh.world, families, notes=(f"{name}: order {'-'.join(mesh.axes)}",))


def combinations_of(mesh_map: RankMap) -> dict[str, tuple[Group, ...]]:
    """Beside the families of a rank map all joint groups of its axes that have no name, such as tp-dp."""
    found = dict(mesh_map.families)
    coordinates: dict[str, list[int]] = {}
    for axis in COORDINATE_AXES:
        if axis in mesh_map.families:
            coordinates[axis] = [0] * mesh_map.world
            for group in mesh_map.families[axis]:
                for place, rank in enumerate(group):
                    coordinates[axis][rank] = place
    for axes in (DENSE_AXES, EXPERT_AXES):
        known = [axis for axis in axes if axis in coordinates]
        for count in range(2, len(known) + 1):
            for joint in combinations(known, count):
                rest = [axis for axis in known if axis not in joint]
                found.setdefault("-".join(joint), _joint(mesh_map.world, coordinates, rest))
    return found


def _joint(world: int, coordinates: Mapping[str, Sequence[int]], rest: Sequence[str]) -> tuple[Group, ...]:
    """Ranks that agree in the coordinates of `rest`, ascending."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world):
        groups.setdefault(tuple(coordinates[axis][rank] for axis in rest), []).append(rank)
    return tuple(tuple(group) for group in groups.values())


def _of_file(path: Path) -> RankMap:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise DataError(f"is larger than {LARGEST_BYTES >> 20} MiB", where=str(path), fix="cut it")
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path), fix="check the path") from error
    reader: Callable[[str, str], RankMap] = _of_log
    if path.suffix.lower() == ".json" or text.lstrip()[:1] in ("{", "["):
        reader = _of_json
    elif "rank" in _cells(text.partition("\n")[0]):
        reader = _of_csv
    return replace(reader(text, str(path)), name=path.name)


def _cells(line: str) -> list[str]:
    return [cell.strip().lower() for cell in line.split(",")] if "," in line else []


def _of_json(text: str, label: str) -> RankMap:
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        at = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise DataError("is not JSON", where=f"{label}{at}", fix="mend it there") from error
    if isinstance(data, Mapping) and isinstance(data.get("families"), Mapping):
        data = data["families"]
    if isinstance(data, Mapping) and data and all(str(key).strip().isdecimal() for key in data):
        data = [{**row, "rank": int(rank)} for rank, row in data.items() if isinstance(row, Mapping)]
    if isinstance(data, Mapping) and isinstance(data.get("ranks"), Sequence):
        data = data["ranks"]
    if isinstance(data, Sequence) and not isinstance(data, str):
        rows = [{**row, **row.get("coordinates", {})} for row in data if isinstance(row, Mapping)]
        return _of_rows(rows, [label] * len(rows), label)
    if isinstance(data, Mapping):
        return _of_groups(data, label)
    raise DataError("holds no rank map", where=label, fix=_FORMS)


def _of_groups(data: Mapping[str, Any], label: str) -> RankMap:
    """Family -> its groups, as `traincast mesh` writes them, or bare lists of lists."""
    families: dict[str, tuple[Group, ...]] = {}
    for name, entry in data.items():
        listed = entry.get("groups") if isinstance(entry, Mapping) else entry
        if not isinstance(listed, list) or not all(isinstance(group, list) and group for group in listed):
            continue
        groups = tuple(tuple(group) for group in listed)
        ranks = [rank for group in groups for rank in group]
        wrong = next((rank for rank in ranks if type(rank) is not int or rank < 0), None)
        if wrong is not None:
            raise DataError(f"{name}: {wrong!r} is no rank", where=label, fix="number ranks from 0")
        if len(set(ranks)) < len(ranks):
            twice = next(rank for rank in ranks if ranks.count(rank) > 1)
            raise DataError(f"{name}: rank {twice} is in two groups", where=label, fix="put each rank into one")
        families[str(name)] = groups
    if not families:
        raise DataError("holds no groups of ranks", where=label, fix=_FORMS)
    world = 1 + max(rank for groups in families.values() for group in groups for rank in group)
    return RankMap(label, world, families)


def _of_csv(text: str, label: str) -> RankMap:
    rows = list(csv.DictReader(io.StringIO(text)))
    cleaned = [
        {str(key).strip().lower(): value.strip() for key, value in row.items() if isinstance(value, str)}
        for row in rows
    ]
    return _of_rows(cleaned, [f"{label}:{line}:1" for line in range(2, len(rows) + 2)], label)


def _of_rows(rows: Sequence[Mapping[str, Any]], wheres: Sequence[str], label: str) -> RankMap:
    """Rank -> coordinates: the groups of an axis are the ranks that agree in all others of its mesh, in its order."""
    found: dict[int, dict[str, int]] = {}
    axes = [axis for axis in COORDINATE_AXES if rows and axis in rows[0]]
    if not axes or "rank" not in rows[0]:
        raise DataError("has no rank and coordinates", where=label, fix=f"name rank and {', '.join(DENSE_AXES)}")
    for row, where in zip(rows, wheres, strict=True):
        numbers = {}
        for name in ("rank", *axes):
            value = row.get(name)
            if not (type(value) is int or (isinstance(value, str) and value.isdecimal())):
                raise DataError(f"{name} is {value!r}", where=where, fix="give a whole number from 0")
            numbers[name] = int(value)
        rank = numbers.pop("rank")
        if rank in found:
            raise DataError(f"rank {rank} is there twice", where=where, fix="give each rank one row")
        found[rank] = numbers
    missing = next((rank for rank in range(len(found)) if rank not in found), None)
    if missing is not None:
        raise DataError(f"rank {missing} is missing", where=label, fix=f"name ranks 0 to {len(found) - 1}")
    families = {}
    for axis in axes:
        own = DENSE_AXES if axis in DENSE_AXES else EXPERT_AXES
        rest = [name for name in own if name in axes and name != axis]
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in sorted(found, key=lambda one: found[one][axis]):
            groups.setdefault(tuple(found[rank][name] for name in rest), []).append(rank)
        families[axis] = tuple(sorted((tuple(group) for group in groups.values()), key=min))
    return RankMap(label, len(found), families)


def _of_log(text: str, label: str) -> RankMap:
    """The communicators of a log; the ranks of the largest one are the global ranks, found again by their processes."""
    from traincast.topology.importers.nccllog import parse_nccl_log

    log = parse_nccl_log(text, label)
    world = log.world()
    size = world[0].nranks
    rank_of = {(one.host, one.pid, one.gpu): one.rank for one in world}
    members: dict[str, dict[int, int]] = {}
    strange = 0
    for one in log.ranks:
        known = rank_of.get((one.host, one.pid, one.gpu))
        strange += known is None
        if known is not None:
            members.setdefault(one.comm, {})[one.rank] = known
    sizes = {one.comm: one.nranks for one in log.ranks}
    whole = {comm: places for comm, places in members.items() if len(places) == sizes[comm]}
    unnamed = tuple((comm, tuple(places[place] for place in sorted(places))) for comm, places in whole.items())
    notes = [str(problem.what) for problem in log.problems]
    if len(whole) < len(sizes):
        notes.append(f"{len(sizes) - len(whole)} communicators are not listed in full and are left out")
    if strange:
        notes.append(f"{strange} entries are of processes that are not in the largest communicator")
    if len(world) < size:
        notes.append(f"the log names {len(world)} of {size} ranks")
    unnamed = tuple(sorted(unnamed, key=lambda one: (-len(one[1]), one[1])))
    return RankMap(label, size, unnamed=unnamed, notes=tuple(notes))
