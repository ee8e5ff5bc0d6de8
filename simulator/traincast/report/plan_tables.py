"""Reach, link loads, plans, suggestions and comparisons of rank maps as tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traincast.report.tables import Cell, Table
from traincast.units import format_bandwidth, format_size, format_time

if TYPE_CHECKING:
    from traincast.plan import KindLoad, LinkGroup, Plan, Reach
    from traincast.plan.agree import Agreement, Difference
    from traincast.plan.suggest import Suggestion
    from traincast.plan.tiers import ClusterTier

_RANKS = 12


def reach_table(reaches: "Sequence[Reach]", cluster: str) -> Table:
    """How many groups of each family cross what; the columns are those that any group reaches."""
    from traincast.plan.reach import REACHES

    shown = [name for name in REACHES if any(one.groups.get(name) for one in reaches)]
    heads = {"alone": "one rank", "node": "in a node", "NVLink domain": "in an NVLink domain"}
    columns = (
        *("family", "size", "groups"),
        *(heads.get(name, f"across {name}") for name in shown),
        *("worst bandwidth", "worst latency", "groups on its most shared link"),
    )
    rows = tuple(
        (
            one.family,
            one.size,
            one.count,
            *(one.groups.get(name, 0) for name in shown),
            *((None, None, None) if one.size == 1 else _wires(one)),
        )
        for one in reaches
    )
    return Table(f"Where the groups of each family go on {cluster}", columns, rows)


def _wires(one: "Reach") -> tuple[Cell, Cell, float]:
    rate = Cell(one.bytes_per_s, format_bandwidth(one.bytes_per_s))
    return rate, Cell(one.latency_s, format_time(one.latency_s)), one.sharing


def kinds_table(kinds: "Sequence[KindLoad]") -> Table:
    """Bytes of a step on each kind of link, by family."""
    families = list(dict.fromkeys(name for one in kinds for name in one.by_family))
    columns = ("links", "in use", "bytes a step", *(f"of {name}" for name in families), "busiest, least time")
    rows = tuple(
        (
            one.kind,
            one.links,
            _size(one.bytes),
            *(_size(one.by_family.get(name, 0.0)) for name in families),
            Cell(one.seconds, format_time(one.seconds)),
        )
        for one in kinds
    )
    return Table("Bytes of one step by kind of link, one direction each", columns, rows)


def links_table(links: "Sequence[LinkGroup]") -> Table:
    """The busiest links, alike ones together, and the families that load them."""
    columns = ("link", "alike", "kind", "bandwidth", "bytes a step", "least time", "loaded by")
    rows = tuple(
        (
            one.name,
            one.links,
            one.kind,
            Cell(one.bytes_per_s, format_bandwidth(one.bytes_per_s)),
            _size(one.bytes),
            Cell(one.seconds, format_time(one.seconds)),
            _shares(one),
        )
        for one in links
    )
    return Table("The busiest links (bytes over raw bandwidth)", columns, rows)


def _shares(one: "LinkGroup") -> str:
    found = sorted(one.by_family.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {100 * load / one.bytes:.3g} %" for name, load in found)


def _size(size: float) -> Cell | None:
    return Cell(size, format_size(size)) if size else None


def plan_table(plan: "Plan", top: int | None = None) -> Table:
    """The fastest candidates; the scenario's own is always among them, with a mark."""
    columns = ("rank", "order", "placement", "split", "step_time_s", "vs present", "memory", "limited by", "present")
    present_s = plan.present.step_time_s
    rows = tuple(
        (
            *(rank, row.order, row.placement, row.split, row.step_time_s),
            Cell(row.step_time_s / present_s - 1.0, f"{100 * (row.step_time_s / present_s - 1.0):+.2f} %"),
            *(row.verdict, str(row.limit), "<- present" if row.present else ""),
        )
        for rank, row in enumerate(plan.rows, start=1)
        if top is None or rank <= top or row.present
    )
    shown = "all" if len(rows) == len(plan.rows) else f"{len(rows)} of {len(plan.rows)}"
    title = f"Plans of {plan.scenario} on {plan.world} GPUs: {shown} candidates, fastest first"
    return Table(title, columns, rows)


def tiers_table(tiers: "Sequence[ClusterTier]", cluster: str) -> Table:
    """The tiers that parallelism sees."""
    rows = tuple((one.name, one.groups, one.gpus, format_bandwidth(one.bytes_per_s)) for one in tiers)
    columns = ("tier", "groups", "GPUs of a group", "bandwidth of a GPU in it, all at once")
    return Table(f"Tiers of {cluster}", columns, rows)


def suggestion_tables(found: "Suggestion", cluster: str) -> list[Table]:
    """The proposal with its reasons, and the tiers that it comes from."""
    mesh = found.mesh
    sizes = ", ".join(f"{axis} {mesh.size(axis)}" for axis in mesh.axes if mesh.size(axis) > 1) or "one rank"
    title = f"Suggested for {mesh.world} GPUs of {cluster}: {sizes}, order {mesh.order}"
    tables = [Table(title, ("choice", "reason"), found.reasons), tiers_table(found.tiers, cluster)]
    if found.step_time_s is not None:
        times = [("suggested", found.step_time_s), ("scenario's own", found.present_step_time_s)]
        tables.append(Table("Forecast of a step", ("mesh", "step_time_s"), tuple(row for row in times if row[1])))
    return tables


def suggestion_payload(found: "Suggestion", cluster: str) -> dict[str, Any]:
    """The proposal as JSON shows it."""
    mesh = found.mesh
    return {
        "cluster": cluster,
        "world": mesh.world,
        "sizes": {axis: getattr(mesh, axis) for axis in ("tp", "cp", "ep", "etp", "dp", "pp")},
        "order": mesh.order,
        "reasons": dict(found.reasons),
        "tiers": [vars(tier) for tier in found.tiers],
        "step_time_s": found.step_time_s,
        "present_step_time_s": found.present_step_time_s,
    }


def agreement_tables(found: "Agreement") -> list[Table]:
    """What agrees and what differs, with the first ranks that do."""
    first, second = found.names
    columns = ("family", "differs in", "first rank", "ranks", f"in {first}", f"in {second}", "consequence")
    rows = tuple(
        (one.family, one.kind, one.rank, one.ranks, _group(one, one.first), _group(one, one.second), one.consequence)
        for one in found.differences
    )
    verdict = "equal" if found.equal else "different"
    tables = [Table(f"{first} and {second} are {verdict}", columns, rows)]
    tables.append(Table("Equal in both", ("family",), tuple((name,) for name in found.agreed)))
    if found.unseen:
        tables.append(Table("In one of them only", ("family",), tuple((name,) for name in found.unseen)))
    if found.notes:
        tables.append(Table("Notes", ("note",), tuple((note,) for note in found.notes)))
    return tables


def _group(one: "Difference", ranks: Sequence[int]) -> str:
    """A group around the rank in question, cut short where it is long."""
    if len(ranks) <= _RANKS:
        return f"[{','.join(map(str, ranks))}]"
    place = ranks.index(one.rank) if one.rank in ranks else 0
    begin = max(0, min(place - _RANKS // 2, len(ranks) - _RANKS))
    inner = ",".join(map(str, ranks[begin : begin + _RANKS]))
    left_out = len(ranks) - _RANKS
    return f"[{'...,' if begin else ''}{inner}{',...' if begin < left_out else ''} ({left_out} left out)]"
