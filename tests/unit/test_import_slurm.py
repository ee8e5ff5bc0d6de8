"""Slurm's topology.conf and topology.yaml: switches, blocks and nodes counted by hand; odd trees."""

from pathlib import Path

import networkx as nx
import pytest

from traincast.errors import TopologyError
from traincast.topology import route, span
from traincast.topology.importers import Options, import_texts
from traincast.topology.importers.slurm import parse_slurm_conf
from traincast.topology.importers.slurmyaml import parse_slurm_yaml

DATA = Path(__file__).parent.parent / "data" / "topology"


def text_of(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


TREE, BLOCKS = text_of("slurm_tree.conf"), text_of("slurm_block.conf")


def refusal(text: str) -> str:
    with pytest.raises(TopologyError) as caught:
        import_texts([("t.conf", text)])
    return str(caught.value)


def test_tree() -> None:
    """6 switches on 3 levels, 4 + 6 + 3 nodes; lower-case keys, continued lines, comments, two prefixes."""
    found = parse_slurm_conf(TREE, "t.conf")
    assert (len(found.switches), len(found.nodes)) == (6, 13)
    assert found.heights == {"top": 3, "pod1": 2, "pod2": 2, "leaf1": 1, "leaf2": 1, "leaf3": 1}
    assert found.nodes[4:10] == ("gpu005", "gpu006", "gpu007", "gpu009", "old-1", "old-2")
    assert [(problem.line, problem.what.split(":")[0].split(" ")[0]) for problem in found.problems] == [
        (2, "LinkSpeed=100"),
        (9, "1"),
    ]


def test_cluster_of_a_tree() -> None:
    """Every switch has as many links up as NICs below it: 32 of leaf1, 80 of pod1."""
    found = import_texts([("t.conf", TREE)])
    graph = found.cluster.graph
    assert found.counts["switches"] == 6
    assert (found.counts["nodes"], found.counts["gpus"], found.counts["nics"]) == (13, 104, 104)
    assert graph.edges["leaf1", "pod1"]["links"] == 32
    assert graph.edges["pod1", "top"]["links"] == 80
    assert [graph.nodes[key]["kind"] for key in ("leaf1", "pod1", "top")] == ["leaf", "spine", "core"]
    assert graph.nodes["leaf1"]["rail"] == -1
    assert [graph.nodes[key]["block"] for key in ("pod1", "pod2")] == [0, 1]
    assert span(found.cluster, [0, 8]).tier == "leaf"
    assert span(found.cluster, [0, 8 * 4]).tier == "spine"
    assert span(found.cluster, [0, 8 * 12]).tier == "core"
    assert any("not in a Slurm topology" in text for text in found.assumed)


def test_blocks_are_racks() -> None:
    """No switch is named: none is counted. Each block of 18 trays is one NVLink domain of 72 GPUs."""
    found = import_texts([("t.conf", BLOCKS)])
    assert (found.counts["blocks"], found.counts["nodes"], found.counts["switches"]) == (2, 36, 0)
    assert found.counts["assumed_switches"] > 0
    assert span(found.cluster, range(72)).tier == "nvlink"
    assert span(found.cluster, range(144)).tier in ("leaf", "spine")
    assert any("block size 72 exceeds the 36 nodes" in problem.what for problem in found.problems)
    other = import_texts([("t.conf", BLOCKS)], Options(gpu="H100-80GB-SXM"))
    assert other.counts["gpus"] == 36 * 8


def test_yaml_forms() -> None:
    """The default topology is taken; a ConfigMap holds a topology.conf, and places are those of its own lines."""
    found = parse_slurm_yaml(text_of("slurm.yaml"), "t.yaml")
    assert ([switch.name for switch in found.switches], len(found.nodes)) == (["root", "s1", "s2"], 6)
    assert "3 topologies: tree-1 is taken" in found.problems[0].what
    blocks = parse_slurm_yaml(text_of("slurm.yaml").split("- topology: racks")[1].join(["- topology: racks", ""]))
    assert (len(blocks.blocks), blocks.block_sizes, len(blocks.nodes)) == (1, (2, 4), 2)
    config = parse_slurm_yaml(text_of("slurm_configmap.yaml"), "t.yaml")
    assert ([(switch.name, switch.line) for switch in config.switches]) == [("s0", 8), ("s1", 9), ("s2", 10)]
    with pytest.raises(TopologyError, match=r"t.yaml:9: .*expected SwitchName"):
        parse_slurm_yaml(text_of("slurm_configmap.yaml").replace("SwitchName=s1", "Switch=s1"), "t.yaml")


def test_four_levels_and_hosts_on_upper_switches() -> None:
    """What has no place in three levels is carried by helpers that are no boxes, and said."""
    text = (
        "SwitchName=root Switches=a[0-1] Nodes=login\nSwitchName=a0 Switches=b[0-1]\nSwitchName=a1 Switches=b2,c0\n"
        "SwitchName=b0 Switches=c1\nSwitchName=b1 Switches=c2\nSwitchName=b2 Switches=c3\n"
        + "".join(f"SwitchName=c{n} Nodes=w[{n}0-{n}1]\n" for n in range(4))
    )
    found = import_texts([("t.conf", text)])
    assert (found.counts["switches"], found.counts["nodes"]) == (10, 9)
    last = len(found.cluster.gpus) - 1
    assert {route(found.cluster, 0, gpu).tier for gpu in range(8, last, 8)} <= {"leaf", "spine", "core"}
    assert any("above the second level" in text for text in found.assumed)
    assert any("helper leaves" in text for text in found.assumed)
    assert any("tree is unbalanced" in problem.what for problem in found.problems)


def test_disconnected_trees() -> None:
    found = import_texts([("t.conf", "SwitchName=a Nodes=x[1-2]\nSwitchName=b Nodes=y[1-2]\n")])
    assert any("2 trees (a, b): nothing joins them" in problem.what for problem in found.problems)
    assert nx.number_connected_components(found.cluster.graph) == 2
    with pytest.raises(TopologyError, match="a has no uplink, but groups of nodes 0-1 have ranks elsewhere"):
        span(found.cluster, [0, 16])


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("SwitchName=a Nodes=n[1-\n", ":1: ", "brackets are not closed"),
        ("SwitchName=a Nodes=n[1-x]\n", ":1: ", "is no range of numbers"),
        ("SwitchName=a Nodes=n[9-1]\n", ":1: ", "runs backwards"),
        ("SwitchName=a Nodes=n[1-999999999999]\n", ":1: ", "more than 1000000 names"),
        ("# x\nSwitchName=a\n", ":2: ", "has neither Nodes nor Switches"),
        ("SwitchName=a Nodes=n1 whatever\n", ":1: ", "expected SwitchName=s1 Nodes="),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", ":1: ", "Nodes stands twice"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", ":1: ", "stands above itself"),
        ("BlockName=b Nodes=n[1-4]\nBlockSizes=4,x\n", ":2: ", "BlockSizes holds 'x'"),
        ("BlockSizes=4\n", ":1: ", "no switch and no block"),
        ("SwitchName=a Switches=b\n", ":1: ", "no switch has nodes"),
        ("SwitchName=a Nodes=n1 \\", ":1: ", "ends in a continued line"),
        ("- topology: x\n  flat: true\n", ":1: ", "a flat topology"),
        ("- topology: x\n  tree: {switches: [{children: a}]}\n", ":2: ", "an entry without switch"),
        ("topology: [\n", ":2: ", "not YAML"),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {}\n", ":1: ", "a ConfigMap without a topology"),
    ],
)
def test_damaged_files(text: str, place: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith(f"t.conf{place}"), message
    assert words in message


def test_doubtful_lines_are_listed() -> None:
    text = (
        "SwitchName=r Switches=a,b,gone\nSwitchName=a Nodes=n[1-2] Colour=red\n"
        "SwitchName=b Nodes=n[2-3]\nSwitchName=b Nodes=n9\n"
    )
    said = " / ".join(str(problem) for problem in parse_slurm_conf(text, "t.conf").problems)
    for words in ("switch gone: left out", "colour=red", "n2 is already on a: not also on b", "b stands twice"):
        assert words in said
