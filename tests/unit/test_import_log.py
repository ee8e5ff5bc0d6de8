"""Logs of NCCL_DEBUG=INFO: ranks, rings, trees and NICs, written by hand with the faults of real output."""

from pathlib import Path

import pytest

from traincast.errors import TopologyError
from traincast.topology.importers import import_texts, parse_nccl_log

DATA = Path(__file__).parent.parent / "data" / "topology"
LOG = (DATA / "nccl_info.log").read_text(encoding="utf-8")
OLD = (DATA / "nccl_info_old.log").read_text(encoding="utf-8")


def refusal(text: str) -> str:
    with pytest.raises(TopologyError) as caught:
        import_texts([("n.log", text)])
    return str(caught.value)


def test_ranks_by_communicator() -> None:
    """Two communicators, of 4 and 2 ranks; every rank once although START and COMPLETE both name it."""
    found = parse_nccl_log(LOG, "n.log")
    assert found.version == "2.21.5+cuda12.4"
    world = found.world()
    assert [(rank.rank, rank.host, rank.gpu) for rank in world] == [
        (0, "alpha", "0000:1b:00.0"),
        (1, "alpha", "0000:3d:00.0"),
        (2, "beta", "0000:1b:00.0"),
        (3, "beta", "0000:3d:00.0"),
    ]
    assert {rank.model for rank in world} == {"NVIDIA H100 80GB HBM3"}
    small = [rank for rank in found.ranks if rank.comm == "0x1111"]
    assert [(rank.rank, rank.host) for rank in small] == [(0, "alpha"), (1, "beta")]


def test_rings_trees_and_nics() -> None:
    """A ring that another process cuts in two is left out and said; the whole one counts."""
    found = parse_nccl_log(LOG, "n.log")
    assert [(ring.channel, ring.ranks) for ring in found.rings] == [(0, (0, 1, 2, 3)), (1, (0, 1, 3, 2))]
    tree = {(one.channel, one.rank): (one.up, one.down) for one in found.trees}
    assert tree[0, 0] == (-1, (1, 2))
    assert tree[1, 3] == (-1, (1, 2))
    assert len(tree) == 8
    nets = [(hop.channel, hop.source, hop.target, hop.way, hop.nic, hop.direct) for hop in found.hops if hop.nic >= 0]
    assert nets == [(0, 1, 2, "NET/IB", 0, True), (0, 1, 2, "NET/IB", 0, True), (1, 1, 3, "NET/IB", 1, False)]
    assert [nic.name for nic in found.nics["beta"]] == ["mlx5_0", "mlx5_3"]
    assert found.nics["alpha"][0].bytes_per_s == 50e9
    assert [(problem.line, problem.what.split(":")[0]) for problem in found.problems] == [
        (17, "1 rings list 1 ranks of 4")
    ]


def test_cluster_of_a_log() -> None:
    found = import_texts([("n.log", LOG)])
    assert (found.counts["gpus"], found.counts["nics"], found.counts["nodes"]) == (4, 4, 2)
    assert set(found.cluster.gpu_model) == {"H100-80GB-SXM"}
    assert found.form.host_names == ("alpha", "beta")
    assert found.counts["switches"] == 0
    assert any("no file says what joins the nodes" in text for text in found.assumed)


def test_old_releases() -> None:
    """No host in the prefix, no communicator id, ``Ring``, and trees that print the parent first."""
    found = parse_nccl_log(OLD, "n.log")
    assert [ring.ranks for ring in found.rings] == [(0, 1, 2, 3)]
    assert (found.trees[0].rank, found.trees[0].up, found.trees[0].down) == (0, -1, (1,))
    assert [hop.way for hop in found.hops] == ["P2P/direct pointer"]
    assert import_texts([("n.log", OLD)]).counts["gpus"] == 4


def test_rank_lists_of_nccl_tests_alone() -> None:
    """The highest rank counts; a device that appears again is a second host of the same name."""
    line = "#  Rank {0:>2} Group  0 Pid {1} on       host device  {2} [0x00] NVIDIA H100 80GB HBM3\n"
    whole = "".join(line.format(rank, 100 + rank, rank % 8) for rank in range(16))
    found = import_texts([("n.log", whole)])
    assert (found.counts["gpus"], found.counts["nodes"]) == (16, 2)
    part = "".join(line.format(rank, 100 + rank, rank % 8) for rank in (0, 7, 8, 15))
    filled = import_texts([("n.log", part)])
    assert (filled.counts["gpus"], filled.counts["nodes"]) == (16, 2)
    assert "12 of 16 ranks are not in the log" in filled.problems[0].what


def test_tags_inside_lines() -> None:
    """mpirun may put its tag into the middle of a line."""
    line = "[1,0]<stdout>:#  Rank  0 Group  0 Pid 7 on no[1,0]<stdout>:de-1 device  0 [0x00] NVIDIA H100 80GB HBM3\n"
    assert parse_nccl_log(line).ranks[0].host == "node-1"


def test_logs_of_several_processes() -> None:
    """NCCL_DEBUG_FILE writes one file a process; together they are one job."""
    lines = LOG.splitlines()
    files = [(f"{host}.log", "\n".join(line for line in lines if f"{host}:" in line)) for host in ("alpha", "beta")]
    found = import_texts(files)
    assert (found.counts["gpus"], found.counts["nodes"]) == (4, 2)


def test_independent_runs_are_no_cluster() -> None:
    line = "#  Rank  0 Group  0 Pid {0} on host device  0 [0x08] Tesla V100-SXM2-16GB\n"
    assert refusal(line.format(1) + line.format(2)).startswith("n.log:2: Rank 0 appears a second time: 2 independent")
    init = "h:{0}:{0} [0] NCCL INFO comm 0xa{0} rank 0 nranks 1 cudaDev 0 busId 8000 - Init COMPLETE\n"
    assert refusal(init.format(1) + init.format(2)).startswith("n.log:2: 2 processes with one rank each")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("h:1:1 [0] NCCL INFO Launch mode Parallel\n", "1 NCCL lines, but no rank is named"),
        ("#   size   count   out-of-place\n  8  2  float  sum  -1  142.5  0.00  0.00\n", "a table of nccl-tests"),
        ("hello\n", "no form that is known, expected one of nvidia-smi topo -m"),
    ],
)
def test_nothing_to_import(text: str, words: str) -> None:
    message = refusal(text)
    assert message.startswith("n.log:1: ")
    assert words in message
