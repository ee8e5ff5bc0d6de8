"""Ring algorithm: latency and algorithm bandwidth of each protocol."""

from traincast.costs.collectives.nccl import PROTOCOLS
from traincast.costs.collectives.network import NetworkConstants, Wires

STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}
"""Times that each byte goes round the ring."""


def ring_latency_s(op: str, protocol: int, w: Wires, c: NetworkConstants) -> float:
    """Latency [s]: base + (steps - network steps) * hop inside + network steps * hop across.

    steps = 2(n-1) for all-reduce, n-1 otherwise; a ring over N nodes crosses the network N-1 times in each
    round (all N hops where every node holds one rank). Source: NCCL tuning.cc, restated.
    """
    t = c.latencies
    rounds = STEPS[op]
    steps = rounds * (w.ranks - 1)
    across = rounds * (w.nodes - 1) if w.nodes > 1 else 0
    hop = t.network_ring[protocol] + w.extra_latency_s
    return t.base_ring[protocol] + (steps - across) * t.nvlink_ring[protocol] + across * hop


def ring_bytes_per_s(op: str, protocol: int, w: Wires, c: NetworkConstants) -> float:
    """Algorithm bandwidth [bytes/s]: bus bandwidth * n / (rounds * (n-1)), less the protocol's overhead.

    LL carries 4 bytes of payload in 8; LL128 120 in 128, capped per channel. Source: NCCL tuning.cc, restated.
    """
    caps = c.caps
    bus = w.bus_bytes_per_s
    if PROTOCOLS[protocol] == "LL":
        quarter = 4 if op == "all_reduce" or w.nodes > 1 else 3
        bus = min(caps.ll_max[w.node_class], bus / quarter)
    elif PROTOCOLS[protocol] == "LL128":
        bus = min(0.92 * bus, w.channels * caps.ring_ll128)
    return bus * w.ranks / (STEPS[op] * (w.ranks - 1))
