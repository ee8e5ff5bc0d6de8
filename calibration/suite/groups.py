"""Groups of a mesh: which ranks talk to each other along which axes.

A rank is the linearised coordinate over ordered axes, the leftmost with stride 1. The dense mesh lays tp, cp, dp and
pp over the world; the expert mesh lays etp, ep, edp and pp over the same ranks in the same order (etp in the place of
tp, edp in that of dp, no cp). The same rules as `traincast.mesh`, which a test holds this to; restated here because a
compute node may have nothing but PyTorch.
"""

from dataclasses import dataclass
from math import prod

AXES = ("tp", "cp", "ep", "dp", "pp")
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
FAMILIES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "dp": ("dp",),
    "dp-cp": ("dp", "cp"),
    "tp-pp": ("tp", "pp"),
    "embedding": ("pp",),
    "etp": ("etp",),
    "ep": ("ep",),
    "edp": ("edp",),
    "tp-ep": ("etp", "ep"),
}
_EXPERT = ("etp", "ep", "edp", "tp-ep")
_EXPERT_NAME = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}

Groups = tuple[tuple[int, ...], ...]


class ShapeError(ValueError):
    """Sizes or an order that cannot be; the text names both numbers and a fix."""


@dataclass(frozen=True)
class Shape:
    """Ranks along each axis, and the order of the axes, fastest first."""

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    order: str = DEFAULT_ORDER

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Expert-data-parallel size: what etp, ep and pp leave of the world."""
        return self.world // (self.etp * self.ep * self.pp)

    def text(self) -> str:
        """Sizes and order on one line."""
        sizes = " ".join(f"{axis}{getattr(self, axis)}" for axis in (*AXES, "etp"))
        return f"{sizes} order {self.order}"


def shape_of(world: int, sizes: dict[str, int | None], order: str) -> Shape:
    """The shape of a world; an axis that is None takes what the others leave (only dp may).

    Raises ShapeError where the sizes do not divide the world, or the order is no permutation of the axes.
    """
    names = order.split("-")
    if len(set(names)) < len(names) or not set(names) <= set(AXES):
        raise ShapeError(f"order {order!r} is no permutation of {'-'.join(AXES)}; name each axis once")
    known = {axis: 1 if size is None else size for axis, size in sizes.items() if axis != "dp"}
    dp = sizes.get("dp")
    if min(*known.values(), 1 if dp is None else dp) < 1:
        raise ShapeError("a size below 1; give whole numbers from 1")
    rest = known.get("tp", 1) * known.get("cp", 1) * known.get("pp", 1)
    if dp is None:
        if world % rest:
            raise ShapeError(f"{world} ranks are no multiple of tp*cp*pp = {rest}; change an axis or the ranks")
        dp = world // rest
    shape = Shape(**known, dp=dp, order="-".join((*names, *(axis for axis in AXES if axis not in names))))
    if shape.world != world:
        raise ShapeError(f"tp*cp*pp*dp = {shape.world}, but {world} ranks run; change an axis or the ranks")
    experts = shape.ep * shape.etp * shape.pp
    if world % experts:
        raise ShapeError(f"{world} ranks are no multiple of ep*etp*pp = {experts}; change ep or etp")
    if experts > shape.pp and _stride(shape, "pp", expert=True) != _stride(shape, "pp") and shape.pp > 1:
        raise ShapeError(f"order {order} gives the expert mesh other stages than the dense one; put pp last")
    return shape


def default_sizes(world: int, per_node: int) -> dict[str, int | None]:
    """Sizes for a run that names none: tensor parallelism in the node, data parallelism over the rest."""
    widest = per_node if world > per_node else max(1, per_node // 2)
    tp = max(size for size in range(1, min(widest, 8) + 1) if world % size == 0)
    return {"tp": tp, "cp": 1, "pp": 1, "dp": None, "ep": 1, "etp": 1}


def family_groups(shape: Shape, family: str) -> Groups:
    """All groups of a family: ranks ascend within a group, groups follow their first rank."""
    axes = FAMILIES[family]
    names, sizes = _grid(shape, family in _EXPERT)
    groups = _offsets_sum(names, sizes, axes)
    if family == "embedding" and shape.pp > 1:
        return tuple((group[0], group[-1]) for group in groups)
    return groups


def measured_families(shape: Shape) -> dict[str, Groups]:
    """Families to measure collectives over: more than one rank a group, and no two with the same groups.

    The whole world is the first, under the name `world`.
    """
    found: dict[str, Groups] = {"world": (tuple(range(shape.world)),)}
    for family, groups in created_families(shape).items():
        if len(groups[0]) > 1 and groups not in found.values():
            found[family] = groups
    return found


def families_text(shape: Shape) -> str:
    """Families and whose groups they share: ``world, tp, dp, ep = tp``; those of one rank are left out."""
    measured = measured_families(shape)
    words = list(measured)
    for family, groups in created_families(shape).items():
        if family not in measured and len(groups[0]) > 1:
            words.append(f"{family} = {next(name for name, other in measured.items() if other == groups)}")
    return ", ".join(words)


def created_families(shape: Shape) -> dict[str, Groups]:
    """Families whose communicators a training job makes; those of the expert mesh only where there is one."""
    experts = shape.ep > 1 or shape.etp > 1
    return {name: family_groups(shape, name) for name in FAMILIES if experts or name not in _EXPERT}


def group_of(groups: Groups, rank: int) -> int | None:
    """Number of the group that holds a rank, or None."""
    return next((number for number, group in enumerate(groups) if rank in group), None)


def pair_rounds(world: int) -> tuple[Groups, ...]:
    """Neighbouring ranks in pairs, twice: (0,1),(2,3)... and (1,2),(3,4)..., so that each rank has two partners."""
    even = tuple((rank, rank + 1) for rank in range(0, world - 1, 2))
    odd = tuple((rank, (rank + 1) % world) for rank in range(1, world - (0 if world % 2 == 0 else 1), 2))
    return (even, odd) if world > 2 else (even,)


def _grid(shape: Shape, expert: bool) -> tuple[tuple[str, ...], tuple[int, ...]]:
    order = shape.order.split("-")
    if expert:
        names = tuple(_EXPERT_NAME[name] for name in order if name != "cp")
    else:
        names = tuple(name for name in order if name != "ep")
    return names, tuple(int(getattr(shape, name)) for name in names)


def _stride(shape: Shape, axis: str, expert: bool = False) -> int:
    names, sizes = _grid(shape, expert)
    return prod(sizes[: names.index(axis)])


def _offsets_sum(names: tuple[str, ...], sizes: tuple[int, ...], axes: tuple[str, ...]) -> Groups:
    inside = _offsets(names, sizes, axes)
    outside = _offsets(names, sizes, tuple(name for name in names if name not in axes))
    return tuple(tuple(base + offset for offset in inside) for base in outside)


def _offsets(names: tuple[str, ...], sizes: tuple[int, ...], axes: tuple[str, ...]) -> list[int]:
    """Ranks that differ from rank 0 along `axes` only, ascending."""
    ranks = [0]
    for place in reversed(range(len(names))):
        if names[place] in axes:
            stride = prod(sizes[:place])
            ranks = [rank + step * stride for rank in ranks for step in range(sizes[place])]
    return ranks
