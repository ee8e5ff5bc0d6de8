"""`traincast compare`: the table, JSON and CSV agree; options; what is refused."""

import csv
import io
import json

import pytest

ROW = {
    *("strategy", "layout", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "memory_bytes", "verdict"),
    *("reason", "cross_node_share", "exposed_s", "checkpoint"),
}


def test_json_and_csv_hold_the_same_figures(run, small):
    options = (small, "--shard", "4", "--storage-rate", "1 GB/s", "--node-storage-rate", "500 MB/s")
    found = json.loads(run("compare", *options, "--format", "json").out)
    assert {"scenario", "gpus", "strategies", "assumptions"} <= set(found)
    assert found["gpus"] == 8
    assert all(set(row) >= ROW for row in found["strategies"])
    lines = list(csv.DictReader(io.StringIO(run("compare", *options, "--format", "csv").out)))
    assert [line["strategy"] for line in lines] == [row["strategy"] for row in found["strategies"]]
    for line, row in zip(lines, found["strategies"], strict=True):
        assert float(line["step_time_s"]) == row["step_time_s"]
        assert float(line["checkpoint_bytes"]) == row["checkpoint"]["bytes"]
        assert float(line["tflops_model"]) == row["tflops_per_gpu"]["model"]
        assert row["exposed_s"] == pytest.approx(sum(row["exposed_by_axis_s"].values()))
        assert row["layout"]["tp"] * row["layout"]["pp"] * row["layout"]["dp"] == 8
        # all on one node, which carries half of what the file system takes
        assert row["checkpoint"]["save_s"] == pytest.approx(row["checkpoint"]["bytes"] / 500e6)


def test_a_row_can_be_predicted(run, small):
    """`set` is what to give to predict, which then says the same."""
    found = json.loads(run("compare", small, "--format", "json").out)
    row = next(one for one in found["strategies"] if one["strategy"] == "TP+FSDP")
    options = [word for pair in row["set"] for word in ("--set", pair)]
    again = json.loads(run("predict", small, *options, "--format", "json").out)
    for key in ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu"):
        assert again[key] == row[key]
    assert again["traffic"]["cross_node_share"] == row["cross_node_share"]


def test_tables_name_conventions_checkpoints_and_what_does_not_apply(run, small, tmp_path):
    out = run("compare", small).out
    for words in ("TFLOP/s, model", "TFLOP/s, hardware", "MFU %", "across nodes %", "exposed s", "largest file"):
        assert words in out
    assert "not applicable: groups of 8 ranks leave none outside 8 GPUs: that is FSDP (fix: --shard 4)" in out
    assert "file system: 100 GB/s in all, 25.0 GB/s a node" in out
    assert run("compare", small, "-o", tmp_path / "found.txt").code == 0
    assert (tmp_path / "found.txt").read_text(encoding="utf-8") == out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpus", "7"), "--gpus: no strategy has a layout on 7 GPUs"),
        (("--gpus", "0"), "--gpus"),
        (("--shard", "3"), "--shard: 8 GPUs do not divide into shard groups of 3"),
        (("--shard", "1"), "--shard"),
        (("--storage-rate", "100"), "--storage-rate: '100' has no unit"),
        (("--storage-rate", "0 GB/s"), "--storage-rate: '0 GB/s' is not above 0"),
        (("--node-storage-rate", "5 s"), "--node-storage-rate: '5 s' is a time"),
        (("--set", "training.global_batch=0"), "training.global_batch"),
    ],
)
def test_options_that_cannot_be(run, small, options, words):
    outcome = run("compare", small, *options)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "fix:" in outcome.err
    assert outcome.err.count("\n") == 1
