"""Intervals from residuals that a fit has not seen (split conformal prediction).

References
----------
[1] V. Vovk, A. Gammerman, G. Shafer, Algorithmic Learning in a Random World, 2005, section 2.2: of n + 1 exchangeable
    residuals the last lies between the order statistics k and n + 1 - k of the others with probability 1 - 2k/(n + 1)
    at least.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.profile import Band, Interval

BOUNDS: Final = (64.0 * 1024, 32.0 * 2**20, math.inf)
"""Ends of the bands of sizes: latency, the ramp between, bandwidth."""

LEVEL: Final = 0.8
LEAST: Final = 8
"""Residuals of a band below which it takes those of all sizes."""


@dataclass(frozen=True)
class Residual:
    """Measured over forecast of one case. `group`: cases of one log hang together, and each log counts the same."""

    ratio: float
    size_bytes: float = 0.0
    group: str = ""


def conformal_band(residuals: Sequence[Residual], up_to_bytes: float, level: float = LEVEL) -> Band:
    """The middle `level` of residuals, groups weighted alike [1].

    Of n residuals in g groups each weighs 1/g over its group's count; one more weight of 1/(n+1) stands at either
    end, as the residual to come might.
    """
    values = np.array([one.ratio for one in residuals])
    counts: dict[str, int] = {}
    for one in residuals:
        counts[one.group] = counts.get(one.group, 0) + 1
    weights = np.array([1.0 / counts[one.group] for one in residuals])
    weights = weights / weights.sum() * len(values) / (len(values) + 1.0)
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    tail = (1.0 - level) / 2.0
    low = values[order][max(int(np.searchsorted(below, tail, side="right")) - 1, 0)]
    high = values[order][min(int(np.searchsorted(below, 1.0 - tail)), len(values) - 1)]
    return Band(up_to_bytes, float(low), float(high))


def conformal_interval(residuals: Sequence[Residual], how: str, level: float = LEVEL) -> Interval | None:
    """An interval by bands of sizes; None without residuals."""
    if not residuals:
        return None
    bands, start = [], 0.0
    for bound in BOUNDS:
        inside = [one for one in residuals if start < one.size_bytes <= bound]
        bands.append(conformal_band(inside if len(inside) >= LEAST else residuals, bound, level))
        start = bound
    return Interval(level, tuple(bands), len(residuals), how)


def one_interval(residuals: Sequence[Residual], how: str, level: float = LEVEL) -> Interval | None:
    """An interval without bands (whole steps); None with fewer residuals than tell both ends."""
    if len(residuals) < LEAST:
        return None
    return Interval(level, (conformal_band(residuals, math.inf, level),), len(residuals), how)
