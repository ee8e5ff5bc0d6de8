"""Every schedule against the laws of a pipeline: it runs, in order, at its stated bubble, within its stated memory."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.analytic import evaluate
from traincast.engine import expected_events, simulate
from traincast.lower.breakdown import breakdown
from traincast.lower.compare import differences
from traincast.lower.uniform import passes_program
from traincast.schedule import (
    AUTOMATIC,
    SCHEDULES,
    SPLIT,
    PassTimes,
    ScheduleKey,
    bubble_s,
    build,
    build_timed,
    held,
    in_flight,
    in_flight_bound,
    links,
    model_parts,
)

MOST_PASSES = 4000
SECONDS = st.one_of(st.integers(0, 4).map(float), st.floats(0.0, 3.0))
TIMES = st.builds(PassTimes, SECONDS, SECONDS, SECONDS, SECONDS)


@st.composite
def keys(draw: st.DrawFn, most: int = MOST_PASSES) -> ScheduleKey:
    """Any schedule with p 2 to 64, m 1 to 256, v 1 to 8, as far as the schedule allows them; at most `most` passes."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    p = 1 if name == "none" else draw(st.integers(2, 64))
    v = 2 if name in ("zb-v", "dualpipe", "dualpipev") else 1
    if name in ("interleaved", "looped-bfs", "zb-h1"):
        v = draw(st.integers(1, 8))
    p += p % 2 if name == "dualpipe" else 0
    least = 2 * p if name.startswith("dualpipe") else 1
    step = p if name == "interleaved" or (name == "zb-h1" and v > 1) else 2 if name == "dualpipe" else 1
    most_m = min(256, most // (p * v))
    m = draw(st.integers(least, max(least, most_m)))
    return name, p, max(step, m // step * step), v


@given(keys())
@settings(max_examples=60)
def test_every_schedule_runs_in_order_and_within_its_bound(key: ScheduleKey) -> None:
    """No deadlock, every pass once, dependencies (checked by `links`), memory in flight at most as stated."""
    name, p, m, v = key
    if name in AUTOMATIC and p * m > 600:
        m = 600 // p
        key = (name, p, m, v)
    schedule = build(*key)
    links(key, schedule)
    chunks_passed = model_parts(name, p, v) // p
    for order in schedule:
        assert sum(i.kind == "F" for i in order) == m * chunks_passed
        assert sum(i.kind in "BI" for i in order) == m * chunks_passed
        assert sum(i.kind == "I" for i in order) == sum(i.kind == "W" for i in order)
    assert all(found <= most for found, most in zip(in_flight(schedule), in_flight_bound(key), strict=True))
    step_s = evaluate(passes_program(key, PassTimes(1.0, 1.0, 1.0))).step_time_s
    assert step_s >= 3.0 * m * (1 - 1e-12)


@given(keys(most=300), TIMES, st.booleans(), st.sampled_from(["async", "blocking"]))
@settings(max_examples=60)
def test_recurrence_equals_engine_on_all(key: ScheduleKey, times: PassTimes, rolling: bool, p2p: str) -> None:
    """To the last bit, with a breakdown that adds up. Schedules that split or fold are made for asynchronous stacks."""
    if p2p == "blocking" and key[0] not in ("none", "gpipe", "1f1b", "interleaved"):
        p2p = "async"
    program = passes_program(key, times, p2p, rolling=rolling)  # type: ignore[arg-type]
    simulated, evaluated = simulate(program), evaluate(program)
    assert not differences(simulated, evaluated)
    assert simulated.step_time_s == evaluated.step_time_s
    assert simulated.events == expected_events(program)
    for seconds in breakdown(program, simulated).classes_s:
        assert sum(seconds.values()) == pytest.approx(simulated.step_time_s, rel=1e-9, abs=1e-9)
        assert min(seconds.values()) >= -1e-9


@given(keys(), st.integers(1, 4), st.integers(0, 4))
@settings(max_examples=60)
def test_the_bubble_is_that_of_the_papers(key: ScheduleKey, weight: int, more: int) -> None:
    """Integer times that v divides, so exactly; F = I >= W, and as many microbatches as the formula needs."""
    name, p, m, v = key
    weight_s = float(weight * v)
    other_s = weight_s + (0.0 if name == "zb-v" else more * v)
    times = PassTimes(other_s, other_s, weight_s)
    idle_s = bubble_s(key, times)
    enough = {"looped-bfs": p, "zb-h1": p, "zb-h2": 2 * p - 1, "zb-v": 2 * p}.get(name, 1)
    if idle_s is None or m < enough:
        return
    program = passes_program(key, times, rolling=name in ("zb-h2", "zb-v"))
    assert evaluate(program).step_time_s == m * times.work_s + idle_s


@given(
    st.integers(1, 12),
    st.integers(1, 24),
    st.lists(TIMES, min_size=12, max_size=12),
    st.floats(1.0, 30.0),
    st.floats(0.0, 1.0),
)
@settings(max_examples=40)
def test_the_search_keeps_to_any_memory_limit(
    p: int, m: int, times: list[PassTimes], limit: float, after_input: float
) -> None:
    from traincast.schedule.cost import cost
    from traincast.schedule.zb_auto import automatic

    schedule = automatic(p, m, times[:p], limit, after_input)
    links(("searched", p, m, 1 + hash(schedule) % 2**60), schedule)
    assert max(held(schedule, after_input)) <= limit + 1e-6
    found = cost(schedule, times[:p])
    assert found.rolling_s >= max(m * one.work_s for one in times[:p]) * (1 - 1e-9)


@given(st.sampled_from(sorted(AUTOMATIC)), st.integers(1, 8), st.integers(1, 20), TIMES)
@settings(max_examples=40)
def test_the_search_is_never_slower_than_what_it_may_choose(name: str, p: int, m: int, times: PassTimes) -> None:
    """ZB-1p against ZB-H1 and ZB-2p against ZB-H2: the handcrafted orders are candidates."""
    other = "zb-h1" if name == "zb-1p" else "zb-h2"
    searched, by_hand = (
        evaluate(passes_program((one, p, m, 1), times, rolling=True)).step_time_s for one in (name, other)
    )
    assert searched <= by_hand * (1 + 1e-9) + 1e-9


@given(keys(most=400), TIMES)
@settings(max_examples=40)
def test_rolling_steps_keep_their_pace(key: ScheduleKey, times: PassTimes) -> None:
    """Steps run one after the other, without a barrier, end at most one step time apart."""
    if key[0] in ("dualpipe",):  # its two streams number their microbatches apart
        return
    (name, p, m, v), schedule = build_timed(key, times)
    program = passes_program(key, times, rolling=True)
    three = tuple(
        tuple(i._replace(microbatch=i.microbatch + m * step) for step in range(3) for i in order) for order in schedule
    )
    repeated = replace(program, schedule=three, schedule_key=(f"{name}#three{hash(three)}", p, 3 * m, v), rolling=False)
    one, all_three = evaluate(replace(program, rolling=False)), evaluate(repeated)
    step_s = evaluate(program).step_time_s
    for alone, together in zip(one.classes, all_three.classes, strict=True):
        assert together.finish_s <= alone.finish_s + 2 * step_s + 1e-9 * (1 + step_s)


def test_split_schedules_are_those_with_input_gradients() -> None:
    for name in SCHEDULES:
        p, v = (1, 1) if name == "none" else (2, 2 if name in ("zb-v", "dualpipe", "dualpipev") else 1)
        kinds = {i.kind for order in build(name, p, 4, v) for i in order}
        assert ("I" in kinds) == ("W" in kinds) == (name in SPLIT)
