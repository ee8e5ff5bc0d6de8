"""`traincast report`: the files are there, the table is Table 1, pictures are pictures."""

import csv
import json

import pytest

# SC21 Table 1: GPUs, TFLOP/s per GPU, aggregate PFLOP/s
TABLE_1 = (
    (32, 137, 4.4),
    (64, 138, 8.8),
    (128, 142, 18.2),
    (256, 135, 34.6),
    (512, 138, 70.8),
    (1024, 140, 143.8),
    (1536, 148, 227.1),
    (1920, 155, 297.4),
    (2520, 163, 410.2),
    (3072, 163, 502.0),
)
PNG = b"\x89PNG\r\n\x1a\n"


def test_table_1_beside_the_printed_numbers(run, tmp_path):
    folder = tmp_path / "deep" / "sc21"
    outcome = run("report", "sc21", "-o", folder, "--format", "json")
    assert outcome.code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["table1.csv", "table1.md", "table1.png"]
    with (folder / "table1.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(TABLE_1)
    for row, (gpus, tflops, pflops) in zip(rows, TABLE_1, strict=True):
        assert int(row["gpus"]) == gpus
        assert float(row["published_tflops"]) == tflops
        assert float(row["published_pflops"]) == pytest.approx(pflops, rel=0.01)
        assert float(row["error_pct"]) == pytest.approx(
            100 * (float(row["forecast_step_s"]) / float(row["published_step_s"]) - 1)
        )
    assert (folder / "table1.png").read_bytes().startswith(PNG)
    assert "null forecast" in (folder / "table1.md").read_text(encoding="utf-8")
    assert [row["gpus"] for row in json.loads(outcome.out)["rows"]] == [gpus for gpus, _, _ in TABLE_1]


def test_a_folder_that_cannot_be(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setattr("traincast.report.sc21.sc21_scenarios", lambda: ())
    outcome = run("report", "sc21", "-o", tmp_path / "file")
    assert outcome.code == 2
    assert "cannot write into" in outcome.err


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_timeline_is_drawn(run, small, tmp_path, suffix):
    path = tmp_path / f"picture.{suffix}"
    outcome = run("report", "timeline", small, small, "-o", path)
    assert (outcome.code, outcome.out) == (0, "")
    content = path.read_bytes()
    assert content.startswith(PNG) if suffix == "png" else b"<svg" in content


@pytest.mark.parametrize(("name", "words"), [("picture.txt", "no picture"), ("no/where.png", "cannot write")])
def test_pictures_that_cannot_be(run, small, tmp_path, name, words):
    outcome = run("report", "timeline", small, "-o", tmp_path / name)
    assert outcome.code == 2
    assert words in outcome.err


def test_a_timeline_too_fine_to_see_is_refused(run, small, tmp_path):
    outcome = run("report", "timeline", small, "--set", "training.global_batch=40000", "-o", tmp_path / "a.png")
    assert outcome.code == 2
    assert "too fine to see" in outcome.err
