"""Flows of messages and gradient buckets on links that they share, for the classes of a program.

Every rank's messages and every gradient group are laid over the directed links that they cross (`wires`). Links that
cannot be overloaded, even if everything ran at once, are dropped; the others take part in the colour refinement, so
that in the end all members of a class see the same classes on their links. One link then stands for all alike ones and
one flow for all alike ones, with their number on such a link as its weight: rates and times are those of the whole
cluster, folded or not. What cannot be told apart by links stays one class; a taper that some replicas cross and others
do not, or ECMP, makes more classes.

Approximations: a collective runs at the pace of its slowest edge and loads all its links evenly; flows are messages
between stages and gradient buckets, and of these the way between nodes (tensor parallelism, the tail of the step and
NVLink are priced as ever); the latency of a transfer does not grow under load.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from traincast.costs.collectives import NetworkConstants
from traincast.costs.collectives.transfer import Move, collective_move, message_move
from traincast.lower.classes import CostBook, CostBooks, way_out
from traincast.lower.job import Job
from traincast.lower.program import ChunkKey, Flow, Program, RankClass, ReduceBucket, SharedLink, Sharing
from traincast.lower.spans import FAMILIES, RankSpans, longest_paths
from traincast.lower.wires import Parties, Wires, lay_wires, link_classes
from traincast.schedule import meets_itself, neighbours
from traincast.topology import Span, family_spans
from traincast.topology.links import Spread, link_table

Ints = npt.NDArray[np.int64]
_NEXT, _DP = FAMILIES.index("next"), FAMILIES.index("dp")


@dataclass(frozen=True)
class Contention:
    """How flows share links.

    `spread`: over parallel links evenly (ideal adaptive routing), or by hash (ECMP). `gaps` says what becomes of the
    part of its share of a link that a stream's own efficiency leaves unused. `held`: nobody else gets it, so that
    rates are efficiency times share, as the profile's constants were calibrated and as synchronous groups are priced;
    gradient groups of different stages share only while both run. `free`: bytes count against raw capacity and
    gradient groups keep their static share, which is the least that contention can cost.
    """

    spread: Spread = field(default_factory=Spread)
    gaps: Literal["free", "held"] = "held"


@dataclass(frozen=True, eq=False)
class Layout:
    """All flows of a job on its links; `cohorts` are the spans that buckets are priced by.

    Stages reduce at different times. What they share at what time is found by the engine, so the rate that a bucket
    has at most is that beside the groups of its own stage, which do start together (with gaps held).
    """

    contention: Contention
    wires: Wires
    cohorts: RankSpans


def lay_out(job: Job, spans: RankSpans, contention: Contention) -> Layout:
    """Lay the flows of a job over the links of its cluster."""
    cohorts = _cohorts(job, spans) if contention.gaps == "held" else spans
    world, mesh = job.mesh.world, job.mesh
    pairs = spans.groups.get("next", np.zeros((0, 2), dtype=np.int64))
    if job.chunks == 1 or meets_itself(job.recipe.schedule):  # nothing goes from the last stage to the first
        pairs = pairs[: world - world // mesh.pp]
    members = spans.groups["dp"]
    parties = Parties(
        world=world,
        onward=mesh.physical(pairs),
        onward_of=pairs[:, 0],
        back=mesh.physical(pairs[:, ::-1]),
        back_of=pairs[:, 1],
        groups=mesh.physical(members),
        members=members,
    )
    shares = np.array([0.0, *(_share(span) for span in spans.table)])
    reductions = np.array([0.0, *(span.inter_bytes_per_s for span in cohorts.table)])
    most = np.concatenate(
        [
            shares[spans.ids[:, _NEXT] + 1],
            shares[spans.ids[:, FAMILIES.index("previous")] + 1],
            reductions[cohorts.ids[members[:, 0], _DP] + 1],
        ]
    )
    return Layout(contention, lay_wires(link_table(job.cluster, contention.spread), parties, most), cohorts)


def _share(span: Span) -> float:
    return min(span.inter_bytes_per_s, span.nic_bytes_per_s)


def _cohorts(job: Job, spans: RankSpans) -> RankSpans:
    """The same spans, but those of gradient groups beside the groups of their own stage alone."""
    mesh, members = job.mesh, spans.groups["dp"]
    if members.shape[1] == 1:
        return spans
    ids, table = spans.ids.copy(), {span: index for index, span in enumerate(spans.table)}
    stage_of = mesh.coordinates()["pp"][members[:, 0]]
    stages = [members[stage_of == stage] for stage in range(mesh.pp)]
    found = [span for own in stages for span in family_spans(job.cluster, mesh.physical(own))]
    for row, span in zip(np.concatenate(stages), longest_paths(found), strict=True):
        ids[row, _DP] = table.setdefault(span, len(table))
    return replace(spans, ids=ids, table=tuple(table))


def with_sharing(program: Program, classes: Ints, layout: Layout, books: CostBooks) -> Program:
    """The program with the flows of its classes on the links that may be overloaded.

    `classes` is the class of every rank. Buckets are priced by the layout's cohorts.
    """
    wires = layout.wires
    found = link_classes(wires, classes)
    paths: dict[int, tuple[list[int], list[float]]] = {}
    for index, link in enumerate(found):
        for colour, weight in link.weights.items():
            links, weights = paths.setdefault(colour, ([], []))
            links.append(index)
            weights.append(weight)
    table = wires.table
    sharing = _Builder(layout, books, paths, wires.flow_colours(classes), wires.group_of())
    rank_classes = tuple(sharing.add(index, cls) for index, cls in enumerate(program.classes))
    links_of = tuple(SharedLink(table.name(one.link), float(table.bytes_per_s[one.link]), one.links) for one in found)
    return replace(
        program,
        classes=rank_classes,
        sharing=Sharing(links_of, tuple(sharing.flows), sharing.messages, sharing.buckets),
    )


class _Builder:
    """Flows of one class after the other; equal ones of one group are one flow."""

    def __init__(
        self,
        layout: Layout,
        books: CostBooks,
        paths: Mapping[int, tuple[list[int], list[float]]],
        colours: Ints,
        group_of: Ints,
    ) -> None:
        self.layout = layout
        self.books = books
        self.paths = paths
        self.colours = colours
        self.group_of = group_of
        self.flows: list[Flow] = []
        self.known: dict[tuple[int, int], int] = {}
        self.messages: dict[tuple[int, ChunkKey], int] = {}
        self.buckets: dict[tuple[int, int], int] = {}

    def add(self, index: int, cls: RankClass) -> RankClass:
        """Add the flows of a class; returns it with its buckets priced as the layout says."""
        rank, world = cls.example_rank, self.layout.wires.world
        book = self.books.at(rank)
        spans = self.layout.cohorts.of(rank)
        around = neighbours(book.job.recipe.schedule, book.job.mesh.pp, book.job.chunks)
        for key, cost in cls.chunks.items():
            way = way_out(key[0], around[cls.stage, key[1]])
            pair = spans.get(way) if way else None
            if way and cost.send_s > 0.0 and pair is not None:
                move = slowest(message_move(message_bytes(book.job), pair, one) for one in stacks(book, way))
                number = self.number(rank if way == "next" else world + rank, move, "pp", 0)
                if number is not None:
                    self.messages[index, key] = number
        buckets = book.buckets(cls.stage, spans)
        for position, bucket in enumerate(buckets):
            move = bucket_move(book, bucket, spans["dp"])
            number = self.number(2 * world + int(self.group_of[rank]), move, "dp", position)
            if number is not None:
                self.buckets[index, position] = number
        return replace(cls, buckets=buckets)

    def number(self, flow: int, move: Move, label: Literal["pp", "dp"], position: int) -> int | None:
        """Index of the flow that moves so; None where it moves nothing or crosses no link that may be overloaded."""
        colour = int(self.colours[flow])
        if move.seconds <= 0.0 or colour not in self.paths:
            return None
        if (colour, position) not in self.known:
            rate = move.bytes_per_s if self.layout.contention.gaps == "free" else move.share_bytes_per_s
            lane_rate = rate / int(self.layout.wires.lanes[flow])
            links, weights = self.paths[colour]
            self.known[colour, position] = len(self.flows)
            self.flows.append(Flow(label, move.seconds * lane_rate, lane_rate, tuple(links), tuple(weights)))
        return self.known[colour, position]


def message_bytes(job: Job) -> float:
    """What one rank sends to the neighbouring stage: the activation or its part of it, as in `CostBook.message`."""
    recipe, size = job.recipe, job.hidden_bytes
    return size / job.mesh.tp if recipe.scatter_gather or recipe.sequence_parallel else size


def bucket_move(book: CostBook, bucket: ReduceBucket, group: Span) -> Move:
    """Transfer part of a gradient bucket: of its collectives, which run one after the other."""
    size = bucket.bytes_per_rank
    count = 1 if bucket.chunk is None else max(1, math.ceil(size / book.job.bucket_bytes))
    op = "all_reduce" if book.sharding.sums_whole or book.sharding.shards == 1 else "reduce_scatter"
    one = slowest(collective_move(op, size / count, group, network) for network in stacks(book, "dp"))
    return replace(one, seconds=count * one.seconds)


def stacks(book: CostBook, family: str) -> tuple[NetworkConstants, ...]:
    """Network constants of all software stacks that meet in a rank's group of a family."""
    return book.networks.get(family) or (book.machine.network,)


def slowest(moves: Iterable[Move]) -> Move:
    """The move that takes longest: as in `CostBook`, the slowest of the stacks in a group counts."""
    return max(moves, key=lambda move: move.seconds)
