"""The recurrence inside a chunk: overlap is an outcome, labels sum to the duration."""

import pytest

from traincast.lower import chunk as chunk_module
from traincast.lower.chunk import Segment, chunk_time
from traincast.model.operators import Collective, HostCopy, MemoryBound, Operator
from traincast.profile import Traits

COMPUTE, NETWORK = 10.0, 6.0


class Book(dict[str, float]):
    """A profile of few constants."""

    traits = Traits()


class FakeMachine:
    def __init__(self, slowdown: float = 0.0) -> None:
        self.profile = Book({"overlap.slowdown": slowdown})


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute operators take their bytes in seconds, collectives their size; the host takes their calls."""

    def device(op: Operator, machine: object, spans: object) -> float:
        return op.size_bytes if isinstance(op, Collective | HostCopy) else op.bytes_moved  # type: ignore[union-attr]

    monkeypatch.setattr(chunk_module, "operator_seconds", device)
    monkeypatch.setattr(chunk_module, "host_seconds", lambda op, machine, autograd: float(op.calls - 1))


def compute(seconds: float = COMPUTE, host: int = 0) -> MemoryBound:
    return MemoryBound("work", seconds, calls=host + 1)


def collective(seconds: float = NETWORK, behind: int = 0) -> Collective:
    return Collective("sum", "all_reduce", "tp", seconds, behind=behind)


def test_a_blocking_host_adds_its_own_time_to_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA_LAUNCH_BLOCKING=1: no call is issued before the one before has ended, and no collective runs beside."""
    ops = (compute(host=2), collective(behind=1), compute(host=3))
    assert run(*ops).duration_s == 2 + COMPUTE + COMPUTE
    monkeypatch.setattr(Book, "traits", Traits(launch_blocking=True))
    found = run(*ops)
    assert found.duration_s == 2 + COMPUTE + NETWORK + 3 + COMPUTE
    assert found.labels_s["host"] == 5
    assert sum(found.labels_s.values()) == found.duration_s


def run(*ops: Operator, slowdown: float = 0.0) -> chunk_module.ChunkTime:
    time = chunk_time([Segment(ops, mark=True)], FakeMachine(slowdown), {})  # type: ignore[arg-type]
    assert sum(time.labels_s.values()) == pytest.approx(time.duration_s)
    return time


def test_a_blocking_collective_is_exposed() -> None:
    time = run(compute(), collective(), compute())
    assert time.duration_s == 26
    assert time.labels_s == {"compute": 20, "tp": 6}


def test_a_collective_behind_compute_is_hidden() -> None:
    time = run(compute(), collective(behind=1), compute(), compute())
    assert time.duration_s == 30
    assert "tp" not in time.labels_s


def test_only_the_part_that_outlasts_compute_is_exposed() -> None:
    time = run(compute(), collective(14, behind=1), compute(), compute())
    assert time.labels_s == {"compute": 30, "tp": 4}


def test_a_trailing_collective_ends_the_chunk() -> None:
    time = run(compute(), collective())
    assert time.duration_s == 16
    assert time.marks_s == (10,)


def test_collectives_of_a_stream_follow_each_other() -> None:
    time = run(compute(), collective(behind=2), compute(1), collective(behind=1), compute(1), compute())
    assert time.duration_s == pytest.approx(10 + 6 + 6 + 10)


def test_the_host_bounds_small_operators() -> None:
    """Ten operators of 1 s that take the host 3 s each end one second after the last launch."""
    time = run(*[compute(1, host=3)] * 10)
    assert time.duration_s == 31
    assert time.labels_s["host"] == pytest.approx(21)


def test_the_host_runs_ahead_of_long_operators() -> None:
    time = run(*[compute(10, host=3)] * 10)
    assert time.duration_s == 103


def test_compute_beside_a_collective_is_slowed() -> None:
    """Calibrated slow-down: half of the second operator runs beside the collective."""
    time = run(compute(), collective(5, behind=1), compute(), slowdown=0.2)
    assert time.duration_s == pytest.approx(21)


def test_groups_of_one_axis_have_streams_of_their_own() -> None:
    """A ring inside nodes and one across them are two communicators: 6 and 6 seconds beside 10 of compute."""
    inside, across = (Collective("pass", "send_recv", "cp", NETWORK, behind=1, group=group) for group in ("a", "b"))
    assert run(compute(), inside, across, compute(), compute()).duration_s == 30
    assert run(compute(), inside, inside, compute(), compute()).labels_s == {"compute": 30, "cp": 2}


def test_copies_to_the_host_bound_a_chunk_and_nothing_waits_for_them() -> None:
    """Both ways run at once, each on its own stream; what they outlast compute by is the host's."""
    copies = tuple(HostCopy("copy", 25.0, way, 1.0) for way in ("out", "in"))
    assert run(*copies, compute(), compute(), compute()).labels_s == {"compute": 30}
    assert run(*copies, compute(), compute()).labels_s == {"compute": 20, "host": 5}
    assert run(copies[0], copies[0], compute()).duration_s == 50
