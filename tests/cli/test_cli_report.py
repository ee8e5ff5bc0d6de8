"""`traincast report`: the files are there, the table is Table 1, pictures are pictures."""

import csv
import json
from pathlib import Path

import pytest

from traincast.forecast import forecast
from traincast.report.sc21_draw import save
from traincast.scenario import load_scenario
from traincast.validate import RowScore, ValidationReport

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
    outcome = run("report", "sc21", "--only", "table1", "-o", folder, "--format", "json")
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
    # SC21 Table 1: 44 % of the A100's 312 TFLOP/s at 1.7B, 52 % at 1T; 1.7 to 1008.0 billion parameters
    assert float(rows[0]["published_pct_of_peak"]) == pytest.approx(44, abs=0.5)
    assert float(rows[-1]["published_pct_of_peak"]) == pytest.approx(52, abs=0.5)
    assert float(rows[-1]["parameters_1e9"]) == pytest.approx(1008.0, abs=0.1)
    assert (folder / "table1.png").read_bytes().startswith(PNG)
    assert "null forecast" in (folder / "table1.md").read_text(encoding="utf-8")
    (study,) = json.loads(outcome.out)["studies"]
    assert [row["gpus"] for row in study["rows"]] == [gpus for gpus, _, _ in TABLE_1]
    # predict and report say the same
    assert forecast(load_scenario("sc21/t1_1p7b"), engine="analytic").step_time_s == study["rows"][0]["forecast_step_s"]


@pytest.fixture
def stubbed(monkeypatch):
    """Instead of forecasts the measured times; the ids that were asked for."""
    asked = []

    def validate_rows(rows, advance=lambda done: None):
        asked.extend(row.id for row in rows)
        times = [float(row.text("iter_time_s")) for row in rows]
        scores = [RowScore(r.id, r.family, t, t, "scored", "", 1e14 * t) for r, t in zip(rows, times, strict=True)]
        return ValidationReport(tuple(scores), (), ())

    monkeypatch.setattr("traincast.validate.validate_rows", validate_rows)
    return asked


def test_everything_at_once(run, stubbed, tmp_path, monkeypatch):
    """Three files a table or figure and the index; each row is forecast once, Figure 18's share of 12's too."""
    monkeypatch.setattr("traincast.report.sc21_draw.save", lambda figure, path: save(figure, path, dpi=40))
    outcome = run("report", "sc21", "-o", tmp_path)
    assert outcome.code == 0
    names = ["table1", "table2", *(f"fig{number}" for number in range(11, 19))]
    expected = {f"{name}.{suffix}" for name in names for suffix in ("csv", "md", "png")} | {"README.md"}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert len(stubbed) == len(set(stubbed)) == 101
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    assert "Figure 18" in outcome.out
    assert f"wrote {tmp_path / 'README.md'}" in outcome.err


def test_only_some_of_them(run, stubbed, tmp_path):
    """Names by commas or one by one; the index of all is left as it is."""
    (tmp_path / "README.md").write_text("before", encoding="utf-8")
    outcome = run("report", "sc21", "--only", "fig16, fig11", "--only", "fig11", "-o", tmp_path, "--format", "csv")
    assert outcome.code == 0
    assert {path.name for path in tmp_path.glob("*.csv")} == {"fig11.csv", "fig16.csv"}
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "before"
    assert len(stubbed) == 16
    assert outcome.out.splitlines()[1].startswith("Figure 11,")


@pytest.mark.parametrize("names", ["fig9", "table1,figure13", "", "table1,"])
def test_a_table_or_figure_that_is_not_there(run, stubbed, tmp_path, names):
    outcome = run("report", "sc21", "--only", names, "-o", tmp_path / "new")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--only: no table or figure" in outcome.err
    assert "fix: use some of table1,table2,fig11" in outcome.err
    assert not (tmp_path / "new").exists()
    assert stubbed == []


def test_a_folder_that_cannot_be(run, stubbed, tmp_path):
    """Refused before any forecast."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    outcome = run("report", "sc21", "-o", tmp_path / "file")
    assert (outcome.code, outcome.out) == (2, "")
    assert "cannot write into" in outcome.err
    assert "fix: name a folder" in outcome.err
    assert stubbed == []


@pytest.mark.slow
def test_all_of_it_is_what_validate_says_and_what_is_committed(run, tmp_path):
    """Issue 6, point 7: figures equal the CSVs, these equal `traincast validate`; reports/sc21 is today's code's.

    Regenerate with `traincast report sc21 -o reports/sc21`.
    """
    assert run("report", "sc21", "-o", tmp_path).code == 0
    said = {row["id"]: row["predicted_s"] for row in json.loads(run(*VALIDATE).out)["rows"]}
    drawn = 0
    for path in sorted(tmp_path.glob("*.csv")):
        ours, kept = (list(csv.DictReader(text.splitlines())) for text in (path.read_text(), committed(path)))
        assert [list(row) for row in ours] == [list(row) for row in kept]
        for row, old in zip(ours, kept, strict=True):
            time = float(row["forecast_step_s"]) if row["forecast_step_s"] else None
            assert (
                old["forecast_step_s"] == "" if time is None else float(old["forecast_step_s"]) == pytest.approx(time)
            )
            if "id" in row:
                drawn += 1
                assert time == said[row["id"]]
    assert drawn == 84
    assert {path.name for path in tmp_path.iterdir()} <= {path.name for path in COMMITTED.iterdir()}


VALIDATE = ("validate", "--family", "sc21", "--format", "json")
COMMITTED = Path(__file__).resolve().parents[2] / "reports" / "sc21"


def committed(path):
    return (COMMITTED / path.name).read_text(encoding="utf-8")


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
