"""Cluster files: the shipped ones load, and each mistake is one line with its place and a fix."""

from pathlib import Path

import pytest

from traincast.errors import CatalogError, TopologyError, UserError
from traincast.topology import list_clusters, load_cluster

TREE = "builder: fat_tree\nnodes: 10\nnode: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}\n"


def written(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def refusal(tmp_path: Path, text: str | bytes) -> UserError:
    with pytest.raises(UserError) as caught:
        load_cluster(written(tmp_path, text))
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("summary", list_clusters(), ids=lambda summary: summary.name)
def test_shipped_files(summary: object) -> None:
    name, gpus = summary.name, summary.gpus  # type: ignore[attr-defined]
    assert summary.source  # type: ignore[attr-defined]
    cluster = load_cluster(name)
    assert cluster.name == name
    assert len(cluster.gpus) == gpus
    assert cluster.assumptions


def test_names() -> None:
    assert {"selene", "hdr4_a100", "superpod_a100", "superpod_h100"} <= {s.name for s in list_clusters()}
    with pytest.raises(TopologyError, match="use selene"):
        load_cluster("selen")


def test_cut_to_whole_nodes() -> None:
    assert len(load_cluster("selene", gpus=3070).gpus) == 3072
    assert load_cluster("selene", gpus=3072) is load_cluster("selene", gpus=3072)
    with pytest.raises(TopologyError, match="4480 GPUs, 4481 are asked for"):
        load_cluster("selene", gpus=4481)
    with pytest.raises(TopologyError, match="0 GPUs"):
        load_cluster("selene", gpus=0)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    text = TREE + "fabric: {leaf_oversubscription: 3, port_bandwidth: 100 Gbit/s, cable_latency: 50 ns}\n"
    cluster = load_cluster(written(tmp_path, text))
    assert len(cluster.gpus) == 80
    edge = cluster.graph.edges["n0/nic0", "su0/leaf0"]
    assert (edge["bandwidth_bytes_per_s"], edge["latency_s"], edge["kind"]) == (12.5e9, 50e-9, "ib")
    assert cluster.fabric.leaf_up_bytes_per_s[0] == 10 * 12.5e9


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    path = written(tmp_path, TREE)
    assert len(load_cluster(path).gpus) == 80
    written(tmp_path, TREE.replace("nodes: 10", "nodes: 12"))
    os.utime(path, ns=(1, 1))
    assert len(load_cluster(path).gpus) == 96


def test_folder_of_ones_own_is_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nics.csv").write_text("part,property,value,unit,kind,source,location,date\n")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "selene.yaml").write_text(TREE)
    monkeypatch.setenv("TRAINCAST_CATALOG", str(tmp_path))
    assert len(load_cluster("selene").gpus) == 80


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("builder: selene\nnodes: 560\nnodes: 3\n", ":3:1: ", 'duplicate key "nodes"'),
        ("builder: selene\nnodes: 5\nnodez: 560\n", ":3:1: ", "did you mean nodes"),
        ("builder: selene\n", ":1:1: ", "the key nodes is missing"),
        ("nodes: 5\n", ":1:1: ", "the key builder is missing"),
        ("builder: selen\nnodes: 3\n", ":1:10: ", "use one of selene, hdr4_a100, fat_tree"),
        ("builder: selene\nnodes: '5'\n", ":2:8: ", "write a whole number"),
        ("builder: selene\nnodes: true\n", ":2:8: ", "write a whole number"),
        ("builder: selene\nnodes: 0\n", ":2:8: ", "greater than or equal to 1"),
        (TREE + "fabric:\n  port_bandwidth: 200\n", ":5:19: ", "has no unit"),
        (TREE + "fabric:\n  port_bandwidth: 3 GB\n", ":5:19: ", "is a size, not a bandwidth"),
        (TREE + "fabric:\n  cable_latency: 3\n", ":5:18: ", "1.2 us"),
        (TREE + "fabric:\n  levls: 2\n", ":5:3: ", "did you mean levels?"),
        (TREE + "fabric:\n  switch: QM8791\n", ":5:11: ", "did you mean QM8790"),
        (TREE + "fabric: []\n", ":4:9: ", "write a mapping"),
        (TREE + "fabric: {nodes_per_unit: 30}\n", ": ", "30 ports down and 30 up"),
        (TREE.replace("SXM", "SXN"), ":3:13: ", "did you mean A100-80GB-SXM"),
        (TREE.replace("gpus: 8", "gpus: 100000000"), ":3:1: ", "give 1 to 64"),
        (TREE.replace("nodes: 10", "nodes: 5000"), ": ", "40000 NIC ports"),
        ("builder: [\n", ":2:1: ", "not YAML"),
        ("builder: selene\n\tnodes: 3\n", ":2:1: ", "not YAML"),
        ("builder: selene\n---\nnodes: 3\n", ":2:1: ", "another document"),
        ("1: 2\n", ": ", "not a name"),
        ("- a\n", ":1:1: ", "a list, not a mapping"),
        ("", ":1:1: ", "empty"),
        ("[" * 2000, ": ", "not YAML"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", ": ", "not a text file"),
        (b"builder: se\x00lene\n", ": ", "not a text file"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
            ": ",
            "more than 100000 values",
        ),
    ],
)
def test_mistakes(tmp_path: Path, text: str | bytes, place: str, words: str) -> None:
    error = refusal(tmp_path, text)
    assert str(error).startswith(f"{tmp_path / 'mine.yaml'}{place}"), error
    assert words in str(error)
    assert error.fix
    assert "\n" not in str(error)


def test_all_mistakes_of_a_file_at_once(tmp_path: Path) -> None:
    lines = str(refusal(tmp_path, TREE.replace("8,", "x,") + "fabric: {levels: 7, port_bandwidth: 3}\n")).splitlines()
    assert lines[0] == "4 errors"
    assert [line.split(": ")[1] for line in lines[1:]] == [
        "node.gpus is 'x' (fix",
        "node.nics is 'x' (fix",
        "fabric.levels is 7 (fix",
        "fabric.port_bandwidth",
    ]


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="no such file"):
        load_cluster(str(tmp_path / "none.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(TopologyError, match="cannot read it"):
        load_cluster(str(tmp_path / "folder.yaml"))


def test_unknown_gpu_is_a_catalogue_error(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path, TREE.replace("A100-80GB-SXM", "A1000")), CatalogError)
