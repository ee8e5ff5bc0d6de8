"""What the program's words mean, on programs small enough to work out by hand; for both evaluators."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from traincast.analytic import evaluate
from traincast.engine import simulate
from traincast.errors import TraincastError
from traincast.lower.program import ChunkCost, ChunkKey, Program, RankClass, ReduceBucket, Result, TailOp
from traincast.lower.uniform import uniform_program
from traincast.recipe import P2PMode
from traincast.schedule import Instruction

Run = Callable[[Program], Result]


@pytest.fixture(params=[simulate, evaluate], ids=["engine", "recurrence"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def single_stage(*classes: RankClass, m: int = 2) -> Program:
    """Classes that all run stage 0 of 1, each with its own pipeline."""
    own = tuple(replace(cls, previous=index, next=index) for index, cls in enumerate(classes))
    return replace(uniform_program(("none", 1, m, 1), 1.0, 2.0), classes=own)


def rank(forward_s: float = 1.0, backward_s: float = 2.0, **more: Any) -> RankClass:
    chunks: dict[ChunkKey, ChunkCost] = {
        ("F", 0): ChunkCost(forward_s, {"compute": forward_s}),
        ("B", 0): ChunkCost(backward_s, {"compute": backward_s}),
    }
    base = RankClass(stage=0, ranks=1, example_rank=0, chunks=chunks, previous=0, next=0)
    return replace(base, **more)


def test_messages_of_one_direction_queue(run: Run) -> None:
    """Asynchronous sends leave one after the other: with L = 3 f the third forward arrives at f + 3 L."""
    first, last = run(uniform_program(("gpipe", 2, 3, 1), 1.0, 2.0, 3.0)).classes
    assert first.end_s[:3].tolist() == [1.0, 2.0, 3.0]
    assert first.output_start_s[:3].tolist() == [1.0, 4.0, 7.0]
    assert last.input_end_s[:3].tolist() == [4.0, 7.0, 10.0]


def test_no_message_has_no_time(run: Run) -> None:
    first, last = run(uniform_program(("1f1b", 2, 1, 1), 1.0, 2.0, 0.5)).classes
    np.testing.assert_array_equal(first.input_start_s, [np.nan, 4.5])
    np.testing.assert_array_equal(last.output_end_s, [np.nan, 5.0])
    np.testing.assert_array_equal(first.output_end_s, [1.5, np.nan])


def test_a_single_stage_sends_nothing(run: Run) -> None:
    """Its chunks hand over in place, so that even a long transfer costs nothing."""
    result = run(uniform_program(("interleaved", 1, 2, 2), 1.0, 2.0, 9.0))
    assert result.step_time_s == 6.0
    assert np.isnan(result.classes[0].input_start_s).all()


def test_meeting_classes_begin_together(run: Run) -> None:
    """A tensor-parallel pair advances at the pace of the slower one, instruction by instruction."""
    fast, slow = rank(1.0, 2.0, meets=(1,)), rank(2.0, 1.0, meets=(0,))
    result = run(single_stage(fast, slow))
    for times in result.classes:
        assert times.start_s.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert [times.finish_s for times in result.classes] == [8.0, 7.0]


def test_meeting_need_not_be_mutual(run: Run) -> None:
    """A class waits for those it names, whether or not they wait for it."""
    result = run(single_stage(rank(), rank(2.0, 4.0, meets=(0,))))
    assert result.classes[0].finish_s == 6.0
    assert result.classes[1].finish_s == 12.0
    result = run(single_stage(rank(meets=(1,)), rank(2.0, 4.0)))
    assert result.classes[0].start_s.tolist() == [0.0, 2.0, 6.0, 8.0]


def test_buckets_overlap_the_last_backward(run: Run) -> None:
    """Ready times count from the start of the last backward (here 4.0); buckets queue on their stream."""
    buckets = (ReduceBucket(0, 0.5, 0.25), ReduceBucket(0, 0.625, 1.0), ReduceBucket(0, 2.0, 1.0))
    (times,) = run(single_stage(rank(buckets=buckets))).classes
    assert times.start_s[-1] == 4.0
    assert times.bucket_start_s.tolist() == [4.5, 4.75, 6.0]
    assert times.bucket_end_s.tolist() == [4.75, 5.75, 7.0]
    assert times.finish_s == 7.0


def test_buckets_of_no_chunk_wait_for_everything(run: Run) -> None:
    (times,) = run(single_stage(rank(buckets=(ReduceBucket(None, 0.5, 1.0), ReduceBucket(None, 0.0, 1.0))))).classes
    assert times.bucket_start_s.tolist() == [6.5, 7.5]


def test_buckets_wait_for_the_last_exchange_of_a_blocking_stack(run: Run) -> None:
    """The last stage's final gradient has to be taken by its neighbour before the program goes on."""
    program = uniform_program(("1f1b", 2, 1, 1), 1.0, 2.0, 0.5, "blocking")
    classes = tuple(replace(cls, buckets=(ReduceBucket(None, 0.0, 1.0),)) for cls in program.classes)
    first, last = run(replace(program, classes=classes)).classes
    assert last.end_s[-1] == 4.5
    assert last.bucket_start_s.tolist() == [5.0]
    assert first.bucket_start_s.tolist() == [7.0]
    first, last = run(replace(program, classes=classes, p2p="async")).classes
    assert last.bucket_start_s.tolist() == [4.5]


def test_weight_gradients_of_a_split_backward_release_the_bucket(run: Run) -> None:
    """Where a schedule has W, the bucket counts from the last W of the chunk."""
    order = (Instruction("F", 0, 0), Instruction("B", 0, 0), Instruction("W", 0, 0))
    cls = rank(1.0, 1.0, buckets=(ReduceBucket(0, 0.25, 1.0),))
    cls = replace(cls, chunks={**cls.chunks, ("W", 0): ChunkCost(1.0, {"compute": 1.0})})
    (times,) = run(Program((order,), ("split", 1, 1, 1), "async", (cls,))).classes
    assert times.bucket_start_s.tolist() == [2.25]


def test_a_straggling_replica_delays_all_at_the_gradient_barrier(run: Run) -> None:
    bucket = (ReduceBucket(0, 2.0, 1.0),)
    fast, slow = rank(buckets=bucket, dp_meets=(1,)), rank(1.5, 3.0, buckets=bucket, dp_meets=(0,))
    result = run(single_stage(fast, slow))
    assert result.classes[0].end_s[-1] == 6.0
    assert [times.bucket_start_s.tolist() for times in result.classes] == [[8.0], [8.0]]
    assert result.step_time_s == 9.0


def test_tail_operations_meet_by_name(run: Run) -> None:
    """A class that lacks the name does not take part; one that has it is waited for."""
    embed = TailOp("embedding", "dp", 1.0, meets=(1, 2))
    step = TailOp("optimizer", "optimizer", 0.5)
    norm = TailOp("norm", "dp", 0.25, meets=(0, 1, 2))
    middle = rank(5.0, 5.0, tail=(norm, step))
    ends = rank(tail=(embed, norm, step)), rank(2.0, 2.0, tail=(replace(embed, meets=(0, 1)), norm, step))
    first, other, last = run(single_stage(ends[0], middle, ends[1])).classes
    assert first.tail_start_s.tolist() == last.tail_start_s.tolist() == [8.0, 20.0, 20.25]
    assert other.tail_start_s.tolist() == [20.0, 20.25]
    assert first.finish_s == other.finish_s == 20.75


def test_nothing_to_do(run: Run) -> None:
    empty = Program(((),), ("empty", 1, 0, 1), "async", (rank(),))
    assert run(empty).step_time_s == 0.0
    assert run(replace(empty, classes=())).step_time_s == 0.0


@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_a_deadlock_is_named(run: Run, p2p: P2PMode) -> None:
    """Stage 0 wants its backward before it has sent the second forward, stage 1 wants both forwards first."""
    f0, f1, b0, b1 = (Instruction(kind, k, 0) for kind in "FB" for k in range(2))  # type: ignore[arg-type]
    program = uniform_program(("1f1b", 2, 2, 1), 1.0, 2.0)
    program = replace(program, schedule=((f0, b0, f1, b1), (f0, f1, b0, b1)), schedule_key=("stuck", 2, 2, 1), p2p=p2p)
    with pytest.raises(TraincastError) as caught:
        run(program)
    text = str(caught.value)
    assert "stage 0 (class 0) waits to begin B of microbatch 0, chunk 0" in text
    assert "stage 1 (class 1) waits to begin F of microbatch 1, chunk 0" in text
    assert "2 of 2 classes" in text


def test_unmatched_tail_order_is_a_deadlock(run: Run) -> None:
    one, other = TailOp("a", "dp", 1.0, meets=(0, 1)), TailOp("b", "dp", 1.0, meets=(0, 1))
    with pytest.raises(TraincastError, match="what comes after its last instruction"):
        run(single_stage(rank(tail=(one, other)), rank(tail=(other, one))))


def test_exchanging_after_each_pass_of_interleaving_deadlocks(run: Run) -> None:
    """Why the schedule marks forwards as fused."""
    program = uniform_program(("interleaved", 2, 4, 2), 1.0, 2.0, 0.0, "blocking")
    assert run(program).step_time_s == 13.5
    schedule = tuple(tuple(i._replace(fused=False) for i in order) for order in program.schedule)
    with pytest.raises(TraincastError, match="deadlocks with blocking p2p"):
        run(replace(program, schedule=schedule, schedule_key=("unfused", 2, 4, 2)))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"chunks": {}}, "no cost"),
        ({"stage": 3}, "none of 1 stages"),
        ({"buckets": (ReduceBucket(7, 0.0, 1.0),)}, "never runs backward"),
        ({"buckets": (ReduceBucket(0, float("nan"), 1.0),)}, "undefined time"),
        ({"tail": (TailOp("a", "dp", -1.0),)}, "negative"),
        ({"tail": (TailOp("a", "dp", 1.0), TailOp("a", "dp", 1.0))}, "two tail operations of one name"),
        ({"meets": (5,)}, "does not exist"),
        ({"dp_meets": (1,), "buckets": (ReduceBucket(0, 0.0, 1.0),)}, "another number of buckets"),
    ],
)
def test_inconsistent_programs_are_refused(run: Run, broken: dict[str, Any], message: str) -> None:
    with pytest.raises(TraincastError, match=message):
        run(single_stage(rank(**broken), rank()))


def test_neighbours_must_agree(run: Run) -> None:
    program = uniform_program(("1f1b", 3, 3, 1), 1.0, 2.0)
    first, *others = program.classes
    with pytest.raises(TraincastError, match="not neighbouring stages"):
        run(replace(program, classes=(replace(first, next=2), *others)))
    with pytest.raises(TraincastError, match="meets a class of another stage"):
        run(replace(program, classes=(replace(first, meets=(1,)), *others)))
