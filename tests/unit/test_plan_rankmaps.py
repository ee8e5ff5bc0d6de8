"""Rank maps compared: what hangs, what is mispaired, which ranks differ first."""

import json
from pathlib import Path

import pytest

from traincast.errors import UserError
from traincast.mesh import Mesh
from traincast.plan.agree import compare
from traincast.plan.rankmaps import combinations_of, of_mesh, read_rank_map

SIXTEEN = "tp2-pp4-dp2"


def groups_file(path: Path, **families: list[list[int]]) -> str:
    path.write_text(json.dumps(families))
    return str(path)


def test_a_spelled_mesh_has_the_groups_of_design_3() -> None:
    """16 ranks TP2 PP4 DP2, worked out in DESIGN §3."""
    found = read_rank_map(SIXTEEN)
    assert found.families["pp"][0] == (0, 4, 8, 12)
    assert found.families["dp"][:2] == ((0, 2), (1, 3))
    assert found.world == 16
    other = read_rank_map("TP2-PP4-DP2@tp-pp-dp")
    assert other.families["dp"][0] == (0, 8)


@pytest.mark.parametrize("second", [SIXTEEN, f"{SIXTEEN}@tp-cp-ep-dp-pp", "dp2-tp2-pp4"])
def test_equal_maps_are_equal(second: str) -> None:
    found = compare(read_rank_map(SIXTEEN), read_rank_map(second))
    assert found.equal
    assert found.agreed == ("tp", "cp", "pp", "dp", "dp-cp", "tp-pp", "embedding")


def test_other_members_hang(tmp_path: Path) -> None:
    """DP before or after PP: rank 0 waits in its pipeline for ranks that are elsewhere."""
    found = compare(read_rank_map(SIXTEEN), read_rank_map(f"{SIXTEEN}@tp-pp-dp"))
    first = {one.family: one for one in found.differences}["pp"]
    assert not found.equal
    assert (first.kind, first.rank, first.ranks) == ("membership", 0, 16)
    assert (first.first, first.second) == ((0, 4, 8, 12), (0, 2, 4, 6))
    assert "hangs: rank 0 waits for ranks 8, 12" in first.consequence
    assert found.agreed == ("tp", "cp")


def test_the_same_members_in_another_order_are_mispaired(tmp_path: Path) -> None:
    mine = groups_file(tmp_path / "a.json", tp=[[0, 1, 2, 3], [4, 5, 6, 7]], pp=[[0, 4], [1, 5], [2, 6], [3, 7]])
    other = groups_file(tmp_path / "b.json", tp=[[0, 1, 2, 3], [4, 6, 5, 7]], pp=[[0, 4], [1, 5], [6, 2], [3, 7]])
    found = {one.family: one for one in compare(read_rank_map(mine), read_rank_map(other)).differences}
    assert (found["tp"].kind, found["tp"].rank, found["tp"].ranks) == ("order", 5, 2)
    assert "rank 5 is number 1 of its group on one side and 2 on the other" in found["tp"].consequence
    assert "ring neighbours are 4 and 6, there 6 and 7" in found["tp"].consequence
    assert found["pp"].rank == 2
    assert "passes messages to 6, there to 6" in found["pp"].consequence


def test_only_the_first_ranks_that_differ_are_named(tmp_path: Path) -> None:
    """A swap of ranks 9 and 11 between two groups: four ranks see another group, 8 is the first of them."""
    tp = [[2 * i, 2 * i + 1] for i in range(8)]
    tp[4], tp[5] = [8, 11], [10, 9]
    found = compare(read_rank_map("tp2-dp8"), read_rank_map(groups_file(tmp_path / "t.json", tp=tp)))
    (one,) = found.differences
    assert (one.family, one.rank, one.ranks) == ("tp", 8, 4)
    assert one.consequence.startswith("hangs: rank 8 waits for rank 9")
    assert "dp" in found.unseen


def test_worlds_of_unequal_size_differ() -> None:
    found = compare(read_rank_map("tp2-dp4"), read_rank_map("tp2-dp8"))
    first = found.differences[0]
    assert (first.family, first.rank, first.ranks) == ("world", 8, 8)
    assert "the worlds differ (8 against 16 ranks); where rank 8 is expected it never starts" in first.consequence
    assert len(found.differences) == 1
    assert any("lacks ranks of theirs: tp, cp, pp, dp" in note for note in found.notes)
    assert found.only(["tp"]).differences == (first,)


@pytest.mark.parametrize(
    ("mine", "other", "what"),
    [
        ([[0, 1]], [[0], [1]], "hangs: rank 0 waits for rank 1, which the other side does not put with it"),
        ([[0], [1]], [[0, 1]], "hangs: rank 1 waits for rank 0, which does not know it"),
        ([[0], [1], [2]], [[0, 1, 2]], "hangs: ranks 1, 2 wait for rank 0, which does not know them"),
        ([[1]], [[0], [1]], "rank 0 is alone in a group that the other side lacks"),
        ([[2]], [[0, 1], [2]], "hangs: rank 1 waits for rank 0, which does not know it"),
        ([[0, 1], [2]], [[2]], "hangs: rank 0 waits for rank 1, but has no group on the other side"),
    ],
)
def test_ranks_wait_for_others_in_good_grammar(
    tmp_path: Path, mine: list[list[int]], other: list[list[int]], what: str
) -> None:
    first, second = groups_file(tmp_path / "a.json", tp=mine), groups_file(tmp_path / "b.json", tp=other)
    found = compare(read_rank_map(first), read_rank_map(second)).differences[0]
    assert found.consequence.startswith(what)


def test_a_cluster_is_no_rank_map(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("builder: selene\nnodes: 2\n")
    for text in (str(path), "selene"):
        with pytest.raises(UserError, match="is a cluster file, not a rank map"):
            read_rank_map(text)


@pytest.mark.parametrize("form", ["list", "object"])
def test_coordinates_in_json(tmp_path: Path, form: str) -> None:
    rows = [{"rank": r, "tp": r % 2, "dp": r // 2 % 2, "pp": r // 4} for r in range(16)]
    data = rows if form == "list" else {str(row.pop("rank")): row for row in rows}
    path = tmp_path / "coordinates.json"
    path.write_text(json.dumps(data))
    assert compare(read_rank_map(SIXTEEN), read_rank_map(str(path))).equal


def test_a_scenario_is_a_map() -> None:
    assert compare(read_rank_map("sc21/t1_145p6b"), read_rank_map("tp8-pp8-dp24")).equal


def test_joint_groups_have_all_ranks_once() -> None:
    found = combinations_of(of_mesh(Mesh(tp=2, cp=2, pp=2, dp=2), "mesh"))
    for family in ("tp-dp", "cp-pp", "tp-cp-dp", "tp-cp-dp-pp"):
        assert sorted(rank for group in found[family] for rank in group) == list(range(16))
    assert found["tp-cp-dp-pp"] == (tuple(range(16)),)
    assert found["dp-cp"][0] == (0, 2, 4, 6)


def log_text(groups: list[list[int]], world: int = 8) -> str:
    """A log of NCCL_DEBUG=INFO: two hosts of four ranks, the world's communicator and one for each group."""
    lines = []
    communicators = [list(range(world)), *groups]
    for number, members in enumerate(communicators):
        for place, rank in enumerate(members):
            host, dev = f"node{rank // 4}", rank % 4
            lines.append(
                f"{host}:{100 + dev}:{200 + dev} [{dev}] NCCL INFO comm 0x55{number:02x}0 rank {place} "
                f"nranks {len(members)} cudaDev {dev} nvmlDev {dev} busId {dev + 1}000 "
                f"commId 0x{number + 16:x} - Init COMPLETE"
            )
    return "\n".join(lines) + "\n"


def test_the_groups_of_a_log_are_found_in_the_mesh(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(log_text([[0, 1], [2, 3], [4, 5], [6, 7], [0, 2, 4, 6], [1, 3, 5, 7]]))
    found = compare(read_rank_map("tp2-dp4"), read_rank_map(str(path)))
    assert found.equal
    assert "tp (4 of 4 groups)" in found.agreed
    assert "dp (2 of 2 groups)" in found.agreed


def test_a_log_that_differs_from_the_mesh_says_where(tmp_path: Path) -> None:
    """One group permuted, one with other members."""
    path = tmp_path / "nccl.log"
    path.write_text(log_text([[0, 1], [3, 2], [4, 6], [5, 7]]))
    found = compare(read_rank_map("tp2-dp4"), read_rank_map(str(path)))
    assert not found.equal
    kinds = {one.kind: one for one in found.differences}
    assert (kinds["order"].family, kinds["order"].rank) == ("tp", 2)
    assert kinds["unknown"].second in ((4, 6), (5, 7))
    assert "no group of the mesh" in kinds["unknown"].consequence
    assert "dp" in found.unseen


def test_two_logs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(log_text([[0, 1]]))
    with pytest.raises(UserError, match="two logs"):
        compare(read_rank_map(str(path)), read_rank_map(str(path)))


@pytest.mark.parametrize(
    ("name", "text", "where", "what"),
    [
        ("a.json", "{", "a.json:1:2", "not JSON"),
        ("a.json", "[1]", "a.json", "no rank and coordinates"),
        ("a.json", '{"tp": [[0, 1], [1, 2]]}', "a.json", "rank 1 is in two groups"),
        ("a.json", '{"tp": [[0, "x"]]}', "a.json", "'x' is no rank"),
        ("a.json", '{"tp": 3}', "a.json", "no groups"),
        ("a.csv", "rank,tp\n0,0\n1,one\n", "a.csv:3:1", "tp is 'one'"),
        ("a.csv", "rank,tp\n0,0\n0,1\n", "a.csv:3:1", "rank 0 is there twice"),
        ("a.csv", "rank,tp\n0,0\n2,1\n", "a.csv", "rank 1 is missing"),
        ("a.csv", "rank,colour\n0,0\n", "a.csv", "no rank and coordinates"),
        ("a.txt", "hello\n", "a.txt:1", "no rank is named"),
    ],
)
def test_damaged_maps_are_refused(tmp_path: Path, monkeypatch, name: str, text: str, where: str, what: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    with pytest.raises(UserError) as caught:
        read_rank_map(name)
    assert str(caught.value).startswith(where)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("text", "what"),
    [("tp2-tp4", "twice"), ("nowhere.json", "no rank map"), ("tp2@tp-xp", "order"), ("tp2-dp600000", "too large")],
)
def test_spellings_that_are_none(text: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        read_rank_map(text)
