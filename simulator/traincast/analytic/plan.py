"""The order of a program's operations: it depends on the wiring alone, and is cached by it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from traincast.analytic.graph import START, ClassNodes, build_graph
from traincast.lower.check import check_program, deadlock
from traincast.lower.program import Floats, Program
from traincast.schedule.columns import Ints
from traincast.schedule.links import NONE, links

_LARGE = 1000
"""Nodes from which, of many graphs, sorting in SciPy soon wins back what its import takes (measured)."""


@dataclass(frozen=True)
class ClassIndex:
    """Nodes of one class in the order of the plan, to read its result off; NONE where there is no message."""

    instructions: Ints
    inputs: Ints
    outputs: Ints
    buckets: Ints
    tail: Ints


@dataclass(frozen=True)
class Plan:
    """Nodes in an order in which every node waits for earlier ones only.

    `left`, `right`, `value` have one entry a node: its two predecessors, and the position of its duration.
    Node 0 is the start. `ends` (classes, 3) are the nodes that end a class.
    """

    left: Ints
    right: Ints
    value: Ints
    ends: Ints
    classes: tuple[ClassIndex, ...]

    @property
    def nodes(self) -> int:
        """Number of nodes, the start included."""
        return len(self.left)

    @cached_property
    def levels(self) -> tuple[Ints, ...]:
        """Nodes by the longest chain of nodes before them, the start left out; a level waits for lower ones only."""
        depth = [0]
        for left, right in zip(self.left[1:].tolist(), self.right[1:].tolist(), strict=True):
            one, other = depth[left], depth[right]
            depth.append((one if one >= other else other) + 1)
        by_depth = np.argsort(depth, kind="stable")
        return tuple(np.split(by_depth, np.cumsum(np.bincount(depth))[:-1])[1:])


@dataclass(frozen=True)
class _Wired:
    """A program that is hashed by its wiring alone."""

    wiring: tuple[object, ...]
    program: Program = field(compare=False)
    many: bool = field(compare=False)


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


def plan_of(program: Program, *, many: bool = False) -> Plan:
    """The plan of a checked program, cached by its wiring; `many` says that it is one of many that are asked for.

    Raises TraincastError for a deadlock.
    """
    return _plan(_Wired(wiring(program), program, many))


@lru_cache(maxsize=16)
def _plan(wired: _Wired) -> Plan:
    program = wired.program
    graph, nodes = build_graph(program, check_program(program))
    left, right, value = graph.paired()
    found = _components(left, right) if wired.many and len(left) >= _LARGE else None
    order = _sorted(left, right) if found is None else found
    # one more entry than nodes: the last one is found under NONE, and says that there is no such node
    place = np.full(len(left) + 1, NONE, dtype=np.int64)
    place[order] = np.arange(len(order))
    if len(order) < len(left):
        raise deadlock(program, _reached(nodes, place))
    return Plan(
        left=place[left[order]],
        right=place[right[order]],
        value=value[order],
        ends=place[np.array([own.ends for own in nodes], dtype=np.int64).reshape(-1, 3)],
        classes=tuple(_class_index(own, place) for own in nodes),
    )


def _sorted(left: Ints, right: Ints) -> Ints:
    """Nodes in an order in which each follows those that it waits for, as far as no cycle blocks them.

    Kahn's algorithm: a node is reached when the last of its predecessors is.
    """
    count = len(left)
    edges = np.concatenate((left, right))
    edges[[START, count + START]] = count  # the start itself waits for nothing
    by_source = np.argsort(edges, kind="stable")
    followers = (by_source % count).tolist()
    first = np.searchsorted(edges[by_source], np.arange(count + 1)).tolist()
    waiting = [2] * count
    order = [START]
    for node in order:
        for follower in followers[first[node] : first[node + 1]]:
            waiting[follower] -= 1
            if not waiting[follower]:
                order.append(follower)
    return np.array(order)


def _components(left: Ints, right: Ints) -> Ints | None:
    """The same order by SciPy, which finds strongly connected components: in a graph without a cycle, the single nodes.

    It numbers a component after all those that it leads to, here those that its node waits for. That is how its
    algorithm works, not a promise: None where it is not so, or where there is a cycle.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    count = len(left)
    before = np.column_stack((left, right))
    edges = np.column_stack((np.arange(count) != START, left != right))  # each once
    first = np.concatenate(([0], np.cumsum(edges.sum(axis=1))))
    waits = csr_array((np.ones(first[-1]), before[edges], first), shape=(count, count))
    found, label = connected_components(waits, connection="strong")
    follows = (label > label[left]) & (label > label[right])
    if found < count or label[START] != 0 or not follows[START + 1 :].all():
        return None
    order = np.empty(count, np.int64)
    order[label] = np.arange(count)
    return order


def _reached(nodes: Iterable[ClassNodes], place: Ints) -> dict[int, int]:
    """Class -> first instruction that is never begun, of the classes that never end."""
    found = {}
    for index, own in enumerate(nodes):
        if NONE in place[list(own.ends)]:
            begun = place[own.instructions] != NONE
            found[index] = int(np.count_nonzero(begun))
    return found


def _class_index(own: ClassNodes, place: Ints) -> ClassIndex:
    return ClassIndex(*(place[nodes] for nodes in (own.instructions, own.inputs, own.outputs, own.buckets, own.tail)))


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
