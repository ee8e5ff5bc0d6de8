"""What memory counts in flight, against instruction lists walked by hand: all schedules, small pipelines, any times."""

from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.memory.flight import chunks_in_flight
from traincast.mesh import Mesh
from traincast.recipe import Recipe
from traincast.schedule import (
    AUTOMATIC,
    SCHEDULES,
    TWO_CHUNKS,
    Instruction,
    PassTimes,
    Schedule,
    ScheduleKey,
    build,
    build_timed,
    held,
    in_flight_bound,
)

SECONDS = st.one_of(st.integers(0, 3).map(float), st.floats(0.0, 3.0))
TIMES = st.builds(PassTimes, st.floats(1e-6, 3.0), SECONDS, SECONDS, SECONDS)
"""A forward takes time: that of the last stage ends when its first backward can begin, and not sooner."""
SHARES = st.sampled_from([0.25, 0.5, 1.0, 3.0, 16.0])
"""What a microbatch counts between I and W: above 1 where its layers recompute. Sums of these are exact."""


@st.composite
def keys(draw: st.DrawFn, names: tuple[str, ...] = tuple(SCHEDULES)) -> ScheduleKey:
    """Schedules with p 2 to 16 and m 1 to 32, as far as they allow these."""
    name = draw(st.sampled_from(names))
    p, m = (1 if name == "none" else draw(st.integers(2, 16))), draw(st.integers(1, 32))
    v = 2 if name in TWO_CHUNKS else draw(st.integers(1, 4)) if name in ("interleaved", "looped-bfs", "zb-h1") else 1
    if name == "dualpipe":
        p, m = p + p % 2, m + m % 2
    if name.startswith("dualpipe"):
        m = max(m, 2 * p + p % 2)
    if name == "interleaved" or (name == "zb-h1" and v > 1):
        m = max(1, m // p) * p
    return name, p, m, v


def by_hand(order: tuple[Instruction, ...], after_input: float) -> float:
    """Most microbatch-chunks at once: 1 from F on, `after_input` from the input part to W, none after the last pass."""
    weights = {(i.microbatch, i.chunk) for i in order if i.kind == "W"}
    alive: dict[tuple[int, int], float] = {}
    most = 0.0
    for i in order:
        own = (i.microbatch, i.chunk)
        if i.kind == "F":
            alive[own] = 1.0
        elif i.kind != "W" and own in weights:
            alive[own] = after_input
        else:
            del alive[own]
        most = max(most, sum(alive.values()))
    assert not alive
    return most


def counted(key: ScheduleKey, after_input: float, order: Schedule | None = None) -> list[float]:
    name, p, m, v = key
    recipe = Recipe(m, 1, 128, schedule=name, vpp=v)  # type: ignore[arg-type]
    return [sum(chunks_in_flight(recipe, Mesh(pp=p), stage, after_input, order)) for stage in range(p)]


@given(keys(), SHARES)
@settings(max_examples=120, deadline=None)
def test_in_flight_is_what_the_instructions_hold(key: ScheduleKey, after_input: float) -> None:
    """Without the order too, but where an order is searched for: that is told, and none holds less without it."""
    schedule = build(*key)
    walked = [by_hand(order, after_input) for order in schedule]
    assert counted(key, after_input, schedule) == walked
    if key[0] not in AUTOMATIC:
        assert counted(key, after_input) == walked


@given(keys(tuple(AUTOMATIC)), TIMES, SHARES)
@settings(max_examples=40, deadline=None)
def test_a_searched_order_keeps_its_limit_and_the_bound_is_above_it(
    key: ScheduleKey, times: PassTimes, after_input: float
) -> None:
    """Qi et al. 2023, section 3.1: p or 2 p microbatches, one that is due counting as its W needs, at most as one; what
    that is in memory, where W needs more, is below what is counted before the order is known."""
    share = min(1.0, after_input)
    _, schedule = build_timed(key, times, share)
    limits = in_flight_bound((key[0], key[1], 10**6, 1))
    assert all(found <= most + 1e-6 for found, most in zip(held(schedule, share), limits, strict=True))
    walked = [by_hand(order, after_input) for order in schedule]
    assert counted(key, after_input, schedule) == walked
    assert all(found <= most * (1 + 1e-9) for found, most in zip(walked, counted(key, after_input), strict=True))
    on_last = [i.kind for i in schedule[-1] if i.kind != "W"]
    assert on_last == ["F", "I"] * key[2]  # what the bound of the stage with the head takes for granted
