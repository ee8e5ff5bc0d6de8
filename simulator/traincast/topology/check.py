"""What is wrong with a cluster's wiring, found by comparing each part with its like.

No list of what ought to be is needed: a NIC is compared with the NICs of nodes of the same design, a leaf with the
leaves of its block, a bundle with the bundles beside it. What most of them have is taken as meant. Every finding says
what is lost. Switches that a file shows only as the far ends of others' cables are no measure for the rest, nor the
rest for them.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from traincast.topology.cluster import Cluster
from traincast.topology.flat import GraphView, view_of
from traincast.units import format_bandwidth

Severity = Literal["error", "warning", "note"]
_ORDER: Final[Mapping[str, int]] = {"error": 0, "warning": 1, "note": 2}
_MOST: Final = 0.75
"""Share of its like that must agree before the rest counts as wrong."""
_CLOSE: Final = 0.999
_FEW: Final = 4
"""NICs on a leaf from which on its rail shows in their names."""
_CUT_OFF: Final = "nobody outside reaches its nodes"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `what` is a short name of the kind of finding, `part` the part's key in the graph.

    `error`: something is not wired as its like are. `warning`: it works, but slower or less evenly. `note`: what the
    file does not show and so nobody can judge.
    """

    severity: Severity
    what: str
    part: str
    message: str
    loss: str


def check_cluster(cluster: Cluster) -> tuple[Finding, ...]:
    """All findings, errors first and notes last, in the order of the parts."""
    view = view_of(cluster.graph)
    found = [
        *_nics(view),
        *_gpus(cluster, view),
        *_uplinks(view, "leaf", "spine"),
        *_uplinks(view, "spine", "core"),
        *_empty_leaves(view),
        *_leaves_apart(view),
        *_slow_links(view),
        *_parts(view),
    ]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def _design_of(view: GraphView) -> dict[int, str]:
    """The design of each node, by its first GPU."""
    found: dict[int, str] = {}
    for gpu in view.by_kind.get("gpu", []):
        found.setdefault(view.data[gpu]["node"], str(view.data[gpu].get("design", "")))
    return found


def _nics(view: GraphView) -> Iterator[Finding]:
    """NICs without a cable, on the leaf of another rail, or in another scalable unit than the rest of their node."""
    leaf_of = {nic: view.near(nic, "leaf") for nic in view.by_kind.get("nic", [])}
    of_node: dict[int, list[str]] = {}
    for nic in leaf_of:
        of_node.setdefault(view.data[nic]["node"], []).append(nic)
    design = _design_of(view)
    cabled = Counter(
        (design.get(view.data[n]["node"]), view.data[n]["rail"]) for n, leaves in leaf_of.items() if leaves
    )
    every = Counter((design.get(view.data[n]["node"]), view.data[n]["rail"]) for n in leaf_of)
    on: dict[str, list[str]] = {}
    for nic, leaves in leaf_of.items():
        for leaf in leaves:
            on.setdefault(leaf, []).append(nic)
    alone = {leaf: _rail_alone(view, leaf, near) for leaf, near in on.items()}
    for node, nics in of_node.items():
        units = Counter(view.data[leaf]["unit"] for nic in nics for leaf in leaf_of[nic])
        unit, count = units.most_common(1)[0] if units else (None, 0)
        home = unit if count >= _MOST * units.total() and units.total() > 1 else None
        with_cable = [nic for nic in nics if leaf_of[nic]]
        for nic in nics:
            rail = view.data[nic]["rail"]
            kind = design.get(node), rail
            if not leaf_of[nic] and 2 * cabled[kind] > every[kind]:
                share = _change(len(with_cable), len(nics))
                loss = f"node {node} sends by {len(with_cable)} of {len(nics)} NICs ({share})"
                yield Finding("error", "missing cable", nic, f"{nic} has no cable to a leaf", loss)
            for leaf in leaf_of[nic]:
                carried, beside = alone[leaf]
                yield from _on_leaf(view, nic, leaf, home, -1 if node in beside else carried)


def _rail_alone(view: GraphView, leaf: str, nics: Sequence[str]) -> tuple[int, frozenset[int]]:
    """The rail of nearly all NICs of a leaf that is alone in its unit (-1: none), and the nodes with a NIC of it there.

    A node that has such a NIC there may have others beside it.
    """
    if view.data[leaf].get("rail", -1) != -1 or len(nics) < _FEW:
        return -1, frozenset()
    rail = _most_common([view.data[nic]["rail"] for nic in nics])
    return (-1 if rail is None else rail), frozenset(view.data[n]["node"] for n in nics if view.data[n]["rail"] == rail)


def _on_leaf(view: GraphView, nic: str, leaf: str, home: int | None, alone: int) -> Iterator[Finding]:
    """`alone` is the rail of a leaf that is alone in its unit; others carry that of their vertex."""
    rail, unit = view.data[nic]["rail"], view.data[leaf]["unit"]
    wanted = view.data[leaf].get("rail", -1) if alone == -1 else alone
    if wanted not in (-1, rail):
        loss = (
            f"messages of rail {rail} to and from it cross a spine, and it shares the leaf's uplinks with rail {wanted}"
        )
        yield Finding(
            "error", "wrong rail", nic, f"{nic} of rail {rail} is on {leaf}, which carries rail {wanted}", loss
        )
    if home is not None and unit != home:
        loss = "its messages inside the unit cross a spine, or a core"
        yield Finding(
            "error",
            "wrong unit",
            nic,
            f"{nic} is on {leaf} of unit {unit}, its node's other NICs are in unit {home}",
            loss,
        )


def _gpus(cluster: Cluster, view: GraphView) -> Iterator[Finding]:
    """GPUs without a way to a leaf, and those with less of a NIC than their like."""
    fabric = cluster.fabric
    if not (fabric.nic_leaf >= 0).any():
        return
    users = Counter(nic for row in fabric.gpu_nics.tolist() for nic in row if nic >= 0 and fabric.nic_leaf[nic] >= 0)
    share: dict[str, float] = {}
    for gpu, row in zip(cluster.gpus, fabric.gpu_nics.tolist(), strict=True):
        own = [nic for nic in row if nic >= 0 and fabric.nic_leaf[nic] >= 0]
        share[gpu] = sum(float(fabric.nic_bytes_per_s[nic]) / users[nic] for nic in own)
    usual = _usual({gpu: (view.data[gpu]["design"], rate) for gpu, rate in share.items()})
    for gpu, rate in share.items():
        meant = usual.get(view.data[gpu]["design"], 0.0)
        if rate == 0.0:
            yield Finding("error", "no NIC", gpu, f"{gpu} has no NIC with a cable", "its groups cannot leave the node")
        elif rate < meant * _CLOSE:
            loss = f"{format_bandwidth(rate)} in place of {format_bandwidth(meant)} ({_change(rate, meant)})"
            yield Finding("warning", "less NIC", gpu, f"{gpu} has less of a NIC than its like", loss)


def _shown(view: GraphView, switch: str, low: str) -> bool:
    """Whether all cables of a switch are known: as its importer saw it; where that is not said, a leaf without a NIC
    may be one that a file shows only as the far end of others' cables."""
    seen = view.data[switch].get("seen")
    return seen == "whole" or (seen is None and (low != "leaf" or bool(view.near(switch, "nic"))))


def _uplinks(view: GraphView, low: str, high: str) -> Iterator[Finding]:
    """Switches with fewer cables up than those of their block; those shown in part are compared with each other."""
    of_block: dict[tuple[object, bool], list[str]] = {}
    alone: list[str] = []
    for switch in view.by_kind.get(low, []):
        shown = _shown(view, switch, low)
        above = view.near(switch, high)
        block = view.data[switch].get("pod") if low == "spine" else None
        if low == "leaf" and above:
            block = view.data[above[0]].get("block")
        if low == "leaf" and block is None and view.data[switch].get("seen") != "partly":
            alone.append(switch)
        else:
            of_block.setdefault((block, shown), []).append(switch)
    for shown in (True, False):
        blocks = [switches for (_, kind), switches in of_block.items() if kind == shown]
        every = {switch: _cables(view, switch, high) for switches in blocks for switch in switches}
        for switches in blocks:
            yield from _fewer(view, every, switches, high, shown)
    yield from _not_judged(view, of_block, low, high)
    if of_block:
        for switch in alone:
            yield Finding("error", "missing cable", switch, f"{switch} has no uplink", _CUT_OFF)


def _fewer(
    view: GraphView, every: Mapping[str, Mapping[str, int]], switches: Sequence[str], high: str, shown: bool
) -> Iterator[Finding]:
    """Switches of one block with fewer cables up than their like; `every` holds the cables of those of all blocks."""
    meant = _most_common([sum(every[switch].values()) for switch in switches])
    if meant is None:  # a block of two leaves has no majority of its own
        meant = _most_common([sum(links.values()) for links in every.values()])
    own = frozenset(switches)
    usual = _usual_bundles([every[switch] for switch in switches]) if meant is None else {}
    for switch in switches:
        links = every[switch]
        have = sum(links.values())
        lacking = {top: count - links.get(top, 0) for top, count in usual.items() if links.get(top, 0) < count}
        wanted = have + sum(lacking.values()) if meant is None else meant
        if have < wanted:
            left = _rate_up(view, switch, high)
            full = [one for one in every if sum(every[one].values()) == wanted]
            near = [one for one in full if one in own] or full
            rate = max((_rate_up(view, one, high) for one in near), default=left * wanted / max(have, 1))
            rates = f"{format_bandwidth(left)} of {format_bandwidth(rate)}"
            loss = f"groups that leave it share {rates} ({_change(left, rate)})" if have else _CUT_OFF
            where = f": fewer to {', '.join(lacking)}" if lacking else ""
            where += "" if shown else f" ({_kept_apart(view, switch)}, compared with each other alone)"
            yield Finding(
                "error", "missing cable", switch, f"{switch} has {have} uplinks, its like have {wanted}{where}", loss
            )
        elif links and max(links.values()) > min(links.values()):
            spread = f"{min(links.values())} to {max(links.values())}"
            message = f"{switch} has {spread} cables to each of the switches above it"
            loss = "hashed flows meet sooner on the thin bundles; ideal adaptive routing loses nothing"
            yield Finding("warning", "uneven uplinks", switch, message, loss)


def _usual_bundles(bundles: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """How many cables nearly all of the switches have to each one above them, where nearly all agree."""
    tops = dict.fromkeys(top for links in bundles for top in links)
    found = {top: _most_common([links.get(top, 0) for links in bundles]) for top in tops}
    return {top: count for top, count in found.items() if count}


def _kept_apart(view: GraphView, switch: str) -> str:
    seen = view.data[switch].get("seen")
    return "shown only as far ends of cables" if seen == "partly" else "leaves without a NIC"


def _not_judged(
    view: GraphView, of_block: Mapping[tuple[object, bool], Sequence[str]], low: str, high: str
) -> Iterator[Finding]:
    """Switches that are shown in part, by what the importer says, or most likely: leaves without a NIC that all have
    fewer cables than those with."""
    whole = sum(len(switches) for (_, shown), switches in of_block.items() if shown)
    partly = [one for switches in of_block.values() for one in switches if view.data[one].get("seen") == "partly"]
    if partly and (low == "leaf" or (whole and view.by_kind.get(high))):
        many = {"leaf": "leaves", "spine": "spines"}[low]
        message = f"{len(partly)} {many} are shown only as far ends of cables: not judged by the {whole} shown whole"
        loss = "none known; what hangs on them and their own uplinks are not in the file"
        yield Finding("note", "not judged", partly[0], message, loss)
    for (block, shown), switches in of_block.items():
        others = of_block.get((block, True), ())
        if shown or not others or view.data[switches[0]].get("seen") == "partly":
            continue
        if max(_sum(view, one, high) for one in switches) < min(_sum(view, one, high) for one in others):
            few = f"{len(switches)} leaves without a NIC have fewer uplinks"
            message = f"{few} than the {len(others)} with: not judged by these"
            loss = "none, if the file shows them only as far ends of cables; else their uplinks are too few"
            yield Finding("note", "not judged", switches[0], message, loss)


def _empty_leaves(view: GraphView) -> Iterator[Finding]:
    """Leaves that a file lists with all their ports, none of them to a NIC, while others have some."""
    leaves = view.by_kind.get("leaf", [])
    nics = {leaf: len(view.near(leaf, "nic")) for leaf in leaves}
    used = sorted(count for count in nics.values() if count)
    for leaf, count in nics.items():
        if count or not used or view.data[leaf].get("seen") != "whole":
            continue
        usual = f"{used[0]}" if used[0] == used[-1] else f"{used[0]} to {used[-1]}"
        rate = _rate_up(view, leaf, "spine")
        loss = f"its uplinks ({format_bandwidth(rate)}) carry nothing, and NICs meant for it reach nobody"
        yield Finding("error", "empty leaf", leaf, f"{leaf} has no NIC, the other leaves have {usual}", loss)


def _sum(view: GraphView, switch: str, high: str) -> int:
    return sum(_cables(view, switch, high).values())


def _rate_up(view: GraphView, switch: str, high: str) -> float:
    return float(sum(view.around[switch][other]["bandwidth_bytes_per_s"] for other in view.near(switch, high)))


def _leaves_apart(view: GraphView) -> Iterator[Finding]:
    """Leaves of one rail that no switch joins."""
    leaves = view.by_kind.get("leaf", [])
    if any(view.near(leaf, "spine") for leaf in leaves):
        return
    of_rail = Counter(view.data[leaf].get("rail", -1) for leaf in leaves)
    for leaf in leaves:
        if of_rail[view.data[leaf].get("rail", -1)] > 1:
            loss = "its nodes reach only each other on this rail"
            yield Finding("error", "missing cable", leaf, f"{leaf} is joined to no spine", loss)


def _slow_links(view: GraphView) -> Iterator[Finding]:
    """Links that carry less than most links between parts of the same names and kinds."""
    rates: dict[tuple[str, str], tuple[object, float]] = {}
    models = {view.data[gpu]["node"]: view.data[gpu].get("model", "") for gpu in view.by_kind.get("gpu", [])}
    for a, around in view.around.items():
        for b, edge in around.items():
            if a < b:
                rates[a, b] = _like(view, models, a, b, edge), edge["bandwidth_bytes_per_s"] / edge["links"]
    usual = _usual(rates)
    for (a, b), (kind, rate) in rates.items():
        meant = usual.get(kind, 0.0)
        if rate < meant * _CLOSE:
            loss = f"{format_bandwidth(rate)} in place of {format_bandwidth(meant)} ({_change(rate, meant)})"
            if "nic" in (view.data[a]["kind"], view.data[b]["kind"]):
                loss += "; groups on all NICs of the node keep step with it"
            yield Finding("warning", "asymmetric link", a, f"{a} to {b} carries less than its like", loss)


def _like(view: GraphView, models: Mapping[int, str], a: str, b: str, edge: Mapping[str, Any]) -> tuple[object, ...]:
    """What links are compared with: kinds of both ends, and inside a node the model and the local names."""
    ends = sorted((view.data[a]["kind"], view.data[b]["kind"]))
    nodes = {view.data[key]["node"] for key in (a, b) if "node" in view.data[key]}
    model = models.get(next(iter(nodes)), "") if nodes else ""
    inside = sorted(key.rpartition("/")[2] for key in (a, b)) if len(nodes) == 1 and "leaf" not in ends else []
    return (*ends, edge["kind"], model, *inside)


def _parts(view: GraphView) -> Iterator[Finding]:
    """GPUs that are dead or slow."""
    for gpu in view.by_kind.get("gpu", []):
        speed = view.data[gpu].get("speed", 1.0)
        if view.data[gpu].get("absent", False):
            continue
        if view.data[gpu].get("dead", False):
            loss = "ranks behind it move up by one GPU, so that groups may no longer fit their nodes"
            yield Finding("warning", "dead GPU", gpu, f"{gpu} cannot be used", loss)
        elif speed < 1.0:
            loss = f"every group with it computes at {100 * speed:.3g} % ({_change(speed, 1.0)})"
            yield Finding("warning", "slow GPU", gpu, f"{gpu} is slower than its like", loss)


def _cables(view: GraphView, switch: str, high: str) -> dict[str, int]:
    return {other: view.around[switch][other]["links"] for other in view.near(switch, high)}


def _usual(values: Mapping[Any, tuple[object, float]]) -> dict[object, float]:
    """What most members of each kind have; a kind without such a majority is left out."""
    of_kind: dict[object, list[float]] = {}
    for kind, value in values.values():
        of_kind.setdefault(kind, []).append(value)
    found = {kind: _most_common(group) for kind, group in of_kind.items()}
    return {kind: value for kind, value in found.items() if value is not None}


def _most_common(values: Sequence[Any]) -> Any:
    """The value that nearly all have; None where there is none."""
    value, count = Counter(values).most_common(1)[0]
    return value if count >= _MOST * len(values) or (len(values) > 2 and count == len(values) - 1) else None


def _change(now: float, meant: float) -> str:
    return f"{100 * (now / meant - 1.0):+.3g} %"
