"""The operations of a program as a graph in which every node waits for at most two others.

A node ends at max(end of its two predecessors) + its duration. Where more than two have to be waited for,
joins of zero duration stand between; max is exact, so they change nothing. Node 0 is the start of the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincast.lower.check import parties, tail_parties
from traincast.lower.program import Program, RankClass
from traincast.schedule.links import NONE, Links, StageLinks

START = 0
"""Node that ends at 0 and lasts 0."""


@dataclass
class ClassNodes:
    """Nodes of one class; `inputs` and `outputs` are messages, NONE where there is none.

    `value` is the position of the class's first number in the table of durations: durations of its chunks,
    sends of its chunks (both in the order of `StageLinks.keys`), ready time and duration of each bucket,
    durations of the tail. `done` is where its last instruction (and its last exchange) has ended; `ends` are
    the nodes that it ends with.
    """

    links: StageLinks
    value: int
    instructions: range
    outputs: list[int]
    buckets: Sequence[int]
    tail: Sequence[int]
    inputs: list[int] = field(default_factory=list)
    done: int = START

    @property
    def ends(self) -> tuple[int, int, int]:
        """Nodes of which the last one ends the class."""
        return self.done, self.buckets[-1] if self.buckets else START, self.tail[-1] if self.tail else START

    def before(self, waits: Mapping[int, list[int]], k: int) -> list[int]:
        """Nodes that have to end before the class is ready for instruction k; `waits` are its own of `Waits`."""
        return waits.get(k) or [self.instructions[k - 1] if k else START]

    def chunk_value(self, k: int) -> int:
        """Position of the duration of instruction k."""
        return self.value + self.links.key[k]

    def send_value(self, k: int) -> int:
        """Position of the transfer time of instruction k's output."""
        return self.value + len(self.links.keys) + self.links.key[k]

    def bucket_value(self, i: int) -> int:
        """Position of bucket i's ready time; its duration follows."""
        return self.value + 2 * len(self.links.keys) + 2 * i

    def tail_value(self, i: int) -> int:
        """Position of the duration of tail operation i."""
        return self.bucket_value(len(self.buckets)) + i


class Graph:
    """Nodes under construction: two predecessors and the position of the duration of each."""

    def __init__(self) -> None:
        self.left: list[int] = [START]
        self.right: list[int] = [START]
        self.value: list[int] = [0]
        self._meetings: dict[tuple[tuple[int, int], ...], int] = {}

    def reserve(self, count: int) -> range:
        """`count` new nodes, to be filled in later."""
        first = len(self.left)
        for column in (self.left, self.right, self.value):
            column.extend([0] * count)
        return range(first, first + count)

    def fill(self, node: int, waits: Sequence[int], value: int = 0) -> None:
        """Let `node` begin when all of `waits` have ended, and last what stands at `value` of the table."""
        while len(waits) > 2:
            pairs = [waits[i : i + 2] for i in range(0, len(waits), 2)]
            waits = [self.add(pair) if len(pair) == 2 else pair[0] for pair in pairs]
        if waits:
            self.left[node] = waits[0]
            self.right[node] = waits[-1]
        self.value[node] = value

    def add(self, waits: Sequence[int], value: int = 0) -> int:
        """A new node that begins when all of `waits` have ended."""
        node = len(self.left)
        if 0 < len(waits) <= 2:
            self.left.append(waits[0])
            self.right.append(waits[-1])
            self.value.append(value)
            return node
        self.reserve(1)
        self.fill(node, waits, value)
        return node

    def chain(self, nodes: range, values: Sequence[int]) -> None:
        """Let each of `nodes` begin when the one before it has ended, the first at the start."""
        begin, end = nodes.start, nodes.stop
        for column in (self.left, self.right):
            column[begin:end] = [START, *range(begin, end - 1)] if nodes else []
        self.value[begin:end] = values

    def meeting(self, ready: Mapping[int, int]) -> int:
        """The node at which all classes of `ready` (class -> node) have arrived; shared by equals."""
        key = tuple(ready.items())
        if key not in self._meetings:
            self._meetings[key] = self.add([node for _, node in key])
        return self._meetings[key]


Waits = list[dict[int, list[int]]]
"""Class -> instruction (one more for the end) -> nodes that have to end before the class is ready for it, where that is
not just the instruction before it (the start for the first one)."""


def build_graph(program: Program, links: Links) -> tuple[Graph, list[ClassNodes]]:
    """The graph of a program, and the nodes of each of its classes."""
    graph = Graph()
    nodes: list[ClassNodes] = []
    value = 1  # the table begins with a zero, for joins
    for cls in program.classes:
        nodes.append(_reserve(graph, cls, links[cls.stage], value))
        value = nodes[-1].tail_value(len(cls.tail))
    for cls, own in zip(program.classes, nodes, strict=True):
        senders = {-1: nodes[cls.previous].outputs, 1: nodes[cls.next].outputs}
        own.inputs = [
            NONE if source == NONE else senders[way][source]
            for source, way in zip(own.links.source, own.links.source_way, strict=True)
        ]
    waits = _blocking(graph, nodes) if program.p2p == "blocking" else _asynchronous(graph, nodes)
    _instructions(graph, program, nodes, waits)
    for own, apart in zip(nodes, waits, strict=True):
        last = own.before(apart, len(own.instructions))
        own.done = last[0] if len(last) == 1 else graph.add(last)
    _buckets(graph, program, nodes)
    _tails(graph, program, nodes)
    return graph, nodes


def _reserve(graph: Graph, cls: RankClass, links: StageLinks, value: int) -> ClassNodes:
    instructions = graph.reserve(len(links.instructions))
    messages = iter(graph.reserve(len(links.target) - links.target.count(NONE)))
    return ClassNodes(
        links=links,
        value=value,
        instructions=instructions,
        outputs=[NONE if target == NONE else next(messages) for target in links.target],
        buckets=graph.reserve(len(cls.buckets)),
        tail=graph.reserve(len(cls.tail)),
    )


def _asynchronous(graph: Graph, nodes: Sequence[ClassNodes]) -> Waits:
    """Messages leave in order on two streams; an instruction waits for the one before and for its input."""
    waits: Waits = []
    for own in nodes:
        sent = {1: START, -1: START}
        for k, output in enumerate(own.outputs):
            if output != NONE:
                way = own.links.target_way[k]
                graph.fill(output, (own.instructions[own.links.leave[k]], sent[way]), own.send_value(k))
                sent[way] = output
        apart: dict[int, list[int]] = {}
        for k, end in enumerate(own.links.leave):
            received = own.inputs[k : end + 1]
            if received != [NONE]:
                apart[k] = own.before(apart, k) + [message for message in received if message != NONE]
        waits.append(apart)
    return waits


def _blocking(graph: Graph, nodes: Sequence[ClassNodes]) -> Waits:
    """A transfer begins when both ends have posted it; a block waits for the whole exchange before it."""
    waits: Waits = []
    posted = [START] * len(graph.left)
    for own in nodes:
        inputs, outputs, block_end = own.inputs, own.outputs, own.links.block_end
        apart: dict[int, list[int]] = {}
        first, post, sent = 0, START, list[int]()
        while first < len(own.instructions):
            end = block_end[first] + 1
            met, sent = sent, []
            for k in range(first, end):
                if inputs[k] != NONE:
                    met.append(inputs[k])
                    posted[inputs[k]] = post
                if outputs[k] != NONE:
                    sent.append(outputs[k])
            if met:
                apart[first] = met
            first, post = end, own.instructions[end - 1]
        if sent:
            apart[first] = sent
        waits.append(apart)
    left, right, value = graph.left, graph.right, graph.value
    for own in nodes:
        first_node, first_send = own.instructions.start, own.value + len(own.links.keys)
        for output, end, key in zip(own.outputs, own.links.block_end, own.links.key, strict=True):
            if output != NONE:
                left[output] = first_node + end
                right[output] = posted[output]
                value[output] = first_send + key
    return waits


def _instructions(graph: Graph, program: Program, nodes: Sequence[ClassNodes], waits: Waits) -> None:
    groups = [parties(index, cls.meets) for index, cls in enumerate(program.classes)]
    met = {index for group in groups if len(group) > 1 for index in group}
    alone = {
        index: [graph.add(nodes[index].before(waits[index], k)) for k in range(len(nodes[index].instructions))]
        for index in sorted(met)
    }
    for index, (own, group) in enumerate(zip(nodes, groups, strict=True)):
        graph.chain(own.instructions, [own.value + key for key in own.links.key])
        if len(group) > 1:
            for k, node in enumerate(own.instructions):
                graph.fill(node, (graph.meeting({other: alone[other][k] for other in group}),), own.chunk_value(k))
            continue
        for k, before in waits[index].items():
            if k < len(own.instructions):
                graph.fill(own.instructions[k], before, own.chunk_value(k))


def _buckets(graph: Graph, program: Program, nodes: Sequence[ClassNodes]) -> None:
    arrivals: list[list[int]] = []
    for cls, own in zip(program.classes, nodes, strict=True):
        arrived: list[int] = []
        for i, bucket in enumerate(cls.buckets):
            waits: tuple[int, ...] = (own.done,)
            if bucket.chunk is not None:  # counted from its start: waits for what the instruction waits for
                start = own.instructions[own.links.last_gradient[bucket.chunk]]
                waits = graph.left[start], graph.right[start]
            ready = graph.add(waits, own.bucket_value(i))
            arrived.append(graph.add((ready, own.buckets[i - 1] if i else START)))
        arrivals.append(arrived)
    for index, (cls, own) in enumerate(zip(program.classes, nodes, strict=True)):
        group = parties(index, cls.dp_meets)
        for i, node in enumerate(own.buckets):
            met = graph.meeting({other: arrivals[other][i] for other in group})
            graph.fill(node, (met,), own.bucket_value(i) + 1)


def _tails(graph: Graph, program: Program, nodes: Sequence[ClassNodes]) -> None:
    arrivals = [
        [
            graph.add((own.tail[i - 1],) if i else (own.done, own.buckets[-1] if own.buckets else START))
            for i in range(len(own.tail))
        ]
        for own in nodes
    ]
    for index, own in enumerate(nodes):
        for i, node in enumerate(own.tail):
            found = tail_parties(program, index, i)
            met = graph.meeting({other: arrivals[other][at] for other, at in found.items()})
            graph.fill(node, (met,), own.tail_value(i))
