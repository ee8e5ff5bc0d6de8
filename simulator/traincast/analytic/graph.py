"""The operations of a program as a graph in which every node waits for at most two others.

A node ends at max(end of its two predecessors) + its duration. Where more than two have to be waited for,
joins of zero duration stand between; max is exact, so they change nothing. Node 0 is the start of the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.lower.check import Parties, parties, tail_parties
from traincast.lower.program import Program, RankClass
from traincast.schedule.columns import Ints
from traincast.schedule.links import NONE, Links, StageLinks

START = 0
"""Node that ends at 0 and lasts 0."""


@dataclass
class ClassNodes:
    """Nodes of one class; `inputs` and `outputs` are messages, NONE where there is none.

    `value` is the position of the class's first number in the table of durations: durations of its chunks,
    sends of its chunks (both in the order of `StageLinks.keys`), ready time and duration of each bucket,
    durations of the tail. The class is ready for an instruction when `ready` of it has ended, which is the instruction
    itself where nobody has to know; one more is where the last instruction (and the last exchange) has ended. `begin`
    ends when the instruction begins (or is the instruction, as before).
    """

    links: StageLinks
    value: int
    instructions: Ints
    inputs: Ints
    outputs: Ints
    ready: Ints
    begin: Ints
    buckets: Ints
    tail: Ints

    @property
    def done(self) -> int:
        """Where all instructions have ended."""
        return int(self.ready[-1])

    @property
    def ends(self) -> tuple[int, int, int]:
        """Nodes of which the last one ends the class."""
        return self.done, _last(self.buckets), _last(self.tail)

    def bucket_value(self, i: int) -> int:
        """Position of bucket i's ready time; its duration follows."""
        return self.value + 2 * len(self.links.keys) + 2 * i


class Graph:
    """Nodes under construction: the position of the duration of each, and what it waits for."""

    def __init__(self) -> None:
        self.count = 1
        self._values: list[Ints] = [np.zeros(1, np.int64)]
        self._waits: list[tuple[Ints, Ints]] = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        self._meetings: dict[tuple[tuple[int, int], ...], int] = {}

    def nodes(self, values: Ints) -> Ints:
        """New nodes that last what stands at these positions of the table."""
        self._values.append(values)
        self.count += len(values)
        return np.arange(self.count - len(values), self.count)

    def joins(self, count: int) -> Ints:
        """New nodes that take no time."""
        return self.nodes(np.zeros(count, np.int64))

    def wait(self, nodes: Ints, before: Ints) -> None:
        """Let each of `nodes` begin when its own one of `before` has ended, beside those that it waits for already."""
        self._waits.append((nodes, before))

    def add(self, before: Sequence[int], value: int = 0) -> int:
        """A new node that begins when all of `before` have ended."""
        node = self.nodes(np.array([value]))
        self.wait(node.repeat(len(before)), np.array(before, np.int64))
        return int(node[0])

    def meeting(self, ready: Mapping[int, int]) -> int:
        """The node at which all classes of `ready` (class -> node) have arrived; shared by equals."""
        key = tuple(ready.items())
        if key not in self._meetings:
            self._meetings[key] = self.add([node for _, node in key]) if len(key) > 1 else key[0][1]
        return self._meetings[key]

    def paired(self) -> tuple[Ints, Ints, Ints]:
        """Two predecessors of every node (the start where it waits for nothing) and the position of its duration.

        Nodes that wait for more get joins, which wait for two each, and for which they wait in turn.
        """
        nodes, before = (np.concatenate(column) for column in zip(*self._waits, strict=True))
        order = np.argsort(nodes, kind="stable")  # what one node waits for stands together
        nodes, before = nodes[order], before[order]
        left, right = np.full(self.count, START), np.full(self.count, START)
        joined: list[tuple[Ints, Ints]] = []
        count = self.count
        while True:
            first = np.flatnonzero(np.diff(nodes, prepend=NONE))
            size = np.diff(first, append=len(nodes))
            few = size <= 2
            left[nodes[first[few]]], right[nodes[first[few]]] = before[first[few]], before[(first + size - 1)[few]]
            if few.all():
                break
            # of those that wait for more, every second wait is joined with the one before it
            many = np.repeat(~few, size)
            number = (np.arange(len(nodes)) - np.repeat(first, size))[many]
            nodes, before = nodes[many], before[many]
            second = np.flatnonzero(number % 2)
            joined.append((before[second - 1], before[second]))
            before[second - 1] = np.arange(count, count + len(second))
            count += len(second)
            nodes, before = np.delete(nodes, second), np.delete(before, second)
        own = ((left, right), *joined)
        values = np.concatenate([*self._values, np.zeros(count - self.count, np.int64)])
        return np.concatenate([one for one, _ in own]), np.concatenate([other for _, other in own]), values


def build_graph(program: Program, links: Links) -> tuple[Graph, list[ClassNodes]]:
    """The graph of a program, and the nodes of each of its classes."""
    graph = Graph()
    groups = [parties(index, cls.meets) for index, cls in enumerate(program.classes)]
    met = {index for group in groups if len(group) > 1 for index in group}
    nodes: list[ClassNodes] = []
    value = 1  # the table begins with a zero, for joins
    for index, cls in enumerate(program.classes):
        nodes.append(_class_nodes(graph, cls, links[cls.stage], value))
        value = nodes[-1].bucket_value(len(cls.buckets)) + len(cls.tail)
        _part_ready(graph, cls, nodes[-1], everywhere=index in met)
    for cls, own in zip(program.classes, nodes, strict=True):
        for way, sender in ((-1, nodes[cls.previous]), (1, nodes[cls.next])):
            received = np.flatnonzero((own.links.source_way == way) & (own.links.source != NONE))
            own.inputs[received] = sender.outputs[own.links.source[received]]
        (_blocking if program.p2p == "blocking" else _asynchronous)(graph, own)
    _meetings(graph, nodes, groups)
    _buckets(graph, program, nodes)
    _tails(graph, program, nodes)
    return graph, nodes


def _class_nodes(graph: Graph, cls: RankClass, links: StageLinks, value: int) -> ClassNodes:
    size, keys = len(links.instructions), len(links.keys)
    instructions = graph.nodes(value + links.key)
    outputs = np.full(size, NONE)
    sent = links.target != NONE
    outputs[sent] = graph.nodes(value + keys + links.key[sent])
    ready = np.append(instructions, graph.joins(1))
    buckets = value + 2 * keys + 2 * np.arange(len(cls.buckets))
    tail = value + 2 * keys + 2 * len(cls.buckets) + np.arange(len(cls.tail))
    return ClassNodes(
        links=links,
        value=value,
        instructions=instructions,
        inputs=np.full(size, NONE),
        outputs=outputs,
        ready=ready,
        begin=instructions,
        buckets=graph.nodes(buckets + 1),
        tail=graph.nodes(tail),
    )


def _part_ready(graph: Graph, cls: RankClass, own: ClassNodes, *, everywhere: bool) -> None:
    """Nodes of their own for being ready: `everywhere`, or for the instructions from whose begin a bucket counts."""
    chunks = {bucket.chunk for bucket in cls.buckets if bucket.chunk is not None}
    counted = sorted({own.links.last_gradient[chunk] for chunk in chunks})
    apart = np.arange(len(own.instructions)) if everywhere else np.array(counted, np.int64)
    own.ready[apart] = graph.joins(len(apart))
    own.begin = own.ready[:-1].copy()


def _asynchronous(graph: Graph, own: ClassNodes) -> None:
    """Messages leave in order on two streams; an instruction waits for the one before and for its input."""
    for way in (1, -1):
        sent = np.flatnonzero((own.links.target_way == way) & (own.outputs != NONE))
        messages = own.outputs[sent]
        graph.wait(messages, own.instructions[own.links.leave[sent]])
        graph.wait(messages[1:], messages[:-1])
    received = np.flatnonzero(own.inputs != NONE)
    graph.wait(own.ready[_first_of_run(own.links.leave)[received]], own.inputs[received])
    graph.wait(own.ready[1:], own.instructions)


def _blocking(graph: Graph, own: ClassNodes) -> None:
    """A transfer begins when both ends have posted it; a block waits for the whole exchange before it."""
    first = _first_of_run(own.links.block_end)
    sent, received = np.flatnonzero(own.outputs != NONE), np.flatnonzero(own.inputs != NONE)
    outputs, after = own.outputs[sent], own.links.block_end[sent] + 1
    graph.wait(outputs, own.instructions[after - 1])
    graph.wait(own.ready[after], outputs)
    inputs, at = own.inputs[received], first[received]
    graph.wait(inputs, np.where(at > 0, own.instructions[at - 1], START))
    graph.wait(own.ready[at], inputs)
    exchanging = np.zeros(len(own.ready), np.bool_)
    exchanging[after] = exchanging[at] = True
    alone = np.flatnonzero(~exchanging[1:])
    graph.wait(own.ready[alone + 1], own.instructions[alone])


def _first_of_run(ends: Ints) -> Ints:
    """First index of the run that each index belongs to, told by its last one."""
    _, first, size = np.unique(ends, return_index=True, return_counts=True)
    return np.repeat(first, size)


def _meetings(graph: Graph, nodes: Sequence[ClassNodes], groups: Sequence[Parties]) -> None:
    """An instruction begins when the class and all that it meets are ready for it."""
    begins: dict[Parties, Ints] = {}
    for own, group in zip(nodes, groups, strict=True):
        if len(group) > 1:
            if group not in begins:
                begins[group] = graph.joins(len(own.instructions))
                for other in group:
                    graph.wait(begins[group], nodes[other].ready[:-1])
            own.begin = begins[group]
        apart = own.begin != own.instructions
        graph.wait(own.instructions[apart], own.begin[apart])


def _buckets(graph: Graph, program: Program, nodes: Sequence[ClassNodes]) -> None:
    arrivals: list[list[int]] = []
    for cls, own in zip(program.classes, nodes, strict=True):
        arrived: list[int] = []
        for i, bucket in enumerate(cls.buckets):
            since = own.done if bucket.chunk is None else own.begin[own.links.last_gradient[bucket.chunk]]
            ready = graph.add([since], own.bucket_value(i))
            arrived.append(graph.add([ready, own.buckets[i - 1] if i else START]))
        arrivals.append(arrived)
    for index, (cls, own) in enumerate(zip(program.classes, nodes, strict=True)):
        group = parties(index, cls.dp_meets)
        met = [graph.meeting({other: arrivals[other][i] for other in group}) for i in range(len(own.buckets))]
        graph.wait(own.buckets, np.array(met, np.int64))


def _tails(graph: Graph, program: Program, nodes: Sequence[ClassNodes]) -> None:
    arrivals = [
        [graph.add([own.done, _last(own.buckets)]), *own.tail[:-1].tolist()] if len(own.tail) else [] for own in nodes
    ]
    for index, own in enumerate(nodes):
        found = [tail_parties(program, index, i) for i in range(len(own.tail))]
        met = [graph.meeting({other: arrivals[other][at] for other, at in one.items()}) for one in found]
        graph.wait(own.tail, np.array(met, np.int64))


def _last(nodes: Ints) -> int:
    return int(nodes[-1]) if len(nodes) else START
