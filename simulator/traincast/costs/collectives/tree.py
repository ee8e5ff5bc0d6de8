"""Double binary tree all-reduce: latency and algorithm bandwidth of each protocol."""

import math

from traincast.costs.collectives.nccl import PROTOCOLS, TREE_CORRECTION
from traincast.costs.collectives.network import NetworkConstants, Wires
from traincast.costs.collectives.option import Choice


def tree_latency_s(protocol: int, w: Wires, c: NetworkConstants) -> float:
    """Latency [s]: base + 2 ((ranks per node - 1) * hop inside + floor(log2 nodes) * hop across) (NCCL tuning.cc)."""
    return c.latencies.base_tree[protocol] + _hops_s(protocol, w, c)


def _hops_s(protocol: int, w: Wires, c: NetworkConstants) -> float:
    t, rules = c.latencies, c.rules
    inside = (t.nvlink_tree if w.nvlink else t.pcie_tree)[protocol]
    if w.nodes > 1 and PROTOCOLS[protocol] == "LL":
        inside *= rules.low_latency_hop
    across = math.floor(math.log2(w.nodes)) * (t.network_tree[protocol] + w.extra_latency_s)
    return 2 * ((w.ranks_per_node - 1) * inside + across)


def tree_rates(protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> tuple[float, float]:
    """Algorithm bandwidth [bytes/s] at a size as the bus allows, and as the channels do; half of the bus bandwidth,
    since data goes up and down.

    Simple: min(0.92 bus, channels * cap); LL: that / 3.8, capped; LL128: that * 7/9 on one node, 0.9375 beyond (0.915
    before 2.18), capped per channel. NCCL's measured correction for 64 B to 256 MiB multiplies it.
    """
    caps = c.caps
    bus, cap = 0.92 * w.bus_bytes_per_s, w.channels * caps.tree_simple[w.node_class]
    name = PROTOCOLS[protocol]
    if name == "LL":
        bus, cap = bus / 3.8, min(cap / 3.8, caps.ll_max[w.node_class])
    elif name == "LL128":
        share = c.rules.tree_ll128[min(w.node_class, 1)]
        bus, cap = bus * share, min(cap * share, w.channels * caps.tree_ll128[w.node_class])
    step = min(max(int(math.log2(max(size_bytes, 64.0) / 64)), 0), 22)
    factor = 0.5 * TREE_CORRECTION[name][step]
    return bus * factor, cap * factor


def tree_bytes_per_s(protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> float:
    """Algorithm bandwidth [bytes/s] by NCCL's account; see `tree_rates`."""
    return min(tree_rates(protocol, size_bytes, w, c))


def tree_choice(protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> Choice:
    """A double binary tree with one protocol."""
    base, hops = c.latencies.base_tree[protocol], _hops_s(protocol, w, c)
    wire, cap = tree_rates(protocol, size_bytes, w, c)
    return Choice(
        algorithm="tree",
        protocol=PROTOCOLS[protocol],
        latency_s=base + hops,
        bytes_per_s=min(wire, cap),
        base_s=base,
        hops_s=hops,
        network_hops=2.0 * math.floor(math.log2(w.nodes)),
        wire_bytes_per_s=wire,
        cap_bytes_per_s=cap,
    )
