"""Measured collectives against forecasts, a point, a curve and a kind of hardware at a time.

Hardware, fabric and profile follow from a curve's own texts about GPU, network, counts and NCCL version; never from
its times. A curve that a profile was fitted on is `fitted`, every other one with known hardware `scored`; spikes
(slower than 1.3 times the next larger size) are shown and left out of scores. Whether intervals hold is counted with
those of other sources than a curve's own (`coverage`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any, Literal

from traincast.calibration.conformal import source_of
from traincast.calibration.curves import Curve, CurvePoint, unusable
from traincast.calibration.network_model import Setting, launch_of, predicted_s
from traincast.calibration.place import NoPlaceError
from traincast.errors import TraincastError
from traincast.profile import Profile
from traincast.validate.coverage import KINDS, unseen_interval
from traincast.validate.curves import NCCL_TESTS as NCCL_TESTS
from traincast.validate.curves import collective_files as collective_files
from traincast.validate.curves import fitted_by, harness_of, kind_of, priced
from traincast.validate.curves import read_collectives as read_collectives
from traincast.validate.curves import without_launch as without_launch

Status = Literal["scored", "fitted", "skipped"]
LARGE_BYTES = 64 * 2**20
"""From here on bandwidth alone counts."""
LEAST_SIZES = 8
"""Sizes of a curve from which on its mean error says something."""


@dataclass(frozen=True)
class CollectiveScore:
    """One measured point. `how` is the algorithm and protocol that the forecast takes, `low_us` and `high_us` the
    profile's interval (None without one). `held`: whether the interval of all other sources holds the point, of a kind
    (`inside` a node, `across` nodes)."""

    curve_id: str
    size_bytes: float
    in_place: bool
    measured_us: float
    predicted_us: float | None
    status: Status
    reason: str
    how: str = ""
    low_us: float | None = None
    high_us: float | None = None
    held: bool | None = None
    kind: str = ""

    @property
    def error_pct(self) -> float | None:
        """Predicted over measured, less one, in percent."""
        if self.predicted_us is None or not self.measured_us > 0:
            return None
        return 100.0 * (self.predicted_us / self.measured_us - 1.0)

    def as_dict(self) -> dict[str, object]:
        """The point as JSON shows it."""
        return {
            "curve_id": self.curve_id,
            "size_bytes": int(self.size_bytes) if self.size_bytes == self.size_bytes else None,
            "in_place": self.in_place,
            "measured_us": self.measured_us,
            "predicted_us": self.predicted_us,
            "error_pct": self.error_pct,
            "status": self.status,
            "reason": self.reason,
            "how": self.how,
            "low_us": self.low_us,
            "high_us": self.high_us,
        }


@dataclass(frozen=True)
class CurveScore:
    """One curve: its hardware and profile, and the errors of its points, spikes left out.

    `own_fabric`: the profile is that of the curve's fabric, not the nearest one. `harness`: what timed it
    (nccl-tests, a runtime's table, a framework's kernel trace). `covered_pct`: share of points inside the interval of
    all other sources than `source`.
    """

    curve_id: str
    gpu: str
    profile: str
    harness: str
    op: str
    ranks: int
    nodes: int | None
    sizes: int
    n: int
    status: Status
    mean_abs_pct: float | None
    large_mean_abs_pct: float | None
    worst_pct: float | None
    bias_pct: float | None
    covered_pct: float | None
    own_fabric: bool = True
    source: str = ""


@dataclass(frozen=True)
class HardwareScore:
    """All curves that one profile prices: how many, and the medians of their mean errors, fitted or not."""

    profile: str
    gpus: str
    curves: int
    scored_curves: int
    scored_points: int
    scored_median_pct: float | None
    scored_mean_pct: float | None
    fitted_curves: int
    fitted_median_pct: float | None
    worst_curve: str | None
    covered_pct: float | None


@dataclass(frozen=True)
class CollectiveReport:
    """All points, curves and hardware, and figures over all curves of nccl-tests with at least 8 sizes."""

    rows: tuple[CollectiveScore, ...]
    curves: tuple[CurveScore, ...]
    hardware: tuple[HardwareScore, ...]

    def overall(self) -> dict[str, object]:
        """Medians over nccl-tests curves of at least 8 sizes, all of them and those that were not fitted; how much of
        what told no constant the intervals of all other sources hold, by points and as the mean over sources."""
        long = [c for c in self.curves if c.status != "skipped" and c.sizes >= LEAST_SIZES and c.harness == NCCL_TESTS]
        errors = [c.mean_abs_pct for c in long if c.mean_abs_pct is not None]
        held_out = [c.mean_abs_pct for c in long if c.mean_abs_pct is not None and c.status == "scored"]
        return {
            "curves": len(errors),
            "median_pct": median(errors) if errors else None,
            "scored_curves": len(held_out),
            "scored_median_pct": median(held_out) if held_out else None,
            "covered_pct": _covered(self._unseen()),
            "covered_sources_pct": self._by_source(self._unseen()),
            **{f"{kind}_sources_pct": self._by_source([r for r in self._unseen() if r.kind == kind]) for kind in KINDS},
            "points": sum(row.status != "skipped" for row in self.rows),
            "skipped_points": sum(row.status == "skipped" for row in self.rows),
        }

    def _unseen(self) -> list[CollectiveScore]:
        return [row for row in self.rows if row.status == "scored" and row.held is not None]

    def _by_source(self, rows: Sequence[CollectiveScore]) -> float | None:
        """Mean over sources of the share of their points that intervals hold [%]."""
        source = {curve.curve_id: curve.source for curve in self.curves}
        found: dict[str, list[CollectiveScore]] = {}
        for row in rows:
            found.setdefault(source[row.curve_id], []).append(row)
        shares = [share for one in found.values() if (share := _covered(one)) is not None]
        return fmean(shares) if shares else None

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON shows it."""
        return {
            "rows": [row.as_dict() for row in self.rows],
            "curves": [asdict(one) for one in self.curves],
            "hardware": [asdict(one) for one in self.hardware],
            "overall": self.overall(),
        }


def validate_collectives(
    curves: Sequence[Curve], advance: Callable[[int], object] = lambda done: None
) -> CollectiveReport:
    """Forecasts every point that can be, and scores curves and hardware. `advance` is told of each curve."""
    rows: list[CollectiveScore] = []
    scores: list[CurveScore] = []
    for curve in curves:
        found, score = _curve(curve)
        rows += found
        scores.append(score)
        advance(1)
    return CollectiveReport(tuple(rows), tuple(scores), tuple(_hardware(scores, rows)))


def _curve(curve: Curve) -> tuple[list[CollectiveScore], CurveScore]:
    try:
        setting, profile, note = priced(curve)
        rows = [_point(setting, profile, point, note) for point in curve.points]
    except (NoPlaceError, TraincastError) as error:
        reason = error.message if isinstance(error, TraincastError) else str(error)
        rows = [_skipped(curve, point, reason) for point in curve.points]
        return rows, _curve_score(curve, ("", ""), "skipped", rows)
    status: Status = "fitted" if fitted_by(curve.id, profile) else "scored"
    score = _curve_score(curve, (setting.place.gpu.name, profile.name), status, rows)
    return rows, replace(score, own_fabric=note is None)


def _skipped(curve: Curve, point: CurvePoint, reason: str) -> CollectiveScore:
    return CollectiveScore(curve.id, point.size_bytes, point.in_place, point.time_us, None, "skipped", reason)


def _point(setting: Setting, profile: Profile, point: CurvePoint, note: str | None) -> CollectiveScore:
    curve = setting.curve
    if unusable(point.size_bytes, point.time_us):
        return _skipped(curve, point, point.problem or "no figure")
    seconds, how = predicted_s(setting, point, profile)
    told = fitted_by(curve.id, profile)
    status: Status = "skipped" if point.problem else "fitted" if told else "scored"
    reasons = [point.problem, f"profile {told} was fitted on this curve" if told else None]
    reasons += [f"profile {profile.name}", note, *setting.notes]
    if not setting.launch:
        reasons.append(f"who launched is not told: {launch_of(setting, profile)}")
    kind = kind_of(setting)
    known = note is None and harness_of(curve) == NCCL_TESTS
    interval = profile.intervals.get(kind) if known else None
    unseen = unseen_interval(kind, source_of(curve.source), profile) if known else None
    band = interval.band(point.size_bytes) if interval else None
    other = unseen.band(point.size_bytes) if unseen else None
    return CollectiveScore(
        curve_id=curve.id,
        size_bytes=point.size_bytes,
        in_place=point.in_place,
        measured_us=point.time_us,
        predicted_us=seconds * 1e6,
        status=status,
        reason="; ".join(reason for reason in reasons if reason),
        how=how,
        low_us=seconds * 1e6 * band.low if band else None,
        high_us=seconds * 1e6 * band.high if band else None,
        held=other.low <= point.time_us * 1e-6 / seconds <= other.high if other else None,
        kind=kind,
    )


def _curve_score(curve: Curve, priced: tuple[str, str], status: Status, rows: Sequence[CollectiveScore]) -> CurveScore:
    gpu, profile = priced
    used = [row for row in rows if row.status != "skipped"]
    errors = [row.error_pct for row in used if row.error_pct is not None]
    large = [row.error_pct for row in used if row.error_pct is not None and row.size_bytes >= LARGE_BYTES]
    return CurveScore(
        curve_id=curve.id,
        gpu=gpu or curve.gpu,
        profile=profile,
        harness=harness_of(curve),
        op=curve.op,
        ranks=curve.ranks,
        nodes=curve.nodes,
        sizes=curve.sizes,
        n=len(errors),
        status=status if errors else "skipped",
        mean_abs_pct=fmean(map(abs, errors)) if errors else None,
        large_mean_abs_pct=fmean(map(abs, large)) if large else None,
        worst_pct=max(errors, key=abs) if errors else None,
        bias_pct=fmean(errors) if errors else None,
        covered_pct=_covered(used),
        source=source_of(curve.source),
    )


def _covered(rows: Sequence[CollectiveScore]) -> float | None:
    """Share of the points with an interval that theirs holds, in percent; None where none has one."""
    known = [row for row in rows if row.held is not None]
    return 100.0 * sum(bool(row.held) for row in known) / len(known) if known else None


def _hardware(curves: Sequence[CurveScore], rows: Sequence[CollectiveScore]) -> Iterator[HardwareScore]:
    by_curve: dict[str, list[CollectiveScore]] = {}
    for row in rows:
        by_curve.setdefault(row.curve_id, []).append(row)
    for name in dict.fromkeys(curve.profile for curve in curves if curve.profile):
        own = [curve for curve in curves if curve.profile == name]
        scored = [c for c in own if c.status == "scored" and c.mean_abs_pct is not None]
        fitted = [c.mean_abs_pct for c in own if c.status == "fitted" and c.mean_abs_pct is not None]
        errors = [c.mean_abs_pct for c in scored if c.mean_abs_pct is not None]
        points = [row for c in scored for row in by_curve[c.curve_id] if row.status == "scored"]
        worst = max(scored, key=lambda c: c.mean_abs_pct or 0.0, default=None)
        yield HardwareScore(
            profile=name,
            gpus=", ".join(sorted({c.gpu for c in own})),
            curves=len(own),
            scored_curves=len(scored),
            scored_points=len(points),
            scored_median_pct=median(errors) if errors else None,
            scored_mean_pct=fmean(errors) if errors else None,
            fitted_curves=len(fitted),
            fitted_median_pct=median(fitted) if fitted else None,
            worst_curve=worst.curve_id if worst else None,
            covered_pct=_covered(points),
        )
