"""What a table or figure of SC21 shows, in one sentence: computed from its points, measured beside forecast."""

from collections.abc import Callable, Sequence

from traincast.report.sc21_points import Point, study_score

Finding = Callable[[Sequence[Point]], str]
_TOO_FEW = "Too few forecasts to say anything."


def table1_finding(points: Sequence[Point]) -> str:
    """Rates of the smallest and the largest model, and how the rates correlate."""
    known = _known(points)
    if len(known) < 2:
        return _TOO_FEW
    first, last = known[0], known[-1]
    correlation = study_score(points).pearson_rate
    tail = "" if correlation is None else f"; correlation of the rates {correlation:.2f}"
    return (
        f"From {first.row.text('model')} to {last.row.text('model')} the rate goes from {first.published:.0f} to "
        f"{last.published:.0f} TFLOP/s per GPU measured, {first.forecast:.0f} to {last.forecast:.0f} forecast{tail}."
    )


def table2_finding(points: Sequence[Point]) -> str:
    """What PTD-P gains over ZeRO-3, pair by pair: the n-th fewest GPUs of each model with the n-th fewest."""
    clauses, agreed, pairs = [], 0, 0
    for model in dict.fromkeys(point.row.text("model") for point in points):
        of_model = [point for point in points if point.row.text("model") == model]
        couples = list(zip(_of(of_model, "PTD-P"), _of(of_model, "ZeRO-3"), strict=False))
        known = [(ours, theirs) for ours, theirs in couples if _rated(ours) and _rated(theirs)]
        if not known:
            continue
        gains = [(_gain(a.published, b.published), _gain(a.forecast, b.forecast)) for a, b in known]
        agreed += sum((measured > 0) == (forecast > 0) for measured, forecast in gains)
        pairs += len(gains)
        gpus = " / ".join(ours.row.text("gpus") for ours, _ in known)
        measured_text, forecast_text = (" / ".join(_signed(gain[side]) for gain in gains) for side in (0, 1))
        clauses.append(f"{model} on {gpus} GPUs {measured_text} measured, {forecast_text} forecast")
    if not pairs:
        return _TOO_FEW
    return (
        f"Rate of PTD-P over that of ZeRO-3: {'; '.join(clauses)}; the faster one as measured in {agreed} of {pairs}"
        " pairs."
    )


def weak_scaling(points: Sequence[Point]) -> str:
    """How the rate changes from the first place of each series to the last."""
    clauses = []
    for series, known in _by_series(points).items():
        if len(known) < 2:
            continue
        first, last = known[0], known[-1]
        measured, forecast = _gain(last.published, first.published), _gain(last.forecast, first.forecast)
        clauses.append(
            f"{series} {_signed(measured)} from {first.where} to {last.where} measured, {_signed(forecast)} forecast"
        )
    return f"Change of the rate: {'; '.join(clauses)}." if clauses else _TOO_FEW


def choice(what: str, prefix: str = "") -> Finding:
    """A finding: whether the forecast picks the fastest `what` of each series as measured, and what a miss costs.

    `prefix` stands before a place where its label is a mere number.
    """

    def sentence(points: Sequence[Point]) -> str:
        clauses, agreed = [], 0
        for series, known in _by_series(points).items():
            if len(known) < 2:
                continue
            measured, forecast = best_measured(known), best_forecast(known)
            regret = _measured_s(forecast) / _measured_s(measured) - 1.0
            agreed += regret == 0.0
            miss = f" measured, {prefix}{forecast.where} forecast, which was measured {100 * regret:.1f} % slower"
            clauses.append(f"{series} {prefix}{measured.where}{miss if regret else ''}")
        if not clauses:
            return _TOO_FEW
        return f"Best {what} as measured in {agreed} of {len(clauses)} series: {'; '.join(clauses)}."

    return sentence


def comparison(what: str, faster: str, slower: str) -> Finding:
    """A finding: by how much the rate of series `faster` is above that of `slower`, and where it is not."""

    def sentence(points: Sequence[Point]) -> str:
        series = _by_series(points)
        below = {point.place: point for point in series.get(slower, ())}
        pairs = [(point, below[point.place]) for point in series.get(faster, ()) if point.place in below]
        if not pairs:
            return _TOO_FEW
        gains = [(_gain(a.published, b.published), _gain(a.forecast, b.forecast)) for a, b in pairs]
        agreed = sum((measured > 0) == (forecast > 0) for measured, forecast in gains)
        first, last = pairs[0][0].where, pairs[-1][0].where
        spans = [f"{_signed(gains[0][side])} to {_signed(gains[-1][side])}" for side in (0, 1)]
        return (
            f"{what}: {spans[0]} from batch {first} to {last} measured, {spans[1]} forecast; the faster one as measured"
            f" at {agreed} of {len(pairs)} batch sizes."
        )

    return sentence


def recomputation_finding(with_it: str, without: str) -> Finding:
    """A finding: what recomputation costs where both ran, and the best rate with it over the best without."""
    cost = comparison("Rate without recomputation over that with it", without, with_it)

    def sentence(points: Sequence[Point]) -> str:
        series = _by_series(points)
        many, few = series.get(with_it, ()), series.get(without, ())
        if not many or not few:
            return _TOO_FEW
        measured = max(_number(p.published) for p in many) / max(_number(p.published) for p in few)
        forecast = max(_number(p.forecast) for p in many) / max(_number(p.forecast) for p in few)
        return (
            f"{cost(points)} At its larger batches recomputation reaches {measured:.2f} times the best rate without it,"
            f" {forecast:.2f} forecast."
        )

    return sentence


def best_measured(points: Sequence[Point]) -> Point:
    """The point with the shortest measured step. Every point has both times."""
    return min(points, key=_measured_s)


def best_forecast(points: Sequence[Point]) -> Point:
    """The point with the shortest forecast step. Every point has both times."""
    return min(points, key=lambda point: (point.times_s or (0.0, 0.0))[1])


def _measured_s(point: Point) -> float:
    return (point.times_s or (0.0, 0.0))[0]


def _rated(point: Point) -> bool:
    return point.times_s is not None and point.published is not None and point.forecast is not None


def _known(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if _rated(point)]


def _of(points: Sequence[Point], series: str) -> list[Point]:
    return sorted((p for p in points if p.series == series), key=lambda p: p.row.count("gpus") or 0)


def _by_series(points: Sequence[Point]) -> dict[str, list[Point]]:
    known = sorted(_known(points), key=lambda point: point.index)
    return {name: [p for p in known if p.series == name] for name in dict.fromkeys(p.series for p in points)}


def _number(value: float | None) -> float:
    assert value is not None  # `_known` has seen to it
    return value


def _gain(rate: float | None, base: float | None) -> float:
    """Rate over base, less one [%]."""
    return 100.0 * (_number(rate) / _number(base) - 1.0)


def _signed(percent: float) -> str:
    return f"{percent:+.0f} %" if abs(percent) >= 9.95 else f"{percent:+.1f} %"
