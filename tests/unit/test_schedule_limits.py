"""What schedules ask of stages, chunks and microbatches. Law: told exactly where the order cannot be built."""

import re
from dataclasses import replace
from itertools import product

import pytest

from traincast.errors import ShapeError
from traincast.schedule import SCHEDULES, build, in_groups
from traincast.schedule.limits import ScheduleRequest, schedule_problems


def can_be_built(name: str, pp: int, m: int, vpp: int) -> bool:
    try:
        build(name, pp, m, vpp)
    except ShapeError:
        return False
    return True


@pytest.mark.parametrize("name", SCHEDULES)
def test_findings_are_those_of_the_orders(name: str) -> None:
    """All small shapes; interleaving's own rule (pp divides m) is the shape's, a fold of one stage is no pipeline."""
    for pp, m, vpp in product((1, 2, 3, 4), (1, 2, 3, 4, 6, 7, 8, 9), (1, 2, 3)):
        if in_groups(name, vpp) and m % pp:
            continue
        found = list(schedule_problems(ScheduleRequest(name, pp, vpp, m)))
        if pp == 1 or (name == "interleaved" and vpp == 1):
            continue  # legal to build, pointless to ask for: refused by name
        assert bool(found) == (not can_be_built(name, pp, m, vpp)), (pp, m, vpp)


@pytest.mark.parametrize(
    ("ask", "message", "fix", "names"),
    [
        (ScheduleRequest("none", 4), "schedule none has 1 stage, but pp is 4", "schedule 1f1b, or pp 1", "schedule"),
        (
            ScheduleRequest("dualpipe", 3, 2),
            "even number of them, but pp is 3",
            "pp 2 or 4, or schedule dualpipev",
            "pp",
        ),
        (ScheduleRequest("dualpipe", 1, 2), "needs a pipeline, but pp is 1", "pp 2 or more", "schedule"),
        (ScheduleRequest("zb-v", 4, 3), "2 chunks a stage, but vpp is 3", "vpp 2, or no vpp", "schedule"),
        (
            ScheduleRequest("dualpipev", 4, 2, 7, 6),
            "2 * pp 4 = 8, but a step has 7",
            "global batch 48 or more",
            "global batch",
        ),
        (
            ScheduleRequest("dualpipe", 4, 2, 9, 6),
            "an even number, but a step has 9",
            "global batch 48 or 60",
            "global batch",
        ),
    ],
)
def test_the_two_numbers_and_a_fix(ask: ScheduleRequest, message: str, fix: str, names: str) -> None:
    (found,) = schedule_problems(ask)
    assert message in found.message
    assert fix in found.fix
    assert found.names[0] == names


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev"])
def test_batches_and_depths_of_the_fixes_work(name: str) -> None:
    """Every number that a fix names is taken, with nothing else changed."""
    for pp, m in product((2, 4, 6), range(1, 14)):
        ask = ScheduleRequest(name, pp, 2, m, 3)
        for found in schedule_problems(ask):
            for batch in re.findall(r"global batch ((?:\d+ or )*\d+)", found.fix):
                for one in batch.split(" or "):
                    assert not list(schedule_problems(replace(ask, microbatches=int(one) // 3))), (pp, m, found.fix)
            for depth in re.findall(r"pp (\d+)", found.fix):
                assert not list(schedule_problems(replace(ask, pp=int(depth), microbatches=m - m % 2))), (pp, m)
