"""One item of the plan -> lines of the file. All ranks call it with the same item and get the same lines."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from suite import collectives, kernels, overlap, startup
from suite.collectives import Member
from suite.groups import Groups, pair_rounds
from suite.plan import Item
from suite.rows import Entry, rates, skipped, timed, us
from suite.sampling import Limits, Sampled, sample
from suite.world import OUT_OF_MEMORY, Run, World, free_bytes

_FAULTS = (RuntimeError, ValueError, TypeError, NotImplementedError, kernels.UnsupportedError)
"""What PyTorch raises for an operation that a backend, device or version lacks, or for memory that is not there."""

_BESIDE_S = {True: 0.01, False: 0.003}
"""How long each of two things runs by itself, on a GPU and without: processors that share cores take far longer."""

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """What every measurement needs."""

    world: World
    families: dict[str, Groups]
    created: dict[str, Groups]
    members: dict[str, Member]
    limits: Limits
    reference: Item


def measure(bench: Bench, item: Item, known: list[startup.Creation]) -> list[Entry]:
    """The lines of an item; `known` collects what the creation of groups took."""
    makers: dict[str, Callable[[], list[Entry]]] = {
        "collectives": lambda: _collective(bench, item),
        "pairs": lambda: _collective(bench, item),
        "overlap": lambda: _beside(bench, item),
        "families": lambda: _families(bench, item),
        "setup": lambda: _setup(bench, item, known),
    }
    try:
        return makers.get(item.part, lambda: _kernel(bench, item))()
    finally:
        if bench.world.gpu:
            torch.cuda.empty_cache()


def _tried(bench: Bench, item: Item, make: Callable[[], T]) -> T | Entry:
    """What `make` gives, or the line that says why it is left out, where it fails on any rank."""
    made: T | None = None
    reason, why = "", ""
    try:
        made = make()
        bench.world.synchronize()
    except _FAULTS as error:
        reason = "memory" if isinstance(error, OUT_OF_MEMORY) else "unsupported"
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        why = " ".join(word for word in words.split() if "/" not in word)[:160]
    if bench.world.all_fine(not why):
        assert made is not None
        return made
    where = f"backend {bench.world.backend}, PyTorch {torch.__version__}"
    return skipped(item, reason or "unsupported", f"not supported by {where}: {why or 'see another rank'}")


def _kernel(bench: Bench, item: Item) -> list[Entry]:
    world = bench.world

    def ready() -> kernels.Kernel:
        made = kernels.build(world, item)
        made.run(0)
        return made

    kernel = _tried(bench, item, ready)
    if not isinstance(kernel, kernels.Kernel):
        return [kernel]
    if kernel.host:
        rows = world.gather(kernels.time_host(world, kernel.run, 20))
        sampled = Sampled(tuple(map(tuple, rows)), 100, True, False)
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
    """This rank's group of a family and all groups of it; pairs are cut from the world's group."""
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
    looks_on = member is None or member.number >= at_once or (pingpong and 0 < member.place < len(member.ranks) - 1)
    if not world.all_fine(looks_on or 2 * item.size_bytes < free_bytes(world)):
        return [skipped(item, "memory", "the buffers do not fit in memory")]

    def checked() -> tuple[collectives.Collective | None, int]:
        if member is None or looks_on:
            return None, 0
        made = collectives.build(world, item.op, member, item.size_bytes, pingpong)
        made.prepare()
        made.run(0)
        world.synchronize()
        return made, made.wrong()

    found = _tried(bench, item, checked)
    if isinstance(found, dict):
        return [found]
    op, wrong = found
    sampled = sample(world, op.run if op else None, bench.limits, together=True)
    if pingpong:
        sampled = _halved(sampled)
    moved = world.gather([float(wrong), float(op.size_bytes if op else 0)])
    parties = [(ranks[0], ranks[-1]) if pingpong else ranks for ranks in groups[:at_once]]
    size, n = int(max(row[1] for row in moved)), len(set(parties[0]))
    entry = timed(item, "collective", sampled, world.hosts)
    entry["params"]["groups"] = at_once
    flags = [*(["one_rank"] if n == 1 else []), *(["all_groups"] if at_once > 1 else [])]
    entry |= {"size_bytes": size, "ranks": n, "nodes": max(map(world.nodes_of, parties))}
    entry |= {"wrong": sum(row[0] for row in moved), "redop": "sum" if "reduce" in item.op else None}
    entry["flags"] = flags + entry["flags"]
    return [rates(entry, size, collectives.busbw_factor(item.op, n))]


def _halved(sampled: Sampled) -> Sampled:
    """One way of a message that went there and back."""
    own = tuple(tuple(value / 2 for value in row) for row in sampled.own_s)
    return Sampled(own, sampled.inner, sampled.stable, sampled.together, sampled.too_short)


def _beside(bench: Bench, item: Item) -> list[Entry]:
    """The reference product while a collective runs."""
    op = item.op.split("+")[1]

    def runs() -> tuple[Run, Run]:
        other = collectives.build(bench.world, op, bench.members[item.family], item.size_bytes)
        other.run(0)
        return kernels.build(bench.world, bench.reference).run, other.run

    made = _tried(bench, item, runs)
    if isinstance(made, dict):
        return [made]
    found = overlap.measure(bench.world, *made, _BESIDE_S[bench.world.gpu])
    words = ({"what": "gemm", "beside": op}, {"what": op, "beside": "gemm"})
    return [_overlapped(bench, item, *pair) for pair in zip(words, found, strict=True)]


def _families(bench: Bench, item: Item) -> list[Entry]:
    """Collectives of two families at once, each in all of its groups."""
    ops, names = item.op.split("+"), item.family.split("+")

    def runs() -> tuple[Run, Run]:
        pairs = zip(ops, names, strict=True)
        made = [collectives.build(bench.world, op, bench.members[name], item.size_bytes).run for op, name in pairs]
        for one in made:
            one(0)
        return made[0], made[1]

    made = _tried(bench, item, runs)
    if isinstance(made, dict):
        return [made]
    found = overlap.measure(bench.world, *made, _BESIDE_S[bench.world.gpu])
    words = [
        {"what": f"{ops[place]} over {names[place]}", "beside": f"{ops[1 - place]} over {names[1 - place]}"}
        for place in (0, 1)
    ]
    return [_overlapped(bench, item, *pair) for pair in zip(words, found, strict=True)]


def _overlapped(bench: Bench, item: Item, words: dict[str, str], found: dict[str, float]) -> Entry:
    """One of two things at once: its time beside the other, and the factor on its time alone."""
    params = {**words, "family": item.family, "alone_us": us(found["alone_s"]), "slowdown": round(found["slowdown"], 4)}
    if words["what"] == "gemm":
        params |= dict(bench.reference.params)
    return {
        "kind": "overlap",
        "item": item.key,
        "op": words["what"].split(" ")[0],
        "dtype": item.dtype,
        "ranks": bench.world.size,
        "nodes": bench.world.nodes_of(range(bench.world.size)),
        "size_bytes": item.size_bytes,
        "time_us": us(found["both_s"]),
        "params": params,
    }


def _setup(bench: Bench, item: Item, known: list[startup.Creation]) -> list[Entry]:
    """New groups of one size, three times over; or all groups of the mesh, family by family."""
    world = bench.world
    if item.op == "new_group":
        size, count = item.get("size"), item.get("count")
        groups = tuple(tuple(range(first * size, (first + 1) * size)) for first in range(count))
        found = sorted((startup.create(world, [groups]) for _ in range(3)), key=lambda one: one.total_s)
        known.append(found[1])
        entry = _created(item, found[1], world)
        return [entry | {"samples": 3, "min_us": us(found[0].total_s), "max_us": us(found[2].total_s)}]
    families = list(bench.created.values())
    model = startup.fit(known)
    found = [startup.create(world, [groups]) for groups in families]
    total = startup.Creation(world.size, sum(one.count for one in found), 0.0, 0.0)
    entry = _created(item, total, world)
    entry["time_us"] = us(sum(one.total_s for one in found))
    entry["params"] |= {"families": len(families), "create_us": us(sum(one.create_s for one in found))}
    entry["params"]["first_us"] = us(sum(one.first_s for one in found))
    if model is not None:
        entry["params"]["predicted_us"] = us(model.startup_s(families))
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
