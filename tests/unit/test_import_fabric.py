"""ibnetdiscover and iblinkinfo: records, links and levels counted by hand in tests/data/topology."""

from pathlib import Path

import pytest

from traincast.errors import TopologyError
from traincast.topology import route, span
from traincast.topology.importers import Options, import_texts
from traincast.topology.importers.fabric import looks_like_switch
from traincast.topology.importers.iblinkinfo import parse_iblinkinfo
from traincast.topology.importers.ibnetdiscover import parse_ibnetdiscover

DATA = Path(__file__).parent.parent / "data" / "topology"


def text_of(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


FABRIC, INFO, LINES = (text_of(name) for name in ("ibnetdiscover.txt", "iblinkinfo.txt", "iblinkinfo_lines.txt"))


def refusal(*texts: str) -> str:
    with pytest.raises(TopologyError) as caught:
        import_texts([(f"f{n}.txt", text) for n, text in enumerate(texts)])
    return str(caught.value)


def test_records_and_references() -> None:
    """3 switch records of 4, 3 adapter records of 8; 8 host links, 8 between switches, 1 to SHARP; 24 port lines."""
    found = parse_ibnetdiscover(FABRIC, "f.txt")
    assert [len(found.of_kind("switch", recorded)) for recorded in (True, False)] == [3, 1]
    assert [len(found.of_kind("ca", recorded)) for recorded in (True, False)] == [3, 5]
    assert (found.port_lines, len(found.links), found.aggregation_links) == (24, 16, 1)
    assert len(found.of_kind("aggregation")) == 1
    rates = sorted({link.bytes_per_s for link in found.links})
    assert rates == [12.5e9, 25e9]


def test_tree_of_the_fabric() -> None:
    """Two rail leaves below two spines; two links a pair; the half-width link slows its bundle to 37.5 GB/s."""
    found = import_texts([("f.txt", FABRIC)])
    graph = found.cluster.graph
    kinds = {key: data["kind"] for key, data in graph.nodes(data=True) if "MQM" in key}
    assert sorted(kinds.values()) == ["leaf", "leaf", "spine", "spine"]
    assert (found.counts["switches"], found.counts["nics"], found.counts["nodes"]) == (4, 8, 5)
    leaf, spine = "MF0;leaf-2:MQM8700/U1", "MF0;spine-2:MQM8700/U1"
    assert graph.edges[leaf, spine]["links"] == 2
    assert graph.edges[leaf, spine]["bandwidth_bytes_per_s"] == 37.5e9
    assert graph.nodes[leaf] == {"kind": "leaf", "latency_s": 130e-9, "unit": 0, "rail": 1, "seen": "whole"}
    assert graph.nodes[spine]["block"] == 0
    assert found.form.host_names == ("node-001", "node-002", "node-003", "node-004", "adapter-00000000000c0301")
    assert graph.nodes["n3/gpu0"]["host"] == "node-004"


def test_rails_follow_device_names() -> None:
    """node-004 lacks mlx5_1: its NIC stays on rail 0, and the lack is said."""
    found = import_texts([("f.txt", FABRIC)])
    assert "n3/nic1" not in found.cluster.graph
    assert any(problem.what.startswith("node-004: no port on the fabric for mlx5_1") for problem in found.problems)


def test_everything_left_out_is_said() -> None:
    said = [str(problem) for problem in import_texts([("f.txt", FABRIC)]).problems]
    assert any("1 switches and 5 adapters" in text for text in said)
    assert any("SHARP aggregation nodes, which are no hosts: 1" in text for text in said)
    assert any("adapters that name no host: 1" in text for text in said)


def test_a_side_file_names_hosts() -> None:
    """A list of hosts and GUIDs is no topology alone; with the fabric it names the nameless adapter."""
    hosts = text_of("ibstat_hosts.txt")
    assert "no topology by itself" in refusal(hosts)
    found = import_texts([("f.txt", FABRIC), ("h.txt", hosts)])
    assert "vm-a" in found.form.host_names


def test_routes_use_the_cables_there_are() -> None:
    cluster = import_texts([("f.txt", FABRIC)]).cluster
    assert route(cluster, 0, 8).tier == "leaf"
    assert span(cluster, [8, 16]).inter_bytes_per_s > 0


def test_three_levels() -> None:
    """The switch above the spines, without hosts, is a core switch."""
    text = FABRIC.replace('[41]\t"H-00000000000000f1"[1](f1) \t\t# "Mellanox Technologies Aggregation Node"', "")
    lines = FABRIC.splitlines()
    spine = next(n for n, line in enumerate(lines) if '"S-00000000000000b1"' in line and line.startswith("Switch"))
    up = '[30]\t"S-00000000000000e1"[1]\t\t# "MF0;top:MQM8700/U1" lid 80 4xHDR'
    found = import_texts([("f.txt", "\n".join([*lines[: spine + 1], up, *lines[spine + 1 :]]))])
    assert text != FABRIC
    assert found.cluster.graph.nodes["MF0;top:MQM8700/U1"]["kind"] == "core"


def test_line_form_and_long_form() -> None:
    """Long: 4 cables of 5 lines, one down port, one not active. Lines (-l): 10 cables; kinds by name."""
    long = parse_iblinkinfo(INFO, "i.txt")
    assert (len(long.of_kind("switch")), len(long.of_kind("ca")), len(long.links), long.port_lines) == (2, 2, 4, 5)
    assert [problem.line for problem in long.problems] == [5, 7, 4, 3]
    assert sorted(link.bytes_per_s * 8 / 1e9 for link in long.links) == [25.0, 200.0, 200.0, 200.0]
    lines = parse_iblinkinfo(LINES, "i.txt")
    assert (len(lines.of_kind("switch")), len(lines.of_kind("ca")), len(lines.links)) == (3, 6, 10)
    assert {link.bytes_per_s for link in lines.links} == {50e9}
    found = import_texts([("i.txt", LINES)])
    assert (found.counts["nodes"], found.counts["switches"]) == (3, 3)
    assert found.cluster.graph.nodes["MF0;leaf-2:MQM8700/U1"]["rail"] == 1


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        ("MF0;x:MQM9701/U1", True),
        ("Quantum Mellanox Technologies", True),
        ("node-1 mlx5_0", False),
        ("gpu HCA-1", False),
    ],
)
def test_descriptions(name: str, switch: bool) -> None:
    assert looks_like_switch(name) is switch


def test_a_node_file_fills_the_hosts() -> None:
    """A matrix beside the fabric: NICs meet by device name, the others have no port, and GPUs are its eight."""
    matrix = text_of("topo_m_nvswitch.txt")
    found = import_texts([("f.txt", FABRIC), ("m.txt", matrix)], Options(gpu="A100-40GB-SXM"))
    assert found.counts["gpus"] == 5 * 8
    assert found.counts["nics"] == 5 * 6
    assert set(found.cluster.gpu_model) == {"A100-40GB-SXM"}
    assert "MF0;leaf-2:MQM8700/U1" in found.cluster.graph["n1/nic1"]
    assert any("2 NICs of the node have no port on the fabric" in problem.what for problem in found.problems)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (FABRIC.replace("[3]\t", "[3\t", 1), ":12: ", "expected [port]"),
        (FABRIC.replace('Switch\t41 "S-00000000000000a1"', 'Switch\t41 "S-"'), ":9: ", "expected Switch or Ca"),
        ("[1]\t" + FABRIC.splitlines()[9][4:], ":1: ", "before any record"),
        ("vendid=0x1\n", ":1: ", "no record"),
        ("vendid=0x1\n" + 'Ca\t1 "H-0000000000000001"\t\t# "a HCA-1"\n', ":2: ", "1 Ca and no Switch"),
        ('Switch\t41 "S-00000000000000a1"\t\t# "sw"\n', ":1: ", "1 switches and no host"),
        (INFO.replace("Active/  LinkUp)==>     100", "Active LinkUp)==>     100"), ":2: ", "expected 4X 106.25 Gbps"),
        (INFO.replace('1[  ] "node-001', '1[  "node-001'), ":2: ", "the peer"),
        (INFO.split("\n", 1)[1], ":1: ", "before any Switch or CA"),
        (INFO.replace("4X       53.125 Gbps Active/  LinkUp", "Down/ Polling"), ":", "no host"),
    ],
)
def test_damaged_files(text: str, place: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith(f"f0.txt{place}"), message
    assert words in message


def test_what_the_ends_disagree_about() -> None:
    """A second peer at one port and a rate that differs are kept out or mended, and said."""
    text = FABRIC.replace('[2]\t"S-00000000000000a1"[22]', '[2]\t"S-00000000000000a1"[21]')
    text = text.replace('[3]\t"S-00000000000000a2"[21]\t\t# "MF0;leaf-2:MQM8700/U1" lid 11 4xHDR', "")
    said = " / ".join(str(problem) for problem in import_texts([("f.txt", text)]).problems)
    assert "is already linked by line" in said
    assert "whose record lacks it: kept" in said


def test_two_forms_of_a_fabric() -> None:
    assert "two forms of fabric files: iblinkinfo, ibnetdiscover" in refusal(FABRIC, INFO)
