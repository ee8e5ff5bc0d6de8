"""One published row of SC21 (Narayanan et al. 2021) beside its forecast: a point of a figure, a row of a table."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from traincast.validate.rows import PublishedRow, RowSkippedError
from traincast.validate.score import FamilyScore, RowScore, family_scores

if TYPE_CHECKING:
    from traincast.model import ModelShape

Cells = dict[str, Any]
RateName = Literal["tflops", "sequences_per_s"]
Standing = Literal["scored", "fitted", "shown", "no forecast"]

RATE_LABELS: dict[RateName, str] = {
    "tflops": "TFLOP/s per GPU\n(hardware FLOPs)",
    "sequences_per_s": "sequences per second\n(all GPUs)",
}
_TERA, _GIGA = 1e12, 1e9
_PETA_PER_TERA = 1e-3
_DAY_S = 86400.0
_TABLE_2_TOKENS = 300e9


@dataclass(frozen=True)
class Point:
    """A row where a study puts it: the `series` (colour) and the `place` on the axis, whose number is `index`.

    `published` and `forecast` are rates in the study's unit, None where there is none.
    """

    row: PublishedRow
    score: RowScore
    series: str
    place: str
    index: int
    published: float | None
    forecast: float | None

    @property
    def where(self) -> str:
        """The place on one line."""
        return self.place.replace("\n", " ")

    @property
    def times_s(self) -> tuple[float, float] | None:
        """Measured and forecast step time; None where one of them lacks."""
        if self.score.measured_s is None or self.score.predicted_s is None:
            return None
        return self.score.measured_s, self.score.predicted_s

    @property
    def standing(self) -> Standing:
        """How the forecast counts: `shown` is one that validate shows without scoring it."""
        if self.score.predicted_s is None:
            return "no forecast"
        return "shown" if self.score.status == "skipped" else self.score.status


def published_rate(row: PublishedRow, rate: RateName) -> float | None:
    """The printed figure: TFLOP/s per GPU, or sequences/s of all GPUs from tokens/s per GPU. None where not stated."""
    try:
        if rate == "tflops":
            return row.number("tflops_per_gpu")
        tokens, gpus, sequence = row.number("tokens_per_s_per_gpu"), row.count("gpus"), row.count("seq")
    except RowSkippedError:
        return None
    return tokens * gpus / sequence if tokens and gpus and sequence else None


def forecast_rate(row: PublishedRow, score: RowScore, rate: RateName) -> float | None:
    """The same from the forecast step time; TFLOP/s count executed FLOPs, as SC21 eq. 3 does. None without forecast."""
    if score.predicted_s is None:
        return None
    if rate == "tflops":
        flops = score.executed_flops_per_gpu
        return None if flops is None else flops / score.predicted_s / _TERA
    batch = row.count("global_batch")
    return None if batch is None else batch / score.predicted_s


def study_score(points: Sequence[Point]) -> FamilyScore:
    """Scores of these points by themselves, beside the null forecast over them. `points` has at least one."""
    return family_scores([replace(point.score, family="study") for point in points])[0]


def mean_error_pct(points: Sequence[Point], standing: Standing) -> float | None:
    """Mean absolute error of step time of the points that stand so [%]; None where there is none."""
    found = [p.score.error_pct for p in points if p.standing == standing and p.score.error_pct is not None]
    return sum(abs(error) for error in found) / len(found) if found else None


def figure_cells(point: Point, rate: RateName) -> Cells:
    """What a figure's table says of a point."""
    counts = ("gpus", "tp", "pp", "dp", "vpp", "microbatch", "global_batch")
    return {
        "id": point.score.id,
        "series": point.series,
        **{name: point.row.count(name) for name in counts},
        f"published_{rate}": point.published,
        f"forecast_{rate}": point.forecast,
        **_outcome(point),
    }


def table1_cells(point: Point) -> Cells:
    """A row of Table 1; shares of peak are of the GPU's dense peak at the row's precision."""
    row, peak = point.row, _peak_tflops(point.row)
    counts = ("gpus", "tp", "pp", "dp", "vpp", "microbatch", "global_batch")
    gpus = row.count("gpus")
    of_both = (("published", point.published), ("forecast", point.forecast))
    return {
        "model": row.text("model"),
        "parameters_1e9": _parameters_1e9(row),
        **{name: row.count(name) for name in counts},
        **{f"{whose}_tflops": rate for whose, rate in of_both},
        **{f"{whose}_pct_of_peak": _times(rate, 100.0 / peak) for whose, rate in of_both},
        **{f"{whose}_pflops": _times(rate, (gpus or 0) * _PETA_PER_TERA) for whose, rate in of_both},
        **_outcome(point),
    }


def table2_cells(point: Point) -> Cells:
    """A row of Table 2; `training_days` are those of 300 billion tokens at this step time."""
    row, score = point.row, point.score
    tokens = (row.count("global_batch") or 0) * (row.count("seq") or 0)
    days = _TABLE_2_TOKENS / tokens / _DAY_S if tokens else 0.0
    return {
        "scheme": point.series,
        "model": row.text("model"),
        "parameters_1e9": _parameters_1e9(row),
        "model_parallel": (row.count("tp") or 1) * (row.count("pp") or 1),
        **{name: row.count(name) for name in ("global_batch", "gpus", "microbatch")},
        "published_tflops": point.published,
        "forecast_tflops": point.forecast,
        "published_training_days": _times(score.measured_s, days),
        "forecast_training_days": _times(score.predicted_s, days),
        **_outcome(point),
    }


def _outcome(point: Point) -> Cells:
    score = point.score
    return {
        "published_step_s": score.measured_s,
        "forecast_step_s": score.predicted_s,
        "error_pct": score.error_pct,
        "status": score.status,
        "reason": score.reason or None,
    }


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _parameters_1e9(row: PublishedRow) -> float | None:
    from traincast.model.parameters import total_parameters

    shape = _shape(row)
    return None if shape is None else total_parameters(shape) / _GIGA


def _shape(row: PublishedRow) -> "ModelShape | None":
    from traincast.errors import TraincastError
    from traincast.validate.build import build_case

    try:
        return build_case(row).model
    except (RowSkippedError, TraincastError):
        return None


def _peak_tflops(row: PublishedRow) -> float:
    from traincast.catalog import load_catalog

    return load_catalog().gpu(row.text("gpu")).peak(row.text("precision")) / _TERA
