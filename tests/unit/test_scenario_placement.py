"""`parallelism.placement`: lists, rank files, node lists with gaps, dead GPUs; refusals say where."""

import json
from pathlib import Path

import pytest

from traincast.errors import UserError
from traincast.forecast import prepare
from traincast.scenario import load_scenario
from traincast.scenario.rankfile import read_rank_file

HEAD = """\
model: {hidden: 1024, layers: 8, heads: 16, vocab: 51200}
cluster: selene
training: {global_batch: 32, microbatch: 2, sequence: 1024, recompute: full}
parallelism:
  tp: 2
  pp: 2
"""


@pytest.fixture
def write(tmp_path: Path):
    """A scenario of TP2 PP2 with further lines under parallelism."""

    def scenario(*lines: str) -> Path:
        path = tmp_path / "placed.yaml"
        path.write_text(HEAD + "".join(f"  {line}\n" for line in lines))
        return path

    return scenario


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("placement: [8, 9, 0, 1]", (8, 9, 0, 1)),
        ('placement: "8-9,0-1"', (8, 9, 0, 1)),
        ("placement: {gpus: [n1/gpu0, n1/gpu1, 0, n0/gpu1]}", (8, 9, 0, 1)),
        ('placement: {nodes: "n[001-002]"}', (8, 9, 10, 11)),
        ("placement: {nodes: [n3, n1], dead_gpus: [n3/gpu0, n3/gpu2]}", (25, 27, 28, 29)),
        ("placement: {nodes: [n3, n1], distribution: cyclic}", (24, 8, 25, 9)),
    ],
)
def test_forms_of_a_placement(write, line: str, gpus: tuple[int, ...]) -> None:
    assert load_scenario(write("dp: 1", line)).mesh.placement == gpus


def test_a_node_list_with_gaps_and_a_dead_gpu_moves_later_ranks_up(write) -> None:
    """Ranks go on with the next living GPU: rank 5 would be on the dead one."""
    path = write("dp: 4", 'placement: {nodes: "n[001,003,020]", dead_gpus: [n1/gpu5]}')
    assert load_scenario(path).mesh.placement == (*range(8, 13), 14, 15, *range(24, 32), 160)


def test_dp_follows_from_the_living_gpus(write) -> None:
    scenario = load_scenario(write('placement: {nodes: "n[4-5]"}'))
    assert scenario.mesh.dp == 4
    assert any("dp not stated: 4" in line for line in scenario.assumptions)


def test_the_cluster_reaches_to_the_last_gpu(write) -> None:
    """A file's cluster is cut behind the last GPU in use; the groups lie where the placement says."""
    job = prepare(load_scenario(write("dp: 1", "placement: [160, 161, 320, 321]"))).job
    assert len(job.cluster.gpus) == 328
    assert job.mesh.physical([0, 2]).tolist() == [160, 320]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ranks.json", "[8, 9, 0, 1]"),
        ("ranks.json", json.dumps({"1": 9, "0": 8, "2": "n0/gpu0", "3": 1})),
        ("ranks.json", json.dumps({"placement": [8, 9, 0, 1]})),
        ("ranks.json", json.dumps({"ranks": [{"rank": r, "gpu": g} for r, g in enumerate((8, 9, 0, 1))]})),
        ("ranks.csv", "rank,gpu\n0,8\n1,9\n3,1\n2,0\n"),
        ("ranks.csv", "rank,node,slot\n0,n1,0\n1,n1,1\n2,n0,0\n3,n0,1\n"),
        ("hosts.txt", "# two hosts\nn1\nn1\nn0\nn0\n"),
        ("hosts.txt", "n1:2\nn0 slots=2\n"),
        ("rankfile", "rank 0=n1 slot=0\nrank 1=n1 slot=1\nrank 3=n0 slot=1\nrank 2=+n0 slot=0\n"),
        ("gpus.txt", "8\n9\n0\n1\n"),
    ],
)
def test_rank_files(write, tmp_path: Path, name: str, text: str) -> None:
    """All say the same: ranks 0 and 1 on node 1, ranks 2 and 3 on node 0."""
    (tmp_path / name).write_text(text)
    assert load_scenario(write("dp: 1", f"placement: {{file: {name}}}")).mesh.placement == (8, 9, 0, 1)


@pytest.mark.parametrize(
    ("lines", "where", "what"),
    [
        (["dp: 1", "placement: [8, 9, 0]"], "placed.yaml:8:3", "3 GPUs for a world of 4"),
        (["dp: 1", "placement: [8, 9, 0, 8]"], "placed.yaml:8:3", "GPU 8 to two ranks"),
        (["dp: 1", "placement: [8, 9, x, 1]"], "placed.yaml:8:21", "'x' is no GPU"),
        (["dp: 1", "placement: [n0/gpu9, 9, 0, 1]"], "placed.yaml:8:15", "no living GPU 9"),
        (["dp: 1", "placement: nowhere.json"], "placed.yaml:8:3", "no rank file"),
        (["dp: 1", "placement: {nodes: n999}"], "placed.yaml:8:15", "no node n999"),
        (["dp: 1", "placement: {nodes: [n1, 'n[3-']}"], "placed.yaml:8:27", "brackets"),
        (["dp: 1", "placement: {nodes: [n1, n01]}"], "placed.yaml:8:27", "named twice"),
        (["dp: 4", "placement: {nodes: n1, dead_gpus: [n1/gpu1]}"], "placed.yaml:8:15", "7 living GPUs"),
        (["dp: 1", "placement: {nodes: n1, gpus: [1]}"], "placed.yaml:8:15", "gpus and nodes"),
        (["dp: 1", "placement: {gpus: [0, 1, 2, 3], distribution: cyclic}"], "placed.yaml:8:35", "without nodes"),
        (["dp: 1", "placement: {nodes: n1, distribution: round}"], "placed.yaml:8:26", "cyclic"),
        (["dp: 1", "placement: {}"], "placed.yaml:8:3", "nothing"),
        (["dp: 1", "placement: {node: n1}"], "placed.yaml:8:15", "did you mean nodes"),
        (["dp: 1", "placement: 7.5"], "placed.yaml:8:3", "not text"),
        (["dp: 1", 'placement: "3-0"'], "placed.yaml:8:3", "'3-0' is no range"),
        (["dp: 1", 'placement: "0-99999999999"'], "placed.yaml:8:3", "no range"),
    ],
)
def test_refusals_say_where(write, monkeypatch, lines: list[str], where: str, what: str) -> None:
    path = write(*lines)
    monkeypatch.chdir(path.parent)
    with pytest.raises(UserError) as caught:
        load_scenario(path)
    assert str(caught.value).startswith(f"{where}: ")
    assert what in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "where", "what"),
    [
        ("r.csv", "rank,gpu\n0,8\n0,9\n", "r.csv:3:1", "rank 0 is there twice"),
        ("r.csv", "rank,gpu\n0,8\n2,9\n", "r.csv:1:1", "rank 1 is missing"),
        ("r.csv", "rank,gpu\n0\n", "r.csv:2:1", "1 cells, but 2 columns"),
        ("r.csv", "rank,colour\n0,red\n", "r.csv:1:1", "names no GPU"),
        ("r.csv", "rank,node,slot\n0,n1,first\n", "r.csv:2:1", "'first' is no slot"),
        ("r.json", "[1, 2", "r.json:1:6", "not JSON"),
        ("r.json", '{"a": 1}', "r.json", "'a' is no rank"),
        ("r.json", "[1, -2]", "r.json (entry 1)", "-2 is no GPU"),
        ("hosts", "n1\nn2 = 3\n", "hosts:2:1", "names no host"),
        ("hosts", "rank 0=n1 slot=0\nrank one=n2\n", "hosts:2:1", "places no rank"),
        ("hosts", "# nobody\n", "hosts", "names no rank"),
    ],
)
def test_damaged_rank_files_say_where(tmp_path: Path, monkeypatch, name: str, text: str, where: str, what: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as caught:
        read_rank_file(tmp_path / name)
    assert str(caught.value).startswith(f"{where}: ")
    assert what in str(caught.value)


def test_a_host_with_more_ranks_than_gpus_is_refused(write, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1:9\n")
    with pytest.raises(UserError, match="node n1 has 8 living GPUs, but 9 ranks"):
        load_scenario(write("dp: 1", "placement: hosts"))


def test_described_clusters_take_placements(tmp_path: Path) -> None:
    """Numbers make the described cluster large enough; node names need its size."""
    text = HEAD.replace("cluster: selene", "cluster: {gpu: A100-80GB-SXM}")
    path = tmp_path / "one.yaml"
    path.write_text(text + "  dp: 1\n  placement: [16, 17, 24, 25]\n")
    assert len(prepare(load_scenario(path)).job.cluster.gpus) == 32
    path.write_text(text + "  dp: 1\n  placement: {nodes: n1}\n")
    with pytest.raises(UserError, match="does not say how many"):
        load_scenario(path)
    path.write_text(text.replace("SXM}", "SXM, nodes: 2}") + "  dp: 1\n  placement: [0, 1, 2, 16]\n")
    with pytest.raises(UserError, match="GPU 16 of 16"):
        load_scenario(path)
