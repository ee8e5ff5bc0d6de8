"""Texts about GPUs and networks, the place of a curve, its profile, and what is forced."""

import pytest

from traincast.calibration.choice import profile_of
from traincast.calibration.hardware import gpu_of
from traincast.calibration.nets import net_of
from traincast.calibration.network_model import forced_by, version_in
from traincast.calibration.place import NoPlaceError, place_of
from traincast.calibration.records import RunInfo
from traincast.calibration.results import _launch


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100-SXM4-40GB", "A100-40GB-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("A800-SXM4-80GB", "A800-80GB-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("H100-class (sm_90)", "H100-80GB-SXM"),
        ("NVIDIA H200", "H200-141GB-SXM"),
        ("B200-SXM", "B200-180GB-SXM"),
        ("B300-SXM6", "B300-SXM"),
        ("GB200", "GB200"),
        ("GB300-class (sm_103)", "GB300"),
        ("V100-SXM2-16GB", "V100-16GB-SXM"),
        ("Tesla V100-SXM2-32GB", "V100-32GB-SXM"),
        ("h100-80gb-sxm", "H100-80GB-SXM"),
    ],
)
def test_gpus(text: str, name: str) -> None:
    found = gpu_of(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("text", ["H20", "MI300X", "K80 (GCP)", "Hopper 8-GPU (H800/H100 class)", "", "RTX4090"])
def test_what_is_not_one_gpu_of_the_catalogue_has_no_place(text: str) -> None:
    assert gpu_of(text) is None
    with pytest.raises(NoPlaceError, match="not one GPU of the catalogue"):
        place_of(text, "NVLink", 1, 8)


@pytest.mark.parametrize(
    ("text", "nics", "gbit", "tags"),
    [
        ("8x200G IB HDR (Azure NDv4)", 8, 200.0, ("azure", "ib-8x200", "ib", "fabric")),
        ("32x100G EFA v2", 32, 100.0, ("aws", "efa-32x100", "efa", "fabric")),
        ("8x200G TCPXO", 8, 200.0, ("gcp", "tcpxo-8x200", "tcpxo", "fabric")),
        ("8x400G RoCE CX-7", 8, 400.0, ("roce-8x400", "roce", "fabric")),
        ("16x CX-7 NDR/200G class", 16, 200.0, ("ib-16x200", "ib", "fabric")),
        ("100G IB (1 NIC class)", 1, 100.0, ("ib-1x100", "ib", "fabric")),
        ("8 x 400 Gb/s InfiniBand", 8, 400.0, ("ib-8x400", "ib", "fabric")),
        ("unknown", None, None, ("fabric",)),
    ],
)
def test_networks(text: str, nics: int | None, gbit: float | None, tags: tuple[str, ...]) -> None:
    found = net_of(text)
    assert (found.nics, found.gbit_per_s) == (nics, gbit)
    assert found.tags(2) == tags
    assert found.tags(1) == (*(tag for tag in tags[:1] if tag in ("azure", "aws", "gcp")), "node")


def test_racks_are_one_domain_each() -> None:
    """128 GPUs in two racks: 64 in each NVLink domain; 72 GPUs on 18 hosts: one domain."""
    two = place_of("GB200", "NVL72 + RoCE, 2 racks", 32, 128)
    assert (two.span.nodes, two.span.ranks_per_node) == (2, 64)
    one = place_of("GB200", "NVL72 NVLink5", 18, 72)
    assert (one.span.nodes, one.span.tier) == (1, "nvlink")


def test_counted_adapters_are_those_of_the_ranks() -> None:
    """ABCI: 4 V100 and 2 EDR adapters a node, 2 nodes."""
    place = place_of("V100-SXM2-16GB", "2x100G IB EDR", 2, 8)
    assert (place.span.ranks_per_node, place.gpus_per_node) == (4, 4)
    assert place.span.inter_bytes_per_s == 25e9


@pytest.mark.parametrize(("nodes", "ranks"), [(3, 8), (1, 1), (2, 130)])
def test_counts_that_cannot_be(nodes: int, ranks: int) -> None:
    with pytest.raises(NoPlaceError):
        place_of("A100-SXM4-80GB", "8x200G IB HDR", nodes, ranks)


@pytest.mark.parametrize(
    ("gpu", "net", "nodes", "profile", "own"),
    [
        ("A100-SXM4-40GB", "8x200G IB HDR (Azure NDv4)", 4, "a100-azure-ndv4", True),
        ("A100-SXM4-40GB", "NVLink3 NVSwitch", 1, "a100-node", True),
        ("A100-SXM4-40GB", "2x200G IB HDR", 4, "a100-ib", False),
        ("H100-SXM5-80GB", "8x400G IB NDR", 16, "h100-ndr8", True),
        ("H100-SXM5-80GB", "32x100G EFA v2", 2, "h100-efa32", True),
        ("H200-SXM", "8x400G RoCE", 2, "h200-roce8", True),
        ("GB300", "NVL72 NVLink5", 1, "gb300-nvl72", True),
        ("A100-PCIE-80GB", "8x200G IB HDR", 2, "a100-80gb-sxm", False),
    ],
)
def test_profiles_follow_gpu_and_fabric(gpu: str, net: str, nodes: int, profile: str, own: bool) -> None:
    found, note = profile_of(place_of(gpu, net, nodes, 8 * nodes))
    assert found.name == profile
    assert (note is None) == own


def test_fabric_profiles_are_never_picked_for_steps() -> None:
    """They price collectives; a step needs a stack's own profile, or one that is named."""
    from traincast.profile import find_profile, shipped_profiles

    for one in shipped_profiles():
        if one.fabrics:
            assert not one.stacks
            assert not one.default_for
    assert find_profile("H100-80GB-SXM", None)[0].name == "h100-80gb-sxm"


@pytest.mark.parametrize(
    ("algo", "proto", "algorithms", "protocols"),
    [
        ("auto", "auto", set(), set()),
        ("auto(NVLS at large)", "auto", set(), set()),
        ("Ring", "LL128", {"ring"}, {"LL128"}),
        ("NVLS", "Simple", {"nvls"}, {"Simple"}),
        ("p2p", "Simple", set(), {"Simple"}),
    ],
)
def test_forced(algo: str, proto: str, algorithms: set[str], protocols: set[str]) -> None:
    found = forced_by(algo, proto)
    assert (found.algorithms, found.protocols) == (algorithms, protocols)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.27.3", "2.27.3"),
        ("2.23 (dir name)", "2.23"),
        ("unknown (<2.27, 2025-06)", None),
        ("unknown (2024-09)", None),
        ("RCCL (rccl-tests develop:a52452e)", None),
        ("NCCL version 2.20.5+cuda12.4", "2.20.5"),
    ],
)
def test_versions_in_texts(text: str, version: str | None) -> None:
    assert version_in(text) == version


@pytest.mark.parametrize(
    ("command", "launcher", "launch"),
    [
        ("./all_reduce_perf -b 8 -e 1G -f 2 -g 8", None, "single"),
        ("mpirun -np 16 ./all_reduce_perf -b 8 -e 1G -g 1", "mpirun", "process"),
        ("./all_reduce_perf -b 8 -G 1 -t 8", None, "graph"),
        ("./all_reduce_perf -b 8", None, ""),
    ],
)
def test_who_launched_follows_from_the_command(command: str, launcher: str | None, launch: str) -> None:
    assert _launch(RunInfo(command=command, launcher=launcher)) == launch


def test_the_suite_measures_what_torch_takes_too() -> None:
    suite = RunInfo(tool="traincast suite 1", backend="nccl", command="run.py -o r.jsonl", launcher="torchrun")
    assert _launch(suite) == "runtime"
