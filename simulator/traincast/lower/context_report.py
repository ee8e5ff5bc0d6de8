"""Whether attention hides what context-parallel ranks exchange, and up to which cp it does."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from traincast.costs import Machine, operator_seconds
from traincast.lower.classes import SINGLE
from traincast.lower.job import Job
from traincast.lower.rings import CONTEXT_FAMILIES
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

    @property
    def bound(self) -> Literal["compute", "network"]:
        """What sets the pace of the attention core."""
        return "network" if self.required_bytes_per_s > self.available_bytes_per_s else "compute"

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON shows it."""
        return {**vars(self), "bound": self.bound}


@dataclass(frozen=True)
class _Exchange:
    """One thing sent beside (or, without a ring, in front of) compute: bytes of a rank, seconds of both."""

    direction: Direction
    sent_bytes: float
    sent_s: float
    beside_s: float

    @property
    def ratio(self) -> float:
        """Above 1 where the exchange outlasts what runs beside it."""
        return self.sent_s / self.beside_s


def context_report(job: Job, spans: RankSpans) -> ContextReport | None:
    """The report of a job where its wires are slowest; None without context parallelism."""
    if job.mesh.cp == 1:
        return None
    columns = [FAMILIES.index(family) for family in CONTEXT_FAMILIES]
    _, ranks = np.unique(spans.ids[:, columns], axis=0, return_index=True)
    machine = Machine(job.gpu, job.profile, job.recipe.precision, job.cluster.gpus_per_node)
    found = [_report(job, machine, dict.fromkeys(CONTEXT_FAMILIES, SINGLE) | spans.of(rank)) for rank in ranks.tolist()]
    return max(found, key=lambda one: one.required_bytes_per_s / one.available_bytes_per_s)


def _report(job: Job, machine: Machine, spans: Mapping[str, Span]) -> ContextReport:
    block = block_of(job)
    worst = _worst(block, machine, spans)
    return ContextReport(
        kind=job.recipe.cp_kind,
        cp=block.cp,
        ulysses=block.context.ulysses,
        direction=worst.direction,
        bytes_per_exchange=worst.sent_bytes,
        beside_s=worst.beside_s,
        required_bytes_per_s=worst.sent_bytes / worst.beside_s,
        available_bytes_per_s=worst.sent_bytes / worst.sent_s,
        pays_to_cp=_pays_to(block, machine, spans),
    )


def _worst(block: Block, machine: Machine, spans: Mapping[str, Span]) -> _Exchange:
    return max(_exchanges(block, machine, spans), key=lambda one: one.ratio)


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
    ranks = spans[op.family].ranks
    return op.size_bytes * (ranks - 1) / ranks


def _pays_to(block: Block, machine: Machine, spans: Mapping[str, Span]) -> int | None:
    """The largest cp whose exchange attention outlasts, on the wires of this one."""
    best, own = 0, block.context
    for cp in (cp for cp in range(2, _MOST_CP + 1) if block.sequence % (2 * cp) == 0):
        ulysses = cp if block.ring == 1 else own.ulysses
        ring = cp // ulysses
        if cp % ulysses or block.local_heads % ulysses or (ring == 1) != (block.ring == 1):
            continue
        turn = own.inner if own.inner and ring > own.inner and ring % own.inner == 0 else 0
        context = replace(own, ulysses=ulysses, inner=turn, position=ring - 1)
        if _worst(replace(block, cp=cp, context=context), machine, spans).ratio > 1.0:
            return best
        best = cp
    return best if block.ring == 1 else None
