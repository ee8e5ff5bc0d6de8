"""`traincast predict`: the keys of its JSON (design, section 9), its other forms, its refusals."""

import csv
import io
import json

import pytest

KEYS = {
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "aggregate_pflops",
    "mfu",
    "hfu",
    "breakdown_s",
    "traffic",
    "memory",
    "interval",
    "assumptions",
    "mesh_signature",
}
LABELS = ["compute", "recompute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "host"]


def test_without_residuals_of_steps_there_is_no_interval(run, small):
    """A profile of a fabric prices collectives; whole steps have not been compared with it."""
    outcome = run("predict", small, "--set", "profile=a100-azure-ndv4", "--format", "json")
    assert json.loads(outcome.out)["interval"] == {"low_s": None, "high_s": None, "level": None}


def test_json_has_the_keys_and_adds_up(run, small):
    outcome = run("predict", small, "--format", "json")
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert found.keys() >= KEYS
    assert set(found["tflops_per_gpu"]) == {"model", "model_causal", "hardware"}
    assert list(found["breakdown_s"]) == LABELS
    assert sum(found["breakdown_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-12)
    for stage in found["breakdown_per_stage"]:
        assert sum(stage[label] for label in LABELS) == pytest.approx(found["step_time_s"], rel=1e-12)
    assert found["interval"]["low_s"] <= found["step_time_s"] <= found["interval"]["high_s"]
    assert found["interval"]["level"] == 0.8
    assert found["aggregate_pflops_convention"] == "hardware"
    assert len(found["memory"]["per_stage"]) == 2
    assert found["memory"]["verdict"] == "fits"
    for axis in ("tp", "pp", "dp"):
        assert set(found["traffic"][axis]) >= {"calls", "bytes_per_gpu", "exposed_s"}
    assert 0 <= found["traffic"]["cross_node_share"] <= 1
    assert any("data" in text for text in found["assumptions"])


def test_both_engines_agree_to_the_last_bit(run, small):
    found = [
        json.loads(run("predict", small, "--engine", name, "--format", "json").out) for name in ("des", "analytic")
    ]
    assert found[0]["step_time_s"] == found[1]["step_time_s"]
    assert found[0]["breakdown_s"] == found[1]["breakdown_s"]
    assert (found[0]["events"] > 0, found[1]["events"]) == (True, 0)


def test_table_says_the_convention_and_the_published_figure(run, small):
    out = run("predict", small).out
    for words in (
        "step time",
        "rate per GPU, hardware FLOPs",
        "MFU",
        "HFU",
        "Published: nobody",
        "error %",
        "Assumptions",
    ):
        assert words in out
    assert "does not fit" not in out


def test_csv_is_the_summary(run, small):
    rows = list(csv.DictReader(io.StringIO(run("predict", small, "--format", "csv").out)))
    assert next(row for row in rows if row["figure"] == "step time")["unit"] == "s"


@pytest.mark.parametrize("suffix", ["json", "csv", "txt"])
def test_the_suffix_of_the_file_chooses_the_form(run, small, tmp_path, suffix):
    path = tmp_path / f"result.{suffix}"
    outcome = run("predict", small, "-o", path)
    assert (outcome.code, outcome.out) == (0, "")
    text = path.read_text(encoding="utf-8")
    assert text.startswith({"json": "{", "csv": "figure,value", "txt": "Forecast"}[suffix])


def test_a_file_that_cannot_be_written(run, small, tmp_path):
    outcome = run("predict", small, "-o", tmp_path / "no" / "where.json")
    assert outcome.code == 2
    assert "cannot write" in outcome.err


def test_set_overrides_a_key(run, small):
    found = json.loads(run("predict", small, "--set", "training.microbatch=4", "--format", "json").out)
    plain = json.loads(run("predict", small, "--format", "json").out)
    assert found["step_time_s"] != plain["step_time_s"]


@pytest.mark.parametrize("text", ["training.microbatch", "=4", ""])
def test_a_set_without_key_or_value(run, small, text):
    outcome = run("predict", small, "--set", text)
    assert outcome.code == 2
    assert "is not KEY=VALUE (fix: write it like --set parallelism.tp=4)" in outcome.err


def test_trace_has_complete_events_of_every_stage(run, small, tmp_path):
    path = tmp_path / "trace.json"
    outcome = run("predict", small, "--trace", path, "--format", "json")
    assert outcome.code == 0
    trace = json.loads(path.read_text(encoding="utf-8"))
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    passes = [event for event in complete if event["cat"] in ("forward", "backward")]
    assert len(passes) == 2 * 2 * 8  # forward and backward, two stages, m = 32 / (2 * 2)
    assert {event["pid"] for event in complete} == {0, 1}
    assert any(event["cat"] == "pp" for event in complete)
    end_us = max(event["ts"] + event["dur"] for event in complete)
    assert end_us == pytest.approx(json.loads(outcome.out)["step_time_s"] * 1e6)


def test_what_does_not_fit_is_told_with_a_way_out(run, small):
    settings = ("model.hidden=8192", "model.heads=64", "model.layers=24", "training.recompute=none")
    arguments = [part for text in settings for part in ("--set", text)]
    found = json.loads(run("predict", small, *arguments, "--format", "json").out)
    assert found["memory"]["verdict"] == "does not fit"
    assert "stage" in found["memory"]["reason"]
    assert found["memory"]["nearest_that_fits"]
    assert "nearest that fits" in run("predict", small, *arguments).out


REFUSALS = [
    (("model.layers=30", "parallelism.pp=4"), "30 layers do not divide over pp 4"),
    (("parallelism.dp=23",), "global batch 32 is not a multiple of microbatch 2 * dp 23"),
    (("parallelism.tp=6", "model.heads=32"), "32 heads do not divide over tp 6"),
    (("parallelism.vpp=2", "training.global_batch=12"), "3 microbatches are not a multiple of pp 2"),
    (("cluster.gpu=A100-80GB",), "did you mean A100-80GB-SXM"),
    (("training.colour=red",), "colour"),
    (("profile=nowhere",), "no profile 'nowhere'"),
    (("cluster=nowhere",), "nowhere"),
]


@pytest.mark.parametrize(("settings", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_refusals_are_one_line_with_a_fix(run, small, settings, words):
    outcome = run("predict", small, *(part for text in settings for part in ("--set", text)))
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
    assert "fix:" in outcome.err


FILES = {
    "duplicate key": (b"model: gpt-1p7b\nmodel: gpt-3p6b\n", "model"),
    "bare number where a unit belongs": (b"training: {bucket: 25}\n", "bucket"),
    "binary junk": (bytes(range(256)), "not a text file"),
    "empty": (b"", ""),
}


@pytest.mark.parametrize(("content", "words"), FILES.values(), ids=FILES)
def test_files_that_are_no_scenario(run, tmp_path, content, words):
    path = tmp_path / "wrong.yaml"
    path.write_bytes(content)
    outcome = run("predict", path)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
    assert str(path) in outcome.err


def test_sharing_names_the_links(run, small):
    """Max-min sharing is the event engine's; the recurrence refuses it."""
    shared = json.loads(run("predict", small, "--sharing", "adaptive", "--format", "json").out)
    alone = json.loads(run("predict", small, "--format", "json").out)
    assert shared["step_time_s"] >= alone["step_time_s"]
    assert any("max-min" in text for text in shared["assumptions"])
    refused = run("predict", small, "--sharing", "ecmp", "--engine", "analytic")
    assert refused.code == 2
    assert "--engine des" in refused.err


def test_the_job_that_was_asked_for_is_told_in_every_form(run, small):
    """A result that is read later says what it is of: shape, batch and recipe, defaults filled in."""
    job = json.loads(run("predict", small, "--set", "training.zero_stage=1", "--format", "json").out)["job"]
    assert job["zero_stage"] == 1
    assert {"tp", "cp", "pp", "dp", "vpp", "microbatch", "schedule", "recompute", "precision"} <= set(job)
    assert job["microbatches"] * job["microbatch"] * job["dp"] == job["global_batch"]
    table = run("predict", small).out
    rows = list(csv.DictReader(io.StringIO(run("predict", small, "--format", "csv").out)))
    told = {row["figure"]: row["value"] for row in rows}
    for figure in ("parallelism", "batch", "recipe"):
        assert told[figure] in table
    assert told["parallelism"].startswith(f"tp {job['tp']}, cp {job['cp']}, pp {job['pp']}, dp {job['dp']}")
    assert f"schedule {job['schedule']}, recompute {job['recompute']}" in told["recipe"]
