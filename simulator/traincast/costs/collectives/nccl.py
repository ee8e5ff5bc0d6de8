"""What NCCL's own tuner assumes: base and hop latencies and per-channel caps by version and GPU generation.

NCCL picks the algorithm and protocol with the smallest latency + bytes/bandwidth from these tables. They rank and
scale well but read 15 to 45 % low for small and middle sizes, so a profile adds a launch time, a latency factor, a
bandwidth factor and a mixing term (`network.NetworkConstants`); the choice itself stays with the raw numbers.
Source of the constants: NCCL 2.8 to 2.30, src/graph/tuning.cc and src/graph/topo.h, values restated. Three families of
versions are told apart: "2.8" (to 2.16), "2.19" (2.18 to 2.22) and "2.23" (and later).
"""

from dataclasses import dataclass

PROTOCOLS = ("LL", "LL128", "Simple")


@dataclass(frozen=True)
class Latencies:
    """Seconds, in the order LL, LL128, Simple."""

    base_ring: tuple[float, float, float]
    base_tree: tuple[float, float, float]
    nvlink_ring: tuple[float, float, float]
    nvlink_tree: tuple[float, float, float]
    network_ring: tuple[float, float, float]
    network_tree: tuple[float, float, float]


def _us(*values: float) -> tuple[float, float, float]:
    a, b, c = values
    return (a * 1e-6, b * 1e-6, c * 1e-6)


LATENCIES = {
    "2.8": Latencies(
        base_ring=_us(3.6, 10, 8.4),
        base_tree=_us(4.4, 4.4, 0),
        nvlink_ring=_us(0.47, 1.9, 3.4),
        nvlink_tree=_us(0.52, 1.25, 28),
        network_ring=_us(2.7, 4, 9.6),
        network_tree=_us(5, 8.5, 28),
    ),
    "2.19": Latencies(
        base_ring=_us(6.6, 14, 8.4),
        base_tree=_us(6.8, 14, 0),
        nvlink_ring=_us(0.6, 1.9, 3.4),
        nvlink_tree=_us(0.6, 1.25, 28),
        network_ring=_us(2.7, 4, 14),
        network_tree=_us(5, 8.5, 28),
    ),
    "2.23": Latencies(
        base_ring=_us(6.6, 14, 8.4),
        base_tree=_us(6.8, 14, 8.4),
        nvlink_ring=_us(0.6, 1.9, 3.4),
        nvlink_tree=_us(0.6, 1.25, 4),
        network_ring=_us(2.7, 4, 14),
        network_tree=_us(5, 8.5, 14),
    ),
}


@dataclass(frozen=True)
class Rules:
    """What else differs between versions of the tuner.

    `low_latency_share`: LL's bandwidth as a share of the bus (one node, several); `low_latency_hop`: factor on LL's
    hops inside nodes when the group crosses nodes; `ring_network_steps`: network steps per round are N + this;
    `plateau`: factor on the latency of a multi-node Simple ring all-reduce once chunks are full; `tree_ll128`: LL128's
    share of the Simple tree (one node, several); `overhead`: hops inside nodes cost at least the CPU's network
    overhead when the group crosses nodes.
    """

    low_latency_share: tuple[float, float]
    low_latency_hop: float
    ring_network_steps: int
    plateau: float
    tree_ll128: tuple[float, float]
    overhead: bool


RULES = {
    "2.8": Rules((1 / 4, 1 / 4), 1.8, -1, 1.9, (7 / 9, 0.915), False),
    "2.19": Rules((1 / 2, 1 / 2), 1.0, 0, 1.4, (7 / 9, 120 / 128), True),
    "2.23": Rules((1 / 2, 1 / 2), 1.0, -1, 1.4, (7 / 9, 120 / 128), True),
}


@dataclass(frozen=True)
class ChannelCaps:
    """Bandwidth caps of one GPU generation and its usual CPU [bytes/s]; tuples are for 1 node, 2 nodes, 3 and more.

    `search_fraction` is the ring bus bandwidth that the topology search finds inside an NVSwitch node, as a share of
    the raw NVLink rate (240 of 300 GB/s on A100, 360 of 450 on H100). `ll_max` beyond one node is the CPU's (AMD beside
    A100, Intel beside the others), and so is `network_overhead_s` (three times that for Simple).
    `channels`: channels of the search inside a node.
    """

    search_fraction: float
    ll_max: tuple[float, float, float]
    ring_ll128: float
    tree_ll128: tuple[float, float, float]
    tree_simple: tuple[float, float, float]
    channels: int
    network_overhead_s: float


CAPS = {
    "volta": ChannelCaps(0.80, (39e9, 39e9, 20.4e9), 20e9, (20e9,) * 3, (26.5e9, 18.5e9, 10e9), 12, 1e-6),
    "ampere": ChannelCaps(0.80, (87.7e9, 22.5e9, 19e9), 20e9, (20e9,) * 3, (24e9, 23.6e9, 17.8e9), 12, 2e-6),
    "hopper": ChannelCaps(
        0.80, (141e9, 39e9, 20.4e9), 36.7e9, (36.7e9, 36.7e9, 29e9), (38.7e9, 41.4e9, 36e9), 12, 1e-6
    ),
    "blackwell": ChannelCaps(
        0.78, (282e9, 39e9, 20.4e9), 40e9, (55.6e9, 31.67e9, 20e9), (77.4e9, 42.8e9, 24e9), 16, 1e-6
    ),
}

AMPERE_2_8 = {"bus_cap": 235e9, "ring_ll128": 16.9e9, "tree_ll128": 16.9e9}
"""Before 2.18 an Ampere node's bus is capped at 235 GB/s and LL128 carries 16.9 GB/s a channel (all-reduce)."""

TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7),
        *(0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}
"""Tree bandwidth multiplier for sizes 64 B to 256 MiB in powers of two."""
