"""The wires of one group and the calibrated constants that turn NCCL's numbers into seconds."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from traincast.costs.collectives.nccl import AMPERE_2_8, CAPS, LATENCIES, RULES, ChannelCaps, Latencies, Rules
from traincast.topology import Span

NIC_EFFICIENCY = 0.96
"""Share of a NIC's raw rate that NCCL's topology search assumes (24 of 25 GB/s for HDR; nccl graph/topo.h)."""


@dataclass(frozen=True)
class NetworkConstants:
    """Calibrated constants of one fabric under one stack.

    `launch_s`: time of an empty collective (t0), `latency_factor` (lambda) on NCCL's latencies, `*_efficiency` (eta) on
    its bandwidths, `mixing` (g) on sqrt(latency * transfer): the pipeline of chunks is not full at middle sizes.
    The first set serves groups inside a node, the second those that cross nodes; `one_efficiency` and
    `some_efficiency` are further factors where the group holds one GPU or some of the GPUs of its nodes, so that its
    siblings drive the other NICs at the same time; `message_*` serve send/recv.
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
    one_efficiency: float
    some_efficiency: float
    message_launch_s: float
    message_efficiency: float
    gpus_per_node: int

    @property
    def latencies(self) -> Latencies:
        """NCCL's latency table of this version."""
        return LATENCIES[self.nccl]

    @property
    def rules(self) -> Rules:
        """What else this version does differently."""
        return RULES[self.nccl]

    @property
    def caps(self) -> ChannelCaps:
        """NCCL's bandwidth caps of this GPU generation, in this version."""
        caps = CAPS[self.generation]
        if self.nccl == "2.8" and self.generation == "ampere":
            tree = (AMPERE_2_8["tree_ll128"],) * 3
            return replace(caps, ring_ll128=AMPERE_2_8["ring_ll128"], tree_ll128=tree)
        return caps

    @property
    def bus_cap(self) -> float:
        """Most that a ring's bus bandwidth may be [bytes/s]."""
        return AMPERE_2_8["bus_cap"] if self.nccl == "2.8" and self.generation == "ampere" else math.inf


Holding = Literal["one", "some", "node"]
"""GPUs of each of its nodes that a group holds: one, some, or all of them."""


@dataclass(frozen=True)
class Wires:
    """What the formulas need of a span: sizes, the ring's bus bandwidth and the channels behind it."""

    ranks: int
    nodes: int
    ranks_per_node: int
    bus_bytes_per_s: float
    channels: float
    extra_latency_s: float
    holds: Holding
    node_class: int
    """0: one node, 1: two nodes, 2: three and more (index into NCCL's per-channel caps)."""


def wires(span: Span, c: NetworkConstants) -> Wires:
    """Reduce a span to what NCCL's formulas use.

    Inside a node the ring runs at the searched share of the NVLink rate. Across nodes every ring passes each node
    boundary once, so the group's bus bandwidth is what it may use out of a node, at most the raw NVLink rate.
    """
    inside = min(span.intra_bytes_per_s * c.caps.search_fraction, c.bus_cap)
    if span.nodes <= 1:
        return Wires(span.ranks, 1, span.ranks, inside, c.caps.channels, 0.0, "node", 0)
    across = span.inter_bytes_per_s * NIC_EFFICIENCY
    bus = min(span.intra_bytes_per_s, across) if span.ranks_per_node > 1 else across
    channels = max(span.inter_bytes_per_s / span.nic_bytes_per_s, 1.0)
    node_class = 1 if span.nodes == 2 else 2
    holds: Holding = "node"
    if span.ranks_per_node < c.gpus_per_node:
        holds = "one" if span.ranks_per_node == 1 else "some"
    return Wires(span.ranks, span.nodes, span.ranks_per_node, bus, channels, span.inter_latency_s, holds, node_class)
