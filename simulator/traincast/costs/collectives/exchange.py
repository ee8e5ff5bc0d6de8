"""All-to-all: every rank sends a block to each other one, in rounds of send/recv pairs."""

import math

from traincast.costs.collectives.network import NetworkConstants, Wires, across_efficiency
from traincast.costs.collectives.option import Choice, Terms

LL_BLOCK_BYTES = 16384
"""Largest block that goes with LL (NCCL_P2P_LL_THRESHOLD, nccl enqueue.cc); larger ones go Simple, after a
handshake."""


def exchange_choice(size_bytes: float, w: Wires, c: NetworkConstants) -> Choice:
    """A pairwise exchange of `size_bytes` (what each rank holds).

    Every rank sends size/n to each of n-1 others: ranks_per_node - 1 of them over its links, the rest out of its node
    through the NICs that its node shares; the slower of the two counts. `base_s` is the latency of log2(n) hops,
    `network_hops` counts peers beyond the first, `edge` is the rank's own block, which is copied, beside what moves.
    """
    n, local = w.ranks, w.ranks_per_node
    share, link = size_bytes / n, w.link_bytes_per_s * c.caps.search_fraction
    inside = share * (local - 1) / link
    across = share * (n - local) * local / w.out_bytes_per_s if w.nodes > 1 else 0.0
    hop = c.latencies.nvlink_ring[0] if w.nodes == 1 else c.latencies.network_ring[0] + w.extra_latency_s
    latency = hop * math.log2(n)
    moving = max(inside, across)
    return Choice(
        algorithm="exchange",
        protocol="LL" if share <= LL_BLOCK_BYTES else "Simple",
        latency_s=latency,
        bytes_per_s=size_bytes / moving,
        base_s=latency,
        hops_s=0.0,
        network_hops=n - 2.0,
        wire_bytes_per_s=size_bytes / across if across else math.inf,
        cap_bytes_per_s=size_bytes / inside if inside else math.inf,
        edge=share / link / moving,
    )


def exchange_terms(protocol: str, w: Wires, c: NetworkConstants) -> Terms:
    """Constants of an exchange: a launch of its own beside a collective's, a handshake where blocks go Simple, and time
    for each further peer."""
    e = c.exchange
    inside = c.intra_efficiency * e.efficiency
    across = across_efficiency(w, c) * c.fabric.wire * e.inter_efficiency
    return Terms(
        launch_s=c.launch_s + e.launch_s + (e.handshake_s if protocol == "Simple" else 0.0),
        latency_factor=1.0,
        base_factor=1.0,
        hop_s=e.peer_s,
        efficiency=inside,
        wire=across / inside,
        edge_steps=e.own_share,
        mixing=e.mixing,
        overlap=1.0,
    )
