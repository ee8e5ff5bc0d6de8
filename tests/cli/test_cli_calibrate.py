"""`traincast calibrate import`: records and problems in four forms, refusals with line and exit code."""

import csv
import io
import json
from pathlib import Path

import pytest

from traincast.calibration import read_records

DATA = Path(__file__).parent.parent / "data" / "calibration"


def test_json_has_a_record_for_each_row_and_names_each_problem(run):
    outcome = run("calibrate", "import", DATA / "wrong_rows.log", "--format", "json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert set(found) == {"records", "problems", "runs", "files"}
    first = found["records"][0]
    assert (first["op"], first["ranks"], first["nodes"], first["size_bytes"]) == ("all_reduce", 4, 2, 1048576)
    assert (first["time_us"], first["algbw_bytes_per_s"], first["busbw_bytes_per_s"]) == (40.97, 25.59e9, 38.39e9)
    assert first["in_place_time_us"] == 41.38
    assert [(one["line"], one["severity"]) for one in found["problems"]] == [
        (14, "dropped"),
        (15, "dropped"),
        (16, "note"),
    ]
    assert found["files"] == [{"file": "wrong_rows.log", "verdict": "import", "tables": 1, "records": 2}]


def test_several_files_number_their_runs_through(run):
    outcome = run("calibrate", "import", DATA / "old_two_runs.log", DATA / "mpi_tags.log", "--format", "json")
    found = json.loads(outcome.out)
    assert [(one["file"], one["index"]) for one in found["runs"]] == [
        ("old_two_runs.log", 0),
        ("old_two_runs.log", 1),
        ("mpi_tags.log", 2),
    ]
    assert [record["run"] for record in found["records"]] == [0] * 4 + [1] * 2 + [2] * 4


def test_a_refused_file_ends_with_2_and_its_line(run):
    outcome = run("calibrate", "import", DATA / "one_rank_mixed.log", DATA / "mpi_tags.log", "--format", "json")
    assert outcome.code == 2
    assert outcome.err.startswith("traincast: one_rank_mixed.log:8: 2 independent one-rank runs")
    found = json.loads(outcome.out)
    assert len(found["records"]) == 4
    assert [one["verdict"] for one in found["files"]] == ["refuse", "import"]


def test_a_table_without_measurements_is_empty_not_wrong(run):
    outcome = run("calibrate", "import", DATA / "placeholder.md", "--format", "json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["records"] == []


def test_csv_and_json_lines_say_the_problems_aside(run, tmp_path):
    outcome = run("calibrate", "import", DATA / "wrong_rows.log", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert [row["size_bytes"] for row in rows] == ["1048576", "2097152"]
    assert "wrong_rows.log:14: 2098 wrong" in outcome.err
    target = tmp_path / "records.jsonl"
    assert run("calibrate", "import", DATA / "wrong_rows.log", "-o", target).code == 0
    assert [record.size_bytes for record in read_records(target.read_text(encoding="utf-8"))] == [1048576, 2097152]


def test_a_refused_file_leaves_an_older_result_alone(run, tmp_path):
    target = tmp_path / "records.json"
    target.write_text("older", encoding="utf-8")
    assert run("calibrate", "import", DATA / "one_rank_mixed.log", "-o", target).code == 2
    assert target.read_text(encoding="utf-8") == "older"


@pytest.mark.parametrize("name", ["gemm.md", "nvbandwidth.txt", "torch_all_reduce.md", "one_rank.log"])
def test_the_table_for_reading(run, name):
    outcome = run("calibrate", "import", DATA / name)
    assert outcome.code == 0
    assert outcome.out.startswith("Measurements\n")
    assert "Problems" in outcome.out


def test_mistakes_of_the_user(run, tmp_path):
    missing = run("calibrate", "import", tmp_path / "missing.log")
    assert (missing.code, "cannot read" in missing.err) == (2, True)
    unknown = run("calibrate", "import", DATA / "mpi_tags.log", "--op", "all_the_things")
    assert (unknown.code, "one of all_gather" in unknown.err) == (2, True)
