"""Seconds of one send/recv pair."""

import math

from traincast.costs.collectives.network import NetworkConstants
from traincast.costs.collectives.option import Parts, Terms
from traincast.topology import Span


def message_seconds(size_bytes: float, span: Span, c: NetworkConstants) -> float:
    """Time of one point-to-point message over a span of two ranks [s]: launch + path latency + bytes / rate.

    The rate is the NVLink rate of the pair inside a node, and across nodes what the pair may use of its NIC after
    static sharing; `message_efficiency` is the share of it that a single NCCL message stream reaches.
    """
    if span.ranks <= 1 or size_bytes <= 0:
        return 0.0
    if span.nodes <= 1:
        rate = span.intra_bytes_per_s * c.caps.search_fraction
        return c.message_launch_s + span.intra_latency_s + size_bytes / rate
    rate = min(span.inter_bytes_per_s, span.nic_bytes_per_s) * c.message_efficiency
    return c.message_launch_s + span.inter_latency_s + size_bytes / rate


def message_parts(size_bytes: float, span: Span, c: NetworkConstants) -> tuple[Parts, Terms]:
    """The same as `message_seconds` in parts and constants, for fits."""
    inside = span.nodes <= 1
    rate = (
        span.intra_bytes_per_s * c.caps.search_fraction if inside else min(span.inter_bytes_per_s, span.nic_bytes_per_s)
    )
    latency = span.intra_latency_s if inside else span.inter_latency_s
    parts = Parts(size_bytes, 0.0, latency, 0.0, rate, math.inf, 0.0)
    return parts, Terms(c.message_launch_s, 1.0, 1.0, 0.0, 1.0 if inside else c.message_efficiency, 1.0, 0.0, 0.0, 1.0)
