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
    assert found.half_width is None  # four samples give no interval of 95 %
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert half_width([1.0, 1.0, 1.0, 1.0, 1.0, 1.1]) == pytest.approx(0.05)
    assert stable([1.0] * 5 + [1.03], 0.02)
    assert not stable([1.0] * 5 + [1.05], 0.02)
    assert not stable([1.0] * 5, 0.02)


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
    """Law: creations made by the model give its constants back; families follow one after the other."""
    made = [Creation(size, n, n * (0.003 + 0.0001 * size), 0.2 + 0.01 * size) for size in (2, 4, 8) for n in (1, 4)]
    model = fit(made)
    assert (model.a_s, model.b_s, model.c_s, model.d_s) == pytest.approx((0.003, 0.0001, 0.2, 0.01))
    tp, single = tuple((2 * i, 2 * i + 1) for i in range(4)), tuple((i,) for i in range(8))
    assert model.startup_s([tp, single]) == pytest.approx(4 * 0.0032 + 0.22 + 8 * 0.0031)
    assert fit([]) is None
    assert fit([Creation(2, 2, 0.01, 0.3)]).creation_s(2, 4) == pytest.approx(0.32)


def test_a_line_has_no_constant_below_zero():
    assert line([1, 2, 3], [3.0, 2.0, 1.0]) == (2.0, 0.0)
    assert line([1, 2], [0.0, 3.0]) == pytest.approx((0.0, 6 / 5))
    assert median([1.0]) == 1.0
