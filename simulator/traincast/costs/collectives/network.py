"""The wires of one group and the calibrated constants that turn NCCL's numbers into seconds."""

from dataclasses import dataclass

from traincast.costs.collectives.nccl import CAPS, LATENCIES, ChannelCaps, Latencies
from traincast.topology import Span

NIC_EFFICIENCY = 0.96
"""Share of a NIC's raw rate that NCCL's topology search assumes (24 of 25 GB/s for HDR; nccl graph/topo.h)."""


@dataclass(frozen=True)
class NetworkConstants:
    """Calibrated constants of one fabric under one stack.

    `launch_s`: time of an empty collective (t0), `latency_factor` (lambda) on NCCL's latencies, `*_efficiency` (eta) on
    its bandwidths, `mixing` (g) on sqrt(latency * transfer): the pipeline of chunks is not full at middle sizes.
    The first set serves groups inside a node, the second those that cross nodes; `partial_efficiency` is a further
    factor where the group holds only part of its nodes' GPUs, so that its siblings drive the other NICs at the same
    time; `message_*` serve send/recv.
    """

    nccl: str
    generation: str
    launch_s: float
    intra_latency_factor: float
    intra_efficiency: float
    intra_mixing: float
    inter_latency_factor: float
    inter_efficiency: float
    inter_mixing: float
    partial_efficiency: float
    message_launch_s: float
    message_efficiency: float
    gpus_per_node: int

    @property
    def latencies(self) -> Latencies:
        """NCCL's latency table of this version."""
        return LATENCIES[self.nccl]

    @property
    def caps(self) -> ChannelCaps:
        """NCCL's bandwidth caps of this GPU generation."""
        return CAPS[self.generation]


@dataclass(frozen=True)
class Wires:
    """What the formulas need of a span: sizes, the ring's bus bandwidth and the channels behind it."""

    ranks: int
    nodes: int
    ranks_per_node: int
    bus_bytes_per_s: float
    channels: float
    extra_latency_s: float
    partial: bool
    """The group crosses nodes and holds only part of their GPUs."""
    node_class: int
    """0: one node, 1: two nodes, 2: three and more (index into NCCL's per-channel caps)."""


def wires(span: Span, c: NetworkConstants) -> Wires:
    """Reduce a span to what NCCL's formulas use.

    Inside a node the ring runs at the searched share of the NVLink rate. Across nodes every ring passes each node
    boundary once, so the group's bus bandwidth is what it may use out of a node, capped by NVLink.
    """
    inside = span.intra_bytes_per_s * c.caps.search_fraction
    if span.nodes <= 1:
        return Wires(span.ranks, 1, span.ranks, inside, c.caps.channels, 0.0, False, 0)
    across = span.inter_bytes_per_s * NIC_EFFICIENCY
    bus = min(inside, across) if span.ranks_per_node > 1 else across
    channels = max(span.inter_bytes_per_s / span.nic_bytes_per_s, 1.0)
    node_class = 1 if span.nodes == 2 else 2
    partial = span.ranks_per_node < c.gpus_per_node
    return Wires(span.ranks, span.nodes, span.ranks_per_node, bus, channels, span.inter_latency_s, partial, node_class)
