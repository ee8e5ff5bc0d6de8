"""`traincast validate`: every row is forecast or skipped with a reason, and validation can fail."""

import csv
import io
import json
from pathlib import Path

import pytest

from traincast.catalog import data_dir
from traincast.validate.rows import COLUMNS

PUBLISHED = data_dir() / "scenarios" / "published"
STATUSES = {"scored", "fitted", "skipped"}
GOOD = {
    "id": "good",
    "family": "mine",
    "hidden": "2304",
    "layers": "24",
    "heads": "24",
    "vocab": "51200",
    "seq": "2048",
    "gpu": "A100-80GB-SXM",
    "gpus": "8",
    "tp": "1",
    "pp": "1",
    "dp": "8",
    "microbatch": "4",
    "global_batch": "32",
    "recompute": "full",
    "precision": "fp16",
    "iter_time_s": "1.0",
    "attention": "unfused",
    "grade": "A",
}


@pytest.fixture
def measured(tmp_path):
    def write(*changes: dict[str, str]) -> Path:
        path = tmp_path / "mine.csv"
        with path.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows({**GOOD, "id": f"row{number}", **change} for number, change in enumerate(changes))
        return path

    return write


def rows_of(outcome) -> list[dict]:
    return json.loads(outcome.out)["rows"]


def test_a_family_that_comes_along(run):
    outcome = run("validate", "--family", "korthikanti", "--format", "json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert len(found["rows"]) == 14
    assert {row["status"] for row in found["rows"]} <= STATUSES
    for row in found["rows"]:
        assert set(row) == {"id", "family", "measured_s", "predicted_s", "error_pct", "status", "reason"}
        assert row["status"] == "skipped" or row["predicted_s"] > 0
        assert row["status"] != "skipped" or row["reason"]
    (family,) = found["families"]
    assert family.keys() >= {
        "family",
        "n",
        "scored",
        "mape_pct",
        "max_abs_pct",
        "bias_pct",
        "spearman",
        "null_mape_pct",
    }
    scored = [row["error_pct"] for row in found["rows"] if row["status"] == "scored"]
    assert family["scored"] == len(scored)
    assert family["mape_pct"] == pytest.approx(sum(map(abs, scored)) / len(scored))


def test_every_row_of_a_file_comes_back_in_order(run):
    path = PUBLISHED / "torchtitan.csv"
    with path.open(newline="", encoding="utf-8") as stream:
        ids = [row["id"] for row in csv.DictReader(stream)]
    assert [row["id"] for row in rows_of(run("validate", path, "--format", "json"))] == ids


def test_csv_holds_the_rows_and_a_table_the_families(run, measured):
    path = measured({}, {"iter_time_s": "2.0"})
    rows = list(csv.DictReader(io.StringIO(run("validate", path, "--format", "csv").out)))
    assert [row["id"] for row in rows] == ["row0", "row1"]
    table = run("validate", path).out
    assert table.index("row0") < table.index("Families")
    assert "null forecast %" in table


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"experts": "8", "topk": "2"}, "experts are not modelled yet"),
        ({"cp": "2", "dp": "4", "cp_kind": "striped"}, "context parallelism 'striped' is not modelled yet"),
        ({"recompute": "op:moe"}, "recomputation 'op:moe' is not modelled yet"),
        ({"precision": "nvfp4"}, "precision 'nvfp4' is not modelled yet"),
        ({"offload": "weights"}, "offloading is not modelled yet"),
        ({"mla": "y"}, "latent attention is not modelled yet"),
        ({"hidden": ""}, "hidden is not stated"),
        ({"vocab": ""}, "vocab is not stated"),
        ({"global_batch": ""}, "global_batch is not stated"),
        ({"layers": "many"}, "layers is not a number: 'many'"),
        ({"gpu": ""}, "gpu is not stated"),
        ({"gpu": "Abacus"}, "no GPU 'Abacus' in the catalogue"),
        ({"dp": "4"}, "tp 1 x pp 1 x dp 4 is 4, but gpus is 8"),
        ({"heads": "7"}, "hidden 2304 is not a multiple of 7 heads"),
        ({"iter_time_s": ""}, "no time, tokens/s or TFLOP/s of a known convention"),
        ({"unusual": "cpu_offload"}, "unusual (cpu_offload): shown, not scored"),
        ({"grade": "C"}, "grade C: shown, not scored"),
        ({"grade": ""}, "grade not stated: shown, not scored"),
        ({"stage_layers": "12,13"}, "stage_layers '12,13' does not place 24 layers on 1 x 1 chunks"),
    ],
)
def test_rows_that_are_skipped_say_why(run, measured, change, reason):
    outcome = run("validate", measured(change, {}), "--format", "json")
    assert outcome.code == 0
    skipped, good = rows_of(outcome)
    assert (skipped["status"], good["status"]) == ("skipped", "scored")
    assert reason in skipped["reason"]


def test_shown_rows_still_carry_a_forecast(run, measured):
    (row,) = rows_of(run("validate", measured({"grade": "C"}), "--format", "json"))
    assert row["predicted_s"] > 0
    assert row["error_pct"] is not None


@pytest.mark.parametrize(
    ("change", "seconds", "words"),
    [
        ({"tokens_per_s_per_gpu": "4096"}, 32 * 2048 / (4096 * 8), "derived from tokens/s"),
        ({"tflops_per_gpu": "100", "flop_convention": "model FLOPs (full)"}, None, "(model FLOPs)"),
        ({"tflops_per_gpu": "100", "flop_convention": "hardware FLOPs"}, None, "(hardware FLOPs)"),
        ({"tflops_per_gpu": "100", "flop_convention": "causal attention at half"}, None, "(model_causal FLOPs)"),
    ],
)
def test_time_is_derived_where_only_a_rate_is_stated(run, measured, change, seconds, words):
    (row,) = rows_of(run("validate", measured({"iter_time_s": "", **change}), "--format", "json"))
    assert row["status"] == "scored"
    assert words in row["reason"]
    if seconds is not None:
        assert row["measured_s"] == pytest.approx(seconds)


def test_open_choices_take_the_best_that_fits_and_say_so(run, measured):
    fixed = [{"microbatch": str(size), "recompute": "selective"} for size in (1, 2, 4)]
    rows = rows_of(run("validate", measured({"microbatch": "", "recompute": ""}, *fixed), "--format", "json"))
    assert "the best that fits" in rows[0]["reason"]
    assert "microbatch" in rows[0]["reason"]
    assert rows[0]["predicted_s"] <= min(row["predicted_s"] for row in rows[1:]) * 1.000001


def test_uneven_stages_are_forecast_with_a_warning(run, measured):
    change = {"pp": "4", "dp": "2", "layers": "26", "schedule": "1f1b"}
    (row,) = rows_of(run("validate", measured(change), "--format", "json"))
    assert row["status"] == "scored"
    assert "26 layers do not divide over 4 chunks: uneven stages, embedding and head count as layers" in row["reason"]


def test_a_ragged_last_microbatch_is_forecast_with_a_warning(run, measured):
    (row,) = rows_of(run("validate", measured({"microbatch": "3"}), "--format", "json"))
    assert row["status"] == "scored"
    assert "the last microbatch is smaller than the others" in row["reason"]


def test_a_stack_without_a_profile_takes_the_default_and_says_so(run, measured):
    (row,) = rows_of(run("validate", measured({"stack": "Home-made"}), "--format", "json"))
    assert "no profile for stack 'Home-made'" in row["reason"]


def test_validation_can_fail(run, measured):
    outcome = run("validate", measured({"iter_time_s": "100"}), "--max-mape", "5")
    assert outcome.code == 1
    assert "family mine: mean error" in outcome.err


def test_a_mean_error_of_no_row_is_below_nothing(run, measured):
    """--max-mape is a gate: a table without rows, and a family without a scored one, do not pass it."""
    outcome = run("validate", measured(), "--max-mape", "50")
    assert outcome.code == 1
    assert "no row to score" in outcome.err
    path = measured({"grade": "C"}, {"family": "other"})
    assert run("validate", path).code == 0
    outcome = run("validate", path, "--max-mape", "10000")
    assert outcome.code == 1
    assert "family mine: none of its 1 rows is scored" in outcome.err
    assert "family other" not in outcome.err


@pytest.mark.parametrize(
    ("column", "text", "words"),
    [
        ("tp", "eight", "tp is not a number: 'eight'"),
        ("iter_time_s", "-3", "iter_time_s is not a figure that can be: '-3'"),
        ("gated_mlp", "perhaps", "gated_mlp is neither y nor n: 'perhaps'"),
        ("layers", "2.5", "layers is not a whole number from 1 up: '2.5'"),
    ],
)
def test_a_cell_that_cannot_be_read_is_told_with_its_place(run, measured, column, text, words):
    path = measured({}, {column: text})
    outcome = run("validate", path)
    assert outcome.code == 0
    assert f"mine.csv:3: {words}" in outcome.err.splitlines()
    outcome = run("validate", path, "--max-mape", "10000")
    assert outcome.code == 1
    assert "1 row left out: cells that cannot be read" in outcome.err


def test_a_file_named_twice_is_scored_once_and_told(run, measured):
    path = measured(*({} for _ in range(7)))
    outcome = run("validate", path, path, "--format", "json")
    assert outcome.code == 0
    (family,) = json.loads(outcome.out)["families"]
    assert family["scored"] == 7
    assert "mine.csv:2: id row0 stands already in mine.csv:2; scored once" in outcome.err
    assert "2 more such rows; --format json lists all" in outcome.err


def test_an_unknown_column_ends_the_command(run, measured):
    path = measured({})
    path.write_text(path.read_text().replace("zero_stage", "zero_stge"))
    outcome = run("validate", path)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{path}:1: unknown column 'zero_stge' (fix: name it zero_stage where" in outcome.err


def test_a_bug_in_one_row_is_reported_and_fails_the_command(run, measured, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("traincast.validate.report.build_case", broken)
    outcome = run("validate", measured({}), "--format", "json")
    assert outcome.code == 1
    assert rows_of(outcome)[0]["status"] == "skipped"
    assert "the program failed: KeyError" in outcome.err


@pytest.mark.parametrize("family", ["nobody"])
def test_an_unknown_family(run, measured, family):
    outcome = run("validate", measured({}), "--family", family)
    assert outcome.code == 2
    assert "no row of family 'nobody' (fix: use one of mine)" in outcome.err


def test_files_that_are_none(run, tmp_path):
    (tmp_path / "junk.csv").write_bytes(bytes(range(256)))
    for path in (tmp_path / "junk.csv", tmp_path / "nowhere.csv"):
        outcome = run("validate", path)
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert str(path) in outcome.err


@pytest.mark.slow
def test_every_published_row_is_forecast_or_skipped_with_a_reason(run):
    outcome = run("validate", "--format", "json")
    assert outcome.code == 0
    for row in rows_of(outcome):
        assert row["predicted_s"] if row["status"] != "skipped" else row["reason"], row
