"""Whether intervals hold what they have not seen: measured collectives of sources that are left out.

The intervals of profiles are made of the residuals of logs that told no constant, so those residuals say nothing about
them. Each source (a repository, the author of an issue) is left out in turn, and its points are held against what the
others say.
"""

from collections.abc import Iterable
from functools import cache

from traincast.calibration.conformal import Residual, conformal_interval, left_out, source_of
from traincast.calibration.curves import Curve
from traincast.calibration.network_model import predicted_s
from traincast.calibration.place import NoPlaceError
from traincast.errors import DataError
from traincast.profile import Interval, Profile
from traincast.validate.curves import (
    NCCL_TESTS,
    collective_files,
    fitted_by,
    harness_of,
    kind_of,
    priced,
    read_collectives,
    without_launch,
)

KINDS = ("inside", "across")


def residuals_of(curves: Iterable[Curve]) -> dict[str, list[Residual]]:
    """Residuals by kind of the nccl-tests curves that told no constant, on fabrics that have a profile of their own."""
    found: dict[str, list[Residual]] = {kind: [] for kind in KINDS}
    for curve in curves:
        try:
            setting, profile, note = priced(curve)
        except (NoPlaceError, DataError):
            continue
        if note is not None or harness_of(curve) != NCCL_TESTS or fitted_by(curve.id, profile):
            continue
        for point in curve.usable:
            ratio = point.time_us * 1e-6 / predicted_s(setting, point, profile)[0]
            one = Residual(ratio, point.size_bytes, curve.id, source_of(curve.source))
            found[kind_of(setting)].append(one)
    return found


@cache
def held_out() -> dict[str, list[Residual]]:
    """The residuals that the shipped intervals are made of: logs that come along, as ones that do not say who
    launched."""
    return residuals_of(without_launch(read_collectives(collective_files())))


@cache
def _without_source() -> dict[str, dict[str, Interval]]:
    """By kind and source, the interval of all other sources."""
    return {
        kind: left_out(found, lambda others: conformal_interval(others, "all other sources"))
        for kind, found in held_out().items()
    }


def unseen_interval(kind: str, source: str, profile: Profile) -> Interval | None:
    """The interval of a profile for a log of a source, made without the logs of that source."""
    shipped = profile.intervals.get(kind)
    return None if shipped is None else _without_source().get(kind, {}).get(source, shipped)
