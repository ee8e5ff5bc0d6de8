"""Joint passes, rolling steps and folded models in the evaluators, worked out by hand."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from traincast.analytic import evaluate, evaluate_batch
from traincast.engine import simulate
from traincast.lower.breakdown import breakdown
from traincast.lower.program import Program, ReduceBucket, Result, TailOp
from traincast.lower.uniform import passes_program, uniform_program
from traincast.schedule import EQUAL, Instruction, PassTimes

Run = Callable[[Program], Result]


@pytest.fixture(params=[simulate, evaluate], ids=["engine", "recurrence"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_joint_passes_run_as_one(run: Run, p2p: str) -> None:
    """f=1, b=2: the first stage's second forward waits for the gradient that comes with it, and leaves with its own."""
    f0, f1 = (Instruction("F", k, 0) for k in (0, 1))
    b0, b1 = (Instruction("B", k, 0) for k in (0, 1))
    apart = replace(
        uniform_program(("1f1b", 2, 2, 1), 1.0, 2.0),
        schedule=((f0, f1, b0, b1), (f0, b0, f1, b1)),
        schedule_key=("apart", 2, 2, 1),
    )
    joint = replace(
        apart,
        schedule=((f0, Instruction("F", 1, 0, fused=True, joint=True), b0, b1), (f0, b0, f1, b1)),
        schedule_key=("joint", 2, 2, 1),
        p2p=p2p,
    )
    first, last = run(apart).classes
    assert first.start_s.tolist() == [0, 1, 4, 7]
    first, last = run(joint).classes
    assert first.start_s.tolist() == [0, 4, 5, 10]
    assert first.output_start_s[1] == 7
    assert last.start_s.tolist() == [1, 2, 7, 8]


def test_rolling_steps_count_from_each_stages_begin(run: Run) -> None:
    """ZB-H2 for F = I = W: every stage works without a break, the second one second later: 12 s, not 13."""
    whole = passes_program(("zb-h2", 2, 4, 1), EQUAL)
    assert run(whole).step_time_s == 13.0
    result = run(replace(whole, rolling=True))
    assert result.step_time_s == 12.0
    assert [one.begin_s for one in result.classes] == [0.0, 1.0]
    assert [one.finish_s for one in result.classes] == [12.0, 13.0]
    found = breakdown(replace(whole, rolling=True), result)
    assert found.mean_s["bubble"] == found.bubble_share_of_ideal == 0.0
    assert found.mean_s["compute"] == 12.0


def test_a_tail_without_meetings_rolls_too(run: Run) -> None:
    """Post-validation: the optimiser (5 s) follows each stage's own passes; with a norm that meets, all wait."""
    program = passes_program(("zb-h2", 2, 4, 1), EQUAL, rolling=True)
    free = tuple(replace(cls, tail=(TailOp("optimizer", "optimizer", 5.0),)) for cls in program.classes)
    assert run(replace(program, classes=free)).step_time_s == 17.0
    norm = (TailOp("norm", "optimizer", 0.0, meets=(0, 1)), TailOp("optimizer", "optimizer", 5.0))
    held_back = tuple(replace(cls, tail=norm) for cls in program.classes)
    assert run(replace(program, classes=held_back)).step_time_s == 18.0


def test_rolling_steps_of_a_batch() -> None:
    programs = [
        passes_program(("zb-h2", 3, 6, 1), PassTimes(1.0, 1.0 + k / 8, 0.5), rolling=bool(k % 2)) for k in range(6)
    ]
    assert evaluate_batch(programs).tolist() == [evaluate(program).step_time_s for program in programs]


def test_a_fold_sends_both_ways(run: Run) -> None:
    """ZB-V, two stages, one microbatch: down with chunk 0, back with chunk 1; in place at the turn; L = 1."""
    first, last = run(passes_program(("zb-v", 2, 1, 2), PassTimes(2.0, 2.0, 2.0, 1.0))).classes
    at = {(i.kind, i.chunk): k for k, i in enumerate(passes_program(("zb-v", 2, 1, 2), EQUAL).schedule[0])}
    assert first.start_s[at["F", 0]] == 0.0
    assert last.start_s[:2].tolist() == [2.0, 3.0]
    assert first.start_s[at["F", 1]] == 5.0
    assert first.input_start_s[at["F", 1]] == 4.0
    assert first.start_s[at["I", 1]] == 6.0
    assert first.output_end_s[at["I", 1]] == 8.0
    assert np.isnan(first.output_end_s[at["W", 1]])


def test_buckets_wait_for_the_weight_gradients(run: Run) -> None:
    """A bucket is ready counted from the last W of its chunk, not from the last I."""
    program = passes_program(("zb-h1", 2, 2, 1), EQUAL)
    buckets = (ReduceBucket(0, 0.25, 2.0),)
    result = run(replace(program, classes=tuple(replace(cls, buckets=buckets) for cls in program.classes)))
    for order, times in zip(program.schedule, result.classes, strict=True):
        assert order[-1].kind == "W"
        assert times.bucket_start_s[0] == times.start_s[-1] + 0.25
