"""What differs between versions of NCCL's tuner, 2.8 to 2.30.

A version is text such as "2.8", "2.23" or "2.27.3"; only the minor number counts. Versions between two tags that were
read take the older one's rules. Source: NCCL src/graph/tuning.cc at 18 tags from 2.8.4 to 2.30.7, values restated.
"""

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from traincast.costs.collectives.nccl import CAPS, NVLS_CAPS, ChannelCaps, Latencies, us
from traincast.errors import DataError

OLDEST, NEWEST = 8, 30
_VERSION = re.compile(r"2\.(\d{1,2})(?:\.\d+)*")

_LATENCIES = (
    (
        8,
        Latencies(
            base_ring=us(3.6, 10, 8.4),
            base_tree=us(4.4, 4.4, 0),
            nvlink_ring=us(0.47, 1.9, 3.4),
            nvlink_tree=us(0.52, 1.25, 28),
            pcie_ring=us(1, 2.5, 5.7),
            pcie_tree=us(1, 1.9, 28),
            network_ring=us(2.7, 4, 9.6),
            network_tree=us(5, 8.5, 28),
            nvls=math.inf,
            nvls_network=math.inf,
        ),
    ),
    (
        18,
        Latencies(
            base_ring=us(6.6, 14, 8.4),
            base_tree=us(6.8, 14, 0),
            nvlink_ring=us(0.6, 1.9, 3.4),
            nvlink_tree=us(0.6, 1.25, 4),
            pcie_ring=us(1, 2.5, 5.7),
            pcie_tree=us(1, 1.9, 6),
            network_ring=us(2.7, 4, 14),
            network_tree=us(5, 8.5, 14),
            nvls=23e-6,
            nvls_network=19e-6,
        ),
    ),
    (
        19,
        Latencies(
            base_ring=us(6.6, 14, 8.4),
            base_tree=us(6.8, 14, 0),
            nvlink_ring=us(0.6, 1.9, 3.4),
            nvlink_tree=us(0.6, 1.25, 28),
            pcie_ring=us(1, 2.5, 5.7),
            pcie_tree=us(1, 1.9, 28),
            network_ring=us(2.7, 4, 14),
            network_tree=us(5, 8.5, 28),
            nvls=23e-6,
            nvls_network=14e-6,
        ),
    ),
    (
        23,
        Latencies(
            base_ring=us(6.6, 14, 8.4),
            base_tree=us(6.8, 14, 8.4),
            nvlink_ring=us(0.6, 1.9, 3.4),
            nvlink_tree=us(0.6, 1.25, 4),
            pcie_ring=us(1, 2.5, 5.7),
            pcie_tree=us(1, 1.9, 4),
            network_ring=us(2.7, 4, 14),
            network_tree=us(5, 8.5, 14),
            nvls=25e-6,
            nvls_network=14e-6,
        ),
    ),
)
"""From which minor version on, and the table."""

_RING_LL128_2_8 = {
    "all_reduce": 16.9e9,
    "all_gather": 18.3e9,
    "reduce_scatter": 15.2e9,
    "broadcast": 18.8e9,
    "reduce": 12e9,
}
"""Bytes/s a channel, on any GPU, before 2.10."""


@dataclass(frozen=True)
class Rules:
    """What else differs.

    `low_latency_share`: LL's bandwidth as a share of the bus (all-reduce and reduce on one node, other collectives on
    one node, several nodes); `low_latency_hop`: factor on LL's hops inside nodes when the group crosses nodes;
    `ring_network_steps`: network steps per round are N + this; `plateau`: factor on the latency of a multi-node Simple
    ring all-reduce once chunks are full; `tree_ll128`: LL128's share of the Simple tree (one node, several);
    `overhead`: hops inside nodes cost at least the CPU's network overhead when the group crosses nodes;
    `lone_ring_hop`: with one GPU a node the ring pays the tree's network hop; `most_channels`: what a group may have.
    """

    minor: int
    low_latency_share: tuple[float, float, float]
    low_latency_hop: float
    ring_network_steps: int
    plateau: float
    tree_ll128: tuple[float, float]
    overhead: bool
    lone_ring_hop: bool
    most_channels: float


@lru_cache(maxsize=256)
def minor_of(version: str) -> int:
    """Minor number of a version, kept within what was read (2.8 to 2.30). Raises DataError for other text."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise DataError(f"NCCL version {version!r} is none", fix='write it like "2.8" or "2.27.3"')
    return min(max(int(match.group(1)), OLDEST), NEWEST)


@lru_cache(maxsize=64)
def latencies_of(version: str) -> Latencies:
    """Latency table of a version."""
    minor = minor_of(version)
    table = [row for since, row in _LATENCIES if since <= minor][-1]
    if 11 <= minor <= 13:
        table = replace(table, network_ring=us(2.7, 4, 28))
    if 21 <= minor <= 22:
        table = replace(table, nvls=25e-6)
    if minor >= 28:
        table = replace(table, nvls_network=20.9e-6)
    return table


@lru_cache(maxsize=64)
def rules_of(version: str) -> Rules:
    """Rules of a version."""
    minor = minor_of(version)
    half = minor >= 21
    return Rules(
        minor=minor,
        low_latency_share=(1 / 2,) * 3 if half else (1 / 4, 1 / 3, 1 / 4),
        low_latency_hop=1.8 if minor < 18 else 1.0,
        ring_network_steps=0 if 11 <= minor <= 22 else -1,
        plateau=1.9 if minor < 18 else 1.4,
        tree_ll128=(7 / 9, 0.915 if minor < 18 else 120 / 128),
        overhead=minor >= 18,
        lone_ring_hop=minor >= 23,
        most_channels=64.0 if minor >= 25 else 32.0,
    )


@lru_cache(maxsize=64)
def caps_of(version: str, generation: str) -> ChannelCaps:
    """Bandwidth caps of a GPU generation in a version."""
    minor, caps = minor_of(version), CAPS[generation]
    if generation == "ampere" and minor < 10:
        caps = replace(caps, tree_ll128=(_RING_LL128_2_8["all_reduce"],) * 3)
    if generation == "blackwell":
        if minor < 28:
            caps = replace(
                caps,
                ring_ll128=(73.4e9,) * 3,
                tree_ll128=(73.4e9, 73.4e9, 58e9),
                tree_simple=(77.4e9, 82.8e9, 72e9),
            )
        elif minor == 28:
            caps = replace(caps, ring_ll128=(73.4e9, 34.6e9, 73.4e9))
    return caps


def ring_ll128_cap(version: str, generation: str, op: str, node_class: int) -> float:
    """Most that one channel of a ring carries with LL128 [bytes/s]."""
    if generation == "ampere" and minor_of(version) < 10:
        return _RING_LL128_2_8[op]
    return caps_of(version, generation).ring_ll128[node_class]


def bus_cap(version: str, generation: str) -> float:
    """Most that a bus may carry by NCCL's account [bytes/s]: 235 GB/s on Ampere before 2.18."""
    return 235e9 if generation == "ampere" and minor_of(version) < 18 else math.inf


def has_ll128(version: str, generation: str, nvlink: bool) -> bool:
    """Whether LL128 is on by itself: NVLink inside the node; on Blackwell since 2.25."""
    return nvlink and (generation != "blackwell" or minor_of(version) >= 25)


def has_nvls(version: str, generation: str) -> bool:
    """Whether NVLink SHARP is there: Hopper and later, since 2.18."""
    return generation in NVLS_CAPS and minor_of(version) >= 18
