"""The scenario that a sweep starts from: the file's own shape, or where that cannot be, any that can."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traincast.errors import ShapeError, UserError
from traincast.forecast import divisors
from traincast.sweep.shapes import Axes

if TYPE_CHECKING:
    from traincast.scenario import Scenario

_Overrides = Sequence[tuple[str, str]]
_TP: Final = (1, 2, 4, 8, 16, 3, 5, 6)
"""Ranks for tensors that are tried, those that most models take first."""
_PP: Final = 64
"""Most stages that are tried."""


def load_base(
    path: str | Path, overrides: _Overrides = (), axes: Axes | None = None
) -> "tuple[Scenario, ShapeError | None]":
    """The scenario to sweep, and why its own shape cannot be, where it cannot.

    A sweep enumerates shapes, so it needs of its scenario only the model, the batch, the recipe and how many GPUs there
    are (`_worlds`). Raises UserError as `load_scenario` does, for anything but the shape, or where no other shape can
    be either.
    """
    from traincast.scenario import load_scenario

    try:
        return load_scenario(path, overrides), None
    except ShapeError as error:
        refused = error
    stated = _stated(path, overrides)
    for shape in (one for world in _worlds(stated, axes or {}) for one in _others(world, stated.sizes["cp"])):
        try:
            return load_scenario(path, (*overrides, *shape)), refused
        except UserError:
            continue
    raise refused


@dataclass(frozen=True)
class _Stated:
    """Sizes of the file with the options laid over it and without, 1 where none is stated; GPUs that its cluster has,
    None where it is as large as a mesh needs."""

    sizes: Mapping[str, int]
    own: Mapping[str, int]
    cluster: int | None


def _stated(path: str | Path, overrides: _Overrides) -> _Stated:
    """What the file says of the number of GPUs, unchecked."""
    from traincast.scenario.files import find_scenario
    from traincast.scenario.text import override, parse, read_text, shown

    file = find_scenario(str(path))
    data, places = parse(read_text(file), shown(file))
    own = _sizes(data.get("parallelism"))
    data, _ = override(data, places, [pair for pair in overrides if pair[0].startswith(("parallelism", "cluster"))])
    return _Stated(_sizes(data.get("parallelism")), own, _gpus_of(data.get("cluster"), file))


def _sizes(section: object) -> dict[str, int]:
    given = {axis: section.get(axis) if isinstance(section, Mapping) else None for axis in ("tp", "cp", "pp", "dp")}
    return {axis: size if isinstance(size, int) and size > 0 else 1 for axis, size in given.items()}


def _gpus_of(cluster: object, file: Path) -> int | None:
    """Living GPUs of a cluster that is named, or described with its nodes; None where a mesh decides how many."""
    from traincast.catalog import load_catalog
    from traincast.scenario.files import find_cluster
    from traincast.topology import load_cluster

    try:
        if isinstance(cluster, str):
            return len(load_cluster(find_cluster(cluster, file)).gpus)
        if not isinstance(cluster, Mapping) or not isinstance(cluster.get("nodes"), int):
            return None
        per_node = cluster.get("gpus_per_node") or load_catalog().gpu(str(cluster.get("gpu"))).gpus_per_node
        return int(cluster["nodes"]) * per_node if isinstance(per_node, int) else None
    except UserError:  # reported where the scenario is read
        return None


def _worlds(stated: _Stated, axes: Axes) -> Iterator[int]:
    """Numbers of GPUs to sweep on; the first that has a shape is it.

    Those of the `axes` where tp, pp and dp have one value each. Else all of the cluster where it says how many, as a
    wrong size then says nothing of that; a named one may be far larger than the batch needs, so also those of the file
    without the options. Else the stated sizes.
    """
    asked = [axes.get("cp", (stated.sizes["cp"],)), *(axes.get(axis, ()) for axis in ("tp", "pp", "dp"))]
    if all(len(values) == 1 for values in asked):
        yield prod(values[0] for values in asked)
    if stated.cluster is None:
        yield prod(stated.sizes.values())
    else:
        yield stated.cluster
        yield prod(stated.own.values())


def _others(world: int, cp: int) -> Iterator[tuple[tuple[str, str], ...]]:
    """Shapes to lay over a scenario, one after another, on so many ranks."""
    for pp in (size for size in divisors(world) if size <= _PP):
        for tp in _TP:
            ranks = tp * cp * pp
            if world % ranks == 0:
                shape = {"tp": str(tp), "pp": str(pp), "dp": str(world // ranks), "vpp": "1"}
                keys = [(f"parallelism.{axis}", size) for axis, size in shape.items()]
                yield (*keys, ("training.microbatch", "1"), ("training.stage_layers", "null"))
