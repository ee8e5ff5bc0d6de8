"""Symmetry folding: colour refinement, wiring of classes, and folded programs equal to unfolded ones."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from traincast.analytic import evaluate
from traincast.engine import simulate
from traincast.lower.fold import GroupFamily, RankGroups, class_wiring, refine
from traincast.lower.program import ChunkCost, Program, RankClass, ReduceBucket, Result, TailOp
from traincast.recipe import P2PMode
from traincast.schedule import build

Run = Callable[[Program], Result]
Costs = npt.NDArray[np.int64]
TP, DP, PP = 2, 3, 3
WORLD = TP * DP * PP
GRID = np.arange(WORLD).reshape(PP, DP, TP)  # order tp-dp-pp, tp with stride 1
GROUPS = RankGroups(
    pipeline=GRID.transpose(1, 2, 0).reshape(-1, PP),
    meets=(GRID.reshape(-1, TP),),
    dp_meets=(GRID.transpose(0, 2, 1).reshape(-1, DP),),
    tail_meets={"embedding": GRID[[0, -1]].reshape(2, -1).T, "norm": GRID.transpose(1, 0, 2).reshape(DP, -1)},
)
STAGES = np.repeat(np.arange(PP), DP * TP)


@pytest.fixture(params=[simulate, evaluate], ids=["engine", "recurrence"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def program_of(classes: npt.ArrayLike, costs: Costs, key: tuple[str, int, int, int], p2p: P2PMode) -> Program:
    """The program of a world whose ranks cost what `costs` says, in the given partition into classes."""
    found = []
    for wire in class_wiring(np.asarray(classes), GROUPS):
        pace = 1.0 + 0.37 * costs[wire.example_rank]
        stage = int(STAGES[wire.example_rank])
        chunks = {
            (kind, chunk): ChunkCost(seconds * pace, {"compute": seconds * pace}, 0.013 * (1 + stage))
            for chunk in range(key[3])
            for kind, seconds in (("F", 0.11), ("B", 0.23))
        }
        names = ("embedding", "norm") if stage in (0, PP - 1) else ("norm",)
        found.append(
            RankClass(
                stage=stage,
                ranks=wire.ranks,
                example_rank=wire.example_rank,
                chunks=chunks,  # type: ignore[arg-type]
                previous=wire.previous,
                next=wire.next,
                meets=wire.meets,
                dp_meets=wire.dp_meets,
                buckets=(ReduceBucket(0, 0.05 * pace, 0.4), ReduceBucket(None, 0.0, 0.3)),
                tail=tuple(TailOp(name, "dp", 0.07 * pace, wire.tail_meets[name]) for name in names),
            )
        )
    return Program(build(*key), key, p2p, tuple(found))


@pytest.mark.parametrize("p2p", ["async", "blocking"])
@pytest.mark.parametrize("key", [("1f1b", PP, 5, 1), ("interleaved", PP, 6, 2), ("gpipe", PP, 4, 1)])
@pytest.mark.parametrize(
    ("odd", "classes"),
    [((), PP), ((2, 3, 8, 9, 14, 15), 2 * PP), ((3,), WORLD - 6), (tuple(range(1, WORLD, 2)), 2 * PP)],
    ids=["uniform", "slow replica", "slow rank", "slow half"],
)
def test_folded_equals_unfolded(
    run: Run, key: tuple[str, int, int, int], p2p: P2PMode, odd: tuple[int, ...], classes: int
) -> None:
    """Float-equal, time by time, for every rank; one class a stage where all ranks are alike.

    Ranks 2, 3, 8, 9, 14 and 15 are replica 1. A single slow rank tells its whole replica, and its
    tensor-parallel positions, from the others; the two other replicas stay alike.
    """
    costs = np.isin(np.arange(WORLD), odd).astype(np.int64)
    found = refine(STAGES * 2 + costs, GROUPS.families())
    assert found.max() + 1 == classes
    whole = run(program_of(np.arange(WORLD), costs, key, p2p))
    folded = run(program_of(found, costs, key, p2p))
    assert folded.step_time_s == whole.step_time_s
    for rank in range(WORLD):
        for name, times in vars(whole.classes[rank]).items():
            np.testing.assert_array_equal(getattr(folded.classes[found[rank]], name), times)


def test_a_straggling_replica_delays_everyone_at_the_gradients(run: Run) -> None:
    """It gets classes of its own, one a stage, and all replicas start their buckets when it is ready."""
    key = ("1f1b", PP, 5, 1)
    costs = np.isin(np.arange(WORLD), GRID[:, 1]).astype(np.int64)
    found = refine(STAGES * 2 + costs, GROUPS.families())
    assert set(found[costs == 1]).isdisjoint(found[costs == 0])
    alike = run(program_of(refine(STAGES, GROUPS.families()), 0 * costs, key, "async"))
    result = run(program_of(found, costs, key, "async"))
    for stage in range(PP):
        fast, slow = (result.classes[found[GRID[stage, replica, 0]]] for replica in (0, 1))
        assert fast.end_s[-1] == alike.classes[stage].end_s[-1] < slow.end_s[-1]
        np.testing.assert_array_equal(fast.bucket_start_s, slow.bucket_start_s)
        assert fast.bucket_start_s[0] > alike.classes[stage].bucket_start_s[0]
    assert result.step_time_s > alike.step_time_s


def test_refinement_separates_what_groups_can_tell_apart() -> None:
    """A chain of pairs: the odd colour of rank 0 spreads along pairs until all distances to it differ."""
    pairs = GroupFamily(np.array([[0, 1], [2, 3], [4, 5]])), GroupFamily(np.array([[1, 2], [3, 4]]))
    assert refine([1, 0, 0, 0, 0, 0], pairs).tolist() == [0, 1, 2, 3, 4, 5]
    assert refine([0] * 6, pairs).tolist() == [0, 1, 2, 2, 1, 0]


def test_order_in_a_group_matters_only_when_told() -> None:
    groups = np.array([[0, 1], [3, 2]])
    assert refine([7, 9, 7, 9], (GroupFamily(groups),)).tolist() == [0, 1, 0, 1]
    assert refine([7, 9, 7, 9], (GroupFamily(groups, ordered=True),)).tolist() == [0, 1, 2, 3]


def test_classes_are_numbered_by_their_first_rank() -> None:
    assert refine([5, 3, 5, 1], ()).tolist() == [0, 1, 0, 2]
    assert refine([], ()).tolist() == []
    assert refine([1, 1], (GroupFamily(np.empty((0, 2), dtype=np.int64)),)).tolist() == [0, 0]


def test_wiring_is_read_off_the_groups() -> None:
    """16 ranks, TP 2, PP 4, DP 2 (order tp-dp-pp): one class a stage, neighbours in a ring."""
    grid = np.arange(16).reshape(4, 2, 2)
    groups = RankGroups(
        pipeline=grid.transpose(1, 2, 0).reshape(-1, 4),
        meets=(grid.reshape(-1, 2),),
        dp_meets=(grid.transpose(0, 2, 1).reshape(-1, 2),),
        tail_meets={"embedding": grid[[0, -1]].reshape(2, -1).T},
    )
    classes = refine(np.arange(16) // 4, groups.families())
    wires = class_wiring(classes, groups)
    assert [(w.example_rank, w.ranks, w.previous, w.next) for w in wires] == [
        (0, 4, 3, 1), (4, 4, 0, 2), (8, 4, 1, 3), (12, 4, 2, 0),
    ]  # fmt: skip
    assert all(w.meets == () and w.dp_meets == () for w in wires)
    assert [w.tail_meets["embedding"] for w in wires] == [(3,), (), (), (0,)]
    single = class_wiring(np.arange(16), groups)
    assert single[5].meets == (4,)
    assert single[5].dp_meets == (7,)
    assert (single[5].previous, single[5].next) == (1, 9)


@pytest.mark.parametrize("ranks", [3072, 16384])
def test_aligned_worlds_have_one_class_a_stage(ranks: int) -> None:
    """TP x CP inside nodes of 8: one class a stage (the 1T row of SC21, and 16,384 GPUs with 16 stages)."""
    p = 64 if ranks == 3072 else 16
    grid = np.arange(ranks).reshape(p, -1, 8)
    groups = RankGroups(
        pipeline=grid.transpose(1, 2, 0).reshape(-1, p),
        meets=(grid.reshape(-1, 8),),
        dp_meets=(grid.transpose(0, 2, 1).reshape(p * 8, -1),),
    )
    classes = refine(np.arange(ranks) // (ranks // p), groups.families())
    assert classes.max() + 1 == p
    assert len(class_wiring(classes, groups)) == p


def test_folding_keeps_the_weights() -> None:
    costs = np.zeros(WORLD, dtype=np.int64)
    program = program_of(refine(STAGES, GROUPS.families()), costs, ("1f1b", PP, 3, 1), "async")
    assert sum(cls.ranks for cls in program.classes) == WORLD
    assert [cls.example_rank for cls in program.classes] == GRID[:, 0, 0].tolist()
