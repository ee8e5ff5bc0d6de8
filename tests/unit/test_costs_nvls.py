"""NVLink SHARP, versions of the tuner, forced algorithms, PCIe boxes, long rings, all-to-all."""

from dataclasses import replace

import numpy as np
import pytest

from traincast.costs.collectives import (
    ExchangeConstants,
    FabricConstants,
    Forced,
    NetworkConstants,
    NvlsConstants,
    choose,
    collective_seconds,
    wires,
)
from traincast.costs.collectives.nccl import NVLS_CAPS
from traincast.costs.collectives.nvls import nvls_choice, nvls_rates
from traincast.costs.collectives.option import Parts, Terms, parts_of, total_seconds
from traincast.costs.collectives.ring import ring_bytes_per_s, ring_latency_s
from traincast.costs.collectives.select import terms_of
from traincast.costs.collectives.versions import caps_of, latencies_of, minor_of, rules_of
from traincast.errors import DataError
from traincast.topology import Span


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


def domain(ranks: int, link: float) -> Span:
    return Span(ranks, 1, ranks, "nvlink", link, 0.0, 0.0, 0.0, 0.0, 1.0)


def nodes_of_8(nodes: int, link: float, nic: float) -> Span:
    return Span(8 * nodes, nodes, 8, "leaf", link, 0.0, 8 * nic, 0.0, nic, 1.0)


H100, B200 = 450e9, 900e9


@pytest.mark.parametrize(
    ("nodes", "latency_us", "rate_gb"),
    [(1, 25, 266.7), (2, 53, 300), (4, 81, 150), (8, 109, 150), (128, 221, 150)],
)
def test_tuner_numbers_of_nvls(nodes: int, latency_us: float, rate_gb: float) -> None:
    """NVLS and NVLSTree of NCCL 2.23 on H100 with 8 NDR NICs, as its tuner computes them (latency, algbw)."""
    c = constants("2.23", "hopper")
    span = domain(8, H100) if nodes == 1 else nodes_of_8(nodes, H100, 50e9)
    choice = nvls_choice("all_reduce", wires(span, c), c)
    assert choice.latency_s * 1e6 == pytest.approx(latency_us, rel=0.01)
    assert choice.bytes_per_s / 1e9 == pytest.approx(rate_gb, rel=0.01)


def test_tuner_number_of_2_28() -> None:
    """8 H100: 272 GB/s from 2.28 on (8 heads of 40 GB/s, twice, at 0.85 and 7/8)."""
    c = constants("2.28", "hopper")
    assert nvls_choice("all_reduce", wires(domain(8, H100), c), c).bytes_per_s / 1e9 == pytest.approx(272, rel=0.005)


@pytest.mark.parametrize(("ranks", "measured"), [(5, 420), (6, 440), (7, 460), (8, 480)])
def test_bus_bandwidth_of_nvls_follows_the_links(ranks: int, measured: float) -> None:
    """H100, 4 GiB, github.com/NVIDIA/nccl issue 1455: the bytes on a port give the measured bus bandwidths to 3 %."""
    c = constants("2.23", "hopper")
    _, rate = nvls_rates("all_reduce", wires(domain(ranks, H100), c), NVLS_CAPS["hopper"])
    assert rate * 2 * (ranks - 1) / ranks / 1e9 == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(
    ("nccl", "generation", "link", "ranks", "algorithm"),
    [
        ("2.23", "hopper", H100, 2, "ring"),
        ("2.23", "hopper", H100, 4, "ring"),
        ("2.23", "hopper", H100, 5, "nvls"),
        ("2.23", "hopper", H100, 8, "nvls"),
        ("2.27", "blackwell", B200, 5, "ring"),
        ("2.27", "blackwell", B200, 6, "nvls"),
        ("2.16", "hopper", H100, 8, "ring"),
        ("2.27", "ampere", 300e9, 8, "ring"),
    ],
)
def test_nvls_takes_over(nccl: str, generation: str, link: float, ranks: int, algorithm: str) -> None:
    """8 GB on one node: H200 from 5 GPUs, B200 from 6 (github.com/stas00/ml-engineering, network README, NCCL 2.27.7);
    never before 2.18 nor on Ampere."""
    c = constants(nccl, generation)
    assert choose("all_reduce", 8e9, wires(domain(ranks, link), c), c).algorithm == algorithm


def test_small_messages_and_other_collectives_stay_with_rings() -> None:
    c = constants("2.23", "hopper")
    w = wires(domain(8, H100), c)
    assert choose("all_reduce", 65536.0, w, c).protocol == "LL"
    assert choose("all_gather", 8e9, w, c).algorithm == "ring"
    off = replace(c, nvls_on=False)
    assert choose("all_reduce", 8e9, w, off).algorithm == "ring"


def test_what_is_forced_is_taken_where_it_can_run() -> None:
    """NCCL_ALGO=NVLS on 2 to 4 H100 runs at the ring's rate (nccl issue 1455); Blackwell uses it from 3 GPUs."""
    c = constants("2.23", "hopper")
    nvls = Forced(frozenset({"nvls"}))
    assert choose("all_reduce", 4e9, wires(domain(4, H100), c), c, nvls).algorithm == "ring"
    assert choose("all_reduce", 1e4, wires(domain(8, H100), c), c, nvls).algorithm == "nvls"
    b = constants("2.29", "blackwell")
    assert choose("all_reduce", 4e9, wires(domain(4, B200), b), b, nvls).algorithm == "nvls"
    ring = Forced(frozenset({"ring"}), frozenset({"LL128"}))
    found = choose("all_reduce", 4e9, wires(nodes_of_8(4, H100, 50e9), c), c, ring)
    assert (found.algorithm, found.protocol) == ("ring", "LL128")


def test_two_nodes_beat_the_wire_and_more_do_not() -> None:
    """A tree over two nodes sends each byte out of a node once, over more nodes twice: large all-reduces on 2, 4 and 8
    nodes of 8 H100 with 8 NDR NICs reach about 470, 365 and 360 GB/s (nccl-tests issues 309 and 293)."""
    c = constants("2.26", "hopper")
    busbw = []
    for n in (2, 4, 8):
        span = nodes_of_8(n, H100, 50e9)
        busbw.append(2 * (8 * n - 1) / (8 * n) * 8e9 / collective_seconds("all_reduce", 8e9, span, c) / 1e9)
    assert busbw[0] > 430 > busbw[1]
    assert all(300 < rate < 400 for rate in busbw[1:])


def test_long_rings_take_the_maximum_of_latency_and_transfer() -> None:
    """1,024 H100, forced Ring/LL128 (nccl-tests issue 322): 19.2, 19.9, 25.4, 46.9, 93.4 ms at 1 to 16 GiB; the sum of
    latency and transfer is far off, max(2 (n-1) 9.4 us, S / 184 GB/s) holds, and the joint form tends to it."""
    measured = np.array([19.189, 19.9, 25.377, 46.9, 93.4]) * 1e-3
    size = 2.0 ** np.arange(30, 35)
    parts = Parts(size, 0.0, np.full(5, 2046 * 9.4e-6), 0.0, np.full(5, 184e9), np.full(5, np.inf), 0.0)
    ring = Terms(0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, np.full(5, 6.25))
    added = replace(ring, overlap=1.0)
    assert np.abs(total_seconds(parts, ring) / measured - 1).max() < 0.13
    assert np.abs(total_seconds(parts, replace(ring, overlap=np.full(5, 40.0))) / measured - 1).max() < 0.09
    assert np.abs(total_seconds(parts, added) / measured - 1).max() > 0.6


def test_rings_of_up_to_eight_ranks_add_and_the_exponent_grows_with_their_length() -> None:
    c = replace(constants("2.23", "hopper"), fabric=FabricConstants(overlap=0.75))
    terms = {}
    for ranks in (4, 8, 64):
        w = wires(domain(ranks, B200), c)
        terms[ranks] = terms_of(choose("all_gather", 1e9, w, c), w, c).overlap
    assert terms == {4: 1.0, 8: 1.0, 64: 1.0 + 0.75 * 3}


def test_pcie_boxes_have_pcie_latencies_and_no_ll128() -> None:
    """NCCL's hops over PCIe: ring 1 / 2.5 / 5.7 us; LL128 needs NVLink."""
    c = constants("2.23", "ampere")
    w = wires(Span(4, 1, 4, "pcie", 26e9, 1e-6, 0.0, 0.0, 0.0, 1.0), c)
    assert ring_latency_s("all_reduce", 2, 1e6, w, c) == pytest.approx(8.4e-6 + 6 * 5.7e-6)
    assert ring_latency_s("all_reduce", 0, 1e6, w, c) == pytest.approx(6.6e-6 + 6 * 1e-6)
    assert {choose("all_reduce", 2.0**k, w, c).protocol for k in range(10, 34)} == {"LL", "Simple"}


def test_broadcast_is_one_pipeline() -> None:
    """Base and one hop; the whole bus bandwidth (superbench, 8 A100: 233 GB/s at 8 GiB)."""
    c = constants("2.8", "ampere")
    w = wires(domain(8, 300e9), c)
    assert ring_latency_s("broadcast", 2, 1e9, w, c) == pytest.approx(8.4e-6 + 3.4e-6)
    assert ring_bytes_per_s("broadcast", 2, w, c) == 235e9


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_all_to_all_across_nodes_is_bound_by_the_gpus_own_nic(nodes: int) -> None:
    """busbw tends to the NIC's rate times N/(N-1) (NCCL's maintainers, nccl-tests issues 130 and 267)."""
    c = constants("2.23", "hopper")
    size, n = 1e12, 8 * nodes
    seconds = collective_seconds("all_to_all", size, nodes_of_8(nodes, H100, 50e9), c)
    busbw = size * (n - 1) / n / seconds
    assert busbw == pytest.approx(48e9 * (nodes / (nodes - 1)) * (n - 1) / n, rel=0.01)


def test_large_blocks_of_an_all_to_all_shake_hands() -> None:
    e = ExchangeConstants(launch_s=5e-6, handshake_s=3e-6, peer_s=1e-7)
    c, plain = constants("2.23", "hopper"), constants("2.23", "hopper")
    c = replace(c, exchange=e)
    span = domain(8, H100)
    small, large = 8 * 16384.0, 8 * 16384.0 + 8

    def added(size: float) -> float:
        return collective_seconds("all_to_all", size, span, c) - collective_seconds("all_to_all", size, span, plain)

    assert added(small) == pytest.approx(5e-6 + 6e-7)
    assert added(large) == pytest.approx(8e-6 + 6e-7)


def test_further_terms_vanish_at_their_defaults() -> None:
    """t0 + lambda L + S/(eta B) + g sqrt(lambda L S/(eta B)), and nothing else."""
    c = replace(
        constants("2.8", "ampere"), launch_s=9e-6, inter_latency_factor=1.4, inter_efficiency=0.9, inter_mixing=0.3
    )
    for size in (1e3, 1e6, 1e9):
        w = wires(nodes_of_8(4, 300e9, 25e9), c)
        o = choose("all_reduce", size, w, c)
        latency, transfer = 1.4 * o.latency_s, size / (0.9 * o.bytes_per_s)
        expected = 9e-6 + latency + transfer + 0.3 * (latency * transfer) ** 0.5
        assert collective_seconds("all_reduce", size, nodes_of_8(4, 300e9, 25e9), c) == pytest.approx(
            expected, rel=1e-12
        )


def test_one_formula_for_numbers_and_arrays() -> None:
    c = replace(constants("2.23", "hopper"), nvls=NvlsConstants(0.8, 1.0, 1.1), intra_mixing=0.2, base_factor=0.5)
    w = wires(domain(8, H100), c)
    sizes = [2.0**k for k in range(10, 34, 3)]
    for size in sizes:
        o = choose("all_reduce", size, w, c)
        p = parts_of(o, size)
        columns = Parts(**{k: np.array([v, v]) for k, v in vars(p).items()})
        assert total_seconds(columns, terms_of(o, w, c)) == pytest.approx([total_seconds(p, terms_of(o, w, c))] * 2)


@pytest.mark.parametrize(
    ("version", "ring_steps", "overhead", "low_latency", "simple_hop"),
    [
        ("2.8.4", -1, False, 1 / 4, 9.6e-6),
        ("2.12.12", 0, False, 1 / 4, 28e-6),
        ("2.16.5", 0, False, 1 / 4, 9.6e-6),
        ("2.18.5", 0, True, 1 / 4, 14e-6),
        ("2.21.5", 0, True, 1 / 2, 14e-6),
        ("2.23.4", -1, True, 1 / 2, 14e-6),
        ("2.30.7", -1, True, 1 / 2, 14e-6),
    ],
)
def test_versions(version: str, ring_steps: int, overhead: bool, low_latency: float, simple_hop: float) -> None:
    """NCCL src/graph/tuning.cc at these tags."""
    rules, table = rules_of(version), latencies_of(version)
    assert (rules.ring_network_steps, rules.overhead) == (ring_steps, overhead)
    assert rules.low_latency_share[0] == low_latency
    assert table.network_ring[2] == simple_hop


def test_blackwell_caps_by_version() -> None:
    """LL128 a channel: 73.4 GB/s to 2.28 (34.6 on two nodes in it), 40 from 2.29; none before 2.25."""
    assert [caps_of(v, "blackwell").ring_ll128[1] / 1e9 for v in ("2.27", "2.28", "2.29")] == [73.4, 34.6, 40.0]
    c = constants("2.24", "blackwell")
    w = wires(domain(4, B200), c)
    assert {choose("all_gather", 2.0**k, w, c).protocol for k in range(10, 34)} == {"LL", "Simple"}


@pytest.mark.parametrize("text", ["", "2", "3.0", "2.x", "NCCL 2.8"])
def test_text_that_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="is none"):
        minor_of(text)
