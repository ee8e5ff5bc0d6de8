"""Double binary tree all-reduce: latency and algorithm bandwidth of each protocol."""

import math

from traincast.costs.collectives.nccl import PROTOCOLS, TREE_CORRECTION
from traincast.costs.collectives.network import NetworkConstants, Wires


def tree_latency_s(protocol: int, w: Wires, c: NetworkConstants) -> float:
    """Latency [s]: base + 2 ((ranks per node - 1) * hop inside + floor(log2 nodes) * hop across) (NCCL tuning.cc)."""
    t = c.latencies
    across = math.floor(math.log2(w.nodes)) * (t.network_tree[protocol] + w.extra_latency_s)
    return t.base_tree[protocol] + 2 * ((w.ranks_per_node - 1) * t.nvlink_tree[protocol] + across)


def tree_bytes_per_s(protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> float:
    """Algorithm bandwidth [bytes/s] at a size; half of the bus bandwidth, since data goes up and down.

    Simple: min(0.92 bus, channels * cap); LL: that / 3.8, capped; LL128: that * 0.915. The measured correction of NCCL
    for 64 B to 256 MiB multiplies it.
    """
    caps = c.caps
    simple = min(0.92 * w.bus_bytes_per_s, w.channels * caps.tree_simple[w.node_class])
    name = PROTOCOLS[protocol]
    bus = simple
    if name == "LL":
        bus = min(simple / 3.8, caps.ll_max[w.node_class])
    elif name == "LL128":
        bus = min(simple * 0.915, w.channels * caps.tree_ll128)
    step = min(max(int(math.log2(max(size_bytes, 64.0) / 64)), 0), 22)
    return 0.5 * bus * TREE_CORRECTION[name][step]
