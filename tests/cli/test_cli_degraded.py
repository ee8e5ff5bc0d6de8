"""`traincast predict` on a degraded cluster: what the defects touch and cost."""

import json

import pytest

TREE = "builder: fat_tree\nnodes: 2\nnode: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}\n"
WORN = TREE + "degraded:\n  - {nic: n0/nic1, rate: 50 %}\n  - {gpu: n0/gpu5, speed: 90 %}\n"
DEAD = TREE + "dead_gpus: [n1/gpu7]\n"


@pytest.fixture
def predict(run, small, tmp_path):
    def call(text, *arguments):
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        settings = (f"cluster={path}", "parallelism.dp=4", "training.global_batch=64")
        return run("predict", small, *(part for one in settings for part in ("--set", one)), *arguments)

    return call


@pytest.mark.parametrize(("engine", "sharing"), [("des", "static"), ("analytic", "static"), ("des", "adaptive")])
def test_json(predict, engine, sharing):
    """TP 2, DP 4, PP 2 over two nodes: rank 1 meets NIC 1 in its pipeline, rank 5 is on the slow GPU."""
    options = ("--engine", engine, "--sharing", sharing, "--format", "json")
    worn, plain = (json.loads(predict(text, *options).out) for text in (WORN, TREE))
    told = worn["degraded"]
    assert plain["degraded"] is None
    assert told["step_time_s"] == worn["step_time_s"]
    assert told["clean_step_time_s"] == plain["step_time_s"]
    assert told["loss_s"] == worn["step_time_s"] - plain["step_time_s"] > 0
    assert told["loss_percent"] == pytest.approx(100 * told["loss_s"] / plain["step_time_s"])
    nic, gpu = told["defects"]
    assert (nic["part"], nic["left"], gpu["part"], gpu["left"]) == ("n0/nic1", 0.5, "n0/gpu5", 0.9)
    assert nic["families"] == [{"family": "pp", "groups": 8, "touched": 1, "changed": 1, "first_ranks": [1, 9]}]
    assert [(one["family"], one["groups"], one["touched"], one["first_ranks"]) for one in gpu["families"]] == [
        ("tp", 8, 1, [4, 5]),
        ("dp", 4, 1, [1, 3, 5, 7]),
        ("pp", 8, 1, [5, 13]),
    ]


def test_table(predict):
    out = predict(WORN).out
    assert "Degraded cluster" in out
    assert "step time, nothing wrong" in out
    (row,) = [line for line in out.splitlines() if line.startswith("n0/nic1 carries")]
    assert row.split("  ")[0] == "n0/nic1 carries 12.5 GB/s of 25.0 GB/s (-50 %)"
    assert row.split()[-6:] == ["pp", "1", "8", "1", "1,", "9"]
    assert "Degraded cluster" not in predict(TREE).out


def test_a_defect_that_touches_nobody_is_told_too(predict):
    """Eight ranks fill the first node; what is wrong on the second one costs nothing, and is said to."""
    path = DEAD + "degraded: [{nic: n1/nic7, rate: 10 %}]\n"
    found = predict(path, "--set", "parallelism.dp=2", "--format", "json")
    told = json.loads(found.out)["degraded"]
    assert told["loss_s"] == 0.0
    assert [(one["part"], one["families"]) for one in told["defects"]] == [("n1/nic7", []), ("n1/gpu7", [])]
    rows = [line for line in predict(path, "--set", "parallelism.dp=2").out.splitlines() if "n1/gpu7 is dead" in line]
    assert any("none" in row for row in rows)
