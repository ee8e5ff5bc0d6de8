"""The tables of `traincast mesh`. What is cut short says how much it leaves out."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from traincast.mesh import (
    Family,
    Mesh,
    SubMesh,
    count_communicators,
    families_of,
    family_groups,
    spreads,
    stage_hops,
    stage_ranges,
)
from traincast.mesh.describe import Views, axes_of, group_numbers, rank_columns
from traincast.mesh.grid import Ints
from traincast.mesh.holdings import end_stages, holdings, weight_shares
from traincast.report.tables import Table

_RANKS_A_GROUP = 16
_RANKS_A_FAMILY = 32
_ROWS = 16
_SHORT_TABLE = 32


def mesh_tables(mesh: Mesh, views: Views, everything: bool) -> tuple[Table, ...]:
    """All tables; `everything` cuts nothing short."""
    nodes = views.nodes_of(mesh)
    tables = [
        axes_table(mesh),
        groups_table(mesh, views, everything),
        nodes_table(nodes, views.gpus_per_node, everything),
        tiers_table(mesh, nodes, views),
    ]
    if mesh.pp > 1:
        tables.append(hops_table(mesh, nodes, views.interleaved, everything))
    tables.append(communicators_table(mesh, views))
    if views.sharding is not None:
        usual = "HSDP" if len(views.sharding.dims) == 2 else "FSDP"
        tables.append(submesh_table(views.sharded_as or usual, views.sharding, everything))
    if views.context is not None:
        tables.append(submesh_table("Heads and blocks", views.context, everything))
    if views.model.split is not None:
        tables.append(stages_table(mesh, views.model.split, views.model.parts))
    tables += [weights_table(mesh, views), ranks_table(mesh, views, None if everything else _ROWS)]
    return tuple(tables)


def axes_table(mesh: Mesh) -> Table:
    """Axes, sizes and strides, fastest first; the signature stands in the title."""
    title = f"Mesh {mesh.signature()}: {mesh.world} ranks, order {'-'.join(mesh.axes)}"
    return Table(title, ("mesh", "axis", "size", "stride"), axes_of(mesh))


def groups_table(mesh: Mesh, views: Views, everything: bool) -> Table:
    """The groups of every family."""
    rows = [_groups_row(mesh, family, views, everything) for family in families_of(mesh)]
    return Table("Groups", ("family", "for", "size", "groups", "ranks", "groups left out"), tuple(rows))


def _groups_row(mesh: Mesh, family: Family, views: Views, everything: bool) -> tuple[object, ...]:
    groups = family_groups(mesh, family.name, views.groups)
    text, left_out = groups_text(groups, everything)
    return (family.name, family.purpose, groups.shape[1], len(groups), text, left_out)


def groups_text(groups: Ints, everything: bool) -> tuple[str, int]:
    """Groups as text, and how many of them the text leaves out."""
    count, size = groups.shape
    most = count if everything else max(2, _RANKS_A_FAMILY // min(size, _RANKS_A_GROUP))
    shown = groups[:most].tolist()
    return " ".join(group_text(group, everything) for group in shown), count - len(shown)


def group_text(ranks: Sequence[int], everything: bool = False) -> str:
    """ "[0,4,8,12]"; of a long group the first three, how many more, and the last."""
    if everything or len(ranks) <= _RANKS_A_GROUP:
        return f"[{','.join(map(str, ranks))}]"
    return f"[{','.join(map(str, ranks[:3]))}, {len(ranks) - 4} more, {ranks[-1]}]"


def nodes_table(nodes: Ints, gpus_per_node: int, everything: bool) -> Table:
    """Which ranks sit on which node."""
    ranks_of: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes.tolist()):
        ranks_of.setdefault(node, []).append(rank)
    rows = [(node, len(ranks), ranges_text(ranks)) for node, ranks in sorted(ranks_of.items())]
    title = f"Placement on nodes of {gpus_per_node} GPU{'s' if gpus_per_node != 1 else ''}"
    return _cut(title, ("node", "ranks", "which"), rows, everything)


def ranges_text(numbers: Iterable[int]) -> str:
    """ "0-7, 16-23": ascending numbers with runs drawn together."""
    runs = [list(run) for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    ends = [(run[0][1], run[-1][1]) for run in runs]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def tiers_table(mesh: Mesh, nodes: Ints, views: Views) -> Table:
    """How far the groups of each family reach."""
    columns = (
        "family",
        "tier",
        "groups in a node",
        "groups across nodes",
        "most nodes of a group",
        "most ranks on a node",
        "neighbour hops in a node",
        "hops across nodes",
    )
    rows = [
        (
            one.family,
            one.tier,
            one.groups_in_node,
            one.groups_across,
            one.most_nodes,
            one.most_ranks_on_a_node,
            one.hops_in_node,
            one.hops_across,
        )
        for one in spreads(mesh, nodes, views.groups)
    ]
    return Table("Tiers that each family crosses", columns, tuple(rows))


def hops_table(mesh: Mesh, nodes: Ints, interleaved: bool, everything: bool) -> Table:
    """The hops between neighbouring stages."""
    rows = [
        (
            f"{hop.stage} -> {(hop.stage + 1) % mesh.pp}",
            f"{hop.from_rank} -> {hop.to_rank}",
            hop.tier,
            hop.in_node,
            hop.across,
        )
        for hop in stage_hops(mesh, nodes, interleaved)
    ]
    columns = (
        "stages",
        "ranks of the first pipeline",
        "tier",
        "pipelines in a node",
        "pipelines across nodes",
    )
    return _cut("Hops of the pp groups", columns, rows, everything)


def communicators_table(mesh: Mesh, views: Views) -> Table:
    """Communicators in both scopes; the full one goes on where the four families end."""
    four, full = count_communicators(mesh, views.groups)
    rows: list[tuple[object, ...]] = [
        (one.family, one.groups, one.size, one.singletons, one.twins, one.groups + one.twins, one.same_as)
        for one in full.families
    ]
    cut = len(four.families)
    totals = [
        (f"= {count.scope}", count.groups, None, count.waste, count.twins, count.creations, None)
        for count in (four, full)
    ]
    rows = [*rows[:cut], totals[0], *rows[cut:], totals[1]]
    columns = ("family", "groups", "size", "singletons (waste)", "Gloo twins", "creations", "same ranks as")
    return Table("Communicators", columns, tuple(rows))


def submesh_table(name: str, sharding: SubMesh, everything: bool) -> Table:
    """The groups along each dimension of a sub-mesh."""
    rows = []
    for dim in sharding.dims:
        groups = sharding.groups(dim)
        text, left_out = groups_text(groups, everything)
        rows.append((dim, groups.shape[1], len(groups), text, left_out))
    title = f"{name} over {' and '.join(sharding.axes)}"
    return Table(title, ("dimension", "size", "groups", "ranks", "groups left out"), tuple(rows))


def stages_table(mesh: Mesh, split: Sequence[int], parts: Sequence[Sequence[int]] | None = None) -> Table:
    """Layers of each stage."""
    rows = [
        (stage, sum(end - first for first, end in chunks), layers_text(chunks))
        for stage, chunks in enumerate(stage_ranges(split, mesh.pp, parts))
    ]
    return Table("Layers of each stage", ("stage", "layers", "which, by chunk"), tuple(rows))


def layers_text(chunks: Sequence[tuple[int, int]]) -> str:
    """ "0-5, 24-29": the layers of each chunk; a chunk may be empty."""
    return ", ".join(ranges_text(range(first, end)) or "none" for first, end in chunks)


def weights_table(mesh: Mesh, views: Views) -> Table:
    """The share of each weight that a rank holds."""
    ends = end_stages(mesh, views.model.parts)
    rows = [
        (
            weight.name,
            "every stage" if weight.stages == "every" else _stages_text(ends[weight.stages], mesh.pp),
            weight.share,
            weight.split,
            weight.axis or None,
            _shape_text(weight.local),
        )
        for weight in weight_shares(mesh, views.model)
    ]
    columns = ("weight", "held on", "share of a rank", "cut by", "along", "local shape")
    return Table("What a rank holds", columns, tuple(rows))


def _stages_text(stages: Sequence[int], pp: int) -> str:
    """ "first stage", "last stage", or both where two copies of the model run in opposite directions."""
    names = {0: "first", pp - 1: "last"} if pp > 1 else {0: "only"}
    text = " and ".join(names.get(stage, str(stage)) for stage in stages)
    return f"{text} stage{'s' if len(stages) > 1 else ''}"


def _shape_text(shape: tuple[int, ...] | None) -> str | None:
    return None if shape is None else " x ".join(map(str, shape))


def ranks_table(mesh: Mesh, views: Views, most: int | None = None) -> Table:
    """A row a rank: where it is, its coordinates, the number of its group in each family, its layers."""
    columns = rank_columns(mesh, views.nodes_of(mesh))
    cells: list[Sequence[object]] = list(columns.values())
    names = list(columns)
    for family in families_of(mesh):
        names.append(f"{family.name} group")
        cells.append(group_numbers(mesh, family.name, views.groups))
    if views.model.split is not None:
        names.append("layers")
        cells.append([layers_text(held.chunks or ()) for held in holdings(mesh, views.model)])
    rows = list(zip(*cells, strict=True))
    return _cut("Ranks", tuple(names), rows, most is None)


def _cut(title: str, columns: tuple[str, ...], rows: Sequence[tuple[object, ...]], everything: bool) -> Table:
    """The table, or its first rows with the number of those left out in the title."""
    if everything or len(rows) <= _SHORT_TABLE:
        return Table(title, columns, tuple(rows))
    left_out = len(rows) - _ROWS
    return Table(f"{title} (first {_ROWS}; {left_out} left out, --all shows them)", columns, tuple(rows[:_ROWS]))
