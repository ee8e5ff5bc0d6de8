"""What `report sc21` says of a table or figure: computed from measured and forecast times, on made-up points."""

import pytest

from traincast.report.sc21_findings import (
    best_forecast,
    best_measured,
    choice,
    comparison,
    recomputation_finding,
    table1_finding,
    table2_finding,
    weak_scaling,
)
from traincast.report.sc21_points import Point
from traincast.validate import PublishedRow, RowScore

WORK = 100.0


def point(series: str, index: int, measured_s: float, forecast_s: float | None, **cells: str) -> Point:
    """A point whose rates are the same work over each time."""
    row = PublishedRow("a.csv", 2 + index, {"id": f"{series}{index}", **cells})
    score = RowScore(row.id, "f", measured_s, forecast_s, "scored" if forecast_s else "skipped", "", 1e12 * WORK)
    return Point(row, score, series, f"P {index}", index, WORK / measured_s, WORK / forecast_s if forecast_s else None)


def test_a_choice_as_measured() -> None:
    points = [point("batch 1", 0, 2.0, 2.2), point("batch 1", 1, 1.0, 1.3), point("batch 1", 2, 3.0, 2.9)]
    assert choice("split")(points) == "Best split as measured in 1 of 1 series: batch 1 P 1."


def test_a_choice_that_misses_says_what_it_costs() -> None:
    """Regret: the measured time of what the forecast picks over the measured best, 1.1 / 1.0."""
    points = [point("batch 1", 0, 1.1, 1.0), point("batch 1", 1, 1.0, 1.2), point("batch 2", 0, 1.0, 1.0)]
    points.append(point("batch 2", 1, 2.0, 2.0))
    assert choice("microbatch size", "microbatch ")(points) == (
        "Best microbatch size as measured in 1 of 2 series: batch 1 microbatch P 1 measured, microbatch P 0 forecast,"
        " which was measured 10.0 % slower; batch 2 microbatch P 0."
    )
    assert best_measured(points[:2]).index == 1
    assert best_forecast(points[:2]).index == 0


def test_what_has_no_forecast_is_not_among_the_choices() -> None:
    points = [point("batch 1", 0, 0.5, None), point("batch 1", 1, 1.0, 1.2), point("batch 1", 2, 2.0, 2.2)]
    assert choice("split")(points) == "Best split as measured in 1 of 1 series: batch 1 P 1."


def test_a_comparison_counts_where_the_faster_one_is_the_measured_one() -> None:
    points = [point("on", 0, 1.0, 1.0), point("on", 1, 1.0, 1.0), point("on", 2, 1.0, 1.0)]
    points += [point("off", 0, 1.5, 1.25), point("off", 1, 1.1, 0.9)]
    assert comparison("Rate with it", "on", "off")(points) == (
        "Rate with it: +50 % to +10 % from batch P 0 to P 1 measured, +25 % to -10 % forecast; the faster one as"
        " measured at 1 of 2 batch sizes."
    )


def test_recomputation_pays_at_larger_batches() -> None:
    points = [point("full", 0, 1.2, 1.3), point("full", 1, 0.4, 0.5), point("none", 0, 1.0, 1.0)]
    text = recomputation_finding("full", "none")(points)
    assert "+20 % to +20 % from batch P 0 to P 0 measured, +30 % to +30 % forecast" in text
    assert "reaches 2.50 times the best rate without it, 2.00 forecast." in text


def test_weak_scaling() -> None:
    points = [point("batch 8", 0, 1.0, 1.0), point("batch 8", 1, 2.0, 1.6)]
    assert weak_scaling(points) == "Change of the rate: batch 8 -50 % from P 0 to P 1 measured, -38 % forecast."


def test_table_1() -> None:
    """From the first model to the last, and the correlation of executed rates."""
    points = [point("t", n, time, time, model=f"GPT-{n}") for n, time in enumerate((1.0, 0.8, 0.5))]
    assert table1_finding(points) == (
        "From GPT-0 to GPT-2 the rate goes from 100 to 200 TFLOP/s per GPU measured, 100 to 200 forecast; correlation"
        " of the rates 1.00."
    )


def test_table_2_pairs_by_number_of_gpus() -> None:
    """SC21 Table 2 sets 560 GPUs of PTD-P beside 640 of ZeRO-3; a pair without a forecast is left out."""
    points = [
        point("PTD-P", 0, 1.0, 1.0, model="A", gpus="560"),
        point("ZeRO-3", 1, 1.2, 0.9, model="A", gpus="640"),
        point("ZeRO-3", 2, 1.7, 1.6, model="A", gpus="1120"),
        point("PTD-P", 2, 1.0, 1.0, model="A", gpus="1120"),
        point("PTD-P", 3, 1.0, 1.0, model="B", gpus="8"),
        point("ZeRO-3", 3, 1.0, None, model="B", gpus="8"),
    ]
    assert table2_finding(points) == (
        "Rate of PTD-P over that of ZeRO-3: A on 560 / 1120 GPUs +20 % / +70 % measured, -10 % / +60 % forecast; the"
        " faster one as measured in 1 of 2 pairs."
    )


@pytest.mark.parametrize(
    "finding",
    [
        table1_finding,
        table2_finding,
        weak_scaling,
        choice("x"),
        comparison("x", "a", "b"),
        recomputation_finding("a", "b"),
    ],
)
def test_too_few_forecasts(finding) -> None:
    """Nothing is said where nothing can be."""
    assert finding([point("a", 0, 1.0, None)]) == "Too few forecasts to say anything."
