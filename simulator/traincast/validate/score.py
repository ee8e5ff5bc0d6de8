"""Scores of forecasts against measurements, a family at a time.

Errors are predicted over measured step time, less one. The null forecast knows the FLOPs that a step executes
(`hardware` convention) and nothing else: it takes the mean rate of the family's other rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Status = Literal["scored", "fitted", "skipped"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RowScore:
    """One published row: what was measured, what was forecast, and whether it counts.

    `executed_flops_per_gpu` is what one GPU executes in the step. A skipped row may still carry a forecast,
    to be shown; `reason` says why it does not count, or what was assumed for one that does. `told` is the place of
    what is wrong with the row itself, and what: a cell that cannot be read.
    """

    id: str
    family: str
    measured_s: float | None
    predicted_s: float | None
    status: Status
    reason: str
    executed_flops_per_gpu: float | None = None
    told: str = ""

    @property
    def error_pct(self) -> float | None:
        """Predicted over measured, less one, in percent."""
        if self.measured_s is None or self.predicted_s is None:
            return None
        return 100.0 * (self.predicted_s / self.measured_s - 1.0)

    def as_dict(self) -> dict[str, object]:
        """The row as JSON shows it."""
        return {
            "id": self.id,
            "family": self.family,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "error_pct": self.error_pct,
            "status": self.status,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class FamilyScore:
    """Scores of one family, without its fitted rows.

    `n` counts all its rows, `scored` those that count. `spearman` ranks step times, `spearman_rate` and
    `pearson_rate` compare executed FLOP/s per GPU, which do not follow from the size of the work alone.

    The rest comes from its studies (`validate.studies`: several shapes of one model on the same GPUs): the regret of
    the predicted best shape, mean and worst, and the rank correlation of the shapes, mean and worst; None without.
    """

    family: str
    n: int
    scored: int
    fitted: int
    mape_pct: float | None
    max_abs_pct: float | None
    bias_pct: float | None
    spearman: float | None
    spearman_rate: float | None
    pearson_rate: float | None
    null_mape_pct: float | None
    studies: int = 0
    regret_pct: float | None = None
    worst_regret_pct: float | None = None
    spearman_in_studies: float | None = None
    worst_spearman_in_studies: float | None = None


def family_scores(rows: Sequence[RowScore]) -> tuple[FamilyScore, ...]:
    """One score a family, in the order in which families appear."""
    return tuple(_family(name, [row for row in rows if row.family == name]) for name in _families(rows))


def null_errors_pct(rows: Sequence[RowScore]) -> dict[str, float]:
    """Signed error of the null forecast of each scored row, by id.

    The mean rate is that of the other rows, scored or fitted; a family of one row has none.
    """
    known = [
        row
        for row in rows
        if row.status != "skipped" and row.measured_s is not None and row.executed_flops_per_gpu is not None
    ]
    if len(known) < 2:
        return {}
    rates = _rates(known, measured=True)
    errors = {}
    for index, row in enumerate(known):
        if row.status == "scored":
            others = (rates.sum() - rates[index]) / (len(known) - 1)
            errors[row.id] = 100.0 * (float(rates[index] / others) - 1.0)
    return errors


def spearman(left: Floats, right: Floats) -> float | None:
    """Rank correlation, ties at their mean rank; None for fewer than three pairs or a constant side."""
    return pearson(ranks(left), ranks(right))


def ranks(values: Floats) -> Floats:
    """Ranks from 1, ties at their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse], dtype=np.float64)


def pearson(left: Floats, right: Floats) -> float | None:
    """Linear correlation; None for fewer than three pairs or a constant side."""
    if len(left) < 3 or np.ptp(left) == 0.0 or np.ptp(right) == 0.0:
        return None
    return float(np.corrcoef(left, right)[0, 1])


def _families(rows: Sequence[RowScore]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.family for row in rows))


def _family(name: str, rows: Sequence[RowScore]) -> FamilyScore:
    scored = [row for row in rows if row.status == "scored"]
    fitted = sum(row.status == "fitted" for row in rows)
    errors = np.array([row.error_pct for row in scored], dtype=np.float64)
    if not len(errors):
        return FamilyScore(name, len(rows), 0, fitted, *(None,) * 7)
    measured = np.array([row.measured_s for row in scored], dtype=np.float64)
    predicted = np.array([row.predicted_s for row in scored], dtype=np.float64)
    with_flops = [row for row in scored if row.executed_flops_per_gpu is not None]
    measured_rate, predicted_rate = _rates(with_flops, measured=True), _rates(with_flops, measured=False)
    null = list(null_errors_pct(rows).values())
    return FamilyScore(
        family=name,
        n=len(rows),
        scored=len(scored),
        fitted=fitted,
        mape_pct=float(np.abs(errors).mean()),
        max_abs_pct=float(np.abs(errors).max()),
        bias_pct=float(errors.mean()),
        spearman=spearman(measured, predicted),
        spearman_rate=spearman(measured_rate, predicted_rate),
        pearson_rate=pearson(measured_rate, predicted_rate),
        null_mape_pct=float(np.abs(null).mean()) if null else None,
    )


def _rates(rows: Sequence[RowScore], *, measured: bool) -> Floats:
    """Executed FLOP/s per GPU."""
    flops = np.array([row.executed_flops_per_gpu for row in rows], dtype=np.float64)
    times = [row.measured_s if measured else row.predicted_s for row in rows]
    return np.asarray(flops / np.array(times, dtype=np.float64), dtype=np.float64)
