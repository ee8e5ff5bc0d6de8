"""One way to run a collective: NCCL's own account of it, and the parts that calibrated constants scale."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Algorithm = Literal["ring", "tree", "nvls", "nvlstree", "exchange"]
Values = float | npt.NDArray[np.float64]


@dataclass(frozen=True)
class Choice:
    """What NCCL would run: algorithm, protocol, its own latency [s] and algorithm bandwidth [bytes/s] (they rank), and
    the parts of its time.

    `base_s` and `hops_s` make up the latency; `network_hops` counts network hops in a row. The transfer runs at the
    smaller of `wire_bytes_per_s` (as the bus allows) and `cap_bytes_per_s` (as channels or switches allow), both as
    algorithm bandwidth; `edge` is the share by which one more step prolongs it.
    """

    algorithm: Algorithm
    protocol: str
    latency_s: float
    bytes_per_s: float
    base_s: float
    hops_s: float
    network_hops: float
    wire_bytes_per_s: float
    cap_bytes_per_s: float
    edge: float = 0.0


@dataclass(frozen=True)
class Terms:
    """The constants that turn the parts of a choice into seconds; numbers, or arrays of one shape."""

    launch_s: Values
    latency_factor: Values
    base_factor: Values
    hop_s: Values
    efficiency: Values
    wire: Values
    edge_steps: Values
    mixing: Values
    overlap: Values


@dataclass(frozen=True)
class Parts:
    """Parts of one choice or of many (arrays of one shape), and the bytes that it moves."""

    size_bytes: Values
    base_s: Values
    hops_s: Values
    network_hops: Values
    wire_bytes_per_s: Values
    cap_bytes_per_s: Values
    edge: Values


def parts_of(choice: Choice, size_bytes: float) -> Parts:
    """Parts of one choice."""
    return Parts(
        size_bytes=size_bytes,
        base_s=choice.base_s,
        hops_s=choice.hops_s,
        network_hops=choice.network_hops,
        wire_bytes_per_s=choice.wire_bytes_per_s,
        cap_bytes_per_s=choice.cap_bytes_per_s,
        edge=choice.edge,
    )


def latency_seconds(p: Parts, t: Terms) -> Values:
    """Latency part [s]: lambda (b base + hops) + network hops * what the fabric adds to each."""
    return t.latency_factor * (t.base_factor * p.base_s + p.hops_s) + t.hop_s * p.network_hops


def transfer_seconds(p: Parts, t: Terms) -> Values:
    """Transfer part [s]: size / (eta * min(wire share * wire rate, cap)) * (1 + edge steps * share of one step)."""
    rate = t.efficiency * _least(t.wire * p.wire_bytes_per_s, p.cap_bytes_per_s)
    return p.size_bytes / rate * (1.0 + t.edge_steps * p.edge)


def total_seconds(p: Parts, t: Terms) -> Values:
    """Time of a collective [s] from its parts: t0 + (L^p + X^p)^(1/p) + g sqrt(L X).

    Notes
    -----
    p = 1 but for rings across nodes, where the latency of a step overlaps with the transfer of others. The limit of
    large p is max(2(n-1) * hop, S/bandwidth), which 1,024 GPUs show with a forced ring (github.com/NVIDIA/nccl-tests
    issue 322).
    """
    latency, transfer = latency_seconds(p, t), transfer_seconds(p, t)
    return t.launch_s + joined_seconds(latency, transfer, t.overlap) + t.mixing * (latency * transfer) ** 0.5


def joined_seconds(latency: Values, transfer: Values, overlap: Values) -> Values:
    """Latency and transfer together [s]: their sum where the exponent is 1, near their maximum where it is large."""
    if isinstance(overlap, float) and overlap == 1.0:
        return latency + transfer
    larger = _most(latency, transfer)
    smaller = latency + transfer - larger
    return larger * (1.0 + (smaller / larger) ** overlap) ** (1.0 / overlap)


def _least(a: Values, b: Values) -> Values:
    return min(a, b) if isinstance(a, float) and isinstance(b, float) else np.minimum(a, b)


def _most(a: Values, b: Values) -> Values:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else np.maximum(a, b)
