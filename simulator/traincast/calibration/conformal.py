"""Intervals from residuals that a fit has not seen (split conformal prediction)."""

from collections.abc import Sequence
from traincast.profile import Band, Interval


def pooled_interval() -> Interval: ...
