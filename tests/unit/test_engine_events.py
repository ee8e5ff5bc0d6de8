"""The engine's work, counted: events are exact, wall time is nobody's test."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.engine import expected_events, simulate
from traincast.lower.compare import differences
from traincast.lower.program import ReduceBucket, TailOp
from traincast.lower.uniform import uniform_program
from traincast.recipe import P2PMode


@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_events_of_the_1t_model(p2p: P2PMode) -> None:
    """SC21's largest row, p=64 and m=512: one event a chunk, one a message, start and end of 64 processes.

    The recurrence agrees on every time of it to the last bit.
    """
    program = replace(uniform_program(("1f1b", 64, 512, 1), 1.0, 2.0, 0.01), p2p=p2p)
    result = simulate(program)
    assert result.events == 64 * 2 * 512 + 63 * 2 * 512 + 64 * 2 == 130_176
    assert not differences(result, evaluate(program))


@pytest.mark.parametrize("p2p", ["async", "blocking"])
def test_events_of_interleaving(p2p: P2PMode) -> None:
    """Chunk outputs travel round the ring: (p v - 1) messages each way and microbatch."""
    program = replace(uniform_program(("interleaved", 4, 8, 2), 1.0, 2.0, 0.01), p2p=p2p)
    assert simulate(program).events == 2 * 8 * 4 * 2 + 2 * 8 * (4 * 2 - 1) + 4 * 2


def test_events_of_buckets_tails_and_meetings() -> None:
    """Two events a bucket, one a tail operation, one a meeting, two for the dp process."""
    program = uniform_program(("none", 1, 3, 1), 1.0, 2.0)
    (cls,) = program.classes
    cls = replace(cls, buckets=(ReduceBucket(0, 0.5, 1.0), ReduceBucket(None, 0.0, 1.0)))
    cls = replace(cls, tail=(TailOp("norm", "dp", 1.0), TailOp("optimizer", "optimizer", 1.0)))
    assert simulate(replace(program, classes=(cls,))).events == 6 + 2 * 2 + 2 + 2 * 2
    norm = replace(cls.tail[0], meets=(0, 1))
    pair = tuple(
        replace(cls, previous=i, next=i, meets=(1 - i,), dp_meets=(1 - i,), tail=(norm, cls.tail[1])) for i in range(2)
    )
    paired = replace(program, classes=pair)
    assert simulate(paired).events == 2 * (6 + 2 * 2 + 2 + 2 * 2) + 2 * (6 + 2 + 1)
    assert expected_events(paired) == simulate(paired).events


def test_the_recurrence_has_no_events() -> None:
    assert evaluate(uniform_program(("1f1b", 2, 2, 1), 1.0, 2.0)).events == 0
