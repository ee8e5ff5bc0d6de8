"""`traincast sweep` on a small scenario: everything counted, nothing lost, the ranking in order of time."""

import csv
import io
import json

import pytest


def test_csv_holds_every_evaluated_shape_fastest_first(run, small):
    outcome = run("sweep", small, "--format", "csv")
    assert outcome.code == 0
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    legal, evaluated = (int(line.split()[0]) for line in outcome.err.splitlines()[:2])
    assert len(rows) == evaluated <= legal
    assert [int(row["rank"]) for row in rows] == list(range(1, evaluated + 1))
    times = [float(row["step_time_s"]) for row in rows]
    assert times == sorted(times)
    assert all(int(row["tp"]) * int(row["pp"]) * int(row["dp"]) == 8 for row in rows)


def test_top_and_axes_restrict(run, small):
    outcome = run("sweep", small, "--axis", "tp=2", "--axis", "microbatch=1,2", "--top", "3", "--format", "json")
    found = json.loads(outcome.out)
    assert len(found["shapes"]) == 3
    assert {shape["tp"] for shape in found["shapes"]} == {2}
    assert {shape["microbatch"] for shape in found["shapes"]} <= {1, 2}
    assert found["evaluated"] + found["screened"] + found["too_big"] + found["refused"] == found["legal"]


def test_a_table_shows_the_first_twenty(run, small):
    lines = run("sweep", small).out.splitlines()
    assert "fastest first" in lines[0]
    assert len(lines) <= 3 + 20


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        ("colour=1", "no axis 'colour'"),
        ("tp", "lists no whole numbers"),
        ("tp=", "lists no whole numbers"),
        ("tp=0", "lists no whole numbers"),
        ("tp=two", "lists no whole numbers"),
        ("tp=5", "world 8 is not a multiple of tp 5"),
        ("microbatch=64", "global batch 32 is not a multiple"),
    ],
)
def test_axes_that_cannot_be(run, small, axis, words):
    outcome = run("sweep", small, "--axis", axis)
    assert outcome.code == 2
    assert outcome.out == ""
    assert words in outcome.err
    assert "fix:" in outcome.err


def test_refusals_are_told_with_their_reason(run, small):
    """A schedule that not every shape allows: no traceback, a line a reason, all shapes in JSON."""
    words = ("sweep", small, "--set", "training.schedule=dualpipe", "--set", "training.p2p=async", "--axis", "tp=1,2")
    outcome = run(*words, "--format", "json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["refused"] == len(found["refusals"]) > 5
    assert all("schedule dualpipe needs" in line and "(fix: " in line for line in found["refusals"])
    told = [line for line in outcome.err.splitlines() if line.startswith("refused: ")]
    assert len({line.partition(": ")[2] for line in found["refusals"]}) > 5
    assert len(told) == 6
    counts = [int(line.rpartition("(")[2].split()[0]) if line.endswith(" shapes)") else 1 for line in told[:-1]]
    assert max(counts) > 1
    assert told[-1] == f"refused: {found['refused'] - sum(counts)} more; --format json lists all"


def test_the_fastest_is_confirmed_by_the_event_engine(run, small):
    """DESIGN, section 6: its time stands beside the row's, and equals it where nothing is contended."""
    outcome = run("sweep", small, "--axis", "tp=2", "--top", "2", "--format", "json")
    found = json.loads(outcome.out)
    assert found["confirmed"]["equal"] is True
    assert found["confirmed"]["step_time_s"] == found["shapes"][0]["step_time_s"]
    assert "the same to the last bit" in outcome.err


def test_a_row_names_the_options_of_predict(run, small):
    found = json.loads(run("sweep", small, "--axis", "tp=2", "--top", "1", "--format", "json").out)
    (best,) = found["shapes"]
    words = [word for one in best["set"] for word in ("--set", one)]
    alone = json.loads(run("predict", small, *words, "--format", "json").out)
    assert alone["step_time_s"] == best["step_time_s"]


def test_processes_give_the_same_bytes(run, small):
    words = ("sweep", small, "--axis", "tp=2,4", "--axis", "microbatch=1", "--format", "csv")
    assert run(*words, "-j", "2").out == run(*words).out


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_sweep_is_resumed_from_its_file(run, small, tmp_path, form):
    path = tmp_path / f"sweep.{form}"
    words = ("sweep", small, "--axis", "tp=2", "-o", str(path))
    assert run(*words).code == 0
    whole = path.read_text()
    if form == "csv":  # as an interrupted run leaves it
        path.write_text("\n".join(whole.splitlines()[:4]) + "\n")
    else:
        found = json.loads(whole)
        path.write_text(json.dumps(found | {"complete": False, "shapes": found["shapes"][:3]}))
    again = run(*words, "--resume")
    assert again.code == 0, again.err
    assert f"3 of them taken from {path}" in again.err
    assert path.read_text() == whole if form == "csv" else json.loads(path.read_text())["shapes"] == found["shapes"]
    assert not list(tmp_path.glob("*.part"))


def test_what_cannot_be_resumed_is_refused(run, small, tmp_path):
    outcome = run("sweep", small, "--resume")
    assert outcome.code == 2
    assert "--resume: there is no file to resume from (fix: name the .csv or .json with -o)" in outcome.err
    path = tmp_path / "other.json"
    path.write_text('{"scenario": "another", "world": 8, "shapes": []}')
    outcome = run("sweep", small, "--resume", "-o", str(path))
    assert outcome.code == 2
    assert "scenario is another there" in outcome.err
    assert "fix: leave --resume out" in outcome.err


def test_context_ranks_and_schedules_are_axes(run, small):
    axes = ("--axis", "cp=1,2", "--axis", "schedule=1f1b,gpipe", "--axis", "tp=2")
    outcome = run("sweep", small, *axes, "--set", "training.attention=flash", "--format", "csv")
    assert outcome.code == 0, outcome.err
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert {row["cp"] for row in rows} == {"1", "2"}
    assert {row["schedule"] for row in rows} <= {"none", "1f1b", "gpipe"}
    assert {"1f1b", "gpipe"} <= {row["schedule"] for row in rows}
    assert all(int(row["tp"]) * int(row["cp"]) * int(row["pp"]) * int(row["dp"]) == 8 for row in rows)


@pytest.mark.parametrize(
    ("sets", "gpus"),
    [
        (("parallelism.tp=3", "training.global_batch=24"), 12),  # 16 heads; the stated sizes: tp 3 pp 2 dp 2
        (("parallelism.tp=3", "parallelism.dp=null", "training.global_batch=24"), 6),  # no nodes: dp 1
        (("parallelism.tp=3", "parallelism.dp=null", "cluster.nodes=2"), 16),
        (("parallelism.tp=3", "cluster.nodes=2"), 16),  # the cluster says how many, the stated sizes would be 12
        (("parallelism.tp=3", "parallelism.dp=5", "cluster.nodes=1"), 8),
        (("parallelism.tp=3", "cluster.nodes=1", "cluster.gpus_per_node=4"), 4),
    ],
)
def test_a_base_shape_that_cannot_be_is_swept_all_the_same(run, small, sets, gpus):
    """A sweep asks for shapes: the file's own is only told to be none, and counts how many GPUs there are."""
    outcome = run("sweep", small, *(word for one in sets for word in ("--set", one)), "--format", "json")
    assert outcome.code == 0
    assert "own shape cannot be, others are swept" in outcome.err
    shapes = json.loads(outcome.out)["shapes"]
    assert shapes
    assert {one["tp"] * one["pp"] * one["dp"] for one in shapes} == {gpus}


def test_axes_that_say_how_many_gpus_there_are(run):
    """A named cluster has more GPUs than the batch needs; tp 8 x pp 1 x dp 32 of the axes are 256."""
    axes = ("--axis", "tp=8", "--axis", "pp=1", "--axis", "microbatch=8")
    for more in (("--axis", "dp=32"), ()):  # without dp: those of the file
        outcome = run("sweep", "sc21/t1_18p4b", "--set", "parallelism.tp=7", *axes, *more, "--format", "json")
        assert outcome.code == 0, outcome.err
        (row,) = json.loads(outcome.out)["shapes"]
        assert (row["tp"], row["pp"], row["dp"]) == (8, 1, 32)


def test_one_reason_for_all_shapes_is_told_once_and_fails(run, small):
    sets = ("training.schedule=zb-h1", "training.zero_stage=3", "training.reshard_after_forward=true")
    words = ("sweep", small, *(word for one in sets for word in ("--set", one)))
    outcome = run(*words, "--axis", "pp=2,4", "--axis", "dp=2")
    assert (outcome.code, outcome.out) == (2, "")
    assert "every shape is refused: gathers or reductions in each pass of schedule zb-h1" in outcome.err
    counted = [line for line in outcome.err.splitlines() if line.startswith("refused: ")]
    assert len(counted) == 1
    assert counted[0].endswith(" shapes)")


def test_rows_of_other_shapes_are_not_overwritten(run, small, tmp_path):
    """A resumed sweep takes all rows of its file, or says which are not its own and leaves the file as it is."""
    path = tmp_path / "sweep.csv"
    words = ("sweep", small, "--axis", "microbatch=1", "-o", path)
    assert run(*words, "--axis", "tp=2").code == 0
    before = path.read_text()
    outcome = run(*words, "--axis", "tp=4", "--resume")
    assert outcome.code == 2
    assert "rows are of shapes that this sweep has not, such as tp 2," in outcome.err
    assert path.read_text() == before
    assert run(*words, "--axis", "tp=2,4", "--resume").code == 0
    assert set(before.splitlines()[1].split(",")[1:4]) <= set(path.read_text().replace("\n", ",").split(","))


def test_a_batch_that_no_shape_divides_is_refused_as_the_file_stands(run, small):
    """Where no shape at all can be, the message is that of `predict`."""
    outcome = run("sweep", small, "--set", "parallelism.dp=3", "--set", "parallelism.tp=1", "--axis", "pp=1")
    assert outcome.code == 2
    assert "global batch 32 is not a multiple" in outcome.err
