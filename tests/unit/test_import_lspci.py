"""lspci as a tree, as a list and with -vv: which parts there are and what hangs on what, counted by hand."""

from pathlib import Path

import pytest

from traincast.catalog import load_catalog
from traincast.errors import TopologyError
from traincast.topology.importers import import_texts
from traincast.topology.importers.lspci import parse_lspci
from traincast.topology.importers.pci import gpu_by_text

DATA = Path(__file__).parent.parent / "data" / "topology"


def text_of(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


def test_tree() -> None:
    """Two switches with two GPUs and an adapter each; the management NIC and virtual functions are listed."""
    found = import_texts([("l.txt", text_of("lspci_tree.txt"))])
    graph = found.cluster.graph
    assert (found.counts["gpus"], found.counts["nics"]) == (4, 2)
    assert set(found.cluster.gpu_model) == {"A100-80GB-SXM"}
    neighbours = [set(graph[f"n0/pcie{n}"]) for n in range(2)]
    assert neighbours == [
        {"n0/gpu0", "n0/gpu1", "n0/nic0", "n0/cpu1"},
        {"n0/gpu2", "n0/gpu3", "n0/nic1", "n0/cpu0"},
    ]
    assert graph.nodes["n0/nvswitch"]["units"] == 1
    assert [problem.line for problem in found.problems] == [5, 7]


def test_slots_of_the_tree() -> None:
    found = parse_lspci(text_of("lspci_tree.txt"))
    gpus = [device for device in found.devices if "SXM4" in device.text]
    assert [device.slot for device in gpus] == [f"0000:{bus}:00.0" for bus in ("83", "84", "03", "04")]
    assert gpus[2].path == ("0000:00:01.0", "0000:01:00.0", "0000:02:00.0")


def test_verbose_list() -> None:
    """Bus ranges give the tree; an idle link is not used, eight lanes are half of sixteen."""
    found = import_texts([("l.txt", text_of("lspci_vv.txt"))])
    graph = found.cluster.graph
    assert (found.counts["gpus"], found.counts["nics"]) == (2, 1)
    assert set(found.cluster.gpu_model) == {"H100-80GB-PCIe"}
    assert {"n0/gpu0", "n0/nic0"} <= set(graph["n0/pcie0"])
    assert graph.edges["n0/gpu0", "n0/pcie0"]["bandwidth_bytes_per_s"] == 63.015e9
    root = load_catalog().link("pcie5-root").bandwidth_bytes_per_s
    assert graph.edges["n0/gpu1", "n0/cpu1"]["bandwidth_bytes_per_s"] == root / 2
    assert graph.nodes["n0/nic0"]["port_bytes_per_s"] == 50e9


def test_bare_list() -> None:
    """Only the parts are known: the tree is that of the usual node."""
    found = import_texts([("l.txt", text_of("lspci_plain.txt"))])
    assert (found.counts["gpus"], found.counts["nics"]) == (4, 1)
    assert set(found.cluster.gpu_model) == {"V100-32GB-SXM"}
    assert any("as in the usual node" in text for text in found.assumed)
    assert [problem.line for problem in found.problems] == [2]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GA100 [A100 SXM4 40GB]", "A100-40GB-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
        ("Tesla V100-SXM2-16GB", "V100-16GB-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("NVIDIA H100 PCIe", "H100-80GB-PCIe"),
        ("NVIDIA H200", "H200-141GB-SXM"),
        ("NVIDIA B200", "B200-180GB-SXM"),
        ("NVIDIA GB200", "GB200"),
        ("A800-SXM4-80GB", "A800-80GB-SXM"),
        ("NVIDIA A10G", ""),
        ("Tesla K80", ""),
        ("", ""),
    ],
)
def test_names_of_gpus(text: str, name: str) -> None:
    """As nvidia-smi, nccl-tests and the PCI ID repository print them."""
    assert gpu_by_text(text, load_catalog()) == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("00:00.0 Host bridge: Intel Corporation Device 09a2\n", "no NVIDIA GPU among 1 PCI devices"),
        ("-[0000:00]-+-00.0\n           \\-01.0-[01]----00.0\n", "the tree names no devices"),
    ],
)
def test_without_gpus(text: str, words: str) -> None:
    with pytest.raises(TopologyError, match=words) as caught:
        import_texts([("l.txt", text)])
    assert str(caught.value).startswith("l.txt:1: ")


def test_lines_that_are_no_devices_are_listed() -> None:
    text = text_of("lspci_plain.txt") + "17:00.0 3D controller [0302]: NVIDIA Corporation GV100 [10de:1db5]\nError\n"
    said = [str(problem) for problem in import_texts([("l.txt", text)]).problems]
    assert "l.txt:8: 0000:17:00.0 stands twice (first in line 3): left out" in said
    assert "l.txt:9: 'Error' is no device: left out" in said
