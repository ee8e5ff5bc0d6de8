"""`traincast mesh --cluster`, `mesh suggest`, `mesh check` and `traincast plan`."""

import json
from pathlib import Path

import pytest

from traincast.plan.agree import compare
from traincast.plan.rankmaps import read_rank_map

SIXTEEN = ("--tp", 2, "--pp", 4, "--dp", 2)


def test_mesh_alone_is_as_ever(run) -> None:
    """A group of commands now; without one of them it still shows the mesh."""
    done = run("mesh", *SIXTEEN)
    assert done.code == 0
    assert done.out.startswith("Mesh 826ae75f1807: 16 ranks, order tp-cp-ep-dp-pp")
    assert "[0,4,8,12] [1,5,9,13] [2,6,10,14] [3,7,11,15]" in done.out
    assert "Where the groups" not in done.out


def test_mesh_on_a_cluster_says_what_groups_cross(run) -> None:
    done = run("mesh", "--tp", 8, "--pp", 8, "--dp", 24, "--cluster", "selene", "--format", "json")
    assert done.code == 0
    payload = json.loads(done.out)
    families = payload["cluster"]["families"]
    assert families["tp"]["groups"] == {"node": 192}
    assert families["dp"]["groups"] == {"spine": 56, "core": 8}
    assert families["dp"]["farthest"] == "core"
    assert "bytes_per_step" not in payload["cluster"]
    table = run("mesh", "--tp", 8, "--pp", 8, "--dp", 24, "--cluster", "selene").out
    assert "Where the groups of each family go on selene" in table
    assert "across core" in table


def test_nodes_are_those_of_the_cluster(run, tmp_path: Path) -> None:
    """A dead GPU: rank 5 is on GPU 6 of node 0, rank 7 already on node 1."""
    path = tmp_path / "holes.yaml"
    path.write_text("builder: fat_tree\nnodes: 2\nnode: {gpu: A100-80GB-SXM}\ndead_gpus: [n0/gpu5]\n", encoding="utf-8")
    payload = json.loads(run("mesh", "--tp", 2, "--dp", 4, "--cluster", path, "--format", "json").out)
    assert [rank["node"] for rank in payload["ranks"]] == [0] * 7 + [1]
    assert payload["cluster"]["families"]["tp"]["groups"] == {"node": 3, "leaf": 1}


def test_a_scenario_adds_bytes_and_the_busiest_links(run) -> None:
    done = run("mesh", "--scenario", "sc21/t1_145p6b", "--top", 3, "--format", "json")
    assert done.code == 0
    cluster = json.loads(done.out)["cluster"]
    kinds = {row["kind"]: row for row in cluster["bytes_per_step"]}
    assert set(kinds["NIC to leaf"]["by_family"]) == {"dp", "pp", "embedding"}
    assert "tp" in kinds["GPU to NVLink"]["by_family"]
    links = cluster["busiest_links"]
    assert len(links) == 3
    assert links[0]["seconds"] >= links[1]["seconds"] >= links[2]["seconds"]
    text = run("mesh", "--scenario", "sc21/t1_145p6b", "--set", "parallelism.order=dp-tp-pp", "--top", 2).out
    assert "The busiest links" in text
    assert "n0/nic0 out" in text
    assert "tp 99" in text


def test_a_scenario_on_another_cluster(run, small: Path) -> None:
    payload = json.loads(run("mesh", "--scenario", small, "--cluster", "superpod_h100", "--format", "json").out)
    assert payload["cluster"]["name"] == "superpod_h100"


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("mesh", "--scenario", "sc21/t1_145p6b", "--tp", 4), "--tp"),
        (("mesh", "--tp", 4, "--set", "parallelism.tp=4"), "--set"),
        (("mesh", "--tp", 8, "--cluster", "selen"), "selene"),
        (("mesh", "--tp", 8, "--dp", 1000, "--cluster", "selene"), "8000"),
        (("mesh", "suggest"), "--cluster"),
        (("mesh", "suggest", "--cluster", "selene", "--gpus", 64, "--tp", 5), "tp 5"),
        (("mesh", "suggest", "--scenario", "sc21/t1_1p7b", "--gpus", 64), "--gpus"),
        (("mesh", "check", "tp2-dp4", "nowhere.json"), "no rank map"),
        (("mesh", "check", "selene", "pcie_box"), "a cluster file, not a rank map"),
        (("mesh", "check", "tp2-dp4", "tp2-dp4", "--family", "xp"), "in common"),
        (("plan", "sc21/t1_9p9b"), "no scenario"),
    ],
)
def test_refusals(run, words: tuple[object, ...], where: str) -> None:
    done = run(*words)
    assert done.code == 2
    assert done.out == ""
    assert where in done.err
    assert "fix:" in done.err


def test_a_rank_file_places_the_mesh(run, tmp_path: Path) -> None:
    path = tmp_path / "ranks.csv"
    path.write_text("rank,gpu\n0,8\n1,9\n2,0\n3,1\n")
    payload = json.loads(run("mesh", "--tp", 2, "--dp", 2, "--placement", path, "--format", "json").out)
    assert [rank["node"] for rank in payload["ranks"]] == [1, 1, 0, 0]
    path.write_text("n1:2\nn0:2\n")
    done = run("mesh", "--tp", 2, "--dp", 2, "--placement", path)
    assert done.code == 2
    assert "--cluster" in done.err
    words = ("mesh", "--tp", 2, "--dp", 2, "--placement", path, "--cluster", "selene", "--format", "json")
    assert [rank["gpu"] for rank in json.loads(run(*words).out)["ranks"]] == [8, 9, 0, 1]


def test_suggest_proposes_with_reasons(run) -> None:
    done = run("mesh", "suggest", "--scenario", "sc21/t1_145p6b", "--format", "json")
    assert done.code == 0
    payload = json.loads(done.out)
    assert payload["sizes"] == {"tp": 8, "cp": 1, "ep": 1, "etp": 1, "dp": 24, "pp": 8}
    assert set(payload["reasons"]) == {"tp", "pp", "dp", "order"}
    assert [tier["name"] for tier in payload["tiers"]][2:4] == ["NVLink domain", "leaf"]
    assert payload["step_time_s"] == payload["present_step_time_s"]
    text = run("mesh", "suggest", "--cluster", "pcie_box").out
    assert "Suggested for 32 GPUs of pcie_box: tp 8, dp 4" in text


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "dp-tp-pp", "pp-tp-dp"])
def test_what_mesh_writes_reads_back(tmp_path: Path, run, order: str) -> None:
    """JSON by families, CSV by coordinates: both equal to the mesh itself."""
    for form in ("json", "csv"):
        path = tmp_path / f"map.{form}"
        assert run("mesh", "--tp", 2, "--pp", 4, "--dp", 2, "--order", order, "-o", path).code == 0
        found = compare(read_rank_map(f"tp2-pp4-dp2@{order}"), read_rank_map(str(path)))
        assert found.equal, form
        assert {"tp", "dp", "pp"} <= set(found.agreed)


def test_check_exits_with_1_where_maps_differ(run) -> None:
    assert run("mesh", "check", "tp2-pp4-dp2", "tp2-pp4-dp2").code == 0
    done = run("mesh", "check", "tp2-pp4-dp2", "tp2-pp4-dp2@tp-pp-dp", "--format", "json")
    assert done.code == 1
    payload = json.loads(done.out)
    assert payload["equal"] is False
    assert payload["agreed"] == ["tp", "cp"]
    first = {row["family"]: row for row in payload["differences"]}["pp"]
    assert (first["rank"], first["first"], first["second"]) == (0, [0, 4, 8, 12], [0, 2, 4, 6])
    text = run("mesh", "check", "tp2-pp4-dp2", "tp2-pp4-dp2@tp-pp-dp", "--family", "dp").out
    assert "hangs: rank 0 waits for rank 2" in text
    assert "pp " not in text.split("Equal in both")[0].split("order")[0]


def test_plan_ranks_the_orders_of_a_scenario(run, small: Path) -> None:
    done = run("plan", small, "--format", "json")
    assert done.code == 0
    payload = json.loads(done.out)
    assert payload["evaluated"] == 6
    rows = payload["candidates"]
    assert [row["rank"] for row in rows] == list(range(1, 7))
    assert sum(row["present"] for row in rows) == 1
    assert payload["best_step_time_s"] <= payload["present_step_time_s"]
    assert rows[0]["limit"]["text"]


def test_plan_shows_the_present_order_beside_the_best(run, small: Path) -> None:
    """--top keeps the fastest, and the scenario's own wherever it stands."""
    done = run("plan", small, "--set", "parallelism.order=pp-dp-tp", "--set", "cluster.gpus_per_node=2", "--top", 1)
    assert done.code == 0
    assert "<- present" in done.out
    assert "2 of 6 candidates" in done.out
    placed = run("plan", small, "--no-orders", "--placements", "--splits", "--swaps", 2, "--format", "csv")
    assert placed.code == 0
    assert placed.out.splitlines()[0].startswith("rank,order,placement,split,step_time_s")


def test_groups_follow_the_schedule(run) -> None:
    """ZB-V: first and last part on stage 0, layers folded; DualPipe: gradients over two stages each."""
    words = ("mesh", *SIXTEEN, "--layers", 16, "--cluster", "selene", "--format", "json")
    plain, fold, both = (
        json.loads(run(*words, *more).out) for more in ((), ("--schedule", "zb-v"), ("--schedule", "dualpipe"))
    )
    assert plain["families"]["embedding"]["groups"] == [[0, 12], [1, 13], [2, 14], [3, 15]]
    assert fold["families"]["embedding"]["groups"] == [[0], [1], [2], [3]]
    assert fold["cluster"]["families"]["embedding"]["groups"] == {"alone": 4}
    assert [rank["holds"]["layers"] for rank in fold["ranks"]][::4] == [
        [0, 1, 14, 15],
        [2, 3, 12, 13],
        [4, 5, 10, 11],
        [6, 7, 8, 9],
    ]
    held = [set(rank["holds"]["weights"]) for rank in fold["ranks"]]
    assert [{"embedding", "head"} <= weights for weights in held] == [True] * 4 + [False] * 12
    assert both["families"]["dp-cp"]["groups"][0] == [0, 2, 12, 14]
    assert [rank["holds"]["layers"] for rank in both["ranks"]][::4] == [
        [*range(4), *range(12, 16)],
        [*range(4, 12)],
        [*range(8, 12), *range(4, 8)],
        [*range(12, 16), *range(4)],
    ]
    assert {row["family"]: row["size"] for row in both["communicators"]["full"]["families"]}["dp-cp"] == 4


def test_a_scenario_s_schedule_is_followed(run) -> None:
    """The same, from the keys of a scenario: no hop from the last stage to the first in a fold."""
    words = ("mesh", "--scenario", "sc21/t1_39p1b", "--format", "json", "--set", "parallelism.vpp=2")
    loop, fold = (
        json.loads(run(*words, "--set", f"training.schedule={name}", "--set", "training.p2p=async").out)
        for name in ("interleaved", "zb-v")
    )
    stages = fold["sizes"]["pp"]
    assert [len(one["placement"]["stage_hops"]) for one in (loop, fold)] == [stages, stages - 1]
    sizes = [one["cluster"]["families"]["embedding"]["size"] for one in (loop, fold)]
    assert sizes == [2, 1]
    assert "embedding" not in {name for row in fold["cluster"]["bytes_per_step"] for name in row["by_family"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pp", 3, "--schedule", "dualpipe"), "but pp is 3 (fix: --pp 2 or 4, or --schedule dualpipev)"),
        (("--pp", 4, "--vpp", 1, "--schedule", "zb-v"), "but vpp is 1 (fix: --vpp 2, or no --vpp)"),
        (
            ("--pp", 4, "--schedule", "dualpipev", "--global-batch", 7),
            "but a step has 7 (fix: --global-batch 8 or more",
        ),
        (("--pp", 4, "--schedule", "zbv"), "--schedule: no schedule 'zbv' (fix: did you mean zb-v?)"),
        (
            ("--cp", 8, "--sequence", 100),
            "2 * cp 8 = 16, which balances causal attention (fix: --cp 5 or 10, or --sequence 96",
        ),
        (("--tp", 3, "--heads", 16), "(fix: --tp 2 or 4, or --heads 15 or 18)"),
        (("--scenario", "sc21/t1_39p1b", "--schedule", "zb-v"), "--schedule beside --scenario"),
    ],
)
def test_fixes_name_options(run, words: tuple[object, ...], said: str) -> None:
    done = run("mesh", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_scenario_s_shards_and_heads_are_shown(run, small: Path) -> None:
    """8 replicas that shard in fours; 4 context ranks, two of which exchange heads and two pass blocks."""
    wide = ("--set", "training.attention=flash", "--set", "parallelism.tp=1", "--set", "parallelism.pp=1")
    sets = (*wide, "--set", "parallelism.dp=8", "--set", "training.zero_stage=3", "--set", "training.fsdp_shard=4")
    found = json.loads(run("mesh", "--scenario", small, *sets, "--format", "json").out)
    assert found["sharding"]["groups"]["shard"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert found["sharding"]["groups"]["replicate"] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert found["context"] is None
    assert "ZeRO-3 over dp" in run("mesh", "--scenario", small, *sets).out
    kind = ("training.cp_kind=usp", "training.cp_ulysses=2")
    sets = (*wide, "--set", "parallelism.cp=4", "--set", "parallelism.dp=1", *(w for k in kind for w in ("--set", k)))
    found = json.loads(run("mesh", "--scenario", small, *sets, "--format", "json").out)
    assert found["context"]["groups"] == {"ring": [[0, 2], [1, 3]], "heads": [[0, 1], [2, 3]]}
    assert found["sharding"] is None
