"""Seconds of a collective: NCCL's choice of algorithm and protocol, then the calibrated time of that choice."""

import math
from dataclasses import dataclass

from traincast.costs.collectives.nccl import PROTOCOLS
from traincast.costs.collectives.network import NetworkConstants, Wires, wires
from traincast.costs.collectives.ring import ring_bytes_per_s, ring_latency_s
from traincast.costs.collectives.tree import tree_bytes_per_s, tree_latency_s
from traincast.topology import Span


@dataclass(frozen=True)
class Choice:
    """What NCCL would run: algorithm, protocol, its own latency [s] and algorithm bandwidth [bytes/s]."""

    algorithm: str
    protocol: str
    latency_s: float
    bytes_per_s: float


def choose(op: str, size_bytes: float, w: Wires, c: NetworkConstants) -> Choice:
    """Algorithm and protocol with the smallest latency + size / bandwidth by NCCL's own numbers."""
    options = [
        Choice("ring", PROTOCOLS[p], ring_latency_s(op, p, size_bytes, w, c), ring_bytes_per_s(op, p, w, c))
        for p in range(3)
    ]
    if op == "all_reduce":
        options += [
            Choice("tree", PROTOCOLS[p], tree_latency_s(p, w, c), tree_bytes_per_s(p, size_bytes, w, c))
            for p in range(3)
        ]
    return min(options, key=lambda o: o.latency_s + size_bytes / o.bytes_per_s)


def across_efficiency(w: Wires, c: NetworkConstants) -> float:
    """Share of NCCL's bandwidth that a group reaches across nodes.

    Groups that hold whole nodes reach `inter_efficiency`. Where several groups run side by side on the NICs of a node
    (gradients beside tensor parallelism) they reach less of their static share: SC21 §5.9 measures 12.9 TB/s of
    data-parallel bisection traffic where 384 nodes have 38 TB/s each way.
    """
    further = {"one": c.one_efficiency, "some": c.some_efficiency, "node": 1.0}[w.holds]
    return c.inter_efficiency * further


def collective_seconds(op: str, size_bytes: float, span: Span, c: NetworkConstants) -> float:
    """Time of one collective of `size_bytes` (as nccl-tests counts it: the full buffer) over a span [s].

    Notes
    -----
    t = t0 + lambda L + S/(eta B) + g sqrt(lambda L S/(eta B)), with L and B of the chosen algorithm.
    calibration/identify_a100.py prints how close that comes to measured curves, by size.
    """
    if span.ranks <= 1 or size_bytes <= 0:
        return 0.0
    if op == "all_to_all":
        return all_to_all_seconds(size_bytes, span, c)
    w = wires(span, c)
    choice = choose(op, size_bytes, w, c)
    inside = w.nodes == 1
    factor = c.intra_latency_factor if inside else c.inter_latency_factor
    efficiency = c.intra_efficiency if inside else across_efficiency(w, c)
    mixing = c.intra_mixing if inside else c.inter_mixing
    latency = factor * choice.latency_s
    transfer = size_bytes / (efficiency * choice.bytes_per_s)
    return c.launch_s + latency + transfer + mixing * math.sqrt(latency * transfer)


def all_to_all_seconds(size_bytes: float, span: Span, c: NetworkConstants) -> float:
    """Pairwise exchange [s]: every rank sends size/n to each other rank; the slower of NVLink and NIC shares counts."""
    w = wires(span, c)
    n = w.ranks
    share = size_bytes / n
    inside = share * (w.ranks_per_node - 1) / (span.intra_bytes_per_s * c.caps.search_fraction * c.intra_efficiency)
    across = 0.0
    if w.nodes > 1:
        out_of_node = share * (n - w.ranks_per_node) * w.ranks_per_node
        across = out_of_node / (w.bus_bytes_per_s * across_efficiency(w, c))
    hop = c.latencies.nvlink_ring[0] if w.nodes == 1 else c.latencies.network_ring[0] + w.extra_latency_s
    return c.launch_s + hop * math.log2(n) + max(inside, across)
