"""What NCCL's own tuner assumes: base and hop latencies and per-channel caps by version and GPU generation.

NCCL picks the algorithm and protocol with the smallest latency + bytes/bandwidth from these tables. They rank and
scale well but read 15 to 45 % low for small and middle sizes, so a profile adds a launch time, a latency factor, a
bandwidth factor and a mixing term (`Network` below); the choice itself stays with the raw numbers.
Source of the constants: NCCL 2.8-2.30, src/graph/tuning.cc (values restated; see each field).
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
class ChannelCaps:
    """Bandwidth caps of one GPU generation [bytes/s]; tuples are for 1 node, 2 nodes, 3 and more.

    `search_fraction` is the ring bus bandwidth that the topology search finds inside an NVSwitch node, as a share of
    the raw NVLink rate (235 of 300 GB/s on A100, 360 of 450 on H100).
    """

    search_fraction: float
    ll_max: tuple[float, float, float]
    ring_ll128: float
    tree_ll128: float
    tree_simple: tuple[float, float, float]
    channels: int


CAPS = {
    "volta": ChannelCaps(0.80, (39e9, 39e9, 20.4e9), 20e9, 20e9, (26.5e9, 18.5e9, 10e9), 12),
    "ampere": ChannelCaps(0.783, (87.7e9, 22.5e9, 19e9), 16.9e9, 16.9e9, (24e9, 22.5e9, 16e9), 12),
    "hopper": ChannelCaps(0.80, (141e9, 45e9, 35e9), 36.7e9, 36.7e9, (38.7e9, 41.4e9, 36e9), 12),
    "blackwell": ChannelCaps(0.78, (282e9, 90e9, 70e9), 40e9, 55.6e9, (77.4e9, 42.8e9, 24e9), 16),
}

TREE_CORRECTION = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7),
        *(0.8, 0.7, 0.7, 0.8, 0.9, 0.9),
    ),
}
"""Tree bandwidth multiplier for sizes 64 B to 256 MiB in powers of two."""
