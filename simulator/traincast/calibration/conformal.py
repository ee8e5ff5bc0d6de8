"""Intervals from residuals that a fit has not seen, for a source (a site, a study) that nobody has seen.

Residuals of one source hang together: its cases are no draws of their own. So a source counts as one draw, whatever the
number of its cases, and the interval is made for a case of the next source.

References
----------
[1] V. Vovk, A. Gammerman, G. Shafer, Algorithmic Learning in a Random World, 2005, section 2.2: of n + 1 exchangeable
    scores the last is at most the order statistic k of the others with probability k/(n + 1) at least.
[2] Y. Romano, E. Patterson, E. Candes, Conformalized quantile regression, 2019 (arXiv:1905.03222): quantiles, moved
    apart by the conformal quantile of how far cases lie outside of them.
[3] Y. Lee, R. Barber, R. Willett, Distribution-free inference with hierarchical data, 2023 (arXiv:2306.06342): of K
    groups each weighs 1/(K + 1), shared by its cases; the group to come weighs as much.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.profile import Band, Interval

BOUNDS: Final = (64.0 * 1024, 32.0 * 2**20, math.inf)
"""Ends of the bands of sizes: latency, the ramp between, bandwidth."""

LEVEL: Final = 0.8
LEAST: Final = 8
"""Residuals below which nothing is said about whole steps."""

LEAST_SOURCES: Final = 4
"""Sources of a band below which it takes those of all sizes: K of them can promise a share of K/(K + 1) [3]."""

_REPOSITORY: Final = re.compile(r"github\.com/[\w.-]+/[\w.-]+(?:/issues/\d+)?")


@dataclass(frozen=True)
class Residual:
    """Measured over forecast of one case. `group` is its log or row, `source` the site or study that it is from (where
    none is given, the group): each source counts the same, and each log within it."""

    ratio: float
    size_bytes: float = 0.0
    group: str = ""
    source: str = ""

    @property
    def whose(self) -> str:
        """What it hangs together with."""
        return self.source or self.group


@dataclass(frozen=True)
class Coverage:
    """How much of what was left out an interval of the rest holds: share of the cases, and mean share over the sources
    (each counts the same); how many there are, and the share of each source."""

    cases_share: float
    sources_share: float
    cases: int
    sources: int
    by_source: tuple[tuple[str, float], ...]


def source_of(text: str) -> str:
    """What tells sources apart: the repository, for an issue the issue (its site is its author's), else the text."""
    found = _REPOSITORY.search(text)
    return found.group(0) if found else text.strip()


def conformal_band(residuals: Sequence[Residual], up_to_bytes: float, level: float = LEVEL) -> Band:
    """The middle `level` of residuals, sources weighted alike, and the logs of one source alike [2, 3].

    The tails of the weighted logarithms begin at (1 - level)/2; both ends move apart by the weighted quantile `level`
    of how far cases lie outside (negative inside), with 1/(K + 1) of the weight at infinity for the source to come.
    Where that asks for more than K sources can say, by the furthest case.
    """
    values = np.log([one.ratio for one in residuals])
    weights = _weights(residuals)
    sources = len({one.whose for one in residuals})
    tail = (1.0 - level) / 2.0
    low, high = _quantile(values, weights, tail), _quantile(values, weights, 1.0 - tail)
    outside = np.maximum(low - values, values - high)
    apart = _quantile(outside, weights * sources / (sources + 1.0), level)
    return Band(up_to_bytes, math.exp(low - apart), math.exp(high + apart))


def conformal_interval(residuals: Sequence[Residual], how: str, level: float = LEVEL) -> Interval | None:
    """An interval by bands of sizes; None without residuals."""
    if not residuals:
        return None
    bands, start = [], 0.0
    for bound in BOUNDS:
        inside = [one for one in residuals if start < one.size_bytes <= bound]
        enough = len({one.whose for one in inside}) >= LEAST_SOURCES
        bands.append(conformal_band(inside if enough else residuals, bound, level))
        start = bound
    return Interval(level, tuple(bands), len(residuals), how)


def one_interval(residuals: Sequence[Residual], how: str, level: float = LEVEL) -> Interval | None:
    """An interval without bands (whole steps); None with fewer residuals or sources than tell both ends."""
    if len(residuals) < LEAST:
        return None
    return Interval(level, (conformal_band(residuals, math.inf, level),), len(residuals), how)


def left_out(
    residuals: Sequence[Residual], make: Callable[[Sequence[Residual]], Interval | None]
) -> dict[str, Interval]:
    """For each source the interval that `make` finds from all the others; none where they tell none."""
    found = {}
    for name in sorted({one.whose for one in residuals}):
        interval = make([one for one in residuals if one.whose != name])
        if interval is not None:
            found[name] = interval
    return found


def coverage(residuals: Iterable[Residual], intervals: Callable[[Residual], Interval | None]) -> Coverage | None:
    """How much of the residuals their intervals hold; None where none has one."""
    inside: dict[str, list[bool]] = {}
    for one in residuals:
        interval = intervals(one)
        if interval is not None:
            band = interval.band(one.size_bytes)
            inside.setdefault(one.whose, []).append(band.low <= one.ratio <= band.high)
    if not inside:
        return None
    shares = tuple((name, sum(held) / len(held)) for name, held in sorted(inside.items()))
    cases = sum(map(len, inside.values()))
    held_cases = sum(sum(held) for held in inside.values())
    return Coverage(held_cases / cases, sum(share for _, share in shares) / len(shares), cases, len(shares), shares)


def _weights(residuals: Sequence[Residual]) -> npt.NDArray[np.float64]:
    """Weights of the cases, summing to one: sources alike, logs of a source alike, cases of a log alike."""
    cases = Counter((one.whose, one.group) for one in residuals)
    logs = Counter(whose for whose, _ in cases)
    each = [1.0 / (len(logs) * logs[one.whose] * cases[one.whose, one.group]) for one in residuals]
    return np.array(each)


def _quantile(values: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], share: float) -> float:
    """The least value up to which the weights sum to a share; the largest value where they do not reach it."""
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), share - 1e-12))
    return float(values[order][min(place, len(values) - 1)])
