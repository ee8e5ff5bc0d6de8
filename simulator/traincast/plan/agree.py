"""Two rank maps compared: the first ranks that differ, and what would hang or be mispaired."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from traincast.errors import DataError
from traincast.plan.rankmaps import Group, RankMap, combinations_of

Kind = Literal["world", "membership", "order", "unknown"]
MESSAGES = ("pp",)
"""Families whose members pass messages to their neighbours."""


@dataclass(frozen=True)
class Difference:
    """How a family differs. `rank` is the first that does, with its group on both sides; `ranks` counts them all.

    `membership`: groups hold other ranks; `order`: the same ranks, but some in other places; `unknown`: a communicator
    of a log that no axes give; `world`: another number of ranks.
    """

    family: str
    kind: Kind
    rank: int
    ranks: int
    first: Group
    second: Group
    consequence: str


@dataclass(frozen=True)
class Agreement:
    """What two rank maps agree on, family by family, and where they differ; `unseen` could not be compared."""

    names: tuple[str, str]
    agreed: tuple[str, ...]
    differences: tuple[Difference, ...]
    unseen: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether nothing differs and something was compared."""
        return not self.differences and bool(self.agreed)

    def only(self, families: Sequence[str]) -> "Agreement":
        """The part about some families; all of it where none is named."""
        if not families:
            return self
        return replace(
            self,
            agreed=tuple(name for name in self.agreed if name.split(" ")[0] in families),
            differences=tuple(one for one in self.differences if one.family in families or one.kind == "world"),
        )

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON shows it."""
        return {
            "first": self.names[0],
            "second": self.names[1],
            "equal": self.equal,
            "agreed": list(self.agreed),
            "differences": [vars(one) for one in self.differences],
            "not_compared": list(self.unseen),
            "notes": list(self.notes),
        }


def compare(first: RankMap, second: RankMap) -> Agreement:
    """Compares the groups that both have, as ordered lists.

    Where one side is a log, its communicators are looked up among all groups of the other's axes. Raises DataError for
    two logs.
    """
    names, notes = (first.name, second.name), (*first.notes, *second.notes)
    found: list[Difference] = []
    if first.world != second.world:
        found.append(_worlds(first, second))
    agreed: list[str] = []
    if first.unnamed and second.unnamed:
        raise DataError("two logs cannot be compared: their groups have no names", fix="compare each with a mesh")
    if first.unnamed or second.unnamed:
        mesh, log = (second, first) if first.unnamed else (first, second)
        unseen = _against_log(mesh, log, agreed, found)
        return Agreement(names, tuple(agreed), tuple(found), unseen, notes)
    beyond = _beyond(first, second)
    if beyond:
        notes += (f"not compared, as one of the two lacks ranks of theirs: {', '.join(beyond)}",)
    for family in first.families:
        if family in second.families and family not in beyond:
            differences = _family(family, first, second)
            found += differences
            agreed += [] if differences else [family]
    unseen = tuple(name for name in (*first.families, *second.families) if not _both(name, first, second))
    return Agreement(names, tuple(agreed), tuple(found), unseen, notes)


def _beyond(first: RankMap, second: RankMap) -> tuple[str, ...]:
    """The families of both that hold ranks which only the larger of two worlds has."""
    least = min(first.world, second.world)
    return tuple(
        name
        for name in first.families
        if _both(name, first, second)
        and any(rank >= least for one in (first, second) for group in one.families[name] for rank in group)
    )


def _both(name: str, first: RankMap, second: RankMap) -> bool:
    return name in first.families and name in second.families


def _worlds(first: RankMap, second: RankMap) -> Difference:
    rank = min(first.world, second.world)
    counts = f"the worlds differ ({first.world} against {second.world} ranks)"
    what = f"hangs: {counts}; where rank {rank} is expected it never starts"
    return Difference("world", "world", rank, abs(first.world - second.world), (), (), what)


def _family(family: str, first: RankMap, second: RankMap) -> list[Difference]:
    """The first difference in membership and the first in order alone, of one family."""
    one, other = _by_rank(first.families[family]), _by_rank(second.families[family])
    moved = [rank for rank in sorted({*one, *other}) if set(one.get(rank, ())) != set(other.get(rank, ()))]
    kept = sorted({*one, *other} - set(moved))
    turned = [rank for rank in kept if one[rank] != other[rank] and one[rank].index(rank) != other[rank].index(rank)]
    found = []
    if moved:
        rank = moved[0]
        mine, theirs = one.get(rank, ()), other.get(rank, ())
        found.append(Difference(family, "membership", rank, len(moved), mine, theirs, _hangs(rank, mine, theirs)))
    if turned:
        mine, theirs = one[turned[0]], other[turned[0]]
        what = _mispairs(family, turned[0], mine, theirs)
        found.append(Difference(family, "order", turned[0], len(turned), mine, theirs, what))
    return found


def _by_rank(groups: Sequence[Group]) -> dict[int, Group]:
    return {rank: group for group in groups for rank in group}


def _hangs(rank: int, mine: Group, theirs: Group) -> str:
    """What becomes of a rank whose group has other members on the two sides."""
    lost = [other for other in mine if other not in theirs and other != rank]
    if lost and theirs:
        others = _some([other for other in theirs if other != rank])
        return f"hangs: rank {rank} waits for {_some(lost)}, which the other side does not put with it (but {others})"
    if lost:
        return f"hangs: rank {rank} waits for {_some(lost)}, but has no group on the other side"
    gained = [other for other in theirs if other not in mine and other != rank]
    if not gained:
        return f"rank {rank} is alone in a group that the other side lacks"
    verb, whom = ("wait", "them") if len(gained) > 1 else ("waits", "it")
    return f"hangs: {_some(gained)} {verb} for rank {rank}, which does not know {whom}"


def _mispairs(family: str, rank: int, mine: Group, theirs: Group) -> str:
    """What becomes of equal members in another order: places, neighbours in the ring, neighbouring stages."""
    place, other = mine.index(rank), theirs.index(rank)
    before, after = _neighbours(mine, place, family in MESSAGES), _neighbours(theirs, other, family in MESSAGES)
    moved = f"rank {rank} is number {place} of its group on one side and {other} on the other"
    if family in MESSAGES:
        return f"mispairs: {moved}: it passes messages to {before}, there to {after}"
    same = set(before.split(" and ")) == set(after.split(" and "))
    ring = "its ring neighbours stay" if same else f"its ring neighbours are {before}, there {after}"
    return f"mispairs: {moved}; shards of all-gather and reduce-scatter go to the wrong ranks, and {ring}"


def _neighbours(group: Group, place: int, chain: bool) -> str:
    around = [group[at % len(group)] for at in (place - 1, place + 1) if not chain or 0 <= at < len(group)]
    return " and ".join(map(str, around)) or "nobody"


def _some(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}" if ranks else "nobody"


def _against_log(mesh: RankMap, log: RankMap, agreed: list[str], found: list[Difference]) -> tuple[str, ...]:
    """Looks up each communicator of a log; returns the families of the mesh that the log does not show."""
    known = combinations_of(mesh)
    ordered = _lookup(known, ordered=True)
    as_sets = _lookup(known, ordered=False)
    everyone = tuple(range(log.world))
    seen: dict[str, int] = {}
    strange: list[tuple[str, Group]] = []
    turned: dict[str, list[tuple[Group, Group]]] = {}
    for name, ranks in log.unnamed:
        if len(ranks) == 1 or ranks == everyone:
            continue
        if ranks in ordered:
            for family in ordered[ranks]:
                seen[family] = seen.get(family, 0) + 1
        elif tuple(sorted(ranks)) in as_sets:
            family = as_sets[tuple(sorted(ranks))][0]
            mine = next(group for group in known[family] if sorted(group) == sorted(ranks))
            turned.setdefault(family, []).append((mine, ranks))
        else:
            strange.append((name, ranks))
    for family, pairs in turned.items():
        mine, theirs = pairs[0]
        rank = next(one for one, other in zip(mine, theirs, strict=True) if one != other)
        what = _mispairs(family, rank, mine, theirs)
        found.append(Difference(family, "order", rank, sum(len(pair[0]) for pair in pairs), mine, theirs, what))
    found += [_strange(name, ranks, mesh) for name, ranks in strange]
    agreed += [f"{family} ({count} of {len(known[family])} groups)" for family, count in seen.items()]
    sized = [family for family, groups in mesh.families.items() if groups and len(groups[0]) > 1]
    return tuple(family for family in sized if family not in seen and family not in turned)


def _lookup(known: Mapping[str, Sequence[Group]], ordered: bool) -> dict[Group, list[str]]:
    """Group -> the families that have it; groups of one rank are left out."""
    found: dict[Group, list[str]] = {}
    for family, groups in known.items():
        for group in groups:
            if len(group) > 1:
                found.setdefault(group if ordered else tuple(sorted(group)), []).append(family)
    return found


def _strange(name: str, ranks: Group, mesh: RankMap) -> Difference:
    """A communicator that no axes give, beside the group of the mesh that is most like it."""
    members = set(ranks)
    best, family, mine = -1.0, "", tuple[int, ...]()
    for candidate, groups in mesh.families.items():
        for group in groups:
            alike = len(members & set(group)) / len(members | set(group))
            if alike > best and len(group) > 1:
                best, family, mine = alike, candidate, group
    rank = next((one for one in sorted(members) if one not in mine), min(members))
    what = f"hangs: communicator {name} holds {_some(ranks)}, no group of the mesh; most like it is {family}'s"
    return Difference(family or "none", "unknown", rank, len(ranks), mine, ranks, what)
