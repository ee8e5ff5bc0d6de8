"""What NCCL's own tuner assumes: base and hop latencies, and bandwidth caps by GPU generation.

NCCL picks the algorithm and protocol with the smallest latency + bytes/bandwidth from these tables. They rank and
scale well but read 15 to 45 % low for small and middle sizes, so a profile adds constants of its own
(`network.NetworkConstants`); the choice itself stays with the raw numbers. What differs from version to version is in
`versions`.
Source of the constants: NCCL 2.8 to 2.30, src/graph/tuning.cc, src/graph/topo.h and src/graph/search.cc, values
restated.
"""

from dataclasses import dataclass

PROTOCOLS = ("LL", "LL128", "Simple")

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Latencies:
    """Seconds, in the order LL, LL128, Simple; hops over NVLink, PCIe and the network.

    `nvls` is the latency of NVLink SHARP inside one domain, `nvls_network` a network hop of its tree.
    """

    base_ring: Triple
    base_tree: Triple
    nvlink_ring: Triple
    nvlink_tree: Triple
    pcie_ring: Triple
    pcie_tree: Triple
    network_ring: Triple
    network_tree: Triple
    nvls: float
    nvls_network: float


def us(*values: float) -> Triple:
    """Microseconds as seconds."""
    a, b, c = values
    return (a * 1e-6, b * 1e-6, c * 1e-6)


@dataclass(frozen=True)
class ChannelCaps:
    """Bandwidth caps of one GPU generation and its usual CPU [bytes/s]; tuples are for 1 node, 2 nodes, 3 and more.

    `search_fraction` is the ring bus bandwidth that the topology search finds inside an NVSwitch node, as a share of
    the raw NVLink rate (240 of 300 GB/s on A100, 360 of 450 on H100, 720 of 900 on B200). `ll_max` beyond one node is
    the CPU's (AMD beside A100, Intel beside the others), and so is `network_overhead_s` (three times that for Simple).
    `channels`: channels of the search inside a node.
    """

    search_fraction: float
    ll_max: Triple
    ring_ll128: Triple
    tree_ll128: Triple
    tree_simple: Triple
    channels: int
    network_overhead_s: float


CAPS = {
    "volta": ChannelCaps(0.80, (39e9, 39e9, 20.4e9), (20e9,) * 3, (20e9,) * 3, (26.5e9, 18.5e9, 10e9), 12, 1e-6),
    "ampere": ChannelCaps(0.80, (87.7e9, 22.5e9, 19e9), (20e9,) * 3, (20e9,) * 3, (24e9, 23.6e9, 17.8e9), 12, 2e-6),
    "hopper": ChannelCaps(
        0.80, (141e9, 39e9, 20.4e9), (36.7e9,) * 3, (36.7e9, 36.7e9, 29e9), (38.7e9, 41.4e9, 36e9), 12, 1e-6
    ),
    "blackwell": ChannelCaps(
        0.80, (282e9, 39e9, 20.4e9), (40e9,) * 3, (55.6e9, 31.67e9, 20e9), (70e9, 42.8e9, 24e9), 16, 1e-6
    ),
}
"""The newest version's; `versions.caps_of` has what older ones had."""


@dataclass(frozen=True)
class NvlsCaps:
    """NVLink SHARP on one GPU generation.

    `link_fraction`: share of the raw NVLink rate that the search gives a GPU's links (20.6 of 25 GB/s a link on H100,
    40.1 of 50 on B200). `speeds_inside`, `speeds_across`: speeds that the search tries for one head [bytes/s].
    `efficiency`: share of the links that multicast reaches (2.28 and later). `tree`: cap of NVLSTree per head on 2
    nodes and on 3 and more. `least_ranks`: ranks of a domain below which NVLS is not used even where it is asked for.
    """

    link_fraction: float
    speeds_inside: tuple[float, ...]
    speeds_across: tuple[float, ...]
    efficiency: float
    tree: tuple[float, float]
    least_ranks: int


NVLS_HEADS = 32
"""Most heads of an NVLS graph (nccl device.h)."""

NVLS_CAPS = {
    "hopper": NvlsCaps(
        20.6 / 25,
        tuple(s * 1e9 for s in (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3)),
        tuple(s * 1e9 for s in (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3)),
        0.85,
        (57.7e9, 45.5e9),
        5,
    ),
    "blackwell": NvlsCaps(
        40.1 / 50,
        tuple(s * 1e9 for s in (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)),
        tuple(s * 1e9 for s in (96, 90, 80, 70, 60, 50, 48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3)),
        0.74,
        (96e9, 43.8e9),
        3,
    ),
}
"""Generations with multicast in their NVSwitches. On H100, NCCL_ALGO=NVLS on 2 to 4 GPUs runs at the ring's rate
(github.com/NVIDIA/nccl issue 1455)."""

TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7),
        *(0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}
"""Tree bandwidth multiplier for sizes 64 B to 256 MiB in powers of two."""
