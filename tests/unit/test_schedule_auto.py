"""The automatic zero-bubble schedules: the rates that their paper states for its own times, memory, refusals."""

import pytest

from traincast.analytic import evaluate
from traincast.errors import ShapeError, TraincastError
from traincast.lower.uniform import passes_program
from traincast.schedule import EQUAL, Instruction, PassTimes, ScheduleKey, bubble_s, build, build_timed, held, in_flight
from traincast.schedule.cost import cost
from traincast.schedule.times import of_stages
from traincast.schedule.zb_auto import automatic

# Qi et al. 2023, Tables 5 and 9: hidden, heads; p, m; F, I, W, message [ms]; bubble rate of 1F1B, ZB-1p, ZB-2p
RATES = [
    (2304, 24, 8, 24, (18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.0433)),
    (2304, 24, 8, 32, (18.513, 18.086, 9.331, 0.626), (0.1985, 0.1242, 0.0039)),
    (2304, 24, 8, 64, (18.546, 18.097, 9.321, 0.762), (0.1240, 0.0674, 0.0026)),
    (4096, 32, 8, 24, (29.718, 29.444, 19.927, 0.527), (0.2347, 0.1323, 0.0029)),
    (4096, 32, 8, 32, (29.802, 29.428, 19.530, 0.577), (0.1898, 0.1045, 0.0022)),
    (4096, 32, 8, 64, (29.935, 29.621, 19.388, 0.535), (0.1091, 0.0554, 0.0010)),
    (5120, 40, 16, 48, (11.347, 11.248, 8.132, 0.377), (0.2552, 0.1397, 0.0066)),
    (5120, 40, 16, 64, (11.307, 11.254, 8.101, 0.379), (0.2082, 0.1088, 0.0054)),
    pytest.param(5120, 40, 16, 128, (11.325, 11.308, 8.109, 0.378), (0.1251, 0.0576, 0.0028), marks=pytest.mark.slow),
    pytest.param(6144, 48, 32, 96, (10.419, 10.207, 7.715, 0.408), (0.2646, 0.1421, 0.0038), marks=pytest.mark.slow),
    pytest.param(6144, 48, 32, 128, (10.408, 10.204, 7.703, 0.408), (0.2168, 0.1106, 0.0029), marks=pytest.mark.slow),
    pytest.param(6144, 48, 32, 256, (10.402, 10.248, 7.698, 0.460), (0.1352, 0.0594, 0.0018), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("hidden", "heads", "p", "m", "ms", "rates"), RATES)
def test_bubble_rates_of_table_5(
    hidden: int, heads: int, p: int, m: int, ms: tuple[float, ...], rates: tuple[float, ...]
) -> None:
    """Share of the longest stage's time, messages asynchronous, W needing 32 of 34 + 5 a s / h bytes (s = 1024).

    1F1B and ZB-1p to the last printed digit, ZB-2p within 0.0006 (two heuristics need not end alike).
    """
    times = PassTimes(*(one * 1e-3 for one in ms))
    after_input = 32.0 / (34.0 + 5.0 * heads * 1024 / hidden)
    for name, rate, tolerance in zip(("1f1b", "zb-1p", "zb-2p"), rates, (6e-5, 6e-5, 6e-4), strict=True):
        program = passes_program((name, p, m, 1), times, after_input=after_input, rolling=True)
        assert 1 - m * times.work_s / evaluate(program).step_time_s == pytest.approx(rate, abs=tolerance)


@pytest.mark.parametrize("after_input", [0.3, 1.0])
@pytest.mark.parametrize(("name", "factor"), [("zb-1p", 1), ("zb-2p", 2)])
def test_memory_stays_within_the_limit(name: str, factor: int, after_input: float) -> None:
    """p and 2 p microbatches: what 1F1B holds on its first stage, and twice that."""
    _, schedule = build_timed((name, 6, 20, 1), PassTimes(1.0, 1.2, 0.6, 0.1), after_input)
    assert max(held(schedule, after_input)) <= factor * 6 + 1e-9


def test_more_memory_is_never_slower() -> None:
    times = of_stages(PassTimes(1.0, 1.3, 0.7, 0.1), 5)
    steps_s = [cost(automatic(5, 15, times, limit), times).rolling_s for limit in (2, 3, 5, 8, 10, 15)]
    assert steps_s == sorted(steps_s, reverse=True)
    assert steps_s[-1] < 0.8 * steps_s[0]


def test_two_p_suffice_for_no_bubble() -> None:
    """Qi et al. 2023: with 2 p the bubble goes to nearly none; F = I = W leaves none at all."""
    assert cost(build("zb-2p", 4, 16), of_stages(EQUAL, 4)).rolling_s == 16 * 3.0
    assert cost(build("zb-1p", 4, 16), of_stages(EQUAL, 4)).rolling_s == 16 * 3.0 + (
        bubble_s(("zb-h1", 4, 16, 1), EQUAL) or 0
    )


def test_a_slow_stage_is_searched_for() -> None:
    """Uneven stages: the last stage, twice as long, is never idle for long."""
    times = [PassTimes(1.0, 1.0, 1.0)] * 3 + [PassTimes(2.0, 2.0, 2.0)]
    step_s = evaluate(passes_program(("zb-2p", 4, 12, 1), times, rolling=True)).step_time_s
    assert 12 * 6.0 <= step_s <= 12 * 6.0 * 1.01


def test_keys_tell_orders_apart() -> None:
    """Equal keys mean equal instruction lists; schedules that do not depend on times keep theirs."""
    key: ScheduleKey = ("zb-2p", 4, 8, 1)
    one, other = build_timed(key, EQUAL), build_timed(key, PassTimes(1.0, 1.5, 0.4, 0.2))
    assert one[0][0].startswith("zb-2p#")
    assert (one[0] == other[0]) == (one[1] == other[1])
    assert build_timed(key, EQUAL) == one
    assert build_timed(("zb-h1", 4, 8, 1), EQUAL) == (("zb-h1", 4, 8, 1), build("zb-h1", 4, 8))


def test_the_cost_is_that_of_the_evaluators() -> None:
    times = PassTimes(1.0, 1.25, 0.5, 0.375)
    for key in (("1f1b", 4, 8, 1), ("zb-h1", 4, 8, 1), ("zb-h2", 4, 8, 1), ("gpipe", 4, 8, 1)):
        found = cost(build(*key), of_stages(times, 4))
        assert found.whole_s == evaluate(passes_program(key, times)).step_time_s
        assert found.rolling_s == evaluate(passes_program(key, times, rolling=True)).step_time_s


def test_refusals() -> None:
    with pytest.raises(ShapeError, match="memory limit of 0"):
        automatic(4, 8, EQUAL, 0)
    with pytest.raises(ShapeError, match="2 stages for pp=4"):
        automatic(4, 8, [EQUAL, EQUAL], 4)
    with pytest.raises(ShapeError, match="negative"):
        automatic(4, 8, PassTimes(1.0, -1.0, 1.0), 4)
    with pytest.raises(ShapeError, match="share"):
        automatic(4, 8, EQUAL, 4, 1.5)
    with pytest.raises(TraincastError, match="never ends"):
        cost(((Instruction("F", 0, 0),), (Instruction("F", 1, 0),)), of_stages(EQUAL, 2))


def test_in_flight_of_the_automatic_ones() -> None:
    assert max(in_flight(build("zb-1p", 4, 12))) == 4
    assert max(in_flight(build("zb-2p", 4, 12))) <= 8
