"""`nvidia-smi topo -m`: figures counted by hand in tests/data/topology, and the layouts that drivers print."""

from pathlib import Path

import pytest

from traincast.errors import TopologyError
from traincast.topology import span
from traincast.topology.importers import import_texts
from traincast.topology.importers.matrix import parse_matrix
from traincast.topology.importers.nodes import facts_of_matrix
from traincast.topology.importers.read import nearest_of

DATA = Path(__file__).parent.parent / "data" / "topology"
NVSWITCH = (DATA / "topo_m_nvswitch.txt").read_text(encoding="utf-8")
BOX = (DATA / "topo_m_pcie.txt").read_text(encoding="utf-8")


def refusal(text: str) -> str:
    with pytest.raises(TopologyError) as caught:
        import_texts([("m.txt", text)])
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_eight_gpus_six_nics() -> None:
    """Escapes, tabs, an empty cell before the last column and a legend do not move anything."""
    found = parse_matrix(NVSWITCH, "m.txt")
    assert found.gpus == tuple(f"GPU{n}" for n in range(8))
    assert len(found.nics) == 6
    assert {found.relation("GPU0", f"GPU{n}") for n in range(1, 8)} == {"NV12"}
    assert [found.relation("GPU5", nic) for nic in found.nics] == ["SYS", "SYS", "PXB", "NODE", "SYS", "SYS"]
    assert found.numa == {f"GPU{n}": n // 4 for n in range(8)}
    assert found.cpu_affinity["GPU7"] == "32-63,96-127"
    assert found.nic_names["NIC2"] == "mlx5_4"
    assert nearest_of(found, "GPU3") == ["NIC1"]
    assert found.problems == ()


def test_nvswitch_node() -> None:
    """12 links to each of 7 peers are more than a GPU has: a switch. Each PXB group is one PCIe switch."""
    found = import_texts([("m.txt", NVSWITCH)])
    graph = found.cluster.graph
    assert found.counts == {"gpus": 8, "nics": 6, "switches": 0, "nodes": 1, "blocks": 0, "assumed_switches": 0}
    assert set(found.cluster.gpu_model) == {"A100-80GB-SXM"}
    edge = graph.edges["n0/gpu3", "n0/nvswitch"]
    assert (edge["links"], edge["bandwidth_bytes_per_s"]) == (12, 300e9)
    assert {key for key in graph["n0/pcie1"] if "cpu" not in key} == {"n0/gpu2", "n0/gpu3", "n0/nic1"}
    assert span(found.cluster, range(8)).tier == "nvlink"
    assert any("mlx5_2, mlx5_3" in text and "storage" in text for text in found.assumed)
    assert any("GPU model is not in m.txt" in text for text in found.assumed)


def test_bridges_and_tiers_of_a_pcie_box() -> None:
    """A pair with NV4 is a bridge, not a switch; PIX, PXB, host bridge and sockets cost in that order."""
    found = import_texts([("m.txt", BOX)])
    graph = found.cluster.graph
    assert (found.counts["gpus"], found.counts["nics"]) == (4, 2)
    assert graph.edges["n0/gpu0", "n0/gpu1"]["links"] == 4
    assert "n0/nvswitch" not in graph
    assert graph.has_edge("n0/pcie0", "n0/pcie1")
    assert set(graph["n0/pcie0"]) >= {"n0/gpu0", "n0/nic0"}
    assert "n0/gpu2" in graph["n0/pcie1"]
    rates = [span(found.cluster, pair).intra_bytes_per_s for pair in ([0, 2], [1, 2], [0, 3])]
    assert rates[0] > rates[1] > rates[2]
    assert {found.cluster.gpu_model[0]} == {"A100-80GB-PCIe"}


def test_bonds_that_no_gpu_has() -> None:
    """Eight links to each of three peers: a switch; four to each of three (12 in all): a mesh."""

    def square(bond: str) -> str:
        rows = ["\t" + "\t".join(f"GPU{n}" for n in range(4))]
        rows += [f"GPU{a}\t" + "\t".join(" X " if a == b else bond for b in range(4)) for a in range(4)]
        return "\n".join(rows)

    assert facts_of_matrix(parse_matrix(square("NV8"))).nvlink.to_switch == (8, 8, 8, 8)  # type: ignore[union-attr]
    mesh = facts_of_matrix(parse_matrix(square("NV4"))).nvlink
    assert mesh is not None
    assert (mesh.to_switch, len(mesh.peers)) == ((), 6)


def test_a_virtual_machine_hides_the_tree() -> None:
    head = "\tGPU0\tGPU1\tNIC0\tNIC1\n"
    rows = "GPU0\tX\tPHB\tPHB\tPHB\nGPU1\tPHB\tX\tPHB\tPHB\nNIC0\tPHB\tPHB\tX\tPHB\nNIC1\tPHB\tPHB\tPHB\tX\n"
    found = import_texts([("m.txt", head + rows)])
    assert any("cannot be told" in text for text in found.assumed)
    assert [problem.what for problem in found.problems] == ["no legend names NIC0, NIC1: devices unknown"]


def test_another_makers_links_are_kept_and_not_built() -> None:
    text = "\tGPU0\tGPU1\nGPU0\tX\tMX\nGPU1\tMX\tX\n"
    found = import_texts([("m.txt", text)])
    assert found.files[0].says["relations"]["GPU0"]["GPU1"] == "MX"
    assert "nvlink" not in {edge["kind"] for _, _, edge in found.cluster.graph.edges(data=True)}
    assert (found.problems[0].line, "bandwidth is unknown" in found.problems[0].what) == (2, True)


def test_p2p_status_is_no_topology() -> None:
    message = refusal((DATA / "topo_p2p.txt").read_text(encoding="utf-8"))
    assert message.startswith("m.txt:2: column GPU1: 'NS' is a P2P status")
    assert "expected X, NV#, PIX, PXB, PHB, NODE or SYS" in message
    assert "save the output of nvidia-smi topo -m" in message


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("GPU3    SYS     SYS     SYS     X       SYS     NODE    16-31         1\n", "", ":7: ", "GPU3 has a column"),
        ("NODE    16", "NODEX   16", ":5: ", "'NODEX' is no relation"),
        ("GPU2    PXB     PHB ", "GPU2    PXB ", ":4: ", "column GPU1 of row GPU2: 'X' is no relation"),
        ("mlx5_1  SYS     SYS     SYS     NODE", "mlx5_1  SYS", ":7: ", "has 3 cells, expected 6"),
        ("\nGPU1 ", "\nGPU7 ", ":3: ", "the row 'GPU7', expected one of GPU0"),
        ("GPU0    X       NV4", "GPU0    NV4     X  ", ":2: ", "meets itself"),
        ("GPU1    GPU2    GPU3", "GPU1    GPU1    GPU3", ":1: ", "GPU1 names two columns"),
        ("\nGPU3    SYS", "\nGPU2    SYS", ":5: ", "second row GPU2 (the first is line 4)"),
    ],
)
def test_damaged_matrices(old: str, new: str, place: str, words: str) -> None:
    assert old in BOX
    message = refusal(BOX.replace(old, new))
    assert message.startswith(f"m.txt{place}"), message
    assert words in message
    assert "expected" in message


def test_what_disagrees_or_is_left_out_is_said() -> None:
    found = import_texts([("m.txt", f"{BOX}root@node:~# exit\n".replace("GPU2    PXB", "GPU2    SYS"))])
    said = [str(problem) for problem in found.problems]
    assert said == [
        "m.txt:8: after the matrix: 'root@node:~# exit' was not read",
        "m.txt:4: GPU2-GPU0 is SYS, but line 2 says PXB: PXB is taken",
    ]


def matrix(gpus: int, relation: dict[tuple[int, int], str] | str) -> str:
    """The output for GPUs of one socket, with one relation between all, or one for each pair."""

    def cell(a: int, b: int) -> str:
        pair = (min(a, b), max(a, b))
        return "X" if a == b else relation if isinstance(relation, str) else relation.get(pair, "NODE")

    rows = ["\t" + "\t".join(f"GPU{n}" for n in range(gpus)) + "\tCPU Affinity\tNUMA Affinity"]
    rows += [f"GPU{a}\t" + "\t".join(cell(a, b) for b in range(gpus)) + "\t0-63\t0" for a in range(gpus)]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("gpus", "bond", "model", "why"),
    [
        (8, "NV6", "V100-32GB-SXM", "6 NVLinks a GPU, as a V100 has"),
        (8, "NV8", "A800-80GB-SXM", "8 NVLinks a GPU, as A800 and H800 have"),
        (8, "NV12", "A100-80GB-SXM", "12 NVLinks a GPU, as an A100 has"),
        (8, "NV18", "H100-80GB-SXM", "18 NVLinks a GPU, as H100, H200 and B200 have"),
        (4, "NV18", "H100-80GB-SXM", "18 NVLinks a GPU"),
        (2, "NV18", "H100-80GB-SXM", "18 NVLinks a GPU"),  # two GPUs of a virtual machine
        (2, "NV6", "V100-32GB-SXM", "6 NVLinks a GPU"),
        (3, "NV6", "V100-32GB-SXM", "6 NVLinks a GPU"),
        (4, "NV4", "A100-80GB-SXM", "12 NVLinks a GPU"),  # four boards without a switch: 3 x 4
        (4, "NV6", "H100-80GB-SXM", "18 NVLinks a GPU"),  # likewise 3 x 6
        (4, "NV2", "V100-32GB-SXM", "6 NVLinks a GPU"),  # likewise 3 x 2
        (2, "NV12", "A100-80GB-PCIe", "a PCIe card: NVLink bridges in pairs"),
        (2, "NV4", "A100-80GB-PCIe", "a PCIe card: NVLink bridges in pairs"),
    ],
)
def test_links_tell_the_generation(gpus: int, bond: str, model: str, why: str) -> None:
    """NVLinks of a GPU by generation (NVIDIA's NVLink page): V100 6, A100 12, H100, H200 and B200 18; export models 8.
    PCIe cards are bridged in pairs by 2, 4, 8 or 12."""
    found = import_texts([("m.txt", matrix(gpus, bond))])
    assert set(found.cluster.gpu_model) == {model}
    assert any("GPU model is not in m.txt" in text and why in text for text in found.assumed)
    assert found.problems == ()


def test_all_links_between_two_gpus_go_to_a_switch() -> None:
    """Two GPUs that show all 18 links of a Hopper: no board joins a pair so, an NVSwitch does."""
    graph = import_texts([("m.txt", matrix(2, "NV18"))]).cluster.graph
    edge = graph.edges["n0/gpu1", "n0/nvswitch"]
    assert (edge["links"], edge["bandwidth_bytes_per_s"]) == (18, 450e9)


@pytest.mark.parametrize(
    ("bond", "worn", "model"), [("NV12", "NV11", "A100-80GB-SXM"), ("NV18", "NV16", "H100-80GB-SXM")]
)
def test_a_gpu_with_links_down_does_not_hide_the_generation(bond: str, worn: str, model: str) -> None:
    """It shows as many to all others as it has itself; the rest is a switch as ever."""
    pairs = {(a, b): worn if 3 in (a, b) else bond for b in range(8) for a in range(b)}
    found = import_texts([("m.txt", matrix(8, pairs))])
    assert set(found.cluster.gpu_model) == {model}
    assert [problem.what.split(" shows")[0] for problem in found.problems] == ["GPU3"]
    graph = found.cluster.graph
    links = [graph.edges[f"n0/gpu{n}", "n0/nvswitch"]["links"] for n in (2, 3)]
    assert links == [int(bond[2:]), int(worn[2:])]
