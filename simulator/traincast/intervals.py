"""How far measurements lie from forecasts: quantiles of measured over forecast, by band of sizes."""

import math
from dataclasses import dataclass

from traincast.profiletext import Entry


@dataclass(frozen=True)
class Band:
    """Measured over forecast of the middle `level` of cases, up to a size (infinite for the last band)."""

    up_to_bytes: float
    low: float
    high: float


@dataclass(frozen=True)
class Interval:
    """How far measurements lie from forecasts of a profile: quantiles of residuals, by band of sizes.

    `rows` counts the residuals, `how` says whose they are. A whole step has one band.
    """

    level: float
    bands: tuple[Band, ...]
    rows: int
    how: str

    def band(self, size_bytes: float = 0.0) -> Band:
        """The band of a size."""
        return next(one for one in self.bands if size_bytes <= one.up_to_bytes)


def read_interval(entry: Entry) -> Interval:
    """An interval as a profile's file states it. Raises DataError, with the place, for one that cannot be."""
    bands = []
    for band in entry.need("bands").entries():
        up_to = band.get("up_to")
        bound = up_to.quantity("size") if up_to else math.inf
        bands.append(Band(bound, band.need("low").number(), band.need("high").number()))
    if not bands or bands[-1].up_to_bytes != math.inf:
        raise entry.wrong("the last band of an interval has no bound", "leave its up_to out")
    level, rows = entry.need("level").number(), entry.need("rows").number()
    return Interval(level, tuple(bands), int(rows), entry.need("how").text())
