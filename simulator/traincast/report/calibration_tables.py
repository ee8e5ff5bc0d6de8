"""Calibrations as tables: what a fit told, measured against forecast, what changed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from traincast.report.tables import Table

if TYPE_CHECKING:
    from traincast.calibration.calibrate import Calibration
    from traincast.calibration.compare import Case, Change
    from traincast.calibration.fit import Fit, FittedConstant
    from traincast.profile import Profile

CASE_COLUMNS = ("group", "op", "size_bytes", "measured_us", "forecast_us", "error_pct", "how")


def fit_tables(found: "Calibration") -> tuple[Table, ...]:
    """What each constant is now and who told it, how well each log is matched, and the intervals."""
    rows: list[tuple[object, ...]] = []
    errors: list[tuple[object, ...]] = []
    for fit in found.fits:
        for one in fit.constants:
            if one.told:
                row = (one.name, *_scaled(one.name, one.value, one.error), _from(fit, one), one.cases, len(one.groups))
                rows.append(row)
            elif one.changed:
                rows.append((one.name, *_scaled(one.name, one.value, None), "prior", 0, 0))
        errors += [(name, 100.0 * error) for name, error in fit.errors_by_group().items()]
    columns = ("constant", "value", "unit", "standard error", "from", "cases", "logs")
    tables = [
        Table("Constants", columns, tuple(rows)),
        *correlation_tables([pair for fit in found.fits for pair in fit.correlated]),
        Table("Logs", ("log", "mean |error| %"), tuple(errors)),
    ]
    bands = tuple(
        (kind, _upper(band.up_to_bytes), band.low, band.high, interval.level, interval.how)
        for kind, interval in found.intervals
        for band in interval.bands
    )
    if bands:
        names = ("collectives", "up to", "measured/forecast from", "to", "level", "how")
        tables.append(Table("Intervals", names, bands))
    return tuple(tables)


def fit_payload(found: "Calibration") -> dict[str, Any]:
    """What a fit found, as JSON shows it: values and standard errors in SI."""
    return {
        "profile": found.profile.name,
        "gpu": found.profile.gpu,
        "constants": [
            {
                "name": one.name,
                "value": one.value,
                "standard_error": one.error if one.told else None,
                "from": _from(fit, one),
                "cases": one.cases,
                "logs": list(one.groups),
            }
            for fit in found.fits
            for one in fit.constants
            if one.told or one.changed
        ],
        "correlations": [{"of": one, "with": other, "r": r} for fit in found.fits for one, other, r in fit.correlated],
        "logs": [
            {"log": name, "mean_abs_error_pct": 100.0 * error}
            for fit in found.fits
            for name, error in fit.errors_by_group().items()
        ],
        "intervals": {
            kind: {
                "level": one.level,
                "rows": one.rows,
                "how": one.how,
                "bands": [
                    {
                        "up_to_bytes": None if band.up_to_bytes == float("inf") else band.up_to_bytes,
                        "low": band.low,
                        "high": band.high,
                    }
                    for band in one.bands
                ],
            }
            for kind, one in found.intervals
        },
    }


def _from(fit: "Fit", one: "FittedConstant") -> str:
    """Where a constant comes from: data, data that the model does not describe, or its prior."""
    return "prior" if not one.told else "poor fit" if fit.poor else "measured"


def correlation_tables(pairs: "Sequence[tuple[str, str, float]]") -> tuple[Table, ...]:
    """Constants that a fit could hardly tell apart: each is known no better than the other; none where there is no
    pair."""
    columns = ("constant", "hangs together with", "correlation")
    return (Table("Correlations", columns, tuple(pairs)),) if pairs else ()


def constants_table(profile: "Profile") -> Table:
    """The constants of a profile with their evidence."""
    columns = ("constant", "value", "unit", "standard error", "kind", "residual", "source")
    rows = tuple(
        (one.name, *_scaled(one.name, one.value, one.error), one.kind, one.residual, one.source)
        for one in profile.constants.values()
    )
    return Table(f"Profile {profile.name}", columns, rows)


def show_tables(cases: "Sequence[Case]", form: str) -> tuple[Table, ...]:
    """Measured against forecast: every case, and on screen also the mean error of each group."""
    rows = tuple(
        (
            case.group,
            case.op,
            int(case.size_bytes) if case.size_bytes else None,
            case.measured_s * 1e6,
            case.forecast_s * 1e6,
            100.0 * (case.forecast_s / case.measured_s - 1.0),
            case.how,
        )
        for case in cases
    )
    points = Table("Measured against forecast", CASE_COLUMNS, rows)
    if form == "csv":
        return (points,)
    groups: dict[str, list[float]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(100.0 * abs(case.forecast_s / case.measured_s - 1.0))
    means = tuple((name, len(errors), sum(errors) / len(errors)) for name, errors in groups.items())
    return (points, Table("By log", ("log", "cases", "mean |error| %"), means))


def shown_payload(cases: "Sequence[Case]", profile: "Profile") -> dict[str, Any]:
    """The cases as JSON shows them."""
    return {"profile": profile.name, "cases": [{**vars(case), "ratio": case.ratio} for case in cases]}


def changes_table(found: "Sequence[Change]", profile: "Profile") -> Table:
    """What changed against a profile."""
    columns = ("op", "where", "sizes", "cases", "measured/forecast", "usual from", "to", "verdict")
    rows = tuple(
        (one.op, one.where, one.sizes, one.cases, one.median_ratio, one.low, one.high, one.verdict) for one in found
    )
    return Table(f"Against profile {profile.name}", columns, rows)


def changes_payload(found: "Sequence[Change]") -> dict[str, Any]:
    """The changes as JSON shows them."""
    return {"changes": [{**vars(one), "verdict": one.verdict} for one in found]}


def _scaled(name: str, value: float, error: float | None) -> tuple[object, ...]:
    from traincast.profile import CONSTANTS

    unit, scale = ("us", 1e-6) if CONSTANTS[name][0] == "time" else ("", 1.0)
    return value / scale, unit, None if error is None else error / scale


def _upper(size_bytes: float) -> str:
    from traincast.units import format_size

    return "any size" if size_bytes == float("inf") else format_size(size_bytes)
