"""`traincast calibrate` where results are not what they seem: another GPU, the same rows again, one node, no fit."""

import json
from pathlib import Path

import pytest

from traincast.profile import load_profile

DATA = Path(__file__).parent.parent / "data" / "calibration"
HEADER = "curve_id,gpu,nodes,gpus,net,nccl_version,op,algo,proto,size_bytes,time_us"
SIZES = [2**k for k in range(10, 33, 2)]


def rows(name: str, nodes: int = 1, *, floor_us: float = 25, gb_per_s: float = 130, gpu: str = "A100-SXM4-80GB"):
    """A plain curve: a floor and a rate."""
    net = "8x200G IB HDR" if nodes > 1 else "NVLink3 NVSwitch"
    head = f"{name},{gpu},{nodes},{8 * nodes},{net},2.8.4,all_reduce,auto,auto"
    return [f"{head},{size},{floor_us + size / (1e3 * gb_per_s):.4f}" for size in SIZES]


def table(path: Path, *curves: list[str]) -> Path:
    path.write_text("\n".join([HEADER, *(row for curve in curves for row in curve)]) + "\n", encoding="utf-8")
    return path


def records(path: Path, *times_us: float) -> Path:
    run = {"schema": 1, "kind": "run", "index": 0, "gpu": "NVIDIA H100 80GB HBM3", "nccl": "2.18.1"}
    row = {"schema": 1, "kind": "collective", "run": 0, "op": "all_reduce", "ranks": 8, "nodes": 1}
    lines = [run, *({**row, "size_bytes": 1024 * 4**n, "time_us": time} for n, time in enumerate(times_us))]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_a_profile_of_ones_own_that_cannot_be_is_named_before_a_forecast(run, tmp_path):
    """No division by it, no forecast with it: the file, the line and what to write."""
    mine = tmp_path / "r.yaml"
    head = "name: r\ninherits: h100-80gb-sxm\ngpu: H100-80GB-SXM\nfabric: x\n"
    for value in ("0", "-0.5", "90"):
        constant = f"memory.efficiency: {{value: {value}, kind: measured, source: x}}"
        mine.write_text(f"{head}constants: {{{constant}}}\n", encoding="utf-8")
        outcome = run("predict", "examples/gpt_10b_1f1b", "--set", f"profile={mine}")
        assert (outcome.code, outcome.out) == (2, "")
        assert f"r.yaml:5:40: constants.memory.efficiency.value cannot be {value}: share of the memory" in outcome.err
        assert "0.9 for 90 %" in outcome.err


@pytest.mark.parametrize("time", [-1.0, 0.0])
def test_a_time_that_nothing_took_is_a_problem_with_its_line(run, tmp_path, time):
    path = records(tmp_path / "r.jsonl", 10.0, time, 30.0)
    outcome = run("calibrate", "import", path, "--format", "json")
    found = json.loads(outcome.out)
    assert (outcome.code, len(found["records"])) == (0, 2)
    (problem,) = found["problems"]
    assert (problem["line"], problem["severity"]) == (3, "dropped")
    assert problem["what"] == f"'time_us' cannot be {time:g}: what was measured is above 0; dropped"
    alone = run("calibrate", "import", records(tmp_path / "one.jsonl", time), "-o", tmp_path / "out.jsonl")
    assert (alone.code, f"'time_us' cannot be {time:g}" in alone.err) == (2, True)


def test_a_model_that_does_not_describe_the_results_makes_no_profile(run, tmp_path):
    """Gloo's times under NCCL's name: the efficiency ends on its bound, half of the points are off by 50 % and more."""
    slow = table(tmp_path / "gloo.csv", rows("gloo", floor_us=200, gb_per_s=0.5))
    mine = tmp_path / "mine.yaml"
    outcome = run("calibrate", "fit", slow, "-o", mine)
    assert outcome.code == 1
    assert "the model does not describe these results: half of 12 points are off by more than 89 %" in outcome.err
    assert "network.intra_efficiency is at the lowest value that a fit allows" in outcome.err
    assert "poor fit" in outcome.out
    assert not mine.exists()
    accepted = run("calibrate", "fit", slow, "-o", mine, "--accept-poor")
    assert accepted.code == 0
    assert "no constant of it counts as measured" in accepted.err
    assert "# the model does not describe these results" in mine.read_text(encoding="utf-8")
    efficiency = load_profile(str(mine)).constants["network.intra_efficiency"]
    assert (efficiency.value, efficiency.kind) == (0.05, "assumed")
    assert "at the lowest value that a fit allows" in efficiency.source


def test_one_curve_that_no_constants_describe_is_named(run, tmp_path):
    mixed = table(tmp_path / "c.csv", rows("good"), rows("better"), rows("bad", floor_us=300, gb_per_s=1))
    outcome = run("calibrate", "fit", mixed, "-o", tmp_path / "x.yaml")
    assert outcome.code == 0
    assert "bad: half of it is off by more than " in outcome.err


def test_the_same_rows_count_once(run, tmp_path):
    """A file twice, a copy of it, a file that holds its rows among others, and rows twice in one file: as one."""
    one = table(tmp_path / "one.csv", rows("one"), rows("two", 2, floor_us=50, gb_per_s=60))
    copy = tmp_path / "copy.csv"
    copy.write_bytes(one.read_bytes())
    part = table(tmp_path / "part.csv", rows("one"))
    twice = table(tmp_path / "twice.csv", rows("one"), rows("two", 2, floor_us=50, gb_per_s=60), rows("one"))
    wanted = run("calibrate", "fit", one, "-o", tmp_path / "x.yaml")
    cases = (
        ((one, one), "one.csv is named twice: counted once"),
        ((one, copy), "copy.csv holds the same as one.csv: counted once"),
        ((one, part), "12 rows of one as in one.csv: counted once"),
        ((twice,), "12 rows of one twice in twice.csv: counted once"),
    )
    for files, said in cases:
        outcome = run("calibrate", "fit", *files, "-o", tmp_path / "x.yaml")
        assert outcome.code == 0
        assert outcome.out == wanted.out
        assert said in outcome.err
        assert "told by 24 points of 2 curves" in outcome.err


def test_a_log_and_its_records_count_once(run, tmp_path):
    log, other = DATA / "mpi_tags.log", tmp_path / "r.jsonl"
    assert run("calibrate", "import", log, "-o", other).code == 0
    outcome = run("calibrate", "fit", log, other, "-o", tmp_path / "x.yaml")
    assert outcome.code == 0
    assert "as in mpi_tags.log: counted once" in outcome.err
    assert "told by 8 points of 1 curve" in outcome.err


def test_one_node_says_nothing_of_the_network(run, tmp_path):
    """In the file, at its top and as its fabric; on stderr; and in every forecast with it."""
    mine = tmp_path / "mine.yaml"
    outcome = run("calibrate", "fit", table(tmp_path / "c.csv", rows("one")), "-o", mine)
    said = "one node alone was measured: nothing is known about the network between nodes"
    assert (outcome.code, said in outcome.err) == (0, True)
    assert f"# {said}" in mine.read_text(encoding="utf-8")
    assert load_profile(str(mine)).fabric.startswith("network between nodes not measured")
    forecast = run("predict", "examples/gpt_10b_1f1b", "--set", f"profile={mine}")
    assert "network between nodes not measured" in forecast.out
    both = table(tmp_path / "d.csv", rows("one"), rows("two", 2, floor_us=50, gb_per_s=60))
    outcome = run("calibrate", "fit", both, "-o", tmp_path / "both.yaml")
    assert "nothing is known about" not in outcome.err
    assert load_profile(str(tmp_path / "both.yaml")).fabric == "8x200G IB HDR"


@pytest.mark.parametrize("command", [("fit", "-o", "x.yaml"), ("show",), ("check", "h100-node")])
def test_a_log_that_does_not_tell_its_collective_needs_op(run, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    name, *words = command
    outcome = run("calibrate", name, DATA / "two_ranks_sum.log", *words)
    assert (outcome.code, outcome.out) == (2, "")
    first = outcome.err.splitlines()[0]
    assert "two_ranks_sum.log:10: the collective is not told: all_reduce or sendrecv" in first
    assert "such as --op all_reduce" in first


def test_gpu_corrects_a_name_and_selects_no_rows(run, tmp_path):
    """A file of one other GPU is taken as what the user says, with a remark; of several, none can be meant."""
    words = ("--gpu", "A100-80GB-SXM", "-o", tmp_path / "x.yaml")
    other = table(tmp_path / "h.csv", rows("one", gpu="H100-SXM5-80GB"))
    outcome = run("calibrate", "fit", other, *words)
    assert outcome.code == 0
    assert "h.csv names H100-80GB-SXM: taken as A100-80GB-SXM, since --gpu says so" in outcome.err
    mixed = table(tmp_path / "m.csv", rows("one", gpu="H100-SXM5-80GB"), rows("two", 2))
    outcome = run("calibrate", "fit", mixed, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "12 of 24 rows are of other GPUs than A100-80GB-SXM: H100-80GB-SXM 12" in outcome.err
    without = run("calibrate", "fit", mixed, "-o", tmp_path / "y.yaml")
    assert all("keep the rows of one in a file of their own" in one.err for one in (outcome, without))
    log = run("calibrate", "show", DATA / "mpi_tags.log", "--gpu", "A100-80GB-SXM")
    assert "mpi_tags.log names H100-80GB-SXM: taken as A100-80GB-SXM" in log.err


def test_numbers_that_are_none_are_named_with_line_and_fix(run, tmp_path):
    odd = [rows("one")[0].replace(",1024,", ",abc,"), rows("two")[0].rsplit(",", 1)[0] + ","]
    outcome = run("calibrate", "fit", table(tmp_path / "c.csv", rows("one"), odd), "-o", tmp_path / "x.yaml")
    assert outcome.code == 0
    assert "c.csv:14: one: no size that can be: size_bytes is 'abc'; write a number of bytes" in outcome.err
    assert "c.csv:15: two: 1024 bytes: no time that can be: time_us is empty; write microseconds" in outcome.err
    assert "nan" not in outcome.err
    ranks = [row.replace(",1,8,", ",1,eight,") for row in rows("one")[:1]]
    outcome = run("calibrate", "fit", table(tmp_path / "d.csv", ranks), "-o", tmp_path / "y.yaml")
    assert outcome.code == 2
    assert "d.csv:2: one: 1024 bytes: no count that can be: gpus is 'eight'; write a whole number" in outcome.err


@pytest.mark.parametrize(
    ("header", "lacks"), [("m,n,k,seconds", "a rate or a time"), ("m,n,TFLOPS", "k"), ("| m | n | k |", "a rate or a")]
)
def test_a_table_of_products_names_the_columns_that_it_needs(run, tmp_path, header, lacks):
    path = tmp_path / "g.csv"
    row = " | 4096" * 3 + " |" if header.startswith("|") else "4096,4096,4096,1"
    path.write_text(f"{header}\n{row}\n", encoding="utf-8")
    outcome = run("calibrate", "import", path)
    assert outcome.code == 2
    assert f"g.csv:1: a table of matrix products without {lacks}" in outcome.err
    assert "columns m, n, k (or MxNxK) and a rate (GFLOPS, TFLOPS, PFLOPS) or a time with its unit" in outcome.err
    readme = (Path(__file__).parents[2] / "calibration" / "README.md").read_text(encoding="utf-8")
    assert "`MxNxK`" in readme
