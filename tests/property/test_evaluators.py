"""The two evaluators against each other and against the laws of a pipeline, on random programs."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.analytic import evaluate, evaluate_batch
from traincast.engine import expected_events, simulate
from traincast.lower.breakdown import breakdown
from traincast.lower.compare import differences
from traincast.lower.program import ChunkCost, ChunkKey, Program, RankClass, ReduceBucket, Result, TailOp
from traincast.lower.uniform import uniform_program
from traincast.recipe import P2PMode
from traincast.schedule import Pass, build, links

Key = tuple[str, int, int, int]
PASSES: tuple[Pass, ...] = ("F", "B")


@st.composite
def keys(draw: st.DrawFn) -> Key:
    name = draw(st.sampled_from(["none", "gpipe", "1f1b", "interleaved"]))
    p = 1 if name == "none" else draw(st.integers(1, 5))
    if name == "interleaved":
        return name, p, p * draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return name, p, draw(st.integers(1, 9)), 1


@dataclass(frozen=True)
class World:
    """Lanes of whole pipelines; class = lane * p + stage. Lanes meet each other as the partitions say."""

    key: Key
    p2p: P2PMode
    lanes: int
    meets: tuple[tuple[int, ...], ...]
    dp_meets: tuple[tuple[int, ...], ...]
    bucket_chunks: tuple[int | None, ...]
    tails: tuple[tuple[str, ...], ...]

    def program(self, seed: int) -> Program:
        """The program of this world with random times; a third of them are round, so that events coincide."""
        random = np.random.default_rng(seed)
        _, p, _, v = self.key

        def seconds() -> float:
            return float(random.integers(0, 4) if random.random() < 1 / 3 else random.uniform(0.0, 3.0))

        def at(stage: int, lanes: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(lane * p + stage for lane in lanes)

        def rank_class(lane: int, stage: int) -> RankClass:
            chunks: dict[ChunkKey, ChunkCost] = {}
            for chunk in range(v):
                for kind in PASSES:
                    chunks[kind, chunk] = ChunkCost(duration_s := seconds(), {"compute": duration_s}, seconds())
            everyone = tuple(range(self.lanes * p))
            return RankClass(
                stage=stage,
                ranks=1 + lane,
                example_rank=lane * p + stage,
                chunks=chunks,
                previous=lane * p + (stage - 1) % p,
                next=lane * p + (stage + 1) % p,
                meets=at(stage, self.meets[lane]),
                dp_meets=at(stage, self.dp_meets[lane]),
                buckets=tuple(ReduceBucket(chunk, seconds(), seconds()) for chunk in self.bucket_chunks),
                tail=tuple(
                    TailOp(tail, "dp", seconds(), everyone if tail == "norm" else at(stage, self.dp_meets[lane]))
                    for tail in self.tails[lane * p + stage]
                ),
            )

        classes = tuple(rank_class(lane, stage) for lane in range(self.lanes) for stage in range(p))
        return Program(build(*self.key), self.key, self.p2p, classes)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    key = draw(keys())
    lanes = draw(st.integers(1, 3))
    others = st.lists(st.integers(0, lanes - 1), max_size=lanes).map(tuple)
    names = st.lists(st.sampled_from(["embedding", "norm", "optimizer"]), unique=True).map(sorted).map(tuple)
    return World(
        key=key,
        p2p=draw(st.sampled_from(["async", "blocking"])),
        lanes=lanes,
        meets=tuple(draw(others) for _ in range(lanes)),
        dp_meets=tuple(draw(others) for _ in range(lanes)),
        bucket_chunks=draw(st.lists(st.sampled_from([None, *range(key[3])]), max_size=3).map(tuple)),
        tails=tuple(draw(names) for _ in range(lanes * key[1])),
    )


@given(worlds(), st.integers(0, 2**32 - 1))
@settings(max_examples=150)
def test_recurrence_equals_engine_to_the_last_bit(world: World, seed: int) -> None:
    """Every time of every class, the events as foretold, a breakdown that adds up, whoever meets whom."""
    program = world.program(seed)
    simulated, evaluated = simulate(program), evaluate(program)
    assert not differences(simulated, evaluated)
    assert simulated.events == expected_events(program)
    assert not differences(simulated, simulate(program))
    found = breakdown(program, simulated)
    for seconds in (*found.classes_s, found.mean_s):
        assert sum(seconds.values()) == pytest.approx(simulated.step_time_s, rel=1e-9, abs=1e-12)
        assert min(seconds.values()) >= -1e-9


@given(worlds(), st.integers(0, 2**32 - 1))
@settings(max_examples=60)
def test_order_respects_dependencies(world: World, seed: int) -> None:
    program = world.program(seed)
    result = evaluate(program)
    found = links(program.schedule_key, program.schedule)
    for index, (cls, times) in enumerate(zip(program.classes, result.classes, strict=True)):
        stage = found[cls.stage]
        assert (times.start_s[1:] >= times.end_s[:-1]).all()
        for other in cls.meets:
            assert (times.start_s >= np.append(0.0, result.classes[other].end_s[:-1])).all()
        for k, source in enumerate(stage.source):
            if source >= 0:
                sender = result.classes[cls.previous if stage.instructions[k].kind == "F" else cls.next]
                assert times.input_end_s[k] == sender.output_end_s[source] <= times.start_s[k]
                assert sender.end_s[source] <= sender.output_start_s[source] <= times.input_end_s[k]
        if len(times.bucket_end_s):
            assert (times.bucket_start_s[1:] >= times.bucket_end_s[:-1]).all()
        assert times.finish_s >= max([times.end_s[-1], *times.bucket_end_s, *times.tail_end_s])
        assert index == cls.example_rank


def _same(batch: np.ndarray, results: list[Result]) -> bool:
    return list(batch) == [result.step_time_s for result in results]


@given(st.lists(worlds(), min_size=1, max_size=3), st.integers(1, 30), st.integers(0, 2**31))
@settings(max_examples=40)
def test_a_batch_equals_its_programs_one_by_one(found: list[World], copies: int, seed: int) -> None:
    """Shuffled programs of several plans, some of which occur often enough to be evaluated level by level."""
    programs = [world.program(seed + copy) for copy in range(copies) for world in found]
    assert _same(evaluate_batch(programs), [evaluate(program) for program in programs])


def test_a_large_batch_is_cut_to_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [uniform_program(("1f1b", 4, 8, 1), 1.0 + k, 2.0, 0.1) for k in range(20)]
    monkeypatch.setattr("traincast.analytic.recurrence._BLOCK", 500)
    assert _same(evaluate_batch(programs), [simulate(program) for program in programs])


@pytest.mark.parametrize("v", [1, 2, 3, 4])
@pytest.mark.parametrize("p", [2, 3, 4, 7, 8, 13, 16])
def test_interleaving_never_deadlocks(p: int, v: int) -> None:
    """Blocking and asynchronous agree without latency: m t + (p - 1) t / v (SC21, section 2.2.2)."""
    for m in (p, 2 * p, 3 * p):
        program = uniform_program(("interleaved", p, m, v), 1.0, 2.0)
        closed_s = pytest.approx(m * 3.0 + (p - 1) * 3.0 / v, rel=1e-12)
        assert evaluate(program).step_time_s == closed_s
        assert evaluate(replace(program, p2p="blocking")).step_time_s == closed_s


@given(keys(), st.floats(0.0, 2.0), st.sampled_from(["async", "blocking"]))
@settings(max_examples=60)
def test_latency_never_makes_a_step_faster(key: Key, latency_s: float, p2p: P2PMode) -> None:
    """Longest paths are monotone in every duration."""
    program = replace(uniform_program(key, 1.0, 2.0, latency_s), p2p=p2p)
    slower = replace(uniform_program(key, 1.0, 2.0, 1.5 * latency_s), p2p=p2p)
    assert evaluate(program).step_time_s <= evaluate(slower).step_time_s
