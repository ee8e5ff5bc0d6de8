"""The order of a program's operations: it depends on the wiring alone, and is cached by it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from traincast.analytic.graph import START, ClassNodes, build_graph
from traincast.lower.check import check_program, deadlock
from traincast.lower.program import Floats, Program
from traincast.schedule.links import NONE, links

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClassIndex:
    """Nodes of one class in the order of the plan, to read its result off; NONE where there is no message."""

    instructions: Indices
    inputs: Indices
    outputs: Indices
    buckets: Indices
    tail: Indices


@dataclass(frozen=True)
class Plan:
    """Nodes sorted by level (the longest chain of nodes before them); a node waits for lower levels only.

    `left`, `right`, `value` have one entry a node: its two predecessors, and the position of its duration.
    Node 0 is the start. `levels` are the bounds of the levels from node 1 on; `ends` (classes, 3) the nodes
    that end a class.
    """

    left: Indices
    right: Indices
    value: Indices
    levels: Indices
    ends: Indices
    classes: tuple[ClassIndex, ...]

    @property
    def nodes(self) -> int:
        """Number of nodes, the start included."""
        return len(self.left)


@dataclass(frozen=True)
class _Wired:
    """A program that is hashed by its wiring alone."""

    wiring: tuple[object, ...]
    program: Program = field(compare=False)


def wiring(program: Program) -> tuple[object, ...]:
    """What programs that share a plan have in common: schedule, p2p semantics and who waits for whom."""
    classes = tuple(
        (
            cls.stage,
            cls.previous,
            cls.next,
            cls.meets,
            cls.dp_meets,
            tuple(bucket.chunk for bucket in cls.buckets),
            tuple((op.name, op.meets) for op in cls.tail),
        )
        for cls in program.classes
    )
    return program.schedule_key, program.p2p, program.rolling, classes


def plan_of(program: Program) -> Plan:
    """The plan of a checked program, cached by its wiring. Raises TraincastError for a deadlock."""
    return _plan(_Wired(wiring(program), program))


@lru_cache(maxsize=16)
def _plan(wired: _Wired) -> Plan:
    program = wired.program
    graph, nodes = build_graph(program, check_program(program))
    left, right = np.array(graph.left), np.array(graph.right)
    order, levels = _sort(left, right)
    # one more entry than nodes: the last one is found under NONE, and says that there is no such node
    place = np.full(len(left) + 1, NONE, dtype=np.int64)
    place[order] = np.arange(len(order))
    if len(order) < len(left):
        raise deadlock(program, _reached(nodes, place))
    return Plan(
        left=place[left[order]],
        right=place[right[order]],
        value=np.array(graph.value)[order],
        levels=levels,
        ends=place[np.array([own.ends for own in nodes], dtype=np.int64).reshape(-1, 3)],
        classes=tuple(_class_index(own, place) for own in nodes),
    )


def _sort(left: Indices, right: Indices) -> tuple[Indices, Indices]:
    """Nodes by level, as far as no cycle blocks them, and the bounds of the levels after the first.

    Kahn's algorithm, a level at a time: a node joins the level after that of its last predecessor.
    """
    count = len(left)
    edges = np.concatenate((left, right))
    edges[[START, count + START]] = count  # the start itself waits for nothing
    by_source = np.argsort(edges, kind="stable")
    followers = (by_source % count).tolist()
    first = np.searchsorted(edges[by_source], np.arange(count + 1)).tolist()
    waiting = [2] * count
    order, levels, frontier = [START], [1], [START]
    while frontier:
        reached: list[int] = []
        for node in frontier:
            for follower in followers[first[node] : first[node + 1]]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    reached.append(follower)
        order += reached
        levels.append(len(order))
        frontier = reached
    return np.array(order), np.array(levels[:-1])


def _reached(nodes: Iterable[ClassNodes], place: Indices) -> dict[int, int]:
    """Class -> first instruction that is never begun, of the classes that never end."""
    found = {}
    for index, own in enumerate(nodes):
        if NONE in place[list(own.ends)]:
            begun = place[list(own.instructions)] != NONE
            found[index] = int(np.count_nonzero(begun))
    return found


def _class_index(own: ClassNodes, place: Indices) -> ClassIndex:
    return ClassIndex(
        *(
            place[np.array(nodes, dtype=np.int64)]
            for nodes in (own.instructions, own.inputs, own.outputs, own.buckets, own.tail)
        )
    )


def values_of(program: Program) -> Floats:
    """The table of durations [s] of a program, in the layout of `ClassNodes`; it begins with a zero."""
    found = links(program.schedule_key, program.schedule)
    table = [0.0]
    for cls in program.classes:
        costs = [cls.chunks[key] for key in found[cls.stage].keys]
        table += [cost.duration_s for cost in costs]
        table += [cost.send_s for cost in costs]
        for bucket in cls.buckets:
            table += (bucket.ready_s, bucket.duration_s)
        table += [op.duration_s for op in cls.tail]
    return np.array(table)
