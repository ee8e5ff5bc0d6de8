"""Bytes on links against counts by hand, and SC21's bisection figures under the written definition."""

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.costs import Machine
from traincast.costs.collectives import collective_seconds, message_seconds
from traincast.errors import TopologyError
from traincast.profile import find_profile
from traincast.topology import Cluster, NodeRequest, family_spans, load_cluster, node_cluster, selene, usual_node
from traincast.topology.bisection import effective_bisection
from traincast.topology.loads import FamilyTraffic, LinkLoads, link_loads

Ints = np.ndarray


def total(loads: LinkLoads, kind: str) -> float:
    """Bytes of a section of links."""
    begin = loads.first(kind)
    sections = sorted(
        [*(loads.first(name) for name in ("bus in", "bus out", "nic in", "nic out", "nvlink out", "nvlink in"))]
    )
    after = [first for first in sections if first > begin]
    return float(loads.bytes[:, begin : after[0] if after else None].sum())


def test_gradients_by_rail() -> None:
    """Eight rings over four nodes, 1 GB a GPU: each NIC sends and takes 1 GB, no NVLink is used."""
    loads = link_loads(selene(4), [FamilyTraffic("dp", np.arange(32).reshape(4, 8).T, 1e9)])
    busy = {link.kind: link for link in loads.busiest_by_kind()}
    assert set(busy) == {"GPU to PCIe", "PCIe to GPU", "NIC to leaf", "leaf to NIC"}
    assert busy["NIC to leaf"].bytes == busy["GPU to PCIe"].bytes == 1e9
    assert busy["NIC to leaf"].seconds == 1e9 / 25e9
    assert busy["NIC to leaf"].name == "n0/nic0 out"
    assert total(loads, "nic out") == total(loads, "nic in") == 32e9


def test_tensor_parallel_stays_on_nvlink() -> None:
    loads = link_loads(selene(4), [FamilyTraffic("tp", np.arange(32).reshape(4, 8), 3e9)])
    assert [link.kind for link in loads.busiest_by_kind()] == ["GPU to NVLink", "NVLink to GPU"]
    assert loads.busiest(1)[0].seconds == 3e9 / 300e9


def test_a_ring_over_two_nodes_spreads_over_its_lanes() -> None:
    """16 ranks: each of 8 lanes carries 1/8 of what a rank sends; 7 of 8 hops inside a node are NVLink's."""
    loads = link_loads(selene(2), [FamilyTraffic("world", np.arange(16).reshape(1, 16), 8e9)])
    busy = {link.kind: link for link in loads.busiest_by_kind()}
    assert busy["NIC to leaf"].bytes == 1e9
    assert busy["GPU to NVLink"].bytes == pytest.approx(7e9)


def test_families_add_up_and_are_told_apart() -> None:
    """Pipeline messages from node to node beside gradients: a NIC in the middle carries both."""
    cluster = selene(4)
    ranks = np.arange(32).reshape(2, 2, 8)
    gradients = FamilyTraffic("dp", ranks.transpose(0, 2, 1).reshape(-1, 2), 2e9)
    messages = FamilyTraffic("pp", np.stack([ranks[0].ravel(), ranks[1].ravel()], axis=1), 5e9, ring=False)
    loads = link_loads(cluster, [gradients, messages])
    link = loads.busiest(1)[0]
    assert (link.name, link.by_family) == ("n0/nic0 out", {"dp": 2e9, "pp": 5e9})
    assert loads.busiest(1, "nic in")[0].name == "n2/nic0 in"
    alone = link_loads(cluster, [gradients]).bytes + link_loads(cluster, [messages]).bytes
    np.testing.assert_allclose(loads.bytes.sum(axis=0), alone.sum(axis=0))


def test_bytes_may_differ_by_group() -> None:
    groups = np.arange(32).reshape(4, 8).T
    loads = link_loads(selene(4), [FamilyTraffic("dp", groups, np.arange(8) * 1e9)])
    assert [float(loads.bytes[0, loads.first("nic out") + nic]) for nic in range(8)] == [n * 1e9 for n in range(8)]


def test_uplinks_and_cores() -> None:
    """Rank 0 of 384 nodes in one ring: a leaf of 20 nodes is left once and entered once, a pod of 140 as well."""
    loads = link_loads(selene(384), [FamilyTraffic("dp", np.arange(0, 3072, 8).reshape(1, -1), 1e9)])
    assert loads.bytes[0, loads.first("leaf up") : loads.first("leaf down")].sum() == 20 * 1e9
    assert loads.bytes[0, loads.first("block up") : loads.first("block down")].sum() == 3 * 1e9


def test_inside_a_pcie_box() -> None:
    """A ring of eight cards: every bus 1 GB out and in, the socket link 1 GB each way, both sockets' roots as well."""
    loads = link_loads(load_cluster("pcie_box"), [FamilyTraffic("tp", np.arange(8).reshape(1, 8), 1e9)])
    assert total(loads, "bus out") == total(loads, "bus in") == 8e9
    inside = {loads.name(loads.bytes.shape[1] - len(loads.inside) + i) for i in range(len(loads.inside))}
    assert {"n0/cpu0 to n0/cpu1", "n0/cpu1 to n0/cpu0", "n0/pcie0 to n0/cpu0"} <= inside
    assert loads.busiest(1)[0].name == "n0/cpu0 to n0/cpu1"
    assert loads.busiest(1)[0].seconds == 1e9 / 24e9


def test_bridges_carry_their_hops() -> None:
    cluster = node_cluster(usual_node(NodeRequest("A100-80GB-PCIe", 8, 4, nvlink_bridges=True)), 1)
    loads = link_loads(cluster, [FamilyTraffic("tp", np.arange(8).reshape(1, 8), 1e9)])
    assert total(loads, "nvlink out") == 4e9
    assert total(loads, "bus out") == 4e9
    pairs = link_loads(cluster, [FamilyTraffic("tp", np.arange(8).reshape(4, 2), 1e9)])
    assert (total(pairs, "nvlink out"), total(pairs, "bus out")) == (8e9, 0.0)


def test_a_message_inside_a_node_goes_one_way() -> None:
    loads = link_loads(selene(1), [FamilyTraffic("pp", np.array([[0, 4]]), 1e9, ring=False)])
    assert [link.name for link in loads.busiest(5)] == ["n0/gpu0 nvlink out", "n0/gpu4 nvlink in"]


def test_nothing_and_nowhere() -> None:
    assert link_loads(selene(1), []).busiest() == ()
    with pytest.raises(TopologyError, match="do not fit the 8 GPUs"):
        link_loads(selene(1), [FamilyTraffic("dp", np.array([[0, 8]]), 1.0)])


# SC21 §5.9: the trillion-parameter run, TP 8, PP 64, DP 6 on 384 nodes, in the order tp-dp-pp


RANKS = np.arange(3072).reshape(64, 6, 8)
STAGE, REPLICA = np.repeat(np.arange(64), 48), np.tile(np.repeat(np.arange(6), 8), 64)
MESSAGE_BYTES = 2048 * 25600 * 2 / 8  # b s h in 16 bits, split over TP (scatter/gather)
GRADIENT_BYTES = 1.008e12 / 512 * 4


@pytest.fixture(scope="module")
def machine() -> Cluster:
    return selene(384)


def boundary() -> Ints:
    """Messages of all replicas between the middle stages: an activation forward, a gradient back."""
    here, there = RANKS[31].ravel(), RANKS[32].ravel()
    return np.concatenate([np.stack([here, there], axis=1), np.stack([there, here], axis=1)])


def rings() -> Ints:
    return RANKS.transpose(0, 2, 1).reshape(-1, 6)


def test_what_the_wires_allow(machine: Cluster) -> None:
    """From the graph alone: 48 NICs each way between two stages, 512 ring edges each way between half the replicas."""
    pipeline = FamilyTraffic("pp", boundary(), MESSAGE_BYTES, ring=False)
    found = effective_bisection(machine, pipeline, STAGE >= 32)
    assert found.one_way_bytes_per_s == pytest.approx(48 * 25e9)
    assert found.both_ways_bytes_per_s == pytest.approx(2 * 48 * 25e9)
    gradients = FamilyTraffic("dp", rings(), GRADIENT_BYTES * 10 / 6)
    found = effective_bisection(machine, gradients, REPLICA >= 3)
    assert found.one_way_bytes_per_s == pytest.approx(512 * 25e9)
    assert found.both_ways_bytes_per_s == pytest.approx(2 * 512 * 25e9)
    most = effective_bisection(machine, gradients, REPLICA % 2 == 1)
    assert most.one_way_bytes_per_s == pytest.approx(1536 * 25e9)


def forecast_windows(machine: Cluster) -> tuple[float, float]:
    """Seconds of one pipeline message and of one gradient all-reduce, by the profile of the paper's stack."""
    profile, _ = find_profile("A100-80GB-SXM", "Narayanan2021-SC21")
    network = Machine(load_catalog().gpu("A100-80GB-SXM"), profile, "fp16", 8).network
    message = family_spans(machine, boundary()[:48], pattern="chain")[0]
    ring = family_spans(machine, rings())[0]
    return message_seconds(MESSAGE_BYTES, message, network), collective_seconds(
        "all_reduce", GRADIENT_BYTES, ring, network
    )


def test_sc21_pipeline_bisection(machine: Cluster) -> None:
    """892 GB/s. Cut: between stages 31 and 32, the halves of the machine in this order; both directions, as a stage
    sends an activation on while a gradient comes back. Window: one message."""
    window, _ = forecast_windows(machine)
    found = effective_bisection(
        machine, FamilyTraffic("pp", boundary(), MESSAGE_BYTES, ring=False), STAGE >= 32, window
    )
    assert found.both_ways_bytes_per_s == pytest.approx(892e9, rel=0.2)


def test_sc21_data_parallel_bisection(machine: Cluster) -> None:
    """12.9 TB/s, by the same definition. Cut: replicas 0-2 and 3-5, both directions. Window: one all-reduce. Not one
    direction: 512 edges of 25 GB/s are 12.8 TB/s, less than what was measured."""
    _, window = forecast_windows(machine)
    gradients = FamilyTraffic("dp", rings(), GRADIENT_BYTES * 10 / 6)
    found = effective_bisection(machine, gradients, REPLICA >= 3, window)
    assert found.both_ways_bytes_per_s == pytest.approx(12.9e12, rel=0.2)


def test_cuts_that_cannot_be(machine: Cluster) -> None:
    traffic = FamilyTraffic("dp", rings(), 1e9)
    with pytest.raises(TopologyError, match="goes through a node"):
        effective_bisection(machine, traffic, np.arange(3072) % 2 == 1)
    with pytest.raises(TopologyError, match="for 3072 GPUs"):
        effective_bisection(machine, traffic, np.zeros(8, dtype=bool))
    with pytest.raises(TopologyError, match="window of 0 s"):
        effective_bisection(machine, traffic, REPLICA >= 3, 0.0)
