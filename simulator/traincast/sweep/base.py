"""The scenario that a sweep starts from: the file's own shape, or where that cannot be, any that can."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traincast.errors import ShapeError, UserError
from traincast.forecast import divisors

if TYPE_CHECKING:
    from traincast.scenario import Scenario

_Overrides = Sequence[tuple[str, str]]
_TP: Final = (1, 2, 4, 8, 16, 3, 5, 6)
"""Ranks for tensors that are tried, those that most models take first."""
_PP: Final = 64
"""Most stages that are tried."""


def load_base(path: str | Path, overrides: _Overrides = ()) -> "tuple[Scenario, ShapeError | None]":
    """The scenario to sweep, and why its own shape cannot be, where it cannot.

    A sweep enumerates shapes, so it needs of its scenario only the model, the batch, the recipe and how many GPUs there
    are: those of the stated sizes (tp cp pp dp), or of the cluster where dp is left open. Raises UserError as
    `load_scenario` does, for anything but the shape, or where no other shape can be either.
    """
    from traincast.scenario import load_scenario

    try:
        return load_scenario(path, overrides), None
    except ShapeError as error:
        refused = error
    for shape in _others(*_stated(path, overrides)):
        try:
            return load_scenario(path, (*overrides, *shape)), refused
        except UserError:
            continue
    raise refused


def _stated(path: str | Path, overrides: _Overrides) -> tuple[Mapping[str, Any], bool]:
    """The parallelism of the file with the options laid over it, unchecked; whether the cluster says how many GPUs it
    has."""
    from traincast.scenario.files import find_scenario
    from traincast.scenario.text import override, parse, read_text, shown

    file = find_scenario(str(path))
    data, places = parse(read_text(file), shown(file))
    data, _ = override(data, places, [pair for pair in overrides if pair[0].startswith(("parallelism.", "cluster"))])
    section, cluster = data.get("parallelism"), data.get("cluster")
    counted = not isinstance(cluster, Mapping) or cluster.get("nodes") is not None
    return (section if isinstance(section, Mapping) else {}), counted


def _others(stated: Mapping[str, Any], counted: bool) -> Iterator[tuple[tuple[str, str], ...]]:
    """Shapes to lay over a scenario, one after another, on as many ranks as it states, or the cluster has."""
    sizes = {axis: stated.get(axis) or 1 for axis in ("tp", "cp", "pp", "dp")}
    if not all(isinstance(size, int) and size > 0 for size in sizes.values()):
        return
    world = prod(sizes.values()) if stated.get("dp") or not counted else None
    stages = divisors(world) if world else [2**power for power in range(_PP.bit_length())]
    for pp in (size for size in stages if size <= _PP):
        for tp in _TP:
            ranks = tp * sizes["cp"] * pp
            if world is None or world % ranks == 0:
                dp = "null" if world is None else str(world // ranks)
                shape = {"tp": str(tp), "pp": str(pp), "dp": dp, "vpp": "1"}
                keys = [(f"parallelism.{axis}", size) for axis, size in shape.items()]
                yield (*keys, ("training.microbatch", "1"), ("training.stage_layers", "null"))
