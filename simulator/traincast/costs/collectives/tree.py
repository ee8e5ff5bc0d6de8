"""Double binary tree all-reduce: latency and algorithm bandwidth of each protocol."""

import math

from traincast.costs.collectives.nccl import PROTOCOLS, TREE_CORRECTION
from traincast.costs.collectives.network import NetworkConstants, Wires


def tree_latency_s(protocol: int, w: Wires, c: NetworkConstants) -> float:
    """Latency [s]: base + 2 ((ranks per node - 1) * hop inside + floor(log2 nodes) * hop across) (NCCL tuning.cc)."""
    t, rules = c.latencies, c.rules
    inside = t.nvlink_tree[protocol]
    if w.nodes > 1 and PROTOCOLS[protocol] == "LL":
        inside *= rules.low_latency_hop
    across = math.floor(math.log2(w.nodes)) * (t.network_tree[protocol] + w.extra_latency_s)
    return t.base_tree[protocol] + 2 * ((w.ranks_per_node - 1) * inside + across)


def tree_bytes_per_s(protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> float:
    """Algorithm bandwidth [bytes/s] at a size; half of the bus bandwidth, since data goes up and down.

    Simple: min(0.92 bus, channels * cap); LL: that / 3.8, capped; LL128: that * 7/9 on one node, 0.9375 beyond (0.915
    before 2.18), capped per channel. NCCL's measured correction for 64 B to 256 MiB multiplies it.
    """
    caps = c.caps
    simple = min(0.92 * w.bus_bytes_per_s, w.channels * caps.tree_simple[w.node_class])
    name = PROTOCOLS[protocol]
    bus = simple
    if name == "LL":
        bus = min(simple / 3.8, caps.ll_max[w.node_class])
    elif name == "LL128":
        share = c.rules.tree_ll128[min(w.node_class, 1)]
        bus = min(simple * share, w.channels * caps.tree_ll128[w.node_class])
    step = min(max(int(math.log2(max(size_bytes, 64.0) / 64)), 0), 22)
    return 0.5 * bus * TREE_CORRECTION[name][step]
