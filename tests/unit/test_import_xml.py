"""NCCL topology XML: dumps and injection files, counted by hand; speeds, self-loops and other formats."""

from pathlib import Path

import pytest

from traincast.errors import TopologyError
from traincast.topology.importers import import_texts
from traincast.topology.importers.ncclxml import parse_nccl_xml

DATA = Path(__file__).parent.parent / "data" / "topology"
DUMP = (DATA / "nccl_dump.xml").read_text(encoding="utf-8")
INJECTION = (DATA / "nccl_injection.xml").read_text(encoding="utf-8")


def refusal(text: str) -> str:
    with pytest.raises(TopologyError) as caught:
        import_texts([("t.xml", text)])
    return str(caught.value)


def test_dump() -> None:
    """Three GPUs, two adapters with three ports, 4 NVLinks between each two GPUs, one self-loop."""
    found = parse_nccl_xml(DUMP, "t.xml")
    assert (len(found.gpus), len(found.nics), found.ports, found.dumped) == (3, 2, 3, True)
    assert found.cpus == (("", "0"), ("", "1"))
    assert [gpu.busid for gpu in found.gpus] == ["0000:13:00.0", "0000:14:00.0", "0000:b3:00.0"]
    assert sum(link.count for gpu in found.gpus for link in gpu.nvlinks) == 24
    assert [(problem.line, problem.what.split(":")[0]) for problem in found.problems] == [
        (4, "link_speed 2.5 GT/s PCIe is that of an idle link"),
        (25, "link_speed 5.0 GT/s PCIe is that of an idle link"),
        (30, "4 NVLinks from 0000"),
    ]


def test_cluster_of_a_dump() -> None:
    """An idle GPU has its catalogue bus, a x8 adapter half of it, and an idle bridge caps nothing."""
    found = import_texts([("t.xml", DUMP)])
    graph = found.cluster.graph
    assert (found.counts["gpus"], found.counts["nics"], found.counts["nodes"]) == (3, 3, 1)
    assert set(found.cluster.gpu_model) == {"A100-80GB-SXM"}
    assert graph.edges["n0/gpu0", "n0/pcie0"]["bandwidth_bytes_per_s"] == 31.508e9
    assert graph.edges["n0/nic0", "n0/pcie0"]["bandwidth_bytes_per_s"] == 15.754e9
    assert graph.edges["n0/gpu2", "n0/pcie1"]["bandwidth_bytes_per_s"] == 31.508e9
    assert graph.edges["n0/gpu0", "n0/gpu2"]["links"] == 4
    assert graph.nodes["n0/nic0"]["port_bytes_per_s"] == 12.5e9
    assert "n0/cpu1" in graph["n0/nic2"]
    assert not graph.has_edge("n0/gpu2", "n0/gpu2")


def test_injection_file() -> None:
    """GPUs are told by class and ordered by bus id, not by file; NVLink is assumed; other devices are listed."""
    found = parse_nccl_xml(INJECTION, "t.xml")
    assert [gpu.busid[:4] for gpu in found.gpus] == ["0001", "0002", "0003", "000b"]
    assert (len(found.nics), found.dumped) == (2, False)
    assert found.gpus[0].gt_per_s == 0.0
    assert [(problem.line, "0x010802" in problem.what) for problem in found.problems] == [(15, True)]
    cluster = import_texts([("t.xml", INJECTION)])
    assert any("NVLinks are not in the files" in text for text in cluster.assumed)
    assert cluster.cluster.graph.edges["n0/gpu0", "n0/nvswitch"]["links"] == 12
    assert {"n0/gpu0", "n0/gpu2", "n0/nic0"} <= set(cluster.cluster.graph["n0/pcie0"])


def test_nvswitch_links() -> None:
    """Links to several switches add up to one bundle; the switches are counted."""
    gpu = '<gpu dev="{0}" sm="90">{1}</gpu>'
    link = '<nvlink target="0000:{0}:00.0" count="9" tclass="0x068000"/>'
    device = '<pci busid="0000:0{0}:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">{1}</pci>'
    links = link.format("1a") + link.format("1b")
    inner = "".join(device.format(n, gpu.format(n, links)) for n in range(2))
    found = import_texts([("t.xml", f'\n<system version="2"><cpu numaid="0">{inner}</cpu></system>')])
    graph = found.cluster.graph
    assert graph.nodes["n0/nvswitch"]["units"] == 2
    assert graph.edges["n0/gpu1", "n0/nvswitch"]["links"] == 18
    assert found.cluster.gpu_model == ("H100-80GB-SXM",) * 2


def test_several_hosts_in_one_file() -> None:
    """CPUs of different host_hash are different nodes."""
    gpu = '<pci busid="0000:0{0}:00.0" class="0x030200"><gpu dev="{0}" sm="90"/></pci>'
    cpus = "".join(f'<cpu host_hash="0x{n}" numaid="0">{gpu.format(n)}</cpu>' for n in (1, 2))
    found = import_texts([("t.xml", f'<system version="2">{cpus}</system>')])
    assert (found.counts["nodes"], found.counts["gpus"]) == (2, 2)
    assert found.counts["assumed_switches"] > 0


def test_graph_files_are_another_format() -> None:
    message = refusal((DATA / "nccl_graph.xml").read_text(encoding="utf-8"))
    assert message.startswith("t.xml:1: root element <graphs>: an NCCL graph file (NCCL_GRAPH_FILE), expected <system>")


def test_devices_that_cannot_be_told_apart() -> None:
    devices = '<pci busid="0000:00:16.0"/>\n<pci busid="0000:00:17.0"/>'
    text = f'<system version="1">\n<cpu numaid="0">\n{devices}</cpu></system>'
    message = refusal(text)
    assert message.startswith("t.xml:3: <pci> without class; no <gpu> in the file")
    assert "2 devices" in message


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (DUMP[:900], ":14:", "(<gpu> of line 11 is open)"),
        (DUMP.replace("</system>", ""), ":39:", "<system> of line 1 is open"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><system/>", ":1: ", "document type declaration"),
        ("<topology/>", ":1: ", "root element <topology>"),
        ("<system version='1'>" + "<pci busid='1'>" * 60, ":1: ", "nested too deep"),
        ("<system version='1'><cpu/></system>", ":1: ", "the system has no GPU"),
        (
            "\n<system version='1'><cpu><pci busid='0' class='0x020000'/></cpu></system>",
            ":2: ",
            "the system has no GPU",
        ),
    ],
)
def test_damaged_files(text: str, place: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith(f"t.xml{place}"), message
    assert words in message


def test_odd_values_are_listed() -> None:
    text = DUMP.replace('version="1"', 'version="7"').replace('count="4" tclass="0x030200"/>', 'count="x"/>', 1)
    text = text.replace('speed="25000"', 'speed="fast"').replace('0000:14:00.0" class', '0000:13:00.0" class')
    said = " / ".join(str(problem) for problem in parse_nccl_xml(text, "t.xml").problems)
    for words in ("version '7'", "left out, expected 1 to 36 links", "speed 'fast'", "stands twice (first in line 4)"):
        assert words in said
