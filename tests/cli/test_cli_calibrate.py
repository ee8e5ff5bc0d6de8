"""`traincast calibrate import`: records and problems in four forms, refusals with line and exit code."""

import csv
import io
import json
import re
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


def test_a_failed_import_writes_nothing_and_names_what_to_give(run, tmp_path):
    """Refused, one of two refused, or nothing measured: no file, and the problems that the file would have shown."""
    target = tmp_path / "records.jsonl"
    for files in (("one_rank_mixed.log",), ("one_rank_mixed.log", "mpi_tags.log"), ("placeholder.md",)):
        for output in (target, target.with_suffix(".json"), target.with_suffix(".csv")):
            outcome = run("calibrate", "import", *(DATA / name for name in files), "-o", output)
            assert (outcome.code, outcome.out) == (2, "")
            assert "(fix: name logs or tables of nccl-tests" in outcome.err
            assert list(tmp_path.iterdir()) == []
    assert "see the problems" not in outcome.err
    assert "nothing was measured in placeholder.md: " in outcome.err


def test_a_table_of_curves_is_sent_to_where_it_is_read(run, checkout):
    outcome = run("calibrate", "import", checkout / "calibration" / "measured" / "collectives.csv")
    assert (outcome.code, "a CSV of curves needs no import" in outcome.err) == (2, True)


def test_a_file_takes_the_place_of_an_older_one_whole_or_not_at_all(run, tmp_path, monkeypatch):
    target = tmp_path / "records.jsonl"
    target.write_text("older", encoding="utf-8")
    target.chmod(0o640)
    write = Path.write_text

    def full(path, text, **options):
        write(path, text[:10], **options)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        outcome = run("calibrate", "import", DATA / "mpi_tags.log", "-o", target)
    assert (outcome.code, "No space left on device" in outcome.err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["records.jsonl"]
    assert target.read_text(encoding="utf-8") == "older"
    assert run("calibrate", "import", DATA / "mpi_tags.log", "-o", target).code == 0
    assert len(read_records(target.read_text(encoding="utf-8"))) == 4
    assert target.stat().st_mode & 0o777 == 0o640


def test_links_and_devices_stay_what_they_are(run, tmp_path):
    """A file is replaced where a link leads to; what is no file is written to."""
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.write_text("older", encoding="utf-8")
    link.symlink_to(real)
    assert run("calibrate", "import", DATA / "mpi_tags.log", "-o", link).code == 0
    assert link.is_symlink()
    assert len(read_records(real.read_text(encoding="utf-8"))) == 4
    assert run("calibrate", "import", DATA / "mpi_tags.log", "--format", "json", "-o", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


def test_a_file_is_not_written_over_while_it_is_read(run, tmp_path):
    path = tmp_path / "records.jsonl"
    assert run("calibrate", "import", DATA / "mpi_tags.log", "-o", path).code == 0
    before = path.read_bytes()
    outcome = run("calibrate", "import", path, "-o", path)
    assert (outcome.code, "is one of the files that are read" in outcome.err) == (2, True)
    assert path.read_bytes() == before


SUITE = """\
{"schema":1,"kind":"run","index":0,"tool":"traincast suite 1","gpu":"NVIDIA H200","date":"2026-01-01"}
{"schema":1,"kind":"collective","run":0,"op":"sendrecv","ranks":2,"size_bytes":64,"time_us":9.0,"busbw_bytes_per_s":7e9,"params":{"family":"tp","mode":"all"}}
{"schema":1,"kind":"collective","run":0,"op":"sendrecv","ranks":2,"size_bytes":64,"time_us":5.0,"busbw_bytes_per_s":9e9,"params":{"family":"tp","mode":"all","pattern":"pingpong"}}
{"schema":1,"kind":"overlap","run":0,"op":"gemm","ranks":2,"size_bytes":64,"time_us":5.0,"params":{"family":"tp"}}
{"schema":1,"kind":"kernel","run":0,"op":"gemm","time_us":5.0,"flops_per_s":4e14}
{"schema":1,"kind":"run","index":1,"tool":"traincast suite 1","gpu":"NVIDIA H200","date":"2026-01-02"}
{"schema":1,"kind":"collective","run":1,"op":"sendrecv","ranks":2,"size_bytes":256,"time_us":9.0,"busbw_bytes_per_s":8e9,"params":{"family":"tp","mode":"all"}}
"""


def test_the_table_has_a_row_for_each_operation_and_its_groups(run, tmp_path):
    """A ring and a ping-pong are two; a run that went on (`--resume`) is one with what it went on from."""
    path = tmp_path / "r.jsonl"
    path.write_text(SUITE, encoding="utf-8")
    lines = run("calibrate", "import", path).out.splitlines()
    rows = [re.split(r"  +", line) for line in lines[3:7]]
    assert [(row[2], row[3], row[6], row[9]) for row in rows] == [
        ("sendrecv", "tp", "2", "8.00 GB/s busbw"),
        ("sendrecv", "tp pingpong", "1", "9.00 GB/s busbw"),
        ("gemm beside another", "tp", "1", "-"),
        ("gemm", "-", "1", "400 TFLOP/s"),
    ]
