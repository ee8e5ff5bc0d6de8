"""The time to create groups, by count and size, and from it the start-up time of a mesh."""

import time
from collections.abc import Iterable, Sequence
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
class StartupModel:
    """create = count (a + b size), first collective = c + d size; seconds. Groups of one rank connect nobody.

    `single`: create (each) and first collective of groups of one rank where they were measured; else they cost what
    the line says to create, and nothing to use.
    """

    a_s: float
    b_s: float
    c_s: float
    d_s: float
    single: tuple[float, float] | None = None

    def creation_s(self, size: int, count: int) -> float:
        """Seconds to create `count` groups and to use each for the first time, the groups of a family at once."""
        if size == 1:
            create_s, first_s = self.single if self.single is not None else (self.a_s + self.b_s, 0.0)
            return count * create_s + first_s
        return count * (self.a_s + self.b_s * size) + self.c_s + self.d_s * size

    def startup_s(self, families: Iterable[Groups]) -> float:
        """Seconds to create the groups of several families, one family after the other."""
        return sum(self.creation_s(len(groups[0]), len(groups)) for groups in families)


def fit(creations: Sequence[Creation]) -> StartupModel | None:
    """Least squares over what was measured; None without any. No constant is below zero."""
    ones = [one for one in creations if one.size == 1]
    single = (_mean(one.create_s / one.count for one in ones), _mean(one.first_s for one in ones)) if ones else None
    more = [one for one in creations if one.size > 1]
    if not more:
        return StartupModel(single[0], 0.0, single[1], 0.0, single) if single is not None else None
    sizes = [one.size for one in more]
    each, first = [one.create_s / one.count for one in more], [one.first_s for one in more]
    if len(set(sizes)) < 2:
        return StartupModel(_mean(each), 0.0, _mean(first), 0.0, single)
    return StartupModel(*line(sizes, each), *line(sizes, first), single)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


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


def create(world: Any, families: Iterable[Groups]) -> Creation:
    """Creates all groups, uses each once and destroys them; the slowest rank's times. All ranks call it."""
    import torch
    import torch.distributed as dist

    groups = [ranks for family in families for ranks in family]
    world.barrier()
    begin = time.perf_counter()
    handles = [dist.new_group(list(ranks)) for ranks in groups]
    create_s = time.perf_counter() - begin
    mine = [handle for ranks, handle in zip(groups, handles, strict=True) if world.rank in ranks]
    one = torch.zeros(1, device=world.device)
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
