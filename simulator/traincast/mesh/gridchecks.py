"""What a grid itself can get wrong: sizes, order, the expert mesh's sizes, placement."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from traincast.errors import ShapeError
from traincast.mesh.limits import MOST, MOST_RANKS
from traincast.mesh.problems import Problem, either, near_divisors, near_multiples

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
AXES = ("tp", "cp", "ep", "dp", "pp")


def parse_order(order: str) -> tuple[str, ...]:
    """All five axes, fastest first; the ones that the text leaves out follow at the end.

    Raises ShapeError for an unknown axis or one that is named twice.
    """
    named = tuple(order.lower().split("-"))
    if len(set(named)) < len(named) or not set(named) <= set(AXES):
        raise ShapeError(
            f"order {order!r} is no permutation of {', '.join(AXES)}",
            fix="such as tp-cp-ep-dp-pp, each axis once, the fastest first",
        )
    return named + tuple(axis for axis in AXES if axis not in named)


def grid_problems(sizes: Mapping[str, int], order: str, placement: Sequence[int] | None) -> tuple[Problem, ...]:
    """All that forbids a grid of these sizes (tp, cp, ep, dp, pp, etp)."""
    bad_sizes = size_problems(sizes)
    if bad_sizes:
        return bad_sizes
    world = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    if world > MOST_RANKS:
        return (too_many_ranks(world),)
    found = [*order_problems(sizes, order), *expert_size_problems(sizes, world)]
    if not found:
        found += stage_problems(sizes, order)
    return (*found, *placement_problems(placement, world))


def size_problems(sizes: Mapping[str, int]) -> tuple[Problem, ...]:
    """Sizes below 1, and sizes that nobody means."""
    below = [Problem(f"{name} {size} is below 1", f"{name} 1 or more") for name, size in sizes.items() if size < 1]
    most = {name: MOST.get(name, MOST_RANKS) for name in sizes}
    above = [
        Problem(f"{name} {size} is above the limit of {most[name]}", f"{name} {most[name]} or less")
        for name, size in sizes.items()
        if size > most[name]
    ]
    return (*below, *above)


def too_many_ranks(world: int) -> Problem:
    """A mesh beyond what can be laid out in memory and time."""
    return Problem(f"a mesh of {world} ranks is above the limit of {MOST_RANKS}", "lower tp, cp, pp or dp")


def order_problems(sizes: Mapping[str, int], order: str) -> tuple[Problem, ...]:
    """An order that is no permutation, or lacks an axis of size above 1."""
    try:
        parse_order(order)
    except ShapeError as error:
        return (Problem(error.message, error.fix or ""),)
    named = order.lower().split("-")
    expert = _expert_sizes(sizes) if sizes["ep"] > 1 or sizes["etp"] > 1 else {}
    lost = [axis for axis in AXES if axis not in named and max(sizes[axis], expert.get(axis, 1)) > 1]
    return tuple(
        Problem(
            f"order {order!r} leaves out {axis}, whose size is {max(sizes[axis], expert.get(axis, 1))}"
            f"{'' if sizes[axis] > 1 else ' in the expert mesh'}",
            f"name {axis} in the order, such as {DEFAULT_ORDER}; only axes of size 1 may be left out",
        )
        for axis in lost
    )


def _expert_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes of the expert mesh under the names of the order: etp stands in for tp, edp for dp."""
    world = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    edp = world // (sizes["etp"] * sizes["ep"] * sizes["pp"])
    return {"tp": sizes["etp"], "cp": 1, "ep": sizes["ep"], "dp": edp, "pp": sizes["pp"]}


def expert_size_problems(sizes: Mapping[str, int], world: int, defaulted: Sequence[str] = ()) -> tuple[Problem, ...]:
    """etp*ep*pp that does not divide the world. `defaulted` names the factors that nobody gave."""
    factors = {name: sizes[name] for name in ("etp", "ep", "pp")}
    product = math.prod(factors.values())
    if world % product == 0:
        return ()
    spelled = " * ".join(f"{name} {size}{' (default)' if name in defaulted else ''}" for name, size in factors.items())
    return (Problem(f"world {world} is not a multiple of {spelled} = {product}", _expert_fix(factors, world)),)


def _expert_fix(factors: Mapping[str, int], world: int) -> str:
    others = factors["etp"] * factors["pp"]
    fixes = [f"world {either(near_multiples(world, math.prod(factors.values())))}"]
    if world % others == 0:
        fixes.insert(0, f"ep {either(near_divisors(world // others, factors['ep']))}")
    return ", or ".join(fixes)


def stage_problems(sizes: Mapping[str, int], order: str) -> tuple[Problem, ...]:
    """An order in which the stages of the expert mesh would not be those of the dense mesh.

    Of consequence only where an expert mesh is asked for; both meshes give pp groups of the same stride or
    they clash.
    """
    if sizes["pp"] == 1 or (sizes["ep"] == 1 and sizes["etp"] == 1):
        return ()
    faster = parse_order(order)[: parse_order(order).index("pp")]
    expert = _expert_sizes(sizes)
    dense_stride = math.prod(sizes[axis] for axis in faster if axis != "ep")
    expert_stride = math.prod(expert[axis] for axis in faster)
    last = "-".join([axis for axis in parse_order(order) if axis != "pp"] + ["pp"])
    if dense_stride == expert_stride:
        if expert["dp"] == sizes["dp"] or parse_order(order)[-1] == "pp":
            return ()
        told = f"pp is not last in order {order} while dp {sizes['dp']} and edp {expert['dp']} differ"
        return (Problem(f"{told}, which Megatron-Core refuses", f"put pp last: {last}", "warning"),)
    return (
        Problem(
            f"order {order} puts pp at stride {dense_stride} in the dense mesh but at {expert_stride} in the "
            "expert mesh, so the two would not share their stages",
            f"put pp last: {last}",
        ),
    )


def placement_problems(placement: Sequence[int] | None, world: int) -> tuple[Problem, ...]:
    """A placement that is not one distinct GPU a rank."""
    if placement is None:
        return ()
    if len(placement) != world:
        return (Problem(f"the placement has {len(placement)} GPUs for a world of {world}", "one GPU a rank"),)
    if min(placement) < 0:
        return (Problem(f"the placement names GPU {min(placement)}", "GPUs are numbered from 0"),)
    if len(set(placement)) < world:
        twice = Counter(placement).most_common(1)[0][0]
        return (Problem(f"the placement gives GPU {twice} to two ranks", "every rank needs a GPU of its own"),)
    return ()
