"""Ring algorithm: latency and algorithm bandwidth of each protocol."""

from traincast.costs.collectives.nccl import PROTOCOLS
from traincast.costs.collectives.network import NetworkConstants, Wires
from traincast.costs.collectives.option import Choice
from traincast.costs.collectives.versions import ring_ll128_cap

STEPS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1, "reduce": 1}
"""Times that each byte goes round the ring."""

PIPELINED = frozenset({"broadcast", "reduce"})
"""Collectives whose ring is a chain from or to the root: every byte passes each link once, in a full pipeline."""

FULL_CHUNK_BYTES = 64 * 1024
"""Before 2.18: bytes a channel and rank from which on a Simple ring's chunks are full."""

FULL_CHUNK_BYTES_2_18 = 64
"""The same since 2.18, by NCCL's account."""


def ring_latency_s(op: str, protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> float:
    """Latency [s]: base + (steps - network steps) * hop inside + network steps * hop across.

    steps = 2(n-1) for all-reduce, n-1 for the others; a ring over N nodes crosses the network N-1 times a round (N in
    2.12 to 2.22). When the group crosses nodes, hops inside cost at least the CPU's network overhead (from 2.18), and
    before that LL's cost 1.8 times. A Simple all-reduce across nodes pays its latency `plateau` times once chunks are
    full. Broadcast and reduce pay one hop: all channels of an NVSwitch node run the same ring. Source: NCCL tuning.cc,
    restated; §7 of its worked tables is a test.
    """
    base, hops, _ = ring_latency_parts(op, protocol, size_bytes, w, c)
    return base + hops


def ring_latency_parts(
    op: str, protocol: int, size_bytes: float, w: Wires, c: NetworkConstants
) -> tuple[float, float, float]:
    """Base [s], hops [s] and network hops of a ring; see `ring_latency_s`."""
    t, rules, name = c.latencies, c.rules, PROTOCOLS[protocol]
    rounds = STEPS[op]
    steps = 1 if op in PIPELINED else rounds * (w.ranks - 1)
    hop = (t.nvlink_ring if w.nvlink else t.pcie_ring)[protocol]
    base = t.base_ring[protocol]
    if w.nodes == 1:
        return base, steps * hop, 0.0
    across = 1 if op in PIPELINED else rounds * (w.nodes + rules.ring_network_steps)
    if rules.overhead:
        hop = max(hop, c.caps.network_overhead_s * (3 if name == "Simple" else 1))
    elif name == "LL":
        hop *= rules.low_latency_hop
    network = (t.network_tree if rules.lone_ring_hop and w.ranks_per_node == 1 else t.network_ring)[protocol]
    hops = (steps - across) * hop + across * (network + w.extra_latency_s)
    full = size_bytes / (w.channels * w.ranks) >= (FULL_CHUNK_BYTES if rules.minor < 18 else FULL_CHUNK_BYTES_2_18)
    factor = rules.plateau if op == "all_reduce" and name == "Simple" and full else 1.0
    return base * factor, hops * factor, float(across)


def ring_rates(op: str, protocol: int, w: Wires, c: NetworkConstants) -> tuple[float, float]:
    """Algorithm bandwidth [bytes/s] as the bus allows, and as the channels do: bus bandwidth * n / (rounds * (n-1)).

    LL carries 4 bytes of payload in 8 (and was given a half to two thirds of that before 2.21); LL128 120 in 128,
    capped per channel. Broadcast and reduce move at the bus bandwidth itself. Source: NCCL tuning.cc, restated.
    """
    bus, cap = w.bus_bytes_per_s, float("inf")
    if PROTOCOLS[protocol] == "LL":
        kind = 2 if w.nodes > 1 else 0 if op in ("all_reduce", "reduce") else 1
        bus, cap = bus * c.rules.low_latency_share[kind], c.caps.ll_max[w.node_class]
    elif PROTOCOLS[protocol] == "LL128":
        bus, cap = 0.92 * bus, w.channels * ring_ll128_cap(c.nccl, c.generation, op, w.node_class)
    ratio = 1.0 if op in PIPELINED else w.ranks / (STEPS[op] * (w.ranks - 1))
    return bus * ratio, cap * ratio


def ring_bytes_per_s(op: str, protocol: int, w: Wires, c: NetworkConstants) -> float:
    """Algorithm bandwidth [bytes/s] by NCCL's account; see `ring_rates`."""
    return min(ring_rates(op, protocol, w, c))


def ring_choice(op: str, protocol: int, size_bytes: float, w: Wires, c: NetworkConstants) -> Choice:
    """A ring with one protocol.

    The search's channels are doubled when they connect (Hopper and later: 16 real ones where the search found 8 for
    8 NICs), so LL128's cap per channel ranks but does not hold the transfer back there. `edge`: NCCL's kernel runs one
    primitive more than its transfers, for the own block, which all-gather and reduce-scatter also copy; an all-reduce
    only sends it on, which counts half (2 to 8 A100, H100, B200: 150 to 230 of 235 GB/s bus bandwidth on A100 at
    512 MiB, calibration/measured/collectives.csv).
    """
    base, hops, across = ring_latency_parts(op, protocol, size_bytes, w, c)
    wire, cap = ring_rates(op, protocol, w, c)
    real_cap = 2.0 * cap if c.generation in ("hopper", "blackwell") and PROTOCOLS[protocol] == "LL128" else cap
    steps = w.ranks - 1 if op in PIPELINED else STEPS[op] * (w.ranks - 1)
    return Choice(
        algorithm="ring",
        protocol=PROTOCOLS[protocol],
        latency_s=base + hops,
        bytes_per_s=min(wire, cap),
        base_s=base,
        hops_s=hops,
        network_hops=across,
        wire_bytes_per_s=wire,
        cap_bytes_per_s=real_cap,
        edge=(0.5 if op == "all_reduce" else 1.0) / steps,
    )


STEP_BYTES = 512 * 1024
"""Chunk of a channel of a Simple ring: NCCL's buffer of 4 MiB (NCCL_BUFFSIZE) in its 8 steps (NCCL_STEPS)."""


def fill_s(size_bytes: float, w: Wires, c: NetworkConstants) -> float:
    """Time until the last rank of a broadcast's chain has the first chunk of every channel [s].

    NCCL's own account (`ring_latency_s`) leaves it out: (n - N) hops inside N nodes and N - 1 across them, on each of
    which all channels pass on a chunk whole, at the raw rate of a GPU's links or of the group out of a node.
    """
    chunk = min(STEP_BYTES, size_bytes / w.channels)
    inside_bytes_per_s = w.bus_bytes_per_s if w.nodes == 1 else w.link_bytes_per_s
    hop = (c.latencies.nvlink_ring if w.nvlink else c.latencies.pcie_ring)[PROTOCOLS.index("Simple")]
    network = c.latencies.network_ring[PROTOCOLS.index("Simple")] + w.extra_latency_s
    inside_s = c.intra_latency_factor * hop + w.channels * chunk / inside_bytes_per_s
    across_s = c.inter_latency_factor * network + w.channels * chunk / w.bus_bytes_per_s
    return (w.ranks - w.nodes) * inside_s + (w.nodes - 1) * across_s
