"""The families of groups that training makes, and how many communicators they cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from traincast.errors import ShapeError
from traincast.mesh.grid import Ints
from traincast.mesh.mesh import Mesh

Kind = Literal["dense", "expert", "embedding"]


@dataclass(frozen=True)
class Family:
    """A kind of group. `twin`: each group gets a second communicator on Gloo for what runs on the host."""

    name: str
    axes: tuple[str, ...]
    purpose: str
    kind: Kind = "dense"
    twin: bool = False
    ring: bool = True
    """Neighbours form a ring; otherwise a chain, whose ends do not talk."""


_ALL = (
    Family("tp", ("tp",), "activations of split layers"),
    Family("cp", ("cp",), "keys and values of split sequences"),
    Family("pp", ("pp",), "activations between stages", ring=False),
    Family("dp", ("dp",), "gradients", twin=True),
    Family("dp-cp", ("dp", "cp"), "weight gradients", twin=True),
    Family("tp-pp", ("tp", "pp"), "one model: gradient norm, overflow check"),
    Family("embedding", ("pp",), "tied embeddings, first with last stage", "embedding"),
    Family("etp", ("etp",), "activations of split experts", "expert"),
    Family("ep", ("ep",), "tokens to experts", "expert"),
    Family("edp", ("edp",), "expert gradients", "expert", twin=True),
    Family("tp-ep", ("etp", "ep"), "token exchange", "expert"),
)
FAMILIES = {family.name: family for family in _ALL}
FOUR_FAMILIES = ("dp", "tp", "pp", "cp")


def families_of(mesh: Mesh) -> tuple[Family, ...]:
    """The families of a mesh; those of the expert mesh only where one was asked for."""
    return tuple(family for family in _ALL if family.kind != "expert" or mesh.has_expert_mesh)


def family_groups(mesh: Mesh, name: str, instead: Mapping[str, Ints] | None = None) -> Ints:
    """All groups of one family, shape (count, size): those in `instead` where it has the family, else the mesh's own.

    Raises ShapeError for a name that is no family.
    """
    if name not in FAMILIES:
        raise ShapeError(f"no family of groups is called {name!r}", fix=f"one of {', '.join(FAMILIES)}")
    if instead and name in instead:
        return instead[name]
    family = FAMILIES[name]
    if family.kind == "embedding":
        return mesh.embedding_groups()
    return mesh.expert_groups(*family.axes) if family.kind == "expert" else mesh.groups(*family.axes)


@dataclass(frozen=True)
class FamilyCount:
    """Communicators of one family."""

    family: str
    groups: int
    size: int
    twins: int
    same_as: str | None = None
    """Another family with the very same rank sets: its communicator would do."""

    @property
    def singletons(self) -> int:
        """Groups of one rank, which have nothing to say: waste."""
        return self.groups if self.size == 1 else 0


@dataclass(frozen=True)
class CommunicatorCount:
    """Communicators of several families. One that is made on all ranks counts once."""

    scope: str
    families: tuple[FamilyCount, ...]

    @property
    def groups(self) -> int:
        """Groups, without Gloo twins."""
        return sum(count.groups for count in self.families)

    @property
    def twins(self) -> int:
        """Gloo twins of the data-parallel groups."""
        return sum(count.twins for count in self.families)

    @property
    def creations(self) -> int:
        """Groups and twins."""
        return self.groups + self.twins

    @property
    def waste(self) -> int:
        """Singletons of axes of size 1."""
        return sum(count.singletons for count in self.families)


def count_communicators(
    mesh: Mesh, instead: Mapping[str, Ints] | None = None
) -> tuple[CommunicatorCount, CommunicatorCount]:
    """Two scopes: the four axes (dp, tp, pp, cp), and the full count.

    The full one adds DP-CP, model-parallel and embedding groups, and the expert mesh's where one was asked
    for. Counting needs no groups: each family has world / size of them (embedding: one a pipeline). Families in
    `instead` have the groups that stand there.
    """
    own = instead or {}
    counts = {
        family.name: _counted(mesh, family, own[family.name]) if family.name in own else _count(mesh, family)
        for family in families_of(mesh)
    }
    four = tuple(counts[name] for name in FOUR_FAMILIES)
    rest = tuple(count for name, count in counts.items() if name not in FOUR_FAMILIES)
    return CommunicatorCount("four families", four), CommunicatorCount("full", (*four, *rest))


def _count(mesh: Mesh, family: Family) -> FamilyCount:
    size = prod(mesh.size(axis) for axis in family.axes)
    groups = mesh.world // size
    size = min(size, 2) if family.kind == "embedding" else size
    return FamilyCount(family.name, groups, size, groups if family.twin else 0, _same_as(mesh, family, size))


def _counted(mesh: Mesh, family: Family, groups: Ints) -> FamilyCount:
    """The count of groups that a schedule makes otherwise than the mesh."""
    count, size = groups.shape
    same_as = "dp" if family.name == "dp-cp" and mesh.cp == 1 and size > 1 else None
    return FamilyCount(family.name, count, size, count if family.twin else 0, same_as)


def _same_as(mesh: Mesh, family: Family, size: int) -> str | None:
    """The single axis whose groups are those of a joint family, because its other axes have size 1."""
    if size == 1:
        return None
    if family.kind == "embedding":
        return "pp" if mesh.pp == 2 else None
    wide = [axis for axis in family.axes if mesh.size(axis) > 1]
    return wide[0] if len(wide) == 1 and len(family.axes) > 1 else None
