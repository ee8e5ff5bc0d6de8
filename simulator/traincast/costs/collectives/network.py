"""The wires of one group and the calibrated constants that turn NCCL's numbers into seconds."""

from dataclasses import dataclass, field
from typing import Literal

from traincast.costs.collectives.nccl import ChannelCaps, Latencies
from traincast.costs.collectives.versions import Rules, bus_cap, caps_of, latencies_of, rules_of
from traincast.topology import Span

NIC_EFFICIENCY = 0.96
"""Share of a NIC's raw rate that NCCL's topology search assumes (24 of 25 GB/s for HDR; nccl graph/topo.h)."""


@dataclass(frozen=True)
class NvlsConstants:
    """NVLink SHARP: factors on NCCL's latency and on the bandwidth of multicast, the mixing term, and the share by
    which the latency grows with each doubling of the domain beyond 8 GPUs."""

    latency_factor: float = 1.0
    growth: float = 0.0
    efficiency: float = 1.0
    mixing: float = 0.0


@dataclass(frozen=True)
class ExchangeConstants:
    """All-to-all: `launch_s` beyond that of a collective, `handshake_s` of blocks that go Simple, `peer_s` for each
    further peer, factors on the bandwidth inside and across nodes, the mixing term, and what copying a rank's own
    block costs as a share of sending it."""

    launch_s: float = 0.0
    handshake_s: float = 0.0
    peer_s: float = 0.0
    efficiency: float = 1.0
    inter_efficiency: float = 1.0
    mixing: float = 0.0
    own_share: float = 0.0


@dataclass(frozen=True)
class FabricConstants:
    """What a fabric adds to NCCL's picture of it.

    `hop_s`: latency of a network hop beyond NCCL's and the span's (a plug-in's own; virtual machines); `ring_hop_s`:
    the same again in rings. `wire`: share of the NIC rate that NCCL assumes which the fabric carries. `overlap`:
    latency and transfer of a ring of n ranks join as (L^p + X^p)^(1/p) with p = 1 + overlap * log2(n/8): 0 adds them,
    and the longer the ring, the closer they come to their maximum; up to 8 ranks they add up.
    """

    hop_s: float = 0.0
    ring_hop_s: float = 0.0
    wire: float = 1.0
    overlap: float = 0.0


@dataclass(frozen=True)
class NetworkConstants:
    """Calibrated constants of one fabric under one stack.

    `launch_s`: time of an empty collective (t0), `latency_factor` (lambda) on NCCL's latencies, `*_efficiency` (eta) on
    its bandwidths, `mixing` (g) on sqrt(latency * transfer): the pipeline of chunks is not full at middle sizes.
    The first set serves groups inside a node, the second those that cross nodes; `one_efficiency` and
    `some_efficiency` are further factors where the group holds one GPU or some of the GPUs of its nodes, so that its
    siblings drive the other NICs at the same time; `message_*` serve send/recv.
    `base_factor` is a further factor on NCCL's base latencies, `edge_steps` the ring steps that a chunk takes beyond
    those that carry it on (NCCL's kernel runs n of them a round where n - 1 count). `nvls_on`: NVLink SHARP is not
    switched off. With the defaults the further terms vanish.
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
    base_factor: float = 1.0
    edge_steps: float = 0.0
    nvls_on: bool = True
    nvls: NvlsConstants = field(default_factory=NvlsConstants)
    exchange: ExchangeConstants = field(default_factory=ExchangeConstants)
    fabric: FabricConstants = field(default_factory=FabricConstants)

    @property
    def latencies(self) -> Latencies:
        """NCCL's latency table of this version."""
        return latencies_of(self.nccl)

    @property
    def rules(self) -> Rules:
        """What else this version does differently."""
        return rules_of(self.nccl)

    @property
    def caps(self) -> ChannelCaps:
        """NCCL's bandwidth caps of this GPU generation, in this version."""
        return caps_of(self.nccl, self.generation)


Holding = Literal["one", "some", "node"]
"""GPUs of each of its nodes that a group holds: one, some, or all of them."""


@dataclass(frozen=True)
class Wires:
    """What the formulas need of a span: sizes, the ring's bus bandwidth and the channels behind it.

    `node_class` 0: one node, 1: two nodes, 2: three and more (index into NCCL's per-channel caps). `nvlink`: the GPUs
    of a node are joined by NVLink, `link_bytes_per_s` its raw rate a GPU; without it the ring takes PCIe.
    `out_bytes_per_s` is what all of the group's GPUs of a node have out of it by NCCL's account.
    """

    ranks: int
    nodes: int
    ranks_per_node: int
    bus_bytes_per_s: float
    channels: float
    extra_latency_s: float
    holds: Holding
    node_class: int
    nvlink: bool = True
    link_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0


FASTEST_PCIE_BYTES_PER_S = 64e9
"""A group of several nodes whose path inside them is no faster than PCIe gen5 x16 has no NVLink there."""


def wires(span: Span, c: NetworkConstants) -> Wires:
    """Reduce a span to what NCCL's formulas use.

    Inside a node the ring runs at the searched share of the NVLink rate. Across nodes every ring passes each node
    boundary once, so the group's bus bandwidth is what it may use out of a node, at most the raw NVLink rate.
    """
    link = span.intra_bytes_per_s
    if span.nodes <= 1:
        nvlink = span.tier != "pcie"
        inside = min(link * c.caps.search_fraction, bus_cap(c.nccl, c.generation))
        return Wires(span.ranks, 1, span.ranks, inside, c.caps.channels, 0.0, "node", 0, nvlink, link)
    across = span.inter_bytes_per_s * NIC_EFFICIENCY
    bus = min(link, across) if span.ranks_per_node > 1 else across
    channels = min(max(span.inter_bytes_per_s / span.nic_bytes_per_s, 1.0), c.rules.most_channels)
    node_class = 1 if span.nodes == 2 else 2
    nvlink = span.ranks_per_node == 1 or link > FASTEST_PCIE_BYTES_PER_S
    holds: Holding = "node"
    if span.ranks_per_node < c.gpus_per_node:
        holds = "one" if span.ranks_per_node == 1 else "some"
    return Wires(
        ranks=span.ranks,
        nodes=span.nodes,
        ranks_per_node=span.ranks_per_node,
        bus_bytes_per_s=bus,
        channels=channels,
        extra_latency_s=span.inter_latency_s,
        holds=holds,
        node_class=node_class,
        nvlink=nvlink,
        link_bytes_per_s=link,
        out_bytes_per_s=across,
    )


def across_efficiency(w: Wires, c: NetworkConstants) -> float:
    """Share of NCCL's bandwidth that a group reaches across nodes.

    Groups that hold whole nodes reach `inter_efficiency`. Where several groups run side by side on the NICs of a node
    (gradients beside tensor parallelism) they reach less of their static share: SC21 §5.9 measures 12.9 TB/s of
    data-parallel bisection traffic where 384 nodes have 38 TB/s each way.
    """
    further = {"one": c.one_efficiency, "some": c.some_efficiency, "node": 1.0}[w.holds]
    return c.inter_efficiency * further
