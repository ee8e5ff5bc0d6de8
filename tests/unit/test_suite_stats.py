"""Statistics of the microbenchmark suite: medians, their intervals, slow ranks, two things at once, start-up."""

import random
from math import comb
from statistics import median

import pytest
from suite.startup import Creation, fit, line
from suite.stats import half_width, interval_rank, quantile, slow_ranks, slowdowns, slowest, spread, stable


def test_ranks_of_the_interval_of_a_median():
    """David and Nagaraja, Order Statistics, eq. 7.1.2: n = 6 is the first with 95 %; n = 20 gives the 6th to 15th."""
    assert [interval_rank(n) for n in (3, 5, 6, 8, 9, 20)] == [None, None, 1, 1, 2, 6]
    for n in range(6, 60):
        k = interval_rank(n)
        assert 1 - 2 * sum(comb(n, i) for i in range(k)) / 2**n >= 0.95
        assert 1 - 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n < 0.95


def test_the_interval_holds_the_median():
    """Law: 95 % or more of the intervals of samples hold the median of what they were drawn from."""
    draw = random.Random(1)
    held = 0
    for _ in range(400):
        ordered = sorted(draw.expovariate(1.0) for _ in range(15))
        k = interval_rank(15)
        held += ordered[k - 1] <= 0.6931 <= ordered[-k]
    assert held >= 0.95 * 400


def test_spread_and_stability():
    found = spread([4.0, 1.0, 2.0, 3.0])
    assert (found.median_s, found.min_s, found.max_s, found.count) == (2.5, 1.0, 4.0, 4)
    assert (found.quartile_1_s, found.quartile_3_s) == (1.75, 3.25)
    assert spread([1.0, 2.0]).half_width is None  # two samples tell nothing
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert half_width([1.0, 1.0, 1.0, 1.0, 1.0, 1.1]) == pytest.approx(0.05)
    assert stable([1.0] * 5 + [1.03], 0.02)
    assert not stable([1.0] * 5 + [1.05], 0.02)
    assert stable([1.0] * 5, 0.02)
    assert not stable([1.0] * 2, 0.02)
    assert not stable([1.0, 1.02, 1.04], 0.02)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_the_interval_of_few_samples_holds_the_median(count):
    """Law: of normal samples 95 % or more; of skewed or flat ones, for which it is not made, still more than 90 %."""
    draw = random.Random(7)
    shapes = {"normal": (draw.gauss, 0.95), "skewed": (lambda m, s: m - s * 0.6931 + s * draw.expovariate(1.0), 0.92)}
    shapes["flat"] = (lambda m, s: draw.uniform(m - s, m + s), 0.90)
    for name, (make, least) in shapes.items():
        held = 0
        for _ in range(2000):
            ordered = sorted(make(100.0, 1.0) for _ in range(count))
            middle = median(ordered)
            held += abs(middle - 100.0) <= half_width(ordered) * middle
        assert held >= least * 2000, name


def test_slow_ranks_are_those_above_the_lower_median():
    assert slow_ranks([1.0, 1.1, None, 1.3]) == (3,)
    assert slow_ranks([1.0, 2.0]) == (1,)
    assert slow_ranks([None, 1.0]) == ()
    assert slowest([1.0, None, 3.0, 3.0]) == (2, 3.0)


def test_slowdowns_leave_out_the_time_alone():
    """Law: two runs at rates 1/f1 and 1/f2 beside each other, 1 alone, give back f1 and f2."""
    draw = random.Random(2)
    for _ in range(50):
        alone = draw.uniform(1, 3), draw.uniform(1, 3)
        factors = draw.uniform(1, 2), draw.uniform(1, 2)
        ends = [one * factor for one, factor in zip(alone, factors, strict=True)]
        first = min(ends)
        both = [
            first if end == first else first + one - first / factor
            for end, one, factor in zip(ends, alone, factors, strict=True)
        ]
        assert slowdowns(alone, (both[0], both[1])) == pytest.approx(factors)


def test_start_up_of_a_mesh_from_the_creation_of_groups():
    """Law: creations made by the model come back, also for other sizes and counts; families follow one another."""

    def seconds(size, n):
        return n * (0.003 + 0.0001 * size) + 0.001, 0.2 + 0.01 * size + 0.002 * n

    model = fit([Creation(size, n, *seconds(size, n)) for size in (2, 4, 8) for n in (1, 4)])
    for size, count in ((2, 4), (4, 9), (6, 2), (64, 5)):
        assert model.creation_s(size, count) == pytest.approx(sum(seconds(size, count)))
    families = [tuple((2 * i, 2 * i + 1) for i in range(4)), tuple((4 * i, 4 * i + 3) for i in range(2))]
    assert model.startup_s(families) == pytest.approx(sum(seconds(2, 4)) + sum(seconds(2, 2)))
    assert fit([]) is None
    assert fit([Creation(2, 2, 0.01, 0.3)]).creation_s(2, 4) == pytest.approx(0.02 + 0.6)


def test_groups_of_one_rank_are_a_kind_of_their_own():
    """They connect nobody: they tell nothing of larger ones, and larger ones nothing of their first collective."""
    made = [Creation(size, n, n * 0.01 * size, 0.2) for size in (2, 4) for n in (1, 4)]
    alone = tuple((i,) for i in range(8))
    assert fit(made).startup_s([alone]) == pytest.approx(8 * 0.01)
    measured = [Creation(1, n, 0.001 * n, 0.05) for n in (1, 8)]
    model = fit([*made, *measured])
    assert model.startup_s([alone]) == pytest.approx(8 * 0.001 + 0.05)
    assert model.creation_s(3, 4) == pytest.approx(fit(made).creation_s(3, 4))
    assert fit(measured).creation_s(2, 8) == pytest.approx(8 * 0.001 + 0.05)


def test_a_line_has_no_constant_below_zero():
    assert line([1, 2, 3], [3.0, 2.0, 1.0]) == (2.0, 0.0)
    assert line([1, 2], [0.0, 3.0]) == pytest.approx((0.0, 6 / 5))
    assert median([1.0]) == 1.0
