"""Repeats of one measurement: warm-up, batches long enough for the clock, and samples until the median is known."""

import time
from dataclasses import dataclass, replace
from statistics import median

from suite.stats import FEWEST, Spread, spread, stable
from suite.world import Run, World

_ROUND = 8
_LONG_S = 0.02
"""Below this an untimed repetition lines the ranks up before a sample."""


@dataclass(frozen=True)
class Limits:
    """When to stop: `stability` reached after `least` samples, or `most` samples, or `seconds` of sampling.

    A sample repeats what is measured for at least `sample_s`, at most `most_inner` times. `tick_s` is the resolution
    of the clock.
    """

    stability: float = 0.02
    least: int = 6
    most: int = 120
    seconds: float = 2.0
    sample_s: float = 1e-3
    most_inner: int = 2000
    tick_s: float = 1e-7


@dataclass(frozen=True)
class Sampled:
    """`own_s[rank]`: the samples of every rank [s a repetition], empty for a rank that took no part.

    `together`: the processes worked on one thing, so that a sample lasts as long as on its slowest rank; else every
    rank ran a copy of its own, and a sample is the median of the ranks.
    """

    own_s: tuple[tuple[float, ...], ...]
    inner: int
    together: bool
    limits: Limits

    def series(self) -> list[float]:
        """Seconds of each sample."""
        rows = [row for row in self.own_s if row]
        pick = max if self.together else median
        return [pick(column) for column in zip(*rows, strict=True)]

    def spread(self) -> Spread:
        """Median and spread of the samples."""
        return spread(self.series())

    def own(self) -> list[Spread | None]:
        """Median and spread of each rank's own samples; None for a rank that took no part."""
        return [spread(row) if row else None for row in self.own_s]

    @property
    def stable(self) -> bool:
        """Whether the median is known as well as was asked for."""
        return stable(self.series(), self.limits.stability)

    @property
    def too_short(self) -> bool:
        """Whether the median means nothing: too few samples, or a step of the clock is more than may be unknown."""
        found = self.series()
        return len(found) < FEWEST or self.limits.tick_s > self.limits.stability * self.inner * median(found)

    def halved(self) -> "Sampled":
        """One way of a message that went there and back: twice as many repetitions, half as long."""
        own = tuple(tuple(value / 2 for value in row) for row in self.own_s)
        return replace(self, own_s=own, inner=2 * self.inner)


def sample(world: World, run: Run | None, limits: Limits, together: bool) -> Sampled:
    """Samples of `run` on all ranks (None: this rank looks on). All ranks call it, and all stop together.

    What is so slow that `Limits.least` samples do not fit gets as many as fit, three at least.
    """
    inner, one_s = _batch(world, run, limits)
    lead = one_s < _LONG_S
    room = int(limits.seconds / max(one_s * (inner + lead), 1e-9))
    own: list[list[float]] = [[] for _ in range(world.size)]
    place, wanted = 0, min(limits.most, max(FEWEST, min(limits.least, room)))
    begin = time.perf_counter()
    while True:
        mine = [_one(world, run, inner, lead, place + number) for number in range(wanted)]
        rows = world.gather([*mine, time.perf_counter() - begin])
        place += wanted
        for rank, row in enumerate(rows):
            own[rank] += [value for value in row[:-1] if value > 0]
        found = Sampled(tuple(map(tuple, own)), inner, together, limits)
        spent = rows[0][-1]  # rank 0's clock, so that all ranks count alike
        wanted = min(_ROUND, limits.most - place, int((limits.seconds - spent) / (spent / place)))
        if wanted < 1 or (found.stable and place >= min(limits.least, limits.most)):
            return found


def _batch(world: World, run: Run | None, limits: Limits) -> tuple[int, float]:
    """Warm-up; how often a sample repeats, and about how long one repetition takes [s]."""
    guess = 0.0
    if run is not None:
        run(0)
    world.synchronize()
    world.barrier()
    if run is not None:
        guess = world.timed(run, 1, 1)
    one_s = max(row[0] for row in world.gather([guess]))
    if one_s < limits.sample_s:  # the first look is too rough for short ones
        world.barrier()
        guess = world.timed(run, 5, 2) / 5 if run is not None else 0.0
        one_s = max(row[0] for row in world.gather([guess]))
    inner = min(limits.most_inner, max(1, round(limits.sample_s / max(one_s, 1e-9))))
    return inner, one_s


def _one(world: World, run: Run | None, inner: int, lead: bool, place: int) -> float:
    """Seconds a repetition of one sample; 0 for a rank that looks on."""
    world.barrier()
    if run is None:
        return 0.0
    if lead:
        run(place)
    return max(world.timed(run, inner, place * inner + 1) / inner, 1e-12)
