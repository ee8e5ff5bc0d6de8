"""The microbenchmark suite on real Gloo processes: four forks of one interpreter, and torchrun behind the command.

PyTorch is optional; without it these are skipped.
"""

import getpass
import json
import os
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from suite.groups import measured_families, shape_of
from suite.options import OPS, parse
from suite.plan import Site, build

from traincast.calibration import import_file

pytestmark = pytest.mark.oracle

RANKS = Path(__file__).with_name("suite_ranks.py")
SMALL = ["--min-size=4KiB", "--max-size=4KiB", "--hidden=64", "--tokens=64", "--stability=0.9"]
PIPELINE = [*SMALL, "--cp", "2", "--pp", "2", "--quick"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What several short runs left behind: exit codes, files and standard error."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path_factory.mktemp("suite")
    file = {name: folder / f"{name}.jsonl" for name in ("main", "experts", "spoilt")}
    main = ["-o", str(file["main"]), *PIPELINE]
    spoilt = ["-o", str(file["spoilt"]), *SMALL, "--tp", "2", "--only", "gemm,collectives", "--quick"]
    experts = ["-o", str(file["experts"]), *SMALL, "--ep", "2", "--only", "collectives"]
    specs = [
        {"arguments": [*main, "--budget", "0.4"]},
        {"arguments": [*main, "--budget", "50", "--resume"], "file": str(file["main"]), "interrupt_after": 90},
        {"arguments": [*main, "--budget", "50", "--resume"]},
        {"arguments": [*experts, "--budget", "30"], "missing": True},
        {
            "arguments": [*spoilt, "--ops", "all_reduce,broadcast", "--budget", "20"],
            "wrong": 1,
            "slow": 2,
            "nodes": True,
        },
        {"arguments": [*spoilt, "--budget", "20"]},
        {"arguments": [*spoilt, "--budget", "20", "--resume", "--dp", "1"]},
    ]
    done = subprocess.run(
        [sys.executable, str(RANKS)], input=json.dumps(specs), capture_output=True, text=True, timeout=170, check=True
    )
    ended = json.loads(done.stdout.splitlines()[-1])
    print({"t": [round(one["seconds"], 1) for one in ended]})
    return {"codes": [one["codes"] for one in ended], "file": file, "errors": "".join(one["errors"] for one in ended)}


def entries(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def is_measured(entry):
    """PyTorch's all-reduce and broadcast leave the result where the input stood: their times are in other fields."""
    return "time_us" in entry or "in_place_time_us" in entry


def planned(arguments, world=4):
    """The keys of a plan, made here without PyTorch."""
    options = parse(["-o", "any.jsonl", *arguments])
    shape = shape_of(world, dict(options.sizes), options.order)
    return [item.key for item in build(options, Site(False, measured_families(shape)))]


def test_every_item_is_measured_once_through_budget_interruption_and_resume(runs):
    """Law: three runs into one file, of which two ended early, hold the plan without a gap and nothing twice."""
    found = entries(runs["file"]["main"])
    assert runs["codes"][:3] == [[0] * 4] * 3
    ends = [entry for entry in found if entry["kind"] == "end"]
    assert [end["complete"] for end in ends] == [False, False, True]
    reasons = [{e["reason"] for e in found if e["kind"] == "skipped" and e["run"] == index} for index in range(3)]
    assert reasons == [{"budget"}, {"interrupted"}, set()]
    times = Counter((entry["item"], entry.get("params", {}).get("what")) for entry in found if is_measured(entry))
    keys = planned(PIPELINE)
    assert {item for item, _ in times if not item.endswith("/end")} == set(keys)
    loose = {entry["item"] for entry in found if entry.get("half_width", 0.0) > 0.9}  # a busy machine: tried again
    assert {item for (item, _), number in times.items() if number > 1 and "reference" not in item} <= loose


def test_every_operation_runs_over_every_family_alone_and_all_at_once(runs):
    """Every collective over the world and the groups of both meshes, all results right to the last element."""
    files = [entries(runs["file"][name]) for name in ("main", "experts")]
    found = [entry for entry in files[0] + files[1] if entry["kind"] == "collective"]
    seen = {(entry["op"], entry["params"]["family"], entry["params"]["mode"]) for entry in found}
    there = [op for op in OPS if op != "reduce_scatter"]
    wanted = {(op, family, "all") for op in OPS for family in ("world", "cp", "pp")}
    wanted |= {(op, family, mode) for op in there for family in ("ep", "edp") for mode in ("alone", "all")}
    assert wanted <= seen
    for entry in found:
        there = "in_place_" if entry["op"] in ("all_reduce", "broadcast") else ""
        other = {"": "in_place_", "in_place_": ""}[there]
        assert entry[f"{there}wrong"] == 0
        time_us, rate = entry[f"{there}time_us"], entry[f"{there}algbw_bytes_per_s"]
        assert rate == pytest.approx(entry["size_bytes"] / time_us * 1e6, rel=1e-3)
        assert not {f"{other}time_us", f"{other}wrong", f"{other}busbw_bytes_per_s"} & set(entry)
        spread = [entry["min_us"], entry["quartile_1_us"], time_us, entry["quartile_3_us"], entry["max_us"]]
        assert spread == sorted(spread)
    at_once = {(entry["params"]["family"], entry["params"]["mode"]): entry["params"]["groups"] for entry in found}
    assert at_once["cp", "all"] == at_once["ep", "all"] == 2
    assert at_once["ep", "alone"] == at_once["world", "all"] == 1


def test_experts_have_families_of_their_own_and_a_missing_operation_is_left_out_with_a_reason(runs):
    found = entries(runs["file"]["experts"])
    families = {entry["params"]["family"] for entry in found if entry["kind"] == "collective"}
    assert {"world", "ep", "edp"} <= families
    left_out = [entry for entry in found if entry["kind"] == "skipped"]
    assert {entry["op"] for entry in left_out} == {"reduce_scatter"}
    assert all(entry["why"].startswith("not supported by backend gloo") for entry in left_out)
    assert "folder" not in left_out[0]["why"]
    assert runs["codes"][3] == [0] * 4


def test_a_wrong_result_is_caught_and_a_slow_rank_named(runs):
    """Injected: rank 1 adds one to an element of its sums, rank 2 sleeps before each product."""
    assert runs["codes"][4] == [1] * 4
    path = runs["file"]["spoilt"]
    problems = entries(path)[-1]["problems"]
    wrong = [problem["what"] for problem in problems if problem["kind"] == "wrong"]
    assert wrong
    assert all(what.startswith("all_reduce gave ") for what in wrong)
    host = entries(path)[0]["hosts"][1]  # ranks 2 and 3 are on the second node
    slow = [problem["what"] for problem in problems if problem["kind"] == "slow"]
    assert any(what.startswith(f"rank 2 on {host} computes ") for what in slow)
    imported = import_file(path)
    assert not [record for record in imported.records if record.op == "all_reduce"]
    dropped = [problem.what for problem in imported.problems if problem.severity == "dropped"]
    assert len(dropped) == len(wrong)
    assert "results of this all_reduce are wrong" in dropped[0]


def test_a_file_that_exists_or_is_of_another_mesh_is_refused(runs):
    assert runs["codes"][5:] == [[2] * 4] * 2
    assert "spoilt.jsonl exists; add --resume" in runs["errors"]
    assert "tp*cp*pp*dp = 2, but 4 ranks run" in runs["errors"]


def test_the_reader_of_the_simulator_takes_all_records(runs):
    """`traincast calibrate import` and the suite share one format; what is missing in a file is said."""
    for name in ("main", "experts"):
        path = runs["file"][name]
        imported = import_file(path)
        assert len(imported.records) == sum(map(is_measured, entries(path)))
        assert {problem.severity for problem in imported.problems} <= {"note"}
    run = import_file(runs["file"]["main"]).records[0].run
    assert (run.world, run.nodes, run.backend) == (4, 1, "gloo")
    assert run.mesh == "tp1 cp2 ep1 dp1 pp2 etp1 order tp-cp-ep-dp-pp"
    kinds = {record.kind for record in import_file(runs["file"]["main"]).records}
    assert kinds == {"collective", "kernel", "overlap", "setup"}


def test_kernels_overlaps_and_start_up_carry_their_figures(runs):
    found = [entry for entry in entries(runs["file"]["main"]) if is_measured(entry)]
    gemms = [entry for entry in found if entry["op"] == "gemm" and entry["kind"] == "kernel"]
    assert {entry["params"]["pass"] for entry in gemms} == {"reference", "forward", "dgrad", "wgrad"}
    for entry in gemms:
        flops = 2.0 * entry["params"]["m"] * entry["params"]["n"] * entry["params"]["k"]
        assert entry["flops_per_s"] == pytest.approx(flops / entry["time_us"] * 1e6, rel=1e-3)
    kernels = {(e["op"], e["params"].get("pass")) for e in found if e["kind"] == "kernel"}
    ops = ("flash", "unfused", "layer_norm", "gelu", "dropout_add", "softmax")
    wanted = {(op, way) for op in ops for way in ("forward", "backward")}
    assert wanted | {("adam", None), ("launch", None), ("copy", "forward")} <= kernels
    beside = {(entry["op"], entry["params"]["family"]) for entry in found if entry["kind"] == "overlap"}
    assert {("gemm", "cp"), ("all_gather", "cp"), ("gemm", "pp"), ("sendrecv", "pp")} <= beside
    assert {("all_gather", "cp+pp"), ("sendrecv", "cp+pp")} <= beside
    whole = next(entry for entry in found if entry["op"] == "mesh_startup")
    assert whole["params"]["count"] == 4 + 2 + 2 + 4 + 2 + 2 + 2  # tp, cp, pp, dp, dp-cp, tp-pp, embedding
    error = whole["params"]["predicted_us"] / whole["time_us"] - 1
    assert whole["params"]["error"] == pytest.approx(error, abs=1e-3)
    sizes = {entry["params"]["size"] for entry in found if entry["op"] == "new_group"}
    assert sizes == {1, 2, 4}


def test_nothing_private_is_in_the_files(runs):
    """Host name, user, folders and addresses stay out; hosts of one run share a label."""
    for path in runs["file"].values():
        text = path.read_text(encoding="utf-8")
        for private in (platform.node(), str(path.parent), os.getcwd(), "127.0.0.1", f"/{getpass.getuser()}/"):
            assert private not in text
        assert "secret-node" not in text
    run = entries(runs["file"]["spoilt"])[0]
    assert (len(set(run["hosts"])), run["nodes"]) == (2, 2)
    assert len(entries(runs["file"]["main"])[0]["hosts"]) == 1
    nodes = {(e["params"]["family"], e["nodes"]) for e in entries(runs["file"]["spoilt"]) if e["kind"] == "collective"}
    assert {("world", 2), ("tp", 1), ("dp", 2)} <= nodes


@pytest.mark.slow
def test_the_command_starts_the_suite_with_torchrun(tmp_path):
    """`traincast calibrate run` from end to end."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    output = tmp_path / "two.jsonl"
    command = [sys.executable, "-m", "traincast", "calibrate", "run", "-o", str(output), "--backend", "gloo"]
    further = ["--nproc-per-node", "2", "--only", "launch", "--budget", "5"]
    done = subprocess.run([*command, *further], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [record.op for record in import_file(output).records] == ["launch"] * 2
    assert import_file(output).records[0].run.launcher == "torchrun"


@pytest.mark.slow
def test_the_step_of_a_small_transformer_is_measured(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    script = Path(__file__).parents[2] / "calibration" / "train_step.py"
    output = tmp_path / "step.jsonl"
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "sequence": 64, "microbatch": 2, "steps": 3}
    shape = [f"--{name}={value}" for name, value in sizes.items()]
    done = subprocess.run([sys.executable, str(script), "-o", str(output), *shape], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = import_file(output).records
    assert [(record.kind, record.op) for record in records] == [("step", "train_step"), ("step", "gradients")]
    scenario = (tmp_path / "step-l2h64.yaml").read_text(encoding="utf-8")
    assert "hidden: 64, layers: 2, heads: 4" in scenario
