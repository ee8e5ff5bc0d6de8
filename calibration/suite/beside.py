"""Items of two things at once: the reference product beside a collective, collectives of two families."""

from suite import collectives, kernels, overlap
from suite.plan import Item
from suite.rows import Entry, us
from suite.trial import Bench, Left, attempt, room_for
from suite.world import Run

_BESIDE_S = {True: 0.01, False: 0.003}
"""How long each of two things runs by itself, on a GPU and without: processors that share cores take far longer."""


def product(bench: Bench, item: Item) -> list[Entry]:
    """The reference product while a collective runs; ranks that are in no group of the family look on."""
    op = item.op.split("+")[1]

    def reference() -> Run | None:
        return kernels.build(bench.world, bench.reference).run if item.family in bench.members else None

    multiply = attempt(bench, item, reference)
    other = _ready(bench, item, op, item.family)
    for one in (multiply, other):
        if isinstance(one, Left):
            return [one.line]
    assert not isinstance(multiply, Left)
    assert not isinstance(other, Left)
    words = ({"what": "gemm", "beside": op}, {"what": op, "beside": "gemm"})
    return _measured(bench, item, (multiply, other), words)


def families(bench: Bench, item: Item) -> list[Entry]:
    """Collectives of two families at once, each in all of its groups; a rank may be in groups of one of them only."""
    ops, names = item.op.split("+"), item.family.split("+")
    one, two = (_ready(bench, item, op, name) for op, name in zip(ops, names, strict=True))
    if isinstance(one, Left):
        return [one.line]
    if isinstance(two, Left):
        return [two.line]
    over = [f"{op} over {name}" for op, name in zip(ops, names, strict=True)]
    words = ({"what": over[0], "beside": over[1]}, {"what": over[1], "beside": over[0]})
    return _measured(bench, item, (one, two), words)


def _ready(bench: Bench, item: Item, op: str, family: str) -> Run | Left | None:
    """A collective over a family that has run once; None where this rank is in no group of it."""
    member, world = bench.members.get(family), bench.world
    needed = collectives.layout(op, len(member.ranks), item.size_bytes).needed_bytes(world) if member else 0
    if (full := room_for(bench, item, needed)) is not None:
        return full

    def built() -> Run | None:
        return collectives.build(world, op, member, item.size_bytes).run if member is not None else None

    run = attempt(bench, item, built)
    if isinstance(run, Left):
        return run
    done = attempt(bench, item, lambda: run(0) if run is not None else None, talks=True)
    return done if isinstance(done, Left) else run


def _measured(
    bench: Bench, item: Item, runs: tuple[Run | None, Run | None], words: tuple[dict[str, str], dict[str, str]]
) -> list[Entry]:
    found = overlap.measure(bench.world, *runs, _BESIDE_S[bench.world.gpu])
    return [_line(bench, item, *pair) for pair in zip(words, found, strict=True)]


def _line(bench: Bench, item: Item, words: dict[str, str], found: dict[str, float]) -> Entry:
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
