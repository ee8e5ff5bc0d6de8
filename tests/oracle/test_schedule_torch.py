"""Our interleaved order against torch.distributed.pipelining's, where torch is installed."""

import pytest

from traincast.schedule import build

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 12, 3), (8, 16, 1)])
def test_interleaved_order_equals_torch(p: int, m: int, v: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {schedules.FORWARD: "F", schedules.FULL_BACKWARD: "B"}
    oracle = object.__new__(schedules.ScheduleInterleaved1F1B)
    oracle.n_local_stages, oracle.pp_group_size, oracle._n_microbatches = v, p, m
    oracle.number_of_rounds = max(1, m // p)
    oracle.microbatches_per_round = m // oracle.number_of_rounds
    for rank, order in enumerate(build("interleaved", p, m, v)):
        theirs = [action for action in oracle._calculate_single_rank_operations(rank) if action]
        assert [(i.kind, i.microbatch, i.chunk * p + rank) for i in order] == [
            (kinds[action.computation_type], action.microbatch_index, action.stage_index) for action in theirs
        ]
