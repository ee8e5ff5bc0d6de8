"""Samples of a time: median, spread, and whether the median is known well enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import median, median_low, stdev

CONFIDENCE = 0.95
FEWEST = 3
"""Samples below which nothing is known of a median."""
_FEW = {3: 4.303 / sqrt(3 * 0.743), 4: 3.182 / sqrt(4 * 0.838), 5: 2.776 / sqrt(5 * 0.697)}
"""Half of the 95 % interval of the median of so few normal samples, in standard deviations (`half_width`)."""
SLOW = 1.15
"""A rank is listed as slow where its own median is above this many times the ranks' (lower) median."""


@dataclass(frozen=True)
class Spread:
    """Seconds: median, quartiles and extremes of `count` samples.

    `half_width` is half of the interval that holds the median with 95 % as a share of the median; None below three
    samples.
    """

    median_s: float
    quartile_1_s: float
    quartile_3_s: float
    min_s: float
    max_s: float
    count: int
    half_width: float | None


def spread(samples_s: Sequence[float]) -> Spread:
    """Spread of one or more samples [s]."""
    ordered = sorted(samples_s)
    low, high = quantile(ordered, 0.25), quantile(ordered, 0.75)
    return Spread(median(ordered), low, high, ordered[0], ordered[-1], len(ordered), half_width(ordered))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of ascending samples, linear between them."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def half_width(ordered: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the median of ascending samples, as a share of the median; None below 3 samples.

    Notes
    -----
    From 6 samples on distribution-free, from order statistics: the interval from the k-th smallest to the k-th largest
    sample holds the median with 1 - 2 P(B < k), B binomial with n trials of 1/2 (David and Nagaraja, Order Statistics,
    2003, eq. 7.1.2). No such interval reaches 95 % with fewer: for 3 to 5 samples it is Student's t s / sqrt(n e), e
    the efficiency of the median of so many normal samples (Dixon and Massey, Introduction to Statistical Analysis:
    0.743, 0.838, 0.697). It is wide, and so it tells by itself how little is known.
    """
    middle = median(ordered) if ordered else 0.0
    if len(ordered) < FEWEST or middle <= 0:
        return None
    if len(ordered) in _FEW:
        return _FEW[len(ordered)] * stdev(ordered) / middle
    k = interval_rank(len(ordered))
    assert k is not None
    return (ordered[-k] - ordered[k - 1]) / 2 / middle


def interval_rank(n: int) -> int | None:
    """The largest k whose interval (k-th smallest to k-th largest of n) holds the median with 95 %; None: none does."""
    outside, found = 0.0, None
    for k in range(1, n // 2 + 1):
        outside += comb(n, k - 1) / 2**n  # P(B < k)
        if 1 - 2 * outside < CONFIDENCE:
            break
        found = k
    return found


def stable(samples_s: Sequence[float], wanted: float) -> bool:
    """Whether the median is known to `wanted` (a share of it)."""
    width = half_width(sorted(samples_s))
    return width is not None and width <= wanted


def slowest(own_medians_s: Sequence[float | None]) -> tuple[int, float]:
    """The rank whose own median is the largest, and that median; None: the rank took no part."""
    known = [(value, -rank) for rank, value in enumerate(own_medians_s) if value is not None]
    value, rank = max(known)
    return -rank, value


def slow_ranks(own_medians_s: Sequence[float | None]) -> tuple[int, ...]:
    """Ranks above `SLOW` times the lower median of all that took part."""
    known = [value for value in own_medians_s if value is not None]
    if len(known) < 2:
        return ()
    usual = median_low(known)
    return tuple(rank for rank, value in enumerate(own_medians_s) if value is not None and value > SLOW * usual)


def slowdowns(alone_s: tuple[float, float], both_s: tuple[float, float]) -> tuple[float, float]:
    """How much slower each of two runs is while the other one is running, from when each ended.

    `alone_s`: time of each by itself; `both_s`: time of each from the common start to its own end.

    Notes
    -----
    The first to end was beside the other all the time: f1 = both1 / alone1. The other one had the machine to itself
    from then on, so alone2 = both1 / f2 + (both2 - both1).
    """
    first = 0 if both_s[0] <= both_s[1] else 1
    second = 1 - first
    factor_first = both_s[first] / alone_s[first]
    left = alone_s[second] - (both_s[second] - both_s[first])
    factor_second = both_s[first] / left if left > 0 else both_s[second] / alone_s[second]
    pair = (factor_first, factor_second)
    return pair if first == 0 else (pair[1], pair[0])
