"""The time to create groups, by count and size, and from it the start-up time of a mesh."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.groups import Groups


@dataclass(frozen=True)
class Creation:
    """`count` groups of `size` ranks: seconds to create them all, and of the first collective in all at once."""

    size: int
    count: int
    create_s: float
    first_s: float

    @property
    def total_s(self) -> float:
        """Both together."""
        return self.create_s + self.first_s


@dataclass(frozen=True)
class Line:
    """seconds = fixed + each * count of groups."""

    fixed_s: float
    each_s: float

    def seconds(self, count: int) -> float:
        """Seconds for `count` groups of a family."""
        return self.fixed_s + self.each_s * count


@dataclass(frozen=True)
class StartupModel:
    """Creation and first collective of groups by their size, as lines over their count.

    `create`, `first`: the lines of the sizes that were measured. Of any other size, fixed and each lie on straight
    lines over the sizes above one (`beyond`, of creation and of first collective). A group of one rank connects nobody
    and tells nothing of others: where it was not measured, its first collective costs nothing.
    """

    create: Mapping[int, Line]
    first: Mapping[int, Line]
    beyond: tuple[tuple[tuple[float, float], tuple[float, float]], ...]

    def creation_s(self, size: int, count: int) -> float:
        """Seconds to create `count` groups and to use each for the first time, the groups of a family at once."""
        return self._seconds(0, size, count) + (self._seconds(1, size, count) if size > 1 or 1 in self.first else 0.0)

    def startup_s(self, families: Iterable[Groups]) -> float:
        """Seconds to create the groups of several families, one family after the other."""
        return sum(self.creation_s(len(groups[0]), len(groups)) for groups in families)

    def _seconds(self, part: int, size: int, count: int) -> float:
        known = (self.create, self.first)[part].get(size)
        if known is None:
            fixed, each = (p + q * size for p, q in self.beyond[part])
            known = Line(fixed, each)
        return known.seconds(count)


def fit(creations: Sequence[Creation]) -> StartupModel | None:
    """The model of what was measured; None without any. No constant is below zero."""
    if not creations:
        return None
    sizes = sorted({one.size for one in creations})
    create = {size: _over_count([(one.count, one.create_s) for one in creations if one.size == size]) for size in sizes}
    first = {size: _over_count([(one.count, one.first_s) for one in creations if one.size == size]) for size in sizes}
    return StartupModel(create, first, (_over_size(create), _over_size(first)))


def _over_count(points: Sequence[tuple[int, float]]) -> Line:
    """A line through seconds by count; with one count alone nothing is fixed."""
    counts = [count for count, _ in points]
    if len(set(counts)) > 1:
        return Line(*line(counts, [seconds for _, seconds in points]))
    return Line(0.0, sum(seconds for _, seconds in points) / sum(counts))


def _over_size(lines: Mapping[int, Line]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Straight lines of fixed and each over the size."""
    more = {size: one for size, one in lines.items() if size > 1} or lines
    parts = [one.fixed_s for one in more.values()], [one.each_s for one in more.values()]
    if len(more) < 2:
        return (parts[0][0], 0.0), (parts[1][0], 0.0)
    return line(list(more), parts[0]), line(list(more), parts[1])


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """y = p + q x by least squares, neither below zero (then the other one alone)."""
    n = len(xs)
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    q = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / sum((x - mean_x) ** 2 for x in xs)
    p = mean_y - q * mean_x
    if q < 0:
        return mean_y, 0.0
    if p < 0:
        return 0.0, sum(x * y for x, y in zip(xs, ys, strict=True)) / sum(x * x for x in xs)
    return p, q


def create(world: Any, groups: Groups) -> Creation:
    """Creates the groups of a family, uses each once and destroys them; the slowest rank's times. All ranks call it.

    A rank creates all groups, also those that it is not in, and uses its own.
    """
    import torch
    import torch.distributed as dist

    one = torch.zeros(1, device=world.device)
    world.synchronize()
    world.barrier()
    begin = time.perf_counter()
    handles = [dist.new_group(list(ranks)) for ranks in groups]
    create_s = time.perf_counter() - begin
    mine = [handle for ranks, handle in zip(groups, handles, strict=True) if world.rank in ranks]
    world.barrier()
    begin = time.perf_counter()
    for handle in mine:
        dist.all_reduce(one, group=handle)
    world.synchronize()
    first_s = time.perf_counter() - begin
    rows = world.gather([create_s, first_s])
    for handle in mine:
        dist.destroy_process_group(handle)
    return Creation(len(groups[0]), len(groups), max(row[0] for row in rows), max(row[1] for row in rows))
