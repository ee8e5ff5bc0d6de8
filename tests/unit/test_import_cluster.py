"""From files to a cluster file and back: equal graphs, several files, options, and the command itself."""

import json
from pathlib import Path

import networkx as nx
import pytest

from traincast.cli.main import main
from traincast.errors import TopologyError, UserError
from traincast.topology import list_clusters, load_cluster, span
from traincast.topology.graphfile import exact_text
from traincast.topology.hostlist import compress, compress_in_order, expand
from traincast.topology.importers import Options, cluster_yaml, import_bytes, import_texts
from traincast.topology.importers.text import decode
from traincast.units import parse_quantity

DATA = Path(__file__).parent.parent / "data" / "topology"
IMPORTED = [
    *("topo_m_nvswitch.txt", "topo_m_pcie.txt", "lspci_tree.txt", "lspci_vv.txt", "lspci_plain.txt"),
    *("nccl_dump.xml", "nccl_injection.xml", "ibnetdiscover.txt", "iblinkinfo.txt", "iblinkinfo_lines.txt"),
    *(
        "slurm_tree.conf",
        "slurm_block.conf",
        "slurm.yaml",
        "slurm_configmap.yaml",
        "nccl_info.log",
        "nccl_info_old.log",
    ),
]
FORMS = dict(
    zip(
        IMPORTED,
        [
            *["topo-m"] * 2,
            *["lspci"] * 3,
            *["nccl-xml"] * 2,
            *["ibnetdiscover", "iblinkinfo", "iblinkinfo"],
            *["slurm-conf"] * 2,
            *["slurm-yaml"] * 2,
            *["nccl-log"] * 2,
        ],
        strict=True,
    )
)


@pytest.mark.parametrize("name", IMPORTED)
def test_written_and_loaded_again(name: str, tmp_path: Path) -> None:
    """The form is found by content, the cluster file gives an equal graph, and nothing of this machine is in it."""
    found = import_bytes([(str(DATA / name), (DATA / name).read_bytes())])
    assert found.files[0].form == FORMS[name]
    text = cluster_yaml(found)
    assert str(DATA) not in text
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    again = load_cluster(str(path))
    assert nx.utils.graphs_equal(found.cluster.graph, again.graph)
    assert again.assumptions == found.assumed
    assert again.gpus == found.cluster.gpus


def test_every_form_of_the_data_is_covered() -> None:
    others = {"nccl_graph.xml", "topo_p2p.txt", "ibstat_hosts.txt"}
    assert {path.name for path in DATA.iterdir()} == {*IMPORTED, *others}


def test_as_many_nodes_as_asked_for(tmp_path: Path) -> None:
    """Four nodes like the described one, on a fat tree; the two storage ports of each stay without a cable."""
    text = (DATA / "topo_m_nvswitch.txt").read_text(encoding="utf-8")
    found = import_texts([("m.txt", text)], Options(nodes=4, gpu="A100-40GB-SXM"))
    assert (found.counts["gpus"], found.counts["nodes"], found.counts["switches"]) == (32, 4, 0)
    assert found.counts["assumed_switches"] > 0
    graph = found.cluster.graph
    cabled = {key for key in graph if graph.nodes[key]["kind"] == "nic" and any("leaf" in near for near in graph[key])}
    assert len(cabled) == 16
    assert "n0/nic4" not in cabled
    assert span(found.cluster, range(32)).nodes == 4
    path = tmp_path / "four.yaml"
    path.write_text(cluster_yaml(found), encoding="utf-8")
    assert len(load_cluster(str(path), gpus=9).gpus) == 16
    with pytest.raises(TopologyError, match="has 32 GPUs, 33 are asked for"):
        load_cluster(str(path), gpus=33)


def test_several_descriptions_of_one_node() -> None:
    """The XML leads; lspci names the GPU; a matrix adds NVLinks that an injection file lacks."""
    texts = {name: (DATA / name).read_text(encoding="utf-8") for name in ("nccl_injection.xml", "lspci_plain.txt")}
    rows = ["\t" + "\t".join(f"GPU{n}" for n in range(4))]
    rows += [f"GPU{a}\t" + "\t".join("X" if a == b else "NV2" for b in range(4)) for a in range(4)]
    found = import_texts([*texts.items(), ("m.txt", "\n".join(rows))])
    assert set(found.cluster.gpu_model) == {"V100-32GB-SXM"}
    assert found.cluster.graph.edges["n0/gpu0", "n0/gpu3"]["links"] == 2
    assert "n0/nvswitch" not in found.cluster.graph
    assert any("1 network ports, but nccl_injection.xml has 2" in problem.what for problem in found.problems)


def test_files_of_one_form_are_different_nodes() -> None:
    box, switched = ((DATA / name).read_text(encoding="utf-8") for name in ("topo_m_pcie.txt", "topo_m_nvswitch.txt"))
    found = import_texts([("a.txt", box), ("b.txt", switched)])
    assert (found.counts["nodes"], found.counts["gpus"], found.counts["nics"]) == (2, 12, 8)
    with pytest.raises(TopologyError, match="3 nodes, but the list of files has 2"):
        import_texts([("a.txt", box), ("b.txt", switched)], Options(nodes=3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(nodes=0), "--nodes: 0 nodes"),
        (Options(gpu="H1000"), "no GPU 'H1000' in the catalogue"),
        (Options(nodes=7), "the Slurm topology has 13"),
    ],
)
def test_wrong_options(options: Options, words: str) -> None:
    name = "slurm_tree.conf"
    with pytest.raises(UserError, match=words):
        import_texts([(name, (DATA / name).read_text(encoding="utf-8"))], options)


def test_bytes() -> None:
    """UTF-16, as PowerShell redirects; a byte that is no text is said; empty files are refused."""
    text = (DATA / "topo_m_pcie.txt").read_text(encoding="utf-8")
    assert import_bytes([("m.txt", text.encode("utf-16"))]).counts["gpus"] == 4
    found = import_bytes([("m.txt", text.encode() + b"\xff\n")])
    assert str(found.problems[0]) == "m.txt:8: holds bytes that are no text"
    with pytest.raises(TopologyError, match=r"m.txt:1: the file is empty"):
        decode(b" \n", "m.txt")


def test_names_in_brackets() -> None:
    """Slurm's form: leading zeros stay, several brackets multiply, a list keeps its order."""
    assert expand("n[001-003,020],b3") == ("n001", "n002", "n003", "n020", "b3")
    assert expand("a[1-2]x[0-1]") == ("a1x0", "a1x1", "a2x0", "a2x1")
    assert compress(f"n{a}/nic{b}" for a in range(20) for b in range(8)) == ("n[0-19]/nic[0-7]",)
    assert compress(["x008", "x009", "x010", "y"]) == ("x[008-010]", "y")
    names = ["w2", "w1", "w3", "v1", "v2"]
    assert [name for text in compress_in_order(names) for name in expand(text)] == names


@pytest.mark.parametrize("value", [25e9, 31.508e9, 53.125e9, 1e9 / 3, 12.5e9 * 31 / 7, 1.0])
def test_unit_text_reads_back_exactly(value: float) -> None:
    assert parse_quantity(exact_text(value, "bandwidth"), "bandwidth") == value
    assert parse_quantity(exact_text(value * 1e-18, "time"), "time") == value * 1e-18


GRAPH = cluster_yaml(import_bytes([("m.txt", (DATA / "topo_m_pcie.txt").read_bytes())]))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("model: A100-80GB-PCIe", "model: A100-80GB-PCIx", "did you mean A100-80GB-PCIe"),
        ("nodes: 1", "nodes: 2", "nodes is 2, but hosts lists 1"),
        ("- gpu0 -- gpu1", "- gpu0 -- gpu9", "no part gpu9"),
        ("- gpu0 -- gpu1", "- gpu0 gpu1", "joins nothing"),
        ("links: 4", "links: 0", "greater than or equal to 1"),
        ("links: 4", "linkz: 4", "did you mean links"),
        ("bandwidth: 25 GB/s", "bandwidth: 25", "has no unit"),
        ("kind: nvlink", "kind: rope", "is 'rope'"),
        ("hosts:\n- type: ", "hosts:\n- type: other ", "no type 'other"),
        ("names: node0", "names: node[0", "brackets are not closed"),
        ("gpu3,nic1 -- cpu1", "gpu3 -- cpu1", "nic1 hangs on 0 PCIe switches or CPUs"),
        ("- cpu0 -- cpu1", "- cpu0 -- cpu0", "joined twice"),
    ],
)
def test_mistakes_in_a_written_cluster(old: str, new: str, words: str, tmp_path: Path) -> None:
    assert old in GRAPH
    path = tmp_path / "mine.yaml"
    path.write_text(GRAPH.replace(old, new), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_cluster(str(path))
    assert str(caught.value).startswith(str(path)), caught.value
    assert words in str(caught.value)


def test_a_written_cluster_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nics.csv").write_text("part,property,value,unit,kind,source,location,date\n", encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(GRAPH, encoding="utf-8")
    monkeypatch.setenv("TRAINCAST_CATALOG", str(tmp_path))
    (entry,) = [one for one in list_clusters() if one.name == "mine"]
    assert (entry.nodes, entry.gpus, entry.gpu, entry.nics_per_node) == (1, 4, "A100-80GB-PCIe", 2)
    assert entry.nic == "200 Gbit/s"


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "mine.yaml"
    name = str(DATA / "ibnetdiscover.txt")
    assert main(["topology", "import", name, "-o", str(output), "--format", "json"]) == 0
    payload = json.loads(capsys.readouterr().out)
    assert {key: payload["counts"][key] for key in ("gpus", "nics", "switches", "nodes")} == {
        "gpus": 40,
        "nics": 8,
        "switches": 4,
        "nodes": 5,
    }
    assert payload["assumed"]
    assert {"file", "line", "what"} == set(payload["problems"][0])
    assert {row["between"]: row["links"] for row in payload["links"]}["nic-leaf"] == 8
    assert main(["topology", "show", str(output), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["switches"] == 4


def test_command_in_other_forms(capsys: pytest.CaptureFixture[str]) -> None:
    name = str(DATA / "topo_m_pcie.txt")
    assert main(["topology", "import", name, "--nodes", "2", "--gpu", "H100-80GB-PCIe"]) == 0
    text = capsys.readouterr().out
    assert "Assumed" in text
    assert "gpu-gpu" in text
    assert main(["topology", "import", name, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["part,count", "gpus,4"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.txt"], "none.txt: cannot read it: no such file"),
        ([str(DATA / "topo_p2p.txt")], "topo_p2p.txt:2: column GPU1: 'NS'"),
        ([str(DATA / "topo_m_pcie.txt"), "-o", "mine.txt"], "end it in .yaml"),
        ([], "Missing argument"),
    ],
)
def test_command_refuses(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "import", *arguments]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
