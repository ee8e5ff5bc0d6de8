"""Closed forms of the schedules, for both evaluators."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from traincast.analytic import evaluate
from traincast.engine import simulate
from traincast.lower.breakdown import breakdown
from traincast.lower.program import ChunkCost, ChunkKey, Program, Result
from traincast.lower.uniform import uniform_program
from traincast.recipe import P2PMode
from traincast.schedule import bubble_share_of_ideal, bubble_share_of_step

Run = Callable[[Program], Result]
SHAPES = [(1, 4), (2, 1), (2, 5), (4, 2), (4, 8), (7, 9), (8, 32)]


@pytest.fixture(params=[simulate, evaluate], ids=["engine", "recurrence"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.mark.parametrize("p2p", ["async", "blocking"])
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("p", "m"), SHAPES)
def test_uniform_stages_without_latency(run: Run, name: str, p: int, m: int, p2p: P2PMode) -> None:
    """(m + p - 1)(f + b): SC21, section 2.2.1. Exact, because the durations are small integers."""
    program = replace(uniform_program((name, p, m, 1), 1.0, 2.0), p2p=p2p)
    assert run(program).step_time_s == (m + p - 1) * 3.0


@pytest.mark.parametrize("p2p", ["async", "blocking"])
@pytest.mark.parametrize(("p", "m", "v"), [(1, 3, 2), (2, 2, 1), (2, 4, 4), (4, 8, 2), (8, 8, 4), (16, 32, 2)])
def test_interleaving_without_latency(run: Run, p: int, m: int, v: int, p2p: P2PMode) -> None:
    """m t + (p - 1) t / v: SC21, section 2.2.2. Exact, because v is a power of two."""
    program = replace(uniform_program(("interleaved", p, m, v), 1.0, 2.0), p2p=p2p)
    assert run(program).step_time_s == m * 3.0 + (p - 1) * 3.0 / v


@pytest.mark.parametrize(("p", "m", "v"), [(4, 4, 2), (4, 32, 4), (8, 16, 2)])
def test_interleaving_hides_latency_in_the_steady_state(run: Run, p: int, m: int, v: int) -> None:
    """m t + (p - 1) t / v + 2 (p v - 1) L with asynchronous messages much shorter than a chunk."""
    latency_s = 0.02 / v
    program = uniform_program(("interleaved", p, m, v), 1.0, 2.0, latency_s)
    closed_s = m * 3.0 + (p - 1) * 3.0 / v + 2 * (p * v - 1) * latency_s
    assert run(program).step_time_s == pytest.approx(closed_s, rel=1e-12)


@pytest.mark.parametrize(("p", "m"), SHAPES[1:])
@pytest.mark.parametrize("latency_s", [0.0625, 0.5, 1.5])
def test_1f1b_exposes_latency_every_microbatch(run: Run, p: int, m: int, latency_s: float) -> None:
    """(m - 1)(t + 2 L (p - 1) / p) + p t + 2 (p - 1) L is an upper bound, exact where p divides m - 1.

    Max-plus law: the slope is the heaviest cycle through neighbouring stages, here the one through all of
    them.
    """
    step_s = run(uniform_program(("1f1b", p, m, 1), 1.0, 2.0, latency_s)).step_time_s
    bound_s = (m - 1) * (3.0 + 2 * latency_s * (p - 1) / p) + p * 3.0 + 2 * (p - 1) * latency_s
    assert step_s <= bound_s * (1 + 1e-12)
    assert step_s > bound_s - 2 * latency_s
    if (m - 1) % p == 0:
        assert step_s == pytest.approx(bound_s, rel=1e-12)


def test_gpipe_pays_latency_once_each_way(run: Run) -> None:
    """(m + p - 1)(f + b) + 2 (p - 1) L as long as a message is shorter than a chunk."""
    assert run(uniform_program(("gpipe", 4, 8, 1), 1.0, 2.0, 0.5)).step_time_s == 11 * 3.0 + 6 * 0.5


def test_a_heavy_last_stage_sets_the_pace(run: Run) -> None:
    """(m - 1) max t + sum t without latency: nothing hides what the last stage takes."""
    program = uniform_program(("1f1b", 4, 9, 1), 1.0, 2.0)
    heavy: dict[ChunkKey, ChunkCost] = {
        ("F", 0): ChunkCost(2.0, {"compute": 2.0}),
        ("B", 0): ChunkCost(4.0, {"compute": 4.0}),
    }
    *others, last = program.classes
    program = replace(program, classes=(*others, replace(last, chunks=heavy)))
    assert run(program).step_time_s == 8 * 6.0 + 3 * 3.0 + 6.0


def test_blocking_costs_more_than_asynchronous(run: Run) -> None:
    """p=2, m=2, f=1, b=2, L=1 by hand: asynchronous 11, blocking 12 (a message waits for its receiver)."""
    asynchronous = uniform_program(("1f1b", 2, 2, 1), 1.0, 2.0, 1.0)
    assert run(asynchronous).step_time_s == 11.0
    blocking = run(replace(asynchronous, p2p="blocking"))
    assert blocking.step_time_s == 12.0
    first, last = blocking.classes
    assert first.start_s.tolist() == [0.0, 2.0, 6.0, 10.0]
    assert last.start_s.tolist() == [2.0, 3.0, 6.0, 7.0]
    np.testing.assert_array_equal(first.output_start_s, [1.0, 5.0, np.nan, np.nan])
    np.testing.assert_array_equal(first.input_end_s, [np.nan, np.nan, 6.0, 10.0])


@pytest.mark.parametrize("key", [("1f1b", 4, 8, 1), ("gpipe", 4, 8, 1), ("interleaved", 4, 8, 2), ("none", 1, 8, 1)])
def test_both_bubble_figures_come_out(run: Run, key: tuple[str, int, int, int]) -> None:
    """SC21's share of the ideal time and GPipe's share of the step, on uniform stages without latency."""
    program = uniform_program(key, 1.0, 2.0)
    found = breakdown(program, run(program))
    assert found.bubble_share_of_ideal == pytest.approx(bubble_share_of_ideal(*key), abs=1e-12)
    share = found.mean_s["bubble"] / sum(found.mean_s.values())
    assert share == pytest.approx(bubble_share_of_step(*key), abs=1e-12)
