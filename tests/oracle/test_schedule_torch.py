"""Our orders against torch.distributed.pipelining's, where torch is installed."""

from types import ModuleType
from typing import Any

import pytest

from traincast.schedule import build, model_part

pytestmark = pytest.mark.oracle

Word = tuple[str, int, int]


@pytest.fixture(scope="module")
def schedules() -> ModuleType:
    return pytest.importorskip("torch.distributed.pipelining.schedules")


def theirs(schedules: ModuleType, name: str, shape: tuple[int, int, int], rank: int) -> list[Word]:
    """What a rank runs: kind, microbatch, part of the model. A joint forward and backward are two words."""
    kinds = {
        schedules.FORWARD: "F",
        schedules.FULL_BACKWARD: "B",
        schedules.BACKWARD_INPUT: "I",
        schedules.BACKWARD_WEIGHT: "W",
    }
    if not hasattr(schedules, name):
        pytest.skip(f"this torch has no {name}")
    p, m, v = shape
    oracle = object.__new__(getattr(schedules, name))
    stages = [type("Stage", (), {"stage_index": rank + p * chunk})() for chunk in range(v)]
    given = {"n_local_stages": v, "pp_group_size": p, "_n_microbatches": m, "_stages": stages}
    rounds = max(1, m // p)
    given |= {"number_of_rounds": rounds, "microbatches_per_round": m // rounds, "num_stages": p * v, "rank": rank}
    for field, value in (given | {"_num_stages": p * v}).items():
        setattr(oracle, field, value)
    actions: list[Any] = []
    for action in oracle._calculate_single_rank_operations(rank):
        if action is not None:
            actions += getattr(action, "sub_actions", None) or (action,)
    return [(kinds[one.computation_type], one.microbatch_index, one.stage_index) for one in actions]


@pytest.mark.parametrize(
    ("ours", "name", "shapes"),
    [
        ("interleaved", "ScheduleInterleaved1F1B", [(2, 4, 2), (4, 8, 2), (4, 12, 3), (8, 16, 1)]),
        ("looped-bfs", "ScheduleLoopedBFS", [(2, 4, 2), (4, 3, 3), (8, 16, 2)]),
        ("zb-h1", "ScheduleInterleavedZeroBubble", [(2, 4, 1), (4, 8, 1), (4, 4, 2), (4, 12, 3), (8, 16, 4)]),
        ("zb-v", "ScheduleZBVZeroBubble", [(1, 3, 2), (2, 4, 2), (4, 2, 2), (4, 8, 2), (8, 17, 2)]),
        ("dualpipev", "ScheduleDualPipeV", [(2, 4, 2), (3, 9, 2), (4, 10, 2), (8, 16, 2)]),
    ],
)
def test_orders_equal_torch(schedules: ModuleType, ours: str, name: str, shapes: list[tuple[int, int, int]]) -> None:
    for p, m, v in shapes:
        for rank, order in enumerate(build(ours, p, m, v)):
            found = [(i.kind, i.microbatch, model_part(ours, p, rank, i.chunk)) for i in order]
            assert found == theirs(schedules, name, (p, m, v), rank)


def test_joint_passes_are_those_that_torch_overlaps(schedules: ModuleType) -> None:
    """DualPipeV: pairs of a forward and a backward that run as one."""
    if not hasattr(schedules, "ScheduleDualPipeV"):
        pytest.skip("this torch has no ScheduleDualPipeV")
    oracle = object.__new__(schedules.ScheduleDualPipeV)
    oracle.pp_group_size, oracle._n_microbatches, oracle.num_stages = 4, 12, 8
    for rank, order in enumerate(build("dualpipev", 4, 12, 2)):
        actions = [action for action in oracle._calculate_single_rank_operations(rank) if action is not None]
        pairs = sum(action.computation_type == schedules.OVERLAP_F_B for action in actions)
        assert sum(i.joint for i in order) == pairs
