"""A run against a profile: measured and forecast by case, and what changed by collective and band of sizes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.calibration.choice import profile_of
from traincast.calibration.conformal import BOUNDS
from traincast.calibration.kernel_fit import kernel_data
from traincast.calibration.network_model import Setting, predicted_s, setting_of
from traincast.calibration.origin import gpu_name
from traincast.calibration.place import NoPlaceError
from traincast.calibration.profile_file import names_text
from traincast.calibration.results import Results
from traincast.catalog import load_catalog
from traincast.errors import DataError
from traincast.profile import Band, Profile, find_profile
from traincast.units import format_size

WITHIN = 0.20
"""A band is as before within this share of the forecast where the profile has no interval."""


@dataclass(frozen=True)
class Case:
    """One measured time beside its forecast [s]; `size_bytes` is 0 for kernels."""

    group: str
    op: str
    across: bool
    size_bytes: float
    measured_s: float
    forecast_s: float
    how: str

    @property
    def ratio(self) -> float:
        """Measured over forecast."""
        return self.measured_s / self.forecast_s


@dataclass(frozen=True)
class Change:
    """One collective or kernel in one band of sizes: how far the run is from the profile.

    `low` and `high` bound the median ratio measured/forecast that counts as unchanged.
    """

    op: str
    where: str
    sizes: str
    cases: int
    median_ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`as before`, `slower` or `faster`."""
        return "slower" if self.median_ratio > self.high else "faster" if self.median_ratio < self.low else "as before"


@dataclass(frozen=True)
class Verdict:
    """What all bands together say: how many of them changed, and the one that is furthest from its forecast."""

    bands: int
    changed: int
    cases: int
    furthest: Change

    @property
    def words(self) -> str:
        """`nothing changed` or `changed`."""
        return "changed" if self.changed else "nothing changed"


def profile_for(results: Results) -> tuple[Profile, str | None]:
    """The shipped profile of the results' hardware, and a note where it is not of just that fabric.

    Raises DataError where the hardware is not known.
    """
    for curve in results.curves:
        try:
            return profile_of(setting_of(curve).place)
        except NoPlaceError as error:
            reason = str(error)
    name = gpu_name(results)
    if name is None:
        raise DataError(reason if results.curves else "the results name no GPU", fix="add --gpu NAME or --profile NAME")
    return find_profile(name, None)


def settings_of(results: Results) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """The curves whose hardware is known, and why others cannot be priced."""
    found: list[Setting] = []
    lost: dict[str, list[str]] = {}
    for curve in results.curves:
        try:
            found.append(setting_of(curve))
        except NoPlaceError as error:
            lost.setdefault(str(error), []).append(curve.id)
    problems = [f"{names_text(names)}: {_not_used(len(names))}{reason}" for reason, names in lost.items()]
    return tuple(found), tuple(problems)


def _not_used(curves: int) -> str:
    return "" if curves == 1 else f"{curves} curves not used: "


def cases_of(results: Results, profile: Profile) -> tuple[tuple[Case, ...], tuple[str, ...]]:
    """Every usable measurement beside its forecast, and why others have none."""
    settings, problems = settings_of(results)
    cases = [_case(setting, profile, k) for setting in settings for k in range(len(setting.curve.usable))]
    name = gpu_name(results) or profile.gpu
    data, left_out = kernel_data(results.kernels, load_catalog().gpu(name))
    if data is not None:
        forecast = data.forecast(profile)
        rows = zip(data.group, data.time_s.tolist(), forecast.tolist(), strict=True)
        cases += [Case(group, group, False, 0.0, measured, seconds, "kernel") for group, measured, seconds in rows]
    return tuple(cases), (*problems, *left_out)


def _case(setting: Setting, profile: Profile, k: int) -> Case:
    point = setting.curve.usable[k]
    seconds, how = predicted_s(setting, point, profile)
    across = setting.place.span.nodes > 1
    return Case(setting.curve.id, setting.op, across, point.size_bytes, point.time_us * 1e-6, seconds, how)


def changes(cases: Iterable[Case], profile: Profile, within: float | None = None) -> tuple[Change, ...]:
    """What changed, by collective and band of sizes: the median ratio of measured to forecast beside what is usual.

    Usual is the profile's interval of that band; with `within`, or for a profile without one, that share either way.
    """
    bands: dict[tuple[str, bool, float], list[float]] = {}
    for case in cases:
        bound = next(b for b in BOUNDS if case.size_bytes <= b) if case.size_bytes else 0.0
        bands.setdefault((case.op, case.across, bound), []).append(case.ratio)
    return tuple(_change(key, ratios, profile, within) for key, ratios in sorted(bands.items()))


def verdict_of(found: Sequence[Change]) -> Verdict:
    """What changes say together. Raises DataError where there is nothing to compare."""
    if not found:
        raise DataError("nothing to compare: no measurement has a forecast", fix="name results of the profile's GPU")
    furthest = max(found, key=lambda one: abs(math.log(one.median_ratio)))
    changed = sum(one.verdict != "as before" for one in found)
    return Verdict(len(found), changed, sum(one.cases for one in found), furthest)


def _change(key: tuple[str, bool, float], ratios: Sequence[float], profile: Profile, within: float | None) -> Change:
    op, across, bound = key
    usual = profile.intervals.get("across" if across else "inside") if bound and within is None else None
    share = WITHIN if within is None else within
    band = usual.band(min(bound, 2.0**60)) if usual else Band(bound, 1.0 / (1.0 + share), 1.0 + share)
    where = "" if not bound else "across nodes" if across else "inside a node"
    return Change(op, where, _sizes(bound), len(ratios), float(np.median(ratios)), band.low, band.high)


def _sizes(bound: float) -> str:
    if not bound:
        return ""
    place = BOUNDS.index(bound)
    if place == len(BOUNDS) - 1:
        return f"above {format_size(BOUNDS[-2])}"
    return f"up to {format_size(bound)}"
