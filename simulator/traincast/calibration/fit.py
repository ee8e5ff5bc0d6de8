"""Robust least squares of a profile's constants from measurements.

Minimises soft-L1 of log(forecast / measured) over all cases, with a weak prior on every constant: the base profile's
value, or a usual one where the base only assumes it, and a spread that covers what other machines show. A constant that
the data do not narrow to less than half of its prior's spread is not told by them; it stays at its prior, and the rest
is fitted again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.profile import Profile

Floats = npt.NDArray[np.float64]

CASE_SPREAD: Final = (0.03, 0.10)
"""Log error at which soft-L1 turns from square to linear, at least and at most: what a first fit leaves, not below what
repeated runs differ by, not above what two clusters of one type do."""

TOLD_BELOW: Final = 0.5
"""Standard error of a constant over its prior's spread below which data have told it."""

STARTS: Final = 5
"""Places from which a search starts."""

AT_BOUND: Final = 1e-3
"""A value nearer to a bound than this share of its prior's spread is at the bound."""

STRONG: Final = 0.8
"""Correlation of two constants from which on the data tell one of them mostly by the other."""

POOR: Final = 0.5
"""Median error of a fit above which it is none: even logs that told nothing are mostly forecast within 5 to 20 %
(calibration/README.md)."""

_MATCHED: Final = 3.0
"""Residuals (root mean square, in spreads of a case) up to which a model matches its cases at all."""

_AWAY: Final = 100.0
"""Where the search has its origin: its steps are relative, and so are the same wherever a constant is."""

_FURTHEST: Final = 1e100
"""Ratio of forecast to measured that stands for anything worse."""

SENSITIVE: Final = 0.02
"""A case counts for a constant where its forecast moves by this share when the constant moves by its prior's spread."""


@dataclass(frozen=True)
class Prior:
    """Prior of a constant in SI: spread, bounds, and a value to take where the base profile only assumes one."""

    spread: float
    low: float
    high: float
    value: float | None = None

    def start(self, base: Profile, name: str) -> float:
        """The prior's value under a base profile."""
        constant = base.constants[name]
        usual = self.value is not None and constant.kind == "assumed"
        value = self.value if usual and self.value is not None else constant.value
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class _How:
    """Spread of a case's log error, and from how many places a search starts."""

    case_spread: float
    starts: int


@dataclass(frozen=True, eq=False)
class Data:
    """Measured seconds of many cases, the log or table that each is from, and their forecasts under a profile.

    `noise` is the relative standard deviation of each time where it was measured (None or 0: not told): the worse a
    time is known, the less it counts.
    """

    time_s: Floats
    group: tuple[str, ...]
    forecast: Callable[[Profile], Floats]
    noise: Floats | None = None

    def log_error(self, profile: Profile) -> Floats:
        """log(forecast / measured) of every case; finite, whatever constants a search tries."""
        with np.errstate(all="ignore"):
            ratio = np.nan_to_num(self.forecast(profile) / self.time_s, nan=_FURTHEST)
        return np.asarray(np.log(np.clip(ratio, 1.0 / _FURTHEST, _FURTHEST)))

    def spreads(self, case_spread: float) -> Floats:
        """Spread of each log error: of the cases by themselves, and of the measurement."""
        noise = np.zeros(len(self.time_s)) if self.noise is None else self.noise
        return np.asarray(np.hypot(case_spread, noise))


@dataclass(frozen=True)
class FittedConstant:
    """One constant: value and standard error in SI, whether the data told it, how many cases of which groups did,
    whether it differs from the base's, and which end of its bounds it is at (`lowest`, `highest`; empty: none)."""

    name: str
    value: float
    error: float
    told: bool
    cases: int
    groups: tuple[str, ...]
    changed: bool = True
    bound: str = ""


@dataclass(frozen=True, eq=False)
class Fit:
    """What a fit found: the profile with its values, the constants, correlations of those told (`names` in order), and
    log residuals."""

    profile: Profile
    constants: tuple[FittedConstant, ...]
    names: tuple[str, ...]
    correlation: Floats
    data: Data
    log_error: Floats

    @property
    def told(self) -> tuple[FittedConstant, ...]:
        """The constants that data told."""
        return tuple(one for one in self.constants if one.told)

    @property
    def correlated(self) -> tuple[tuple[str, str, float], ...]:
        """Pairs of constants that hang together by `STRONG` or more, with their correlation."""
        pairs = combinations(range(len(self.names)), 2)
        found = [(self.names[i], self.names[j], float(self.correlation[i, j])) for i, j in pairs]
        return tuple(one for one in found if abs(one[2]) >= STRONG)

    @property
    def median_error(self) -> float:
        """Median absolute error of all cases, as a share of what was measured."""
        return float(np.median(np.abs(np.expm1(self.log_error))))

    @property
    def poor(self) -> bool:
        """Whether at least half of the cases are off by more than `POOR`, whatever the constants are."""
        return self.median_error > POOR

    def medians_by_group(self) -> Mapping[str, float]:
        """Median absolute error of each group, as a share."""
        error, group = np.abs(np.expm1(self.log_error)), np.array(self.data.group)
        return {name: float(np.median(error[group == name])) for name in dict.fromkeys(self.data.group)}

    def errors_by_group(self) -> Mapping[str, float]:
        """Mean absolute error of each group, as a share."""
        error = np.abs(np.expm1(self.log_error))
        group = np.array(self.data.group)
        return {name: float(error[group == name].mean()) for name in dict.fromkeys(self.data.group)}


def fit_constants(
    data: Data,
    base: Profile,
    priors: Mapping[str, Prior],
    names: Iterable[str] | None = None,
    thorough: bool = True,
) -> Fit:
    """Fits the named constants (all of `priors` without names); those that no data tell stay at their priors.

    `thorough` starts from several places and measures the spread of the cases first; a fold of many may do without.
    """
    wanted = [name for name in (priors if names is None else names) if name in priors]
    given, open_names = base, _moved(data, base, {name: priors[name] for name in wanted})
    how = _How(CASE_SPREAD[1], 1)
    if thorough:
        how = replace(how, case_spread=_spread(data, base, {name: priors[name] for name in open_names}))
    while True:
        values, errors, covariance = _solve(data, base, {name: priors[name] for name in open_names}, how)
        over = {name: e / priors[name].spread for name, e in zip(open_names, errors, strict=True)}
        vague = [name for name, share in over.items() if share > TOLD_BELOW]
        if not vague and (not thorough or how.starts == STARTS):
            break
        if not vague:
            how = replace(how, starts=STARTS)
            continue
        worst = max(vague, key=lambda name: over[name])
        open_names = [name for name in open_names if name != worst]
        base = _with(base, [worst], [priors[worst].start(base, worst)])
    fitted = _with(base, open_names, values)
    moves = _moves(data, fitted, {name: priors[name] for name in open_names})
    constants = [
        _told(data, name, priors[name], (values[k], errors[k]), moves[:, k]) for k, name in enumerate(open_names)
    ]
    constants += [
        FittedConstant(name, base[name], priors[name].spread, False, 0, (), base[name] != given[name])
        for name in wanted
        if name not in open_names
    ]
    scale = np.sqrt(np.diag(covariance))
    place = list(priors)
    return Fit(
        profile=fitted,
        constants=tuple(sorted(constants, key=lambda one: place.index(one.name))),
        names=tuple(open_names),
        correlation=np.asarray(covariance / np.outer(scale, scale)),
        data=data,
        log_error=data.log_error(fitted),
    )


def _with(base: Profile, names: Sequence[str], values: Sequence[float] | Floats) -> Profile:
    return base.replaced(**{name.replace(".", "__"): float(v) for name, v in zip(names, values, strict=True)})


def _moved(data: Data, base: Profile, priors: Mapping[str, Prior]) -> list[str]:
    """The constants that change any forecast at all."""
    before = data.forecast(base)
    found = []
    for name, prior in priors.items():
        start = prior.start(base, name)
        other = start + prior.spread if start + prior.spread <= prior.high else start - prior.spread
        after = data.forecast(_with(base, [name], [other]))
        if np.abs(np.log(after / before)).max(initial=0.0) > SENSITIVE:
            found.append(name)
    return found


def _spread(data: Data, base: Profile, priors: Mapping[str, Prior]) -> float:
    """Spread of log errors that a first fit of all constants leaves (1.48 times the median) beyond what the
    measurements are off by themselves, within `CASE_SPREAD`."""
    values, _, _ = _solve(data, base, priors, _How(CASE_SPREAD[1], STARTS))
    left = 1.4826 * np.median(np.abs(data.log_error(_with(base, list(priors), values))))
    own = np.median(data.spreads(0.0))
    return float(np.clip(math.sqrt(max(left**2 - own**2, 0.0)), *CASE_SPREAD))


def _solve(data: Data, base: Profile, priors: Mapping[str, Prior], how: "_How") -> tuple[Floats, Floats, Floats]:
    """Values, standard errors and covariance [SI], of the best of several starts.

    The covariance is that of the linearised problem with cases of this spread, or wider where residuals are. Where
    cases that are matched push a constant against a bound, its probability falls off from there as exp(-g z) with the
    slope g of the loss: a standard deviation of 1/g.
    """
    from scipy.optimize import least_squares

    names = list(priors)
    if not names:
        return np.zeros(0), np.zeros(0), np.zeros((0, 0))
    start = np.array([priors[name].start(base, name) for name in names])
    spread = np.array([priors[name].spread for name in names])
    step = [1e-3 / _AWAY] * len(names)
    bounds = np.array([(priors[name].low, priors[name].high) for name in names]).T
    low, high = (bounds - start) / spread

    def values(z: Floats) -> Floats:
        return np.asarray(np.clip(start + spread * (z - _AWAY), *bounds))

    robust = _soft_l1(lambda z: data.log_error(_with(base, names, values(z))), data.spreads(how.case_spread))
    found = min(
        (
            least_squares(robust, z, bounds=(low + _AWAY, high + _AWAY), diff_step=step, max_nfev=80)
            for z in _starts(low, high, how.starts)
        ),
        key=lambda solution: solution.cost,
    )
    cases = len(data.time_s)
    jacobian, residual = np.asarray(found.jac)[:cases], np.asarray(found.fun)[:cases]
    wider = max(float((residual**2).sum() / max(cases - len(names), 1)), 1.0)
    covariance = np.linalg.inv(jacobian.T @ jacobian / wider + np.eye(len(names)))
    slope = np.abs(np.asarray(found.grad)) / wider
    pushed = (np.asarray(found.active_mask) != 0) & (wider < _MATCHED**2)
    z_error = np.sqrt(np.diag(covariance))
    z_error = np.where(pushed & (slope * z_error > 1.0), 1.0 / np.maximum(slope, 1e-300), z_error)
    return values(np.asarray(found.x)), spread * z_error, np.asarray(covariance * np.outer(spread, spread))


def _starts(low: Floats, high: Floats, patterns: int) -> Iterator[Floats]:
    """Where the search begins: at the priors, and at further patterns of one spread up or down."""
    place = np.arange(len(low))
    for pattern in range(patterns):
        sign = np.zeros(len(low)) if pattern == 0 else np.where((place * pattern // 2 + pattern) % 2 == 0, 1.0, -1.0)
        yield _AWAY + np.clip(1e-3 + 0.9 * sign, low + 1e-6, high - 1e-6)


def _soft_l1(log_error: Callable[[Floats], Floats], case_spread: Floats) -> Callable[[Floats], Floats]:
    """Residuals whose squares sum to twice the soft-L1 loss of the cases, and the priors', a unit each.

    2 (sqrt(1 + u^2) - 1) = r^2 for u = error / spread of a case, written so that small errors keep their digits.
    """

    def residual(z: Floats) -> Floats:
        u = log_error(z) / case_spread
        r = u * np.sqrt(2.0 / (np.sqrt(1.0 + u * u) + 1.0))
        return np.concatenate([r, z - _AWAY])

    return residual


def _moves(data: Data, fitted: Profile, priors: Mapping[str, Prior]) -> Floats:
    """Change of log forecasts when each constant moves by its prior's spread, to first order."""
    before = data.log_error(fitted)
    columns = [
        (data.log_error(_with(fitted, [name], [fitted[name] + 0.01 * prior.spread])) - before) * 100.0
        for name, prior in priors.items()
    ]
    return np.stack(columns, axis=1) if columns else np.zeros((len(before), 0))


def _told(data: Data, name: str, prior: Prior, found: tuple[float, float], moves: Floats) -> FittedConstant:
    value, error = found
    sensitive = np.flatnonzero(np.abs(moves) > SENSITIVE)
    groups = dict.fromkeys(data.group[k] for k in sensitive)
    ends = {"lowest": prior.low, "highest": prior.high}
    bound = next((end for end, at in ends.items() if abs(value - at) < AT_BOUND * prior.spread), "")
    return FittedConstant(
        name, float(ends.get(bound, value)), float(error), True, len(sensitive), tuple(groups), bound=bound
    )
