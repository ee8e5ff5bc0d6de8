"""One item of the plan -> lines of the file. All ranks call it with the same item and get the same lines."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from suite import collectives, kernels, startup
from suite.beside import families, product
from suite.collectives import Collective, Member
from suite.groups import Groups, pair_rounds
from suite.plan import Item
from suite.rows import Entry, in_place, rates, timed, us
from suite.sampling import Sampled, sample
from suite.trial import Bench, Left, attempt, room_for
from suite.world import World

_HOST_ROUNDS, _HOST_CALLS = 20, 100
_SETUPS, _QUICK_S = 3, 5.0
"""How often groups are created; what takes longer than `_QUICK_S` is not repeated."""


def measure(bench: Bench, item: Item, known: list[startup.Creation]) -> list[Entry]:
    """The lines of an item; `known` collects what the creation of groups took."""
    makers: dict[str, Callable[[], list[Entry]]] = {
        "collectives": lambda: _collective(bench, item),
        "pairs": lambda: _collective(bench, item),
        "overlap": lambda: product(bench, item),
        "families": lambda: families(bench, item),
        "setup": lambda: _setup(bench, item, known),
    }
    try:
        return makers.get(item.part, lambda: _kernel(bench, item))()
    finally:
        if bench.world.gpu:
            torch.cuda.empty_cache()


def _kernel(bench: Bench, item: Item) -> list[Entry]:
    world = bench.world

    def ready() -> kernels.Kernel:
        made = kernels.build(world, item)
        made.run(0)  # a kernel talks to nobody
        return made

    kernel = attempt(bench, item, ready)
    if isinstance(kernel, Left):
        return [kernel.line]
    if kernel.host:
        found = world.gather(kernels.time_host(world, kernel.run, _HOST_ROUNDS, _HOST_CALLS))
        sampled = Sampled(tuple(map(tuple, found)), _HOST_CALLS, False, bench.limits)
    else:
        sampled = sample(world, kernel.run, bench.limits, together=False)
    entry = timed(item, "kernel", sampled, world.hosts)
    seconds = entry["time_us"] * 1e-6
    if kernel.flops:
        entry["flops_per_s"] = round(kernel.flops / seconds, 1)
    if kernel.bytes:
        entry |= {"size_bytes": int(kernel.bytes), "bandwidth_bytes_per_s": round(kernel.bytes / seconds, 1)}
    return [entry | {"ranks": world.size, "nodes": world.nodes_of(range(world.size))}]


def _member(bench: Bench, family: str) -> tuple[Member | None, Groups]:
    """This rank's group of a family (None: it is in none) and all groups of it; pairs use the world's group."""
    if not family.startswith("pairs"):
        return bench.members.get(family), bench.families[family]
    groups = pair_rounds(bench.world.size)[int(family.removeprefix("pairs"))]
    for number, ranks in enumerate(groups):
        if bench.world.rank in ranks:
            return Member(dist.group.WORLD, ranks, number, ranks.index(bench.world.rank)), groups
    return None, groups


def _collective(bench: Bench, item: Item) -> list[Entry]:
    world = bench.world
    member, groups = _member(bench, item.family)
    pingpong = dict(item.params).get("pattern") == "pingpong"
    at_once = 1 if item.mode == "alone" else len(groups)
    if member is not None and (member.number >= at_once or (pingpong and 0 < member.place < len(member.ranks) - 1)):
        member = None  # this rank looks on
    built = _built(bench, item, member, pingpong)
    if isinstance(built, Left):
        return [built.line]
    op, wrong = built
    sampled = sample(world, op.run if op else None, bench.limits, together=True)
    moved = world.gather([float(wrong), float(op.size_bytes if op else 0)])
    parties = [(ranks[0], ranks[-1]) if pingpong else ranks for ranks in groups[:at_once]]
    size, n = int(max(row[1] for row in moved)), len(set(parties[0]))
    entry = timed(item, "collective", sampled.halved() if pingpong else sampled, world.hosts)
    entry["params"]["groups"] = at_once
    flags = [*(["one_rank"] if n == 1 else []), *(["all_groups"] if at_once > 1 else [])]
    entry |= {"size_bytes": size, "ranks": n, "nodes": max(map(world.nodes_of, parties))}
    entry |= {"wrong": sum(row[0] for row in moved), "redop": "sum" if "reduce" in item.op else None}
    entry["flags"] = flags + entry["flags"]
    entry = rates(entry, size, collectives.busbw_factor(item.op, n))
    return [in_place(entry) if item.op in collectives.IN_PLACE else entry]


def _built(bench: Bench, item: Item, member: Member | None, pingpong: bool) -> tuple[Collective | None, int] | Left:
    """This rank's part of a collective (None: it looks on), run once, and how many elements were wrong."""
    world = bench.world
    needed = collectives.layout(item.op, len(member.ranks), item.size_bytes).needed_bytes(world) if member else 0
    if (full := room_for(bench, item, needed)) is not None:
        return full

    def ready() -> Collective | None:
        if member is None:
            return None
        made = collectives.build(world, item.op, member, item.size_bytes, pingpong)
        made.prepare()
        return made

    op = attempt(bench, item, ready)
    if isinstance(op, Left):
        return op
    done = attempt(bench, item, lambda: op.run(0) if op else None, talks=True)
    if isinstance(done, Left):
        return done
    wrong = attempt(bench, item, lambda: op.wrong() if op else 0)
    return wrong if isinstance(wrong, Left) else (op, wrong)


def _setup(bench: Bench, item: Item, known: list[startup.Creation]) -> list[Entry]:
    """New groups of one size, or all groups of the mesh, family by family; the median of three times (`_QUICK_S`)."""
    if item.op == "new_group":
        size, count = item.get("size"), item.get("count")
        families: list[Groups] = [tuple(tuple(range(first * size, (first + 1) * size)) for first in range(count))]
    else:
        families = list(bench.created.values())
    found: list[startup.Creation] = []
    while not found or (len(found) < _SETUPS and found[-1].total_s < _QUICK_S):
        made = [startup.create(bench.world, groups) for groups in families]
        count = sum(one.count for one in made)
        create_s, first_s = sum(one.create_s for one in made), sum(one.first_s for one in made)
        found.append(startup.Creation(made[0].size if len(made) == 1 else bench.world.size, count, create_s, first_s))
    found.sort(key=lambda one: one.total_s)
    middle = found[len(found) // 2]
    entry = _created(item, middle, bench.world)
    entry |= {"samples": len(found), "min_us": us(found[0].total_s), "max_us": us(found[-1].total_s)}
    if item.op == "new_group":
        known.append(middle)
        return [entry]
    entry["params"]["families"] = len(families)
    model = startup.fit(known)
    if model is not None:
        predicted_s = model.startup_s(families)
        entry["params"] |= {"predicted_us": us(predicted_s), "error": round(predicted_s / middle.total_s - 1, 4)}
    return [entry]


def _created(item: Item, made: startup.Creation, world: World) -> Entry:
    params = {**dict(item.params), "count": made.count, "create_us": us(made.create_s), "first_us": us(made.first_s)}
    return {
        "kind": "setup",
        "item": item.key,
        "op": item.op,
        "ranks": made.size,
        "nodes": world.nodes_of(range(world.size)),
        "time_us": us(made.total_s),
        "params": params,
    }
