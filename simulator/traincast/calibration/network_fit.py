"""Robust least squares of a profile's network constants from measured collectives.

Minimises soft-L1 of log(forecast / measured) over all points, with a weak prior on every constant: the base profile's
value, or a usual one where the base only assumes it, and a spread that covers what other fabrics show. A constant that the data do not narrow to less than half of its
prior's spread is not told by them; it stays at its prior, and the rest is fitted again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.calibration.network_model import Floats, Points, forecast_points
from traincast.profile import Profile

POINT_SPREAD: Final = 0.10
"""Log error at which soft-L1 turns from square to linear: two clusters of one type differ by about as much."""

TOLD_BELOW: Final = 0.5
"""Standard error of a constant over its prior's spread below which data have told it."""

AT_BOUND: Final = 1e-3
"""A value nearer to a bound than this share of its prior's spread is at the bound."""

SENSITIVE: Final = 0.02
"""A point counts for a constant where its forecast moves by this share when the constant moves by its prior's spread."""


@dataclass(frozen=True)
class Prior:
    """Prior of a constant in SI: spread, bounds, and a value to take where the base profile only assumes one."""

    spread: float
    low: float
    high: float
    value: float | None = None


PRIORS: Final = {
    "network.launch": Prior(1e-5, 0.0, 5e-4),
    "network.process_launch": Prior(2e-6, 0.0, 5e-5, 3.7e-6),
    "network.intra_latency": Prior(0.5, 0.1, 6.0),
    "network.base_latency": Prior(0.5, 0.0, 3.0),
    "network.intra_efficiency": Prior(0.2, 0.05, 1.6),
    "network.intra_mixing": Prior(1.0, 0.0, 4.0, 0.3),
    "network.edge_steps": Prior(0.5, 0.0, 2.0, 0.8),
    "network.nvls_latency": Prior(0.6, 0.05, 6.0),
    "network.nvls_growth": Prior(0.3, 0.0, 2.0),
    "network.nvls_efficiency": Prior(0.2, 0.3, 1.5),
    "network.nvls_mixing": Prior(1.5, 0.0, 6.0, 0.7),
    "network.inter_latency": Prior(0.5, 0.3, 5.0),
    "network.inter_efficiency": Prior(0.2, 0.1, 1.6),
    "network.wire_efficiency": Prior(0.3, 0.05, 1.04),
    "network.inter_mixing": Prior(1.0, 0.0, 4.0, 0.3),
    "network.hop": Prior(1e-5, 0.0, 2e-4),
    "network.ring_hop": Prior(1e-5, 0.0, 2e-4),
    "network.ring_overlap": Prior(0.5, 0.0, 3.0, 0.75),
    "exchange.launch": Prior(1e-5, 0.0, 2e-4),
    "exchange.handshake": Prior(1e-5, 0.0, 2e-4),
    "exchange.peer": Prior(5e-7, 0.0, 2e-5),
    "exchange.efficiency": Prior(0.2, 0.1, 1.6),
    "exchange.inter_efficiency": Prior(0.3, 0.1, 1.6),
    "exchange.mixing": Prior(1.0, 0.0, 5.0, 0.7),
    "exchange.own_share": Prior(0.4, 0.0, 2.0, 0.3),
    "message.launch": Prior(2e-5, 0.0, 5e-4),
    "message.efficiency": Prior(0.3, 0.05, 1.2),
}
"""The constants that collectives can tell."""


@dataclass(frozen=True)
class FittedConstant:
    """One constant: value and standard error in SI, whether the data told it, how many points of which curves did, and
    whether it differs from the base's."""

    name: str
    value: float
    error: float
    told: bool
    points: int
    curves: tuple[str, ...]
    changed: bool = True


@dataclass(frozen=True)
class NetworkFit:
    """What a fit found: the profile with its values, the constants, correlations of those told, and log residuals."""

    profile: Profile
    constants: tuple[FittedConstant, ...]
    correlation: npt.NDArray[np.float64]
    points: Points
    log_error: Floats

    @property
    def told(self) -> tuple[FittedConstant, ...]:
        """The constants that data told."""
        return tuple(one for one in self.constants if one.told)


def fit_network(points: Points, base: Profile, names: Iterable[str] = PRIORS) -> NetworkFit:
    """Fits the named constants (by default all that points can tell); those that no data tell keep the base's value."""
    wanted = [name for name in names if name in PRIORS]
    given, open_names = base, _moved(points, base, wanted)
    while True:
        values, errors, jacobian, covariance = _solve(points, base, open_names)
        vague = [
            name for name, error in zip(open_names, errors, strict=True) if error > TOLD_BELOW * PRIORS[name].spread
        ]
        if not vague:
            break
        worst = max(vague, key=lambda name: errors[open_names.index(name)] / PRIORS[name].spread)
        open_names = [name for name in open_names if name != worst]
        base = _with(base, [worst], [_start(base, worst)])
    fitted = _with(base, open_names, values)
    constants = [
        _constant(points, name, value, error, jacobian[:, k])
        for k, (name, value, error) in enumerate(zip(open_names, values, errors, strict=True))
    ]
    constants += [
        FittedConstant(name, base[name], PRIORS[name].spread, False, 0, (), base[name] != given[name])
        for name in wanted
        if name not in open_names
    ]
    scale = np.sqrt(np.diag(covariance)) if len(open_names) else np.ones(0)
    return NetworkFit(
        profile=fitted,
        constants=tuple(sorted(constants, key=lambda one: list(PRIORS).index(one.name))),
        correlation=covariance / np.outer(scale, scale) if len(open_names) else covariance,
        points=points,
        log_error=np.log(forecast_points(points, fitted) / points.time_s),
    )


def _with(base: Profile, names: Sequence[str], values: Sequence[float] | Floats) -> Profile:
    return base.replaced(**{name.replace(".", "__"): float(v) for name, v in zip(names, values, strict=True)})


def _moved(points: Points, base: Profile, names: Sequence[str]) -> list[str]:
    """The constants that change any forecast at all."""
    before = forecast_points(points, base)
    found = []
    for name in names:
        prior = PRIORS[name]
        start = _start(base, name)
        other = start + prior.spread if start + prior.spread <= prior.high else start - prior.spread
        after = forecast_points(points, _with(base, [name], [other]))
        if np.abs(np.log(after / before)).max(initial=0.0) > SENSITIVE:
            found.append(name)
    return found


def _start(base: Profile, name: str) -> float:
    prior, constant = PRIORS[name], base.constants[name]
    value = constant.value if prior.value is None or constant.kind != "assumed" else prior.value
    return min(max(value, prior.low), prior.high)


def _solve(points: Points, base: Profile, names: Sequence[str]) -> tuple[Floats, Floats, Floats, Floats]:
    """Values, standard errors, the Jacobian of log forecasts a prior's spread, and the covariance [SI]."""
    from scipy.optimize import least_squares

    if not names:
        return np.zeros(0), np.zeros(0), np.zeros((len(points.time_s), 0)), np.zeros((0, 0))
    start = np.array([_start(base, name) for name in names])
    spread = np.array([PRIORS[name].spread for name in names])
    low = (np.array([PRIORS[name].low for name in names]) - start) / spread
    high = (np.array([PRIORS[name].high for name in names]) - start) / spread

    def log_error(z: Floats) -> Floats:
        return np.asarray(np.log(forecast_points(points, _with(base, names, start + spread * z)) / points.time_s))

    robust = _soft_l1(log_error)
    found = min(
        (
            least_squares(robust, first, bounds=(low, high), x_scale=1.0, diff_step=[1e-3] * len(low))
            for first in _starts(low, high)
        ),
        key=lambda solution: solution.cost,
    )
    z = np.asarray(found.x)
    rows = len(points.time_s)
    jacobian = np.asarray(found.jac)[:rows]
    data = np.asarray(found.fun)[:rows]
    variance = max(float((data**2).sum() / max(rows - len(names), 1)), 1e-6)
    information = jacobian.T @ jacobian / variance + np.eye(len(names))
    covariance = np.linalg.inv(information)
    errors = spread * np.sqrt(np.diag(covariance))
    moves = _moves(log_error, z)
    return start + spread * z, errors, moves, covariance * np.outer(spread, spread)


def _starts(low: Floats, high: Floats) -> Iterator[Floats]:
    """Where the search begins: at the priors, and at four patterns of one spread up or down."""
    place = np.arange(len(low))
    for pattern in (0, 1, 2, 3, 4):
        sign = np.zeros(len(low)) if pattern == 0 else np.where((place * pattern // 2 + pattern) % 2 == 0, 1.0, -1.0)
        yield np.clip(1e-3 + 0.9 * sign, low + 1e-6, high - 1e-6)


def _soft_l1(log_error: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """Residuals whose squares sum to twice the soft-L1 loss of the points, and the priors', a unit each.

    2 (sqrt(1 + u^2) - 1) = r^2 for u = error / spread of a point.
    """

    def residual(z: Floats) -> Floats:
        u = log_error(z) / POINT_SPREAD
        r = np.sign(u) * np.sqrt(2.0 * (np.sqrt(1.0 + u * u) - 1.0))
        return np.concatenate([r, z])

    return residual


def _moves(log_error: Callable[[Floats], Floats], z: Floats) -> Floats:
    """Change of log forecasts when each constant moves by a hundredth of its prior's spread, times a hundred."""
    before = log_error(z)
    columns = []
    for k in range(len(z)):
        moved = z.copy()
        moved[k] += 0.01
        columns.append((log_error(moved) - before) * 100.0)
    return np.stack(columns, axis=1)


def _constant(points: Points, name: str, value: float, error: float, moves: Floats) -> FittedConstant:
    sensitive = np.abs(moves) > SENSITIVE
    curves = dict.fromkeys(points.settings[k].curve.id for k in points.curve[sensitive])
    prior = PRIORS[name]
    at_bound = next((b for b in (prior.low, prior.high) if abs(value - b) < AT_BOUND * prior.spread), value)
    return FittedConstant(name, float(at_bound), float(error), True, int(sensitive.sum()), tuple(curves))
