"""The part of a collective or message in which its bytes move, and how fast they leave a node meanwhile.

The rest of its time is launch, latency and the mixing term; it does not depend on who else uses the links.
"""

from dataclasses import dataclass

from traincast.costs.collectives.network import NetworkConstants, wires
from traincast.costs.collectives.option import parts_of, transfer_seconds
from traincast.costs.collectives.ring import STEPS
from traincast.costs.collectives.select import choose, terms_of
from traincast.topology import Span


@dataclass(frozen=True)
class Move:
    """`seconds` in which bytes move, at `bytes_per_s` out of each node in each direction.

    `share_bytes_per_s` is what the span may use out of a node; a stream's own efficiency keeps it below that.
    """

    seconds: float
    bytes_per_s: float
    share_bytes_per_s: float


NOTHING = Move(0.0, 0.0, 0.0)


def collective_move(op: str, size_bytes: float, span: Span, c: NetworkConstants) -> Move:
    """Transfer part of `collective_seconds` for a group that crosses nodes; nothing moves inside one node.

    Notes
    -----
    S / (eta B) with NCCL's choice, as in `collective_seconds`. Every byte passes a node boundary rounds (n-1)/n times
    in a ring over n ranks, and as often in a double binary tree, where each node sends up once and down once.
    """
    if span.nodes <= 1 or span.ranks <= 1 or size_bytes <= 0 or op not in STEPS:
        return NOTHING
    w = wires(span, c)
    choice = choose(op, size_bytes, w, c)
    seconds = float(transfer_seconds(parts_of(choice, size_bytes), terms_of(choice, w, c)))
    crossing = STEPS[op] * (w.ranks - 1) / w.ranks * size_bytes
    return Move(seconds, min(crossing / seconds, span.inter_bytes_per_s), span.inter_bytes_per_s)


def message_move(size_bytes: float, span: Span, c: NetworkConstants) -> Move:
    """Transfer part of `message_seconds` for a pair on two nodes; nothing moves over links inside one node."""
    if span.nodes <= 1 or span.ranks <= 1 or size_bytes <= 0:
        return NOTHING
    share = min(span.inter_bytes_per_s, span.nic_bytes_per_s)
    rate = share * c.message_efficiency
    return Move(size_bytes / rate, min(rate, share), share)
