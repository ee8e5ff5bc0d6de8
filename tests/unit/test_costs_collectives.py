"""Collectives: NCCL's own numbers for known systems, and laws of the calibrated formula."""

from dataclasses import replace
from itertools import pairwise

import pytest

from traincast.costs.collectives import NetworkConstants, choose, collective_seconds, fill_s, message_seconds, wires
from traincast.costs.collectives.ring import ring_bytes_per_s, ring_latency_s
from traincast.costs.collectives.tree import tree_bytes_per_s, tree_latency_s
from traincast.topology import Span

TINY = 64.0
"""Bytes: no plateau, and the tree's correction is that of the smallest size (1, 1, 0.9)."""


def constants(nccl: str, generation: str) -> NetworkConstants:
    """NCCL's numbers as they are."""
    return NetworkConstants(
        nccl=nccl,
        generation=generation,
        launch_s=0.0,
        intra_latency_factor=1.0,
        intra_efficiency=1.0,
        intra_mixing=0.0,
        inter_latency_factor=1.0,
        inter_efficiency=1.0,
        inter_mixing=0.0,
        one_efficiency=1.0,
        some_efficiency=1.0,
        message_launch_s=0.0,
        message_efficiency=1.0,
        gpus_per_node=8,
    )


def whole_nodes(nodes: int, nvlink: float, nic: float) -> Span:
    across = 8 * nic if nodes > 1 else 0.0
    return Span(8 * nodes, nodes, 8, "leaf", nvlink, 0.0, across, 0.0, nic, 1.0)


A100, H100 = (300e9, 25e9), (450e9, 50e9)

# What NCCL's tuner prints (latency us, algorithm bandwidth GB/s), all-reduce, in the order Ring LL, LL128, Simple,
# Tree LL, LL128, Simple; computed from its tables at the tags 2.8.4 and 2.23.4
PRINTED = {
    ("2.8", "ampere", 1, A100): ((10.2, 33.6), (36.6, 115.9), (56.0, 134.3), (11.7, 28.4), (21.9, 84.1), (392, 108)),
    ("2.23", "ampere", 1, A100): ((15.0, 50.1), (40.6, 126.2), (56.0, 137.1), (15.2, 29.1), (31.5, 85.9), (64.4, 110)),
    ("2.8", "ampere", 16, A100): ((274, 9.6), (556, 68.1), (1058, 96.8), (57.5, 9.5), (89.9, 65.1), (616, 71.2)),
    ("2.23", "ampere", 16, A100): ((536, 9.6), (582, 80.6), (1772, 96.8), (55.2, 9.5), (99.5, 66.8), (176, 71.2)),
    ("2.23", "hopper", 1, H100): (
        (15.0, 80.6),
        (40.6, 189.3),
        (56.0, 205.7),
        (15.2, 43.6),
        (31.5, 128.8),
        (64.4, 165.6),
    ),
    ("2.23", "hopper", 2, H100): (
        (40.0, 20.8),
        (75.2, 156.6),
        (131.6, 204.8),
        (25.2, 19.5),
        (48.5, 146.8),
        (92.4, 165.6),
    ),
    ("2.23", "hopper", 4, H100): (
        (78.8, 10.5),
        (144.4, 151.5),
        (282.8, 198.2),
        (35.2, 10.2),
        (65.5, 116),
        (120.4, 144),
    ),
    ("2.23", "hopper", 128, H100): ((2484, 10.2), (4435, 147), (9657, 192), (85.2, 10.2), (150.5, 116), (260, 144)),
}


@pytest.mark.parametrize(("case", "printed"), PRINTED.items(), ids=[f"{c[0]} {c[1]} {c[2]} nodes" for c in PRINTED])
def test_tuner_numbers(
    case: tuple[str, str, int, tuple[float, float]], printed: tuple[tuple[float, float], ...]
) -> None:
    nccl, generation, nodes, (nvlink, nic) = case
    c = constants(nccl, generation)
    w = wires(whole_nodes(nodes, nvlink, nic), c)
    ours = [(ring_latency_s("all_reduce", p, TINY, w, c), ring_bytes_per_s("all_reduce", p, w, c)) for p in range(3)]
    corrected = (1.0, 1.0, 0.9)
    ours += [(tree_latency_s(p, w, c), tree_bytes_per_s(p, TINY, w, c) / corrected[p]) for p in range(3)]
    for (latency, rate), (latency_us, rate_gb) in zip(ours, printed, strict=True):
        assert latency * 1e6 == pytest.approx(latency_us, rel=0.01)
        assert rate / 1e9 == pytest.approx(rate_gb, rel=0.011)


def test_choice_by_size_on_eight_a100() -> None:
    """NCCL 2.8 on one node: Ring LL below 1.25 MB, Ring LL128 to 16.4 MB, Ring Simple above (worked example)."""
    c = constants("2.8", "ampere")
    w = wires(whole_nodes(1, *A100), c)
    found = [choose("all_reduce", size, w, c) for size in (65536.0, 4e6, 64e6)]
    assert [(f.algorithm, f.protocol) for f in found] == [("ring", "LL"), ("ring", "LL128"), ("ring", "Simple")]


def test_time_grows_with_size_and_with_nodes() -> None:
    c = constants("2.8", "ampere")
    spans = [whole_nodes(n, *A100) for n in (1, 2, 4, 16)]
    times = [[collective_seconds("all_reduce", 2.0**k, s, c) for k in range(10, 34)] for s in spans]
    assert all(a <= b for row in times for a, b in pairwise(row))
    assert all(a <= b for row in zip(*times, strict=True) for a, b in pairwise(row))


def test_all_reduce_moves_what_reduce_scatter_and_all_gather_move() -> None:
    """At large sizes an all-reduce takes as long as both of its halves (launch and latency aside)."""
    c, s = constants("2.8", "ampere"), whole_nodes(4, *A100)
    both = collective_seconds("reduce_scatter", 8e9, s, c) + collective_seconds("all_gather", 8e9, s, c)
    assert collective_seconds("all_reduce", 8e9, s, c) == pytest.approx(both, rel=0.02)


def test_groups_that_hold_part_of_their_nodes_reach_less() -> None:
    c = replace(constants("2.8", "ampere"), one_efficiency=0.5, some_efficiency=0.25)
    one = Span(8, 8, 1, "leaf", 300e9, 0.0, 25e9, 0.0, 25e9, 1.0)
    some = Span(16, 8, 2, "leaf", 300e9, 0.0, 50e9, 0.0, 25e9, 1.0)
    whole = constants("2.8", "ampere")
    assert collective_seconds("all_reduce", 1e10, one, c) == pytest.approx(
        2 * collective_seconds("all_reduce", 1e10, one, whole), rel=0.02
    )
    assert collective_seconds("all_reduce", 1e10, some, c) == pytest.approx(
        4 * collective_seconds("all_reduce", 1e10, some, whole), rel=0.02
    )


def test_nothing_to_do_takes_no_time() -> None:
    c = constants("2.8", "ampere")
    alone = Span(1, 1, 1, "self", 300e9, 0.0, 0.0, 0.0, 25e9, 1.0)
    assert collective_seconds("all_reduce", 1e6, alone, c) == 0.0
    assert collective_seconds("all_reduce", 0.0, whole_nodes(2, *A100), c) == 0.0
    assert message_seconds(0.0, whole_nodes(2, *A100), c) == 0.0


def test_a_chain_fills_hop_by_hop() -> None:
    """Four NICs of 12.5 GB/s a node: 3.4 us and 2 MiB at 300 GB/s (7.0 us) a hop inside, 9.6 us and 2 MiB at 48 GB/s
    (43.7 us) a hop across; less for what is smaller than a chunk of each channel, nothing more for what is larger."""
    c = constants("2.8", "ampere")

    def fill(nodes: int, size: float) -> float:
        return fill_s(size, wires(Span(8 * nodes, nodes, 8, "leaf", 300e9, 0.0, 50e9, 0.0, 12.5e9, 1.0), c), c)

    inside_s, across_s = 3.4e-6 + 2**21 / 300e9, 9.6e-6 + 2**21 / 48e9
    assert fill(128, 64e6) == pytest.approx(896 * inside_s + 127 * across_s)
    assert fill(128, 64e9) == fill(128, 64e6)
    assert fill(2, 2**20) == pytest.approx(14 * (inside_s - 2**20 / 300e9) + across_s - 2**20 / 48e9)
