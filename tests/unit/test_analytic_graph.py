"""The recurrence's graph: joins, orders and levels change no time; SciPy's order and Kahn's agree."""

from dataclasses import replace

import numpy as np
import pytest

from traincast.analytic import evaluate, evaluate_batch, recurrence
from traincast.analytic.graph import START, Graph
from traincast.analytic.plan import _components, _sorted, plan_of
from traincast.errors import TraincastError
from traincast.lower.program import Program
from traincast.lower.uniform import uniform_program
from traincast.schedule.columns import Ints


def pipeline(seconds: float = 1.0) -> Program:
    """A program whose graph is large enough for SciPy to sort it."""
    return uniform_program(("interleaved", 4, 32, 3), seconds, 2.0, 0.7, "blocking")


def ends_of(left: Ints, right: Ints, durations: list[float], order: Ints) -> dict[int, float]:
    ends = {START: 0.0}
    for node in order.tolist()[1:]:
        ends[node] = max(ends[int(left[node])], ends[int(right[node])]) + durations[node]
    return ends


@pytest.mark.parametrize("most", [1, 2, 3, 5, 17])
def test_joins_change_no_time(most: int) -> None:
    """max is associative and exact: a node that waits for many ends as if it waited for them at once."""
    random = np.random.default_rng(most)
    graph = Graph()
    seconds = {START: 0.0}
    last = START
    for position in range(1, 60):
        known = list(seconds)
        before = random.choice(known, size=min(len(known), int(random.integers(0, most + 1))), replace=False).tolist()
        last = graph.add(before, position)
        seconds[last] = max((seconds[one] for one in before), default=0.0) + 0.1 * position
    left, right, values = graph.paired()
    order = _sorted(left, right)
    assert len(order) == len(left) == len(values)
    found = ends_of(left, right, [0.1 * value for value in values.tolist()], order)
    assert {node: found[node] for node in seconds} == seconds


def test_meetings_of_one_class_need_no_node() -> None:
    graph = Graph()
    node = graph.add([START])
    assert graph.meeting({3: node}) == node
    both = graph.meeting({3: node, 4: START})
    assert both == graph.meeting({3: node, 4: START}) != node


def test_scipy_numbers_a_component_after_those_that_it_waits_for() -> None:
    """Pearce 2016: components are found in the order in which a depth-first search leaves them. It is no promise of
    SciPy's, so that a version that has it otherwise is told here before it makes sweeps slow."""
    plan = plan_of(pipeline())
    shuffled = np.concatenate(([START], START + 1 + np.random.default_rng(1).permutation(plan.nodes - 1)))
    left, right = np.empty_like(plan.left), np.empty_like(plan.right)
    left[shuffled], right[shuffled] = shuffled[plan.left], shuffled[plan.right]
    order = _components(left, right)
    assert order is not None
    place = np.argsort(order)
    assert (np.maximum(place[left], place[right])[1:] < place[1:]).all()


def test_a_cycle_has_no_order() -> None:
    """Nodes 2 and 3 wait for each other; Kahn's order ends in front of them."""
    left, right = np.array([START, START, 3, 2]), np.array([START, START, 1, 2])
    assert _components(left, right) is None
    assert _sorted(left, right).tolist() == [START, 1]


@pytest.mark.parametrize("programs", [1, 3, 8])
@pytest.mark.parametrize("wide", [1, 10**9])
def test_batches_equal_single_programs(monkeypatch: pytest.MonkeyPatch, programs: int, wide: int) -> None:
    """In whatever order, node by node or by levels, the same sums of the same numbers: equal to the last bit."""
    monkeypatch.setattr(recurrence, "_WIDE", wide)
    several = [pipeline(0.1 * (1 + number)) for number in range(programs)]
    assert plan_of(several[0], many=True).nodes > 1000
    assert evaluate_batch(several).tolist() == [evaluate(one).step_time_s for one in several]


def test_levels_hold_every_node_once_behind_what_it_waits_for() -> None:
    plan = plan_of(pipeline())
    level = np.zeros(plan.nodes, np.int64)
    for depth, nodes in enumerate(plan.levels):
        level[nodes] = 1 + depth
    assert sorted(np.concatenate(plan.levels).tolist()) == list(range(1, plan.nodes))
    assert (level[1:] == 1 + np.maximum(level[plan.left], level[plan.right])[1:]).all()


def test_batches_tell_deadlocks_as_single_programs_do() -> None:
    """Interleaving that exchanges after every instruction deadlocks; SciPy finds the cycle, Kahn's algorithm where."""
    program = pipeline()
    schedule = tuple(tuple(one._replace(fused=False) for one in order) for order in program.schedule)
    stuck = replace(program, schedule=schedule, schedule_key=("interleaved, not fused", 4, 32, 3))
    with pytest.raises(TraincastError, match="deadlocks with blocking p2p") as single:
        evaluate(stuck)
    with pytest.raises(TraincastError) as batch:
        evaluate_batch([stuck])
    assert str(single.value) == str(batch.value)
