"""The microbenchmark suite on real Gloo processes of which one fails, or has no part: nobody waits for it in vain.

PyTorch is optional; without it these are skipped.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle

RANKS = Path(__file__).with_name("suite_ranks.py")
SMALL = [
    "--min-size=4KiB",
    "--max-size=4KiB",
    "--hidden=64",
    "--tokens=64",
    "--stability=0.9",
    "--budget=30",
    "--quick",
]
SECONDS = 40
"""Far below the ten minutes after which a collective gives up; what a run of this size takes on a busy machine."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Exit codes, standard error, seconds and lines of each run."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path_factory.mktemp("faults")
    specs = {
        "three": {
            "world": 3,
            "arguments": ["--pp", "3", "--only", "overlap,collectives", "--ops", "all_reduce,sendrecv"],
        },
        "four": {"arguments": ["--pp", "4", "--only", "overlap"]},
        "six": {"world": 6, "arguments": ["--tp", "2", "--pp", "3", "--only", "overlap"]},
        "short": {
            "arguments": ["--tp", "2", "--only", "collectives,overlap", "--ops", "all_reduce,alltoall"],
            "short": 2,
            "short_op": "all_reduce",
        },
        "pretended": {
            "world": 2,
            "arguments": ["--backend", "gloo", "--only", "overlap,collectives,launch", "--ops", "all_reduce"],
            "pretend": True,
            "environment": {"PATH": f"{driver(folder)}:{os.environ['PATH']}"},
        },
        "fails": {"arguments": ["--only", "collectives"], "fails": 1},
        "full": {"world": 2, "arguments": ["--only", "gemm"], "full": 6000},
        "first": {"world": 2, "arguments": ["--only", "launch"]},
        "again": {"world": 2, "arguments": ["--only", "launch", "--resume", "--stability=1e-7"], "into": "first"},
        "other": {
            "world": 2,
            "arguments": ["--only", "launch", "--resume"],
            "into": "first",
            "environment": {"NCCL_ALGO": "Ring"},
        },
    }
    for name, spec in specs.items():
        spec["arguments"] = ["-o", str(folder / f"{spec.get('into', name)}.jsonl"), *SMALL, *spec["arguments"]]
    asked = json.dumps(list(specs.values()))
    done = subprocess.run(
        [sys.executable, str(RANKS)], input=asked, capture_output=True, text=True, timeout=170, check=True
    )
    ended = dict(zip(specs, json.loads(done.stdout.splitlines()[-1]), strict=True))
    for name, one in ended.items():
        path = folder / f"{name}.jsonl"
        whole = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []  # without one that was cut off
        one["lines"] = [json.loads(line) for line in whole]
    return ended


def driver(folder):
    """A folder with an `nvidia-smi` that takes a while and says that the second GPU is hot."""
    script = folder / "bin" / "nvidia-smi"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\nsleep 0.1\ncase \"$*\" in *GPU-00-1*) echo '900, 1980, 91, 0x40, 550.1';; "
        "*--id*) echo '1900, 1980, 60, 0x4, 550.1';; *) echo GPU0;; esac\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script.parent


def measured(run):
    return [line for line in run["lines"] if "time_us" in line or "in_place_time_us" in line]


@pytest.mark.parametrize(("name", "pairs"), [("three", 0), ("four", 0), ("six", 3)])
def test_ranks_outside_a_family_look_on(runs, name, pairs):
    """Of a pipeline of three or more only the first and the last stage are in the embedding's group."""
    run = runs[name]
    assert run["codes"] == [0] * len(run["codes"]), run["errors"]
    beside = [line for line in measured(run) if line["kind"] == "overlap"]
    assert {line["params"]["what"] for line in beside if line["params"]["family"] == "embedding"} == {
        "gemm",
        "all_reduce",
    }
    two = {line["params"]["family"] for line in beside if "+" in line["params"]["family"]}
    assert len(two) == pairs
    assert pairs == 0 or {"tp+embedding", "pp+embedding"} <= two
    assert all(line["time_us"] > 0 and line["params"]["alone_us"] > 0 for line in beside)
    assert not [line for line in run["lines"] if line["kind"] == "skipped"]


def test_pairs_of_an_odd_world_leave_one_out(runs):
    """Three ranks: (0, 1), then (1, 2)."""
    found = [line for line in measured(runs["three"]) if line["params"].get("pattern") == "pair"]
    assert [line["params"]["compared"] for line in found] == [2, 2]
    assert all(line["wrong"] == 0 for line in found)


def test_a_rank_without_memory_leaves_the_item_out_on_all(runs):
    """It fails before anybody talks: the line says which rank it was, and the run goes on.

    So it is for a collective, a product beside it, and collectives of two families at once.
    """
    run = runs["short"]
    assert run["codes"] == [0] * 4, run["errors"]
    left_out = [line for line in run["lines"] if line["kind"] == "skipped"]
    assert {line["item"].split("/")[0] for line in left_out} == {"collectives", "overlap", "families"}
    assert {line["reason"] for line in left_out} == {"memory"}
    assert all(line["why"].startswith("rank 2: ") and "allocate memory" in line["why"] for line in left_out)
    there = {line["op"] for line in measured(run) if line["kind"] == "collective"}
    assert there == {"alltoall", "sendrecv"}
    assert run["lines"][-1]["kind"] == "end"
    assert run["seconds"] < SECONDS


def test_the_branches_for_gpus_run_and_every_gpu_is_asked_by_its_uuid(runs):
    """On a pretended GPU: events, streams, memory, states while the product runs; a mixed pair takes what both have."""
    run = runs["pretended"]
    assert run["codes"] == [0, 0], run["errors"]
    end = run["lines"][-1]
    hot = "the GPU of rank 1 (" + run["lines"][0]["hosts"][0] + ") reports a reason for a lowered clock: 0x40"
    assert [one["what"].startswith(hot) for one in end["problems"] if "reports" in one["what"]] == [True]
    assert [(one["rank"], one["when"]) for one in end["gpu_states"]] == [
        (0, "start"),
        (1, "start"),
        (0, "end"),
        (1, "end"),
    ]
    assert {line["dtype"] for line in measured(run) if line["params"].get("pass") == "reference"} == {"fp16"}
    assert {line["kind"] for line in measured(run)} == {"kernel", "collective", "overlap"}
    assert run["lines"][0]["gpu"] == "NVIDIA Pretended"
    assert "00-1" not in json.dumps(run["lines"])  # what names a GPU stays out


def test_a_rank_that_fails_ends_all_at_once_and_says_why(runs):
    """Ranks that no signal and no closed connection wakes are ended by the alarm, with a code of its own."""
    run = runs["fails"]
    assert run["codes"] == [3] * 4
    assert run["seconds"] < SECONDS
    assert run["errors"].count("failed: IndexError: no such thing") == 1
    assert "rank 1 failed: IndexError" in run["errors"]
    assert "Connection" not in run["errors"]  # what only follows from it is not said
    assert run["lines"][-1]["kind"] != "end"


def test_a_full_disk_ends_all_ranks_with_the_message_first(runs):
    """The lines that fitted are whole, so that --resume goes on from there."""
    run = runs["full"]
    assert run["codes"] == [2] * 2
    assert run["seconds"] < SECONDS
    said = [line for line in run["errors"].splitlines() if line.startswith("run.py: ")]
    assert said == ["run.py: cannot write full.jsonl: File too large; make room there and go on with --resume"]
    assert "Traceback" not in run["errors"]
    assert len(measured(run)) >= 1


def test_resume_measures_again_what_is_not_stable_enough(runs):
    """A median known to 90 % is not known to one part in ten million; the second record stands beside the first."""
    assert runs["again"]["codes"] == runs["first"]["codes"] == [0, 0], runs["again"]["errors"]
    found = [(line["item"], line["run"], line.get("repeat", 0)) for line in measured(runs["first"])]
    items = [f"launch/launch/fp32/where={where}" for where in ("host", "device")]
    assert found == [*((item, 0, 0) for item in items), *((item, 1, 1) for item in items)]
    assert [line["unstable"] for line in runs["first"]["lines"] if line["kind"] == "end"][1] == 2


def test_a_run_under_other_settings_of_nccl_is_not_gone_on_with(runs):
    assert runs["other"]["codes"] == [2, 2]
    assert "first.jsonl is of another run: NCCL_ALGO None there, 'Ring' here" in runs["other"]["errors"]
