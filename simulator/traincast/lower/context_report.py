"""Whether attention hides what context-parallel ranks exchange, and up to which cp it does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from traincast.costs import Machine, operator_seconds
from traincast.lower.classes import SINGLE
from traincast.lower.job import Job
from traincast.lower.rings import CONTEXT_FAMILIES
from traincast.lower.seats import Seats, take_seats
from traincast.lower.spans import FAMILIES, RankSpans
from traincast.lower.stages import block_of
from traincast.model.block import Block, Collective, Operator
from traincast.model.context import Direction, attention_core_backward, attention_core_forward, ring_exchanges
from traincast.topology import Span

_MOST_CP: Final = 4096
"""As far as the cp is looked for from which the exchange outlasts attention."""


@dataclass(frozen=True)
class ContextReport:
    """Whether attention hides what context-parallel ranks exchange, in the direction and on the wire where it is worst.

    `required_bytes_per_s` is what a GPU must send and receive so that the exchange takes as long as the attention
    beside it: bytes of a step of a ring by the time of a block of attention; without a ring, bytes of a layer by the
    time of its attention. `available_bytes_per_s` is what messages of that size reach here, launch and latency
    included. `bound` is `network` where more is required than available. `pays_to_cp` is the largest cp, at the same
    wires, up to which less is required (and heads can be exchanged): 0 for none, None for as far as was looked.

    A group moves in step, so its slowest GPU sets the time of attention: `gpu` says which it is (with its speed, where
    that is not whole), and `rank` is the first of the mesh ranks of the group in question.
    """

    kind: str
    cp: int
    ulysses: int
    direction: Direction
    bytes_per_exchange: float
    beside_s: float
    required_bytes_per_s: float
    available_bytes_per_s: float
    pays_to_cp: int | None
    gpu: str
    rank: int

    @property
    def bound(self) -> Literal["compute", "network"]:
        """What sets the pace of the attention core."""
        return "network" if self.required_bytes_per_s > self.available_bytes_per_s else "compute"

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON shows it."""
        return {**vars(self), "bound": self.bound}


@dataclass(frozen=True)
class _Exchange:
    """One thing sent beside (or, without a ring, in front of) compute: bytes of a rank, seconds of both.

    `slowest` is the place, among the machines of the group, of the one that computes longest.
    """

    direction: Direction
    sent_bytes: float
    sent_s: float
    beside_s: float
    slowest: int = 0

    @property
    def ratio(self) -> float:
        """Above 1 where the exchange outlasts what runs beside it."""
        return self.sent_s / self.beside_s


def context_report(job: Job, spans: RankSpans) -> ContextReport | None:
    """The report of a job where its wires are slowest; None without context parallelism."""
    if job.mesh.cp == 1:
        return None
    seats, groups = take_seats(job, spans), job.mesh.groups("cp")
    machines = np.zeros((job.mesh.world, groups.shape[1]), dtype=np.int64)
    machines[groups] = np.sort(seats.of_rank[groups], axis=1)[:, None]
    columns = [FAMILIES.index(family) for family in CONTEXT_FAMILIES]
    _, ranks = np.unique(np.column_stack([spans.ids[:, columns], machines]), axis=0, return_index=True)
    found = [_report(job, seats, rank, spans.of(rank)) for rank in ranks.tolist()]
    return max(found, key=lambda one: one.required_bytes_per_s / one.available_bytes_per_s)


def _report(job: Job, seats: Seats, rank: int, own: Mapping[str, Span]) -> ContextReport:
    """That of a rank with its spans, by the slowest GPU and the slowest stack of its group."""
    block, spans = block_of(job), {**dict.fromkeys(CONTEXT_FAMILIES, SINGLE), **own}
    members = job.mesh.group_of(rank, "cp")
    machines = [seats.machines[number] for number in sorted(set(seats.of_rank[members].tolist()))]
    worst = _worst(block, machines, spans)
    slowest = machines[worst.slowest]
    speed = "" if slowest.speed == 1.0 else f" at {100 * slowest.speed:.3g} % of its rate"
    return ContextReport(
        kind=job.recipe.cp_kind,
        cp=block.cp,
        ulysses=block.context.ulysses,
        direction=worst.direction,
        bytes_per_exchange=worst.sent_bytes,
        beside_s=worst.beside_s,
        required_bytes_per_s=worst.sent_bytes / worst.beside_s,
        available_bytes_per_s=worst.sent_bytes / worst.sent_s,
        pays_to_cp=_pays_to(block, machines, spans),
        gpu=f"{slowest.gpu.name}{speed}",
        rank=int(members[0]),
    )


def _worst(block: Block, machines: Sequence[Machine], spans: Mapping[str, Span]) -> _Exchange:
    """The exchange that outlasts attention most, of machines that move in step: the slowest of each counts."""
    each = [list(_exchanges(block, machine, spans)) for machine in machines]
    return max((_in_step(row) for row in zip(*each, strict=True)), key=lambda one: one.ratio)


def _in_step(row: Sequence[_Exchange]) -> _Exchange:
    """One exchange as the machines of a group see it -> as they make it together."""
    slowest = max(range(len(row)), key=lambda place: row[place].beside_s)
    return replace(row[slowest], sent_s=max(one.sent_s for one in row), slowest=slowest)


def _exchanges(block: Block, machine: Machine, spans: Mapping[str, Span]) -> Iterator[_Exchange]:
    """The passes of a ring with the compute that each runs beside; without a ring, what nothing hides against all of
    the attention."""
    if block.ring > 1 and block.context.style != "allgather":
        for direction, op, beside in ring_exchanges(block):
            beside_s = sum(operator_seconds(one, machine, spans) for one in beside)
            yield _Exchange(direction, op.size_bytes, operator_seconds(op, machine, spans), beside_s)
        return
    cores: tuple[tuple[Direction, tuple[Operator, ...]], ...] = (
        ("forward", attention_core_forward(block)),
        ("backward", attention_core_backward(block)),
    )
    for direction, core in cores:
        sends = [op for op in core if isinstance(op, Collective)]
        exchange_s = sum(operator_seconds(op, machine, spans) for op in sends)
        compute_s = sum(operator_seconds(op, machine, spans) for op in core) - exchange_s
        yield _Exchange(direction, sum(_sent(op, spans) for op in sends), exchange_s, compute_s)


def _sent(op: Collective, spans: Mapping[str, Span]) -> float:
    if op.op == "send_recv":
        return op.size_bytes
    ranks = spans[op.family].ranks
    return op.size_bytes * (ranks - 1) / ranks


def _pays_to(block: Block, machines: Sequence[Machine], spans: Mapping[str, Span]) -> int | None:
    """The largest cp whose exchange attention outlasts, on the wires of this one."""
    best, own = 0, block.context
    for cp in (cp for cp in range(2, _MOST_CP + 1) if block.sequence % (2 * cp) == 0):
        ulysses = cp if block.ring == 1 else own.ulysses
        ring = cp // ulysses
        if cp % ulysses or block.local_heads % ulysses or (ring == 1) != (block.ring == 1):
            continue
        turn = own.inner if own.inner and ring > own.inner and ring % own.inner == 0 else 0
        context = replace(own, ulysses=ulysses, inner=turn, position=ring - 1)
        if _worst(replace(block, cp=cp, context=context), machines, spans).ratio > 1.0:
            return best
        best = cp
    return best if block.ring == 1 else None
