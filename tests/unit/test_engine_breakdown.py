"""Where the time of a step went; one label for every instant (both evaluators give the same result)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from traincast.analytic import evaluate
from traincast.engine import simulate
from traincast.lower.breakdown import ROUNDING, breakdown, settled
from traincast.lower.program import LABELS, ChunkCost, ChunkKey, Program, ReduceBucket, Result, TailOp
from traincast.lower.uniform import uniform_program
from traincast.recipe import P2PMode

Run = Callable[[Program], Result]


@pytest.fixture(params=[simulate, evaluate], ids=["engine", "recurrence"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def present(seconds: object) -> dict[str, float]:
    """The labels that are not zero."""
    assert isinstance(seconds, dict)
    return {label: value for label, value in seconds.items() if value}


def test_1f1b_by_hand(run: Run) -> None:
    """p=2, m=2, f=1, b=2, L=1, asynchronous: step 11, stage 0 has its gradients at 6 and 9.

    Stage 0 waits from 2 to 6 (transfer from 5) and from 8 to 9 (transfer from 8).
    Stage 1 waits from 0 to 2 (transfer from 1) and from 8 on for the end of the step.
    """
    program = uniform_program(("1f1b", 2, 2, 1), 1.0, 2.0, 1.0)
    found = breakdown(program, run(program))
    assert present(found.classes_s[0]) == {"compute": 6.0, "pp": 2.0, "bubble": 3.0}
    assert present(found.classes_s[1]) == {"compute": 6.0, "pp": 1.0, "bubble": 4.0}
    assert present(found.mean_s) == {"compute": 6.0, "pp": 1.5, "bubble": 3.5}
    assert found.stages_s == found.classes_s


def test_1f1b_by_hand_blocking(run: Run) -> None:
    """The same with blocking p2p: step 12, and transfers at 1, 5 (two at once) and 9 hold both stages."""
    program = uniform_program(("1f1b", 2, 2, 1), 1.0, 2.0, 1.0, "blocking")
    found = breakdown(program, run(program))
    assert present(found.classes_s[0]) == {"compute": 6.0, "pp": 3.0, "bubble": 3.0}
    assert present(found.classes_s[1]) == {"compute": 6.0, "pp": 3.0, "bubble": 3.0}


def test_gradients_and_tail(run: Run) -> None:
    """Backward 1-3, bucket 2-5, so 2 s exposed; then tail operations, then the end of the slower class.

    The faster replica waits in the all-reduce for the slower one, from 3 to 6: that is dp. The slower one's own
    gradients are not ready before 6: that is bubble.
    """
    bucket, slow_bucket = ReduceBucket(0, 1.0, 3.0), ReduceBucket(0, 5.0, 3.0)
    tail = (TailOp("norm", "dp", 0.5), TailOp("optimizer", "optimizer", 0.25))
    program = uniform_program(("none", 1, 1, 1), 1.0, 2.0)
    (cls,) = program.classes
    alone = replace(program, classes=(replace(cls, buckets=(bucket,), tail=tail),))
    found = breakdown(alone, run(alone))
    assert present(found.mean_s) == {"compute": 3.0, "dp": 2.5, "optimizer": 0.25}
    assert found.exposed_dp_s == 2.5
    pair = (
        replace(cls, buckets=(bucket,), tail=tail, dp_meets=(1,)),
        replace(cls, buckets=(slow_bucket,), tail=tail[1:], dp_meets=(0,), previous=1, next=1, ranks=3),
    )
    program = replace(program, classes=pair)
    found = breakdown(program, run(program))
    assert present(found.classes_s[0]) == {"compute": 3.0, "dp": 3.0 + 3.5, "optimizer": 0.25}
    assert present(found.classes_s[1]) == {"compute": 3.0, "bubble": 3.0 + 0.5, "dp": 3.0, "optimizer": 0.25}
    assert found.mean_s["dp"] == pytest.approx((6.5 + 3 * 3.0) / 4)


def test_instructions_are_split_by_their_labels(run: Run) -> None:
    program = uniform_program(("interleaved", 2, 4, 2), 1.0, 2.0)
    chunks: dict[ChunkKey, ChunkCost] = {
        ("F", 0): ChunkCost(1.0, {"compute": 0.75, "tp": 0.25}),
        ("F", 1): ChunkCost(1.0, {"compute": 0.5, "ep": 0.5}),
        ("B", 0): ChunkCost(2.0, {"compute": 1.0, "recompute": 0.75, "cp": 0.25}),
        ("B", 1): ChunkCost(2.0, {"compute": 2.0}),
    }
    program = replace(program, classes=tuple(replace(cls, chunks=chunks) for cls in program.classes))
    found = breakdown(program, run(program))
    assert present(found.classes_s[0]) | {"bubble": 0.0} == {
        "compute": 17.0, "recompute": 3.0, "tp": 1.0, "cp": 1.0, "ep": 2.0, "bubble": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("p2p", ["async", "blocking"])
@pytest.mark.parametrize("key", [("1f1b", 4, 6, 1), ("gpipe", 3, 5, 1), ("interleaved", 4, 8, 2), ("none", 1, 3, 1)])
def test_every_class_sums_to_the_step(run: Run, key: tuple[str, int, int, int], p2p: P2PMode) -> None:
    program = replace(uniform_program(key, 0.1, 0.3, 0.07), p2p=p2p)
    classes = tuple(
        replace(
            cls,
            ranks=1 + cls.stage,
            buckets=(ReduceBucket(0, 0.05, 0.2), ReduceBucket(None, 0.0, 0.1)),
            tail=(TailOp("norm", "dp", 0.3, meets=tuple(range(key[1]))), TailOp("step", "host", 0.1)),
        )
        for cls in program.classes
    )
    program = replace(program, classes=classes)
    result = run(program)
    found = breakdown(program, result)
    for seconds in (*found.classes_s, *found.stages_s, found.mean_s):
        assert set(seconds) == set(LABELS)
        assert sum(seconds.values()) == pytest.approx(result.step_time_s, rel=1e-9)
        assert min(seconds.values()) >= -1e-12


def lanes(key: tuple[str, int, int, int], slow: tuple[int, ...] = ()) -> Program:
    """Two pipelines side by side; classes of one stage meet. F 1 s, B 2 s; on the classes `slow` twice as long."""
    whole, p = uniform_program(key, 1.0, 2.0), key[1]
    classes = []
    for lane in (0, 1):
        for stage, cls in enumerate(whole.classes):
            pace = 2.0 if lane * p + stage in slow else 1.0
            times = {kind: pace * cost.duration_s for kind, cost in cls.chunks.items()}
            chunks = {kind: ChunkCost(seconds, {"compute": seconds}) for kind, seconds in times.items()}
            before, after = lane * p + (stage - 1) % p, lane * p + (stage + 1) % p
            other = (1 - lane) * p + stage
            classes.append(replace(cls, chunks=chunks, previous=before, next=after, meets=(other,)))
    return replace(whole, classes=tuple(classes))


@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_waiting_for_a_slower_member_of_the_group_is_that_group(run: Run, p2p: P2PMode) -> None:
    """One stage, three microbatches (DESIGN section 9: the communication that it waits for).

    Both begin at 0, 2, 4 (forward), 6, 10 and 14 (backward), as the slow one can; the other one works half as long and
    waits 1, 1, 1, 2 and 2 s in the group's collectives, then 2 s for the end of the step.
    """
    program = replace(lanes(("gpipe", 1, 3, 1), slow=(1,)), p2p=p2p)
    found = breakdown(program, run(program))
    assert present(found.classes_s[1]) == {"compute": 18.0}
    assert present(found.classes_s[0]) == {"compute": 9.0, "tp": 7.0, "bubble": 2.0}
    assert found.bubble_share_of_ideal == 0.0


def test_each_group_has_its_own_label(run: Run) -> None:
    """The class that is met in a cp group is waited for in that group's collective."""
    program = lanes(("gpipe", 1, 3, 1), slow=(1,))
    first = replace(program.classes[0], meet_labels={1: "cp"})
    program = replace(program, classes=(first, program.classes[1]))
    assert present(breakdown(program, run(program)).classes_s[0]) == {"compute": 9.0, "cp": 7.0, "bubble": 2.0}


@pytest.mark.parametrize("p2p", ["async", "blocking"])
@pytest.mark.parametrize("key", [("1f1b", 4, 8, 1), ("interleaved", 2, 4, 2)])
def test_a_plain_pipeline_bubble_stays_bubble(run: Run, key: tuple[str, int, int, int], p2p: P2PMode) -> None:
    """Groups whose members do everything together wait for nobody: (p - 1)(f + b) / v of bubble on every stage."""
    program = replace(lanes(key), p2p=p2p)
    found = breakdown(program, run(program))
    work_s, bubble_s = 3.0 * key[2], 3.0 * (key[1] - 1) / key[3]
    assert [present(seconds) for seconds in found.classes_s] == 2 * key[1] * [{"compute": work_s, "bubble": bubble_s}]
    assert found.bubble_share_of_ideal == pytest.approx(bubble_s / work_s)


def test_the_tail_waits_for_its_own_stage_at_the_collective_for_other_stages_in_the_bubble(run: Run) -> None:
    """Two stages, two lanes, one microbatch; the norm is over all four. The slow class is stage 1 of lane 1.

    F 0-1 on stage 0; F 1-2 (slow 1-3) on stage 1, which meets again for B at 3: 3-5 (slow 3-7). The backward of
    stage 0 meets at 7: 7-9; then the norm.
    """
    program = lanes(("1f1b", 2, 1, 1), slow=(3,))
    tail = (TailOp("norm", "optimizer", 0.5, meets=(0, 1, 2, 3)),)
    program = replace(program, classes=tuple(replace(cls, tail=tail) for cls in program.classes))
    found = breakdown(program, run(program))
    # stage 0 is alike on both lanes; lane 0 has its gradient from stage 1 at 5 and meets lane 1 at 7
    assert present(found.classes_s[0]) == {"compute": 3.0, "bubble": 4.0, "tp": 2.0, "optimizer": 0.5}
    assert present(found.classes_s[2]) == {"compute": 3.0, "bubble": 6.0, "optimizer": 0.5}
    # lane 0 waits for its mate at B (2-3), for its mate to end at the norm (5-7), for stage 0 there (7-9)
    assert present(found.classes_s[1]) == {"compute": 3.0, "bubble": 1.0 + 2.0, "tp": 1.0 + 2.0, "optimizer": 0.5}
    assert present(found.classes_s[3]) == {"compute": 6.0, "bubble": 1.0 + 2.0, "optimizer": 0.5}
    strangers = tuple(replace(cls, meets=()) for cls in program.classes)
    found = breakdown(replace(program, classes=strangers), run(replace(program, classes=strangers)))
    # without meetings before it: lane 0 computes on 0-1, 1-2, 2-4, 4-6, lane 1 to 3, 7 and 9
    assert present(found.classes_s[0]) == {"compute": 3.0, "bubble": 3.0, "optimizer": 3.0 + 0.5}


def test_what_rounding_leaves_is_no_time_and_a_real_negative_stays() -> None:
    """Sums of times of a step of 100 s are exact to some 1e-14 s; a label below zero by more is a bug to be seen."""
    found = settled(np.array([[-3.3e-16, 5e-12, -1e-6, 62.0]]), 100.0)
    assert found.tolist() == [[0.0, 0.0, -1e-6, 62.0]]
    assert len(LABELS) * ROUNDING <= 1e-12  # the sum over labels stays the step
