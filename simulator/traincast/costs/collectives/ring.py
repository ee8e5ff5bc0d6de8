"""Ring algorithm: latency and algorithm bandwidth of each protocol."""

from traincast.costs.collectives.nccl import PROTOCOLS
from traincast.costs.collectives.network import NetworkConstants, Wires

STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""Times that each byte goes round the ring."""

FULL_CHUNK_BYTES = 64 * 1024
"""Bytes a channel and rank from which on a Simple ring's chunks are full."""


def ring_latency_s(op: str, protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> float:
    """Latency [s]: base + (steps - network steps) * hop inside + network steps * hop across.

    steps = 2(n-1) for all-reduce, n-1 otherwise; a ring over N nodes crosses the network N-1 times a round (N in 2.18
    to 2.22). When the group crosses nodes, hops inside cost at least the CPU's network overhead (from 2.18), and before
    that LL's cost 1.8 times. A Simple all-reduce across nodes pays its latency `plateau` times once chunks are full
    (64 bytes a channel and rank). Source: NCCL tuning.cc, restated; §7 of its worked tables is a test.
    """
    t, rules, name = c.latencies, c.rules, PROTOCOLS[protocol]
    rounds = STEPS[op]
    steps = rounds * (w.ranks - 1)
    if w.nodes == 1:
        return t.base_ring[protocol] + steps * t.nvlink_ring[protocol]
    across = rounds * (w.nodes + rules.ring_network_steps)
    inside = t.nvlink_ring[protocol]
    if rules.overhead:
        inside = max(inside, c.caps.network_overhead_s * (3 if name == "Simple" else 1))
    elif name == "LL":
        inside *= rules.low_latency_hop
    latency = t.base_ring[protocol] + (steps - across) * inside
    latency += across * (t.network_ring[protocol] + w.extra_latency_s)
    full = size_bytes / (w.channels * w.ranks) >= FULL_CHUNK_BYTES
    return latency * rules.plateau if op == "all_reduce" and name == "Simple" and full else latency


def ring_bytes_per_s(op: str, protocol: int, w: Wires, c: NetworkConstants) -> float:
    """Algorithm bandwidth [bytes/s]: bus bandwidth * n / (rounds * (n-1)), less the protocol's overhead.

    LL carries 4 bytes of payload in 8 (and was given half of that again before 2.21); LL128 120 in 128, capped per
    channel.
    Source: NCCL tuning.cc, restated.
    """
    caps = c.caps
    bus = w.bus_bytes_per_s
    if PROTOCOLS[protocol] == "LL":
        bus = min(caps.ll_max[w.node_class], bus * c.rules.low_latency_share[min(w.node_class, 1)])
    elif PROTOCOLS[protocol] == "LL128":
        bus = min(0.92 * bus, w.channels * caps.ring_ll128)
    return bus * w.ranks / (STEPS[op] * (w.ranks - 1))
