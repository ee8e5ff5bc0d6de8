"""`traincast report residuals`: figures that hold the numbers of the CSV, dependences by their law, notes where due.

The figures and the page are drawn from `reports/validation/residuals.csv` as it is committed; nothing is forecast here.
"""

import csv
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from traincast.cli.main import main
from traincast.errors import DataError, UsageError
from traincast.report import residuals
from traincast.report.residuals import FamilyResiduals, rows_table, study_residuals, write_residuals
from traincast.report.residuals_axes import AXES, microbatches, replicas, varying, varying_categories, word
from traincast.report.residuals_draw import MOST_NAMES, draw_family, named_axis, scale_of, short_ids
from traincast.report.residuals_notes import load_notes, needs_note, notes_file
from traincast.report.residuals_page import dependence_line, means, page, section, summary_table
from traincast.report.residuals_stats import DRAWS, dependences, permutation_p, share_between
from traincast.report.tables import Table, render_csv, render_markdown
from traincast.validate import (
    PublishedRow,
    RowScore,
    ValidationReport,
    family_scores,
    published_files,
    read_published,
)
from traincast.validate.studies import studies_of, with_regret

COMMITTED = Path(__file__).resolve().parents[2] / "reports" / "validation"
REGENERATE = "regenerate with `traincast report residuals -o reports/validation`"
UNSCORED = ("fms_fsdp", "moe_folding", "moe_zoo")


def number(text: str) -> float | None:
    return float(text) if text else None


def score_of(cells: dict[str, str]) -> RowScore:
    """A row of the CSV as the score that it was made from; reasons are not in it."""
    times = [number(cells[name]) for name in ("measured_s", "predicted_s", "executed_flops_per_gpu")]
    status: Any = cells["status"]
    return RowScore(cells["id"], cells["family"], times[0], times[1], status, "", times[2])


@pytest.fixture(scope="module")
def table() -> list[dict[str, str]]:
    with (COMMITTED / residuals.CSV_NAME).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.fixture(scope="module")
def families(table: list[dict[str, str]]) -> dict[str, FamilyResiduals]:
    rows = read_published(published_files())
    assert [row.id for row in rows] == [cells["id"] for cells in table], REGENERATE
    notes = load_notes(notes_file(), {row.family for row in rows})
    return {one.name: one for one in study_residuals(as_report([score_of(c) for c in table], rows), rows, notes)}


def as_report(scores: list[RowScore], rows: tuple[PublishedRow, ...]) -> ValidationReport:
    return ValidationReport(tuple(scores), with_regret(family_scores(scores), studies_of(scores, rows)), ())


NAMES = sorted({row.family for row in read_published(published_files())} - set(UNSCORED))


def test_the_csv_holds_every_published_row(families: dict[str, FamilyResiduals], table: list[dict[str, str]]) -> None:
    """DESIGN §10: nothing is dropped silently. The committed file is what these rows give."""
    again = render_csv(rows_table(list(families.values()))).splitlines()
    assert again == (COMMITTED / residuals.CSV_NAME).read_text(encoding="utf-8").splitlines()
    assert {cells["status"] for cells in table} == {"scored", "fitted", "skipped"}
    for cells in table:
        if cells["error_pct"]:
            ratio = float(cells["predicted_s"]) / float(cells["measured_s"])
            assert float(cells["error_pct"]) == pytest.approx(100 * (ratio - 1))


@pytest.fixture(scope="module")
def figures(families: dict[str, FamilyResiduals]) -> dict[str, Figure]:
    return {name: draw_family(families[name]) for name in NAMES}


def drawn(panel: Axes) -> dict[str, list[tuple[float, float]]]:
    """Places and errors of every group of points of a panel."""
    return {
        str(points.get_label()): [(float(x), float(y)) for x, y in np.asarray(points.get_offsets())]
        for points in panel.collections
        if ": " in str(points.get_label())
    }


def stated_value(axis: str, cells: dict[str, str]) -> int | None:
    """A row's place on an axis as the CSV has it."""
    if axis != "microbatches":
        return int(cells[axis]) if cells[axis] else None
    parts = [cells[column] for column in ("global_batch", "microbatch", "dp")]
    if not all(parts):
        return None
    batch, size, dp = map(int, parts)
    return -(-batch // (size * dp))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_in_the_figure_equal_the_csv(
    families: dict[str, FamilyResiduals], figures: dict[str, Figure], table: list[dict[str, str]], name: str
) -> None:
    """Issue 6: numbers in figures equal the CSVs. Read back from the artists, `==`: errors, places, mean."""
    family = families[name]
    figure = figures[name]
    own = [cells for cells in table if cells["family"] == name and cells["status"] in ("scored", "fitted")]
    for axis, panel in zip(family.drawn, figure.axes, strict=False):
        points = drawn(panel)
        scale = scale_of(axis, family)
        known = {cells["id"]: value for cells in own if (value := stated_value(axis.name, cells)) is not None}
        errors_of = {cells["id"]: float(cells["error_pct"]) for cells in own if cells["id"] in known}
        expected = sorted((errors_of[name], scale.places[value]) for name, value in known.items())
        found = sorted((y, round(x) if scale.ordinal else x) for group in points.values() for x, y in group)
        assert found == expected
        fitted = sorted(errors_of[c["id"]] for c in own if c["id"] in known and c["status"] == "fitted")
        assert sorted(y for _, y in points.get(f"{axis.label}: fitted", [])) == fitted
        lines = {str(line.get_label()): float(np.asarray(line.get_ydata())[0]) for line in panel.lines}
        assert lines == {"zero": 0.0, "mean": family.score.bias_pct}
    errors = [float(cells["error_pct"]) for cells in own if cells["status"] == "scored"]
    assert family.score.bias_pct == pytest.approx(sum(errors) / len(errors))


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_reads(families: dict[str, FamilyResiduals], figures: dict[str, Figure], name: str) -> None:
    """Title with the scores, a unit, the worst rows beyond 15 % by short ids and no others, everything inside."""
    family = families[name]
    figure = figures[name]
    visible = [panel for panel in figure.axes if panel.get_visible()]
    assert len(visible) == max(1, len(family.drawn)) <= 8
    assert "%" in visible[0].get_ylabel()
    assert f"{family.score.scored} scored row" in figure.get_suptitle()
    if family.drawn:
        named = named_axis(family, family.drawn)
        short = dict(zip((one.score.id for one in family.residuals), short_ids(family), strict=True))
        beyond = [short[one.score.id] for one in family.outliers if named.value(one.row) is not None]
        panel = visible[family.drawn.index(named)]
        assert sorted(text.get_text() for text in panel.texts) == sorted(beyond[:MOST_NAMES])
        assert sum(len(one.texts) for one in visible) == len(panel.texts)
    figure.draw_without_rendering()
    box = figure.bbox
    for artist in (*figure.legends, *figure.texts, *(text for panel in visible for text in panel.texts)):
        extent = artist.get_window_extent()
        assert box.x0 <= extent.x0 <= extent.x1 <= box.x1
        assert box.y0 <= extent.y0 <= extent.y1 <= box.y1


def test_the_committed_page_is_that_of_the_csv(families: dict[str, FamilyResiduals]) -> None:
    """The families' table and every picture: files of one run."""
    text = (COMMITTED / residuals.PAGE_NAME).read_text(encoding="utf-8")
    whole = page(list(families.values()))
    assert rows_of(text) == rows_of(whole), REGENERATE
    for name in NAMES:
        assert f"({families[name].picture})" in text
        assert (COMMITTED / families[name].picture).is_file()
    kept = {path.name for path in COMMITTED.glob("residuals_*.png")}
    assert kept == {families[name].picture for name in NAMES}


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_every_family_that_stays_near_its_null_says_why(families: dict[str, FamilyResiduals]) -> None:
    """DESIGN §10: a model that does not halve the null's error has shown nothing; issue 6: say what is missing."""
    due = [name for name, one in families.items() if needs_note(one.score)]
    lacking = [name for name in due if not families[name].note]
    assert lacking == [], f"write why in {notes_file()}"
    for name in due:
        assert f"**What is missing.** {families[name].note}" in section(families[name])


def test_a_note_is_due_above_half_the_null() -> None:
    rows = [RowScore(str(n), "f", 1.0, 1.0 + 0.01 * n, "scored", "", 1e14 * (1 + n)) for n in range(5)]
    (family,) = family_scores(rows)
    assert family.null_mape_pct is not None
    assert not needs_note(family)
    (family,) = family_scores([RowScore("a", "f", 1.0, 3.0, "scored", "", 1e14), *rows])
    assert needs_note(family)
    (alone,) = family_scores(rows[:1])  # no null without other rows
    assert not needs_note(alone)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vtran: slow", r"no family 'vtran' \(fix: use one of vtrain"),
        ("- vtrain", "is not a text a family"),
        ("vtrain: 3", "is not a text a family"),
        ("vtrain: a\nvtrain: b", "is not YAML"),
        ("vtrain: [", "is not YAML"),
    ],
)
def test_notes_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "notes.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=words):
        load_notes(path, ("vtrain", "bloom"))


def test_a_missing_file_of_notes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load_notes(tmp_path / "no.yaml", ())


def test_permutation_test() -> None:
    """Five rows in order have a two-sided p of 2 / 5!; without order most shuffles correlate as much."""
    x = np.arange(5.0)
    assert permutation_p(x, x) == pytest.approx(2 / 120, abs=0.006)
    assert permutation_p(x, -x) == permutation_p(x, x)
    assert permutation_p(x, np.array([1.0, 3.0, 2.0, 0.0, 4.0])) > 0.3
    assert permutation_p(np.arange(40.0), np.arange(40.0)) == 1 / (DRAWS + 1)


def test_dependences_are_corrected_for_the_number_of_axes() -> None:
    """Bonferroni; rows that do not state an axis are left out of it, an axis of one value altogether."""
    errors = [float(n) for n in range(12)]
    alternating = [1, 2] * 6
    partly: list[float | None] = [None, *range(11)]
    axes = [
        ("tp", [*range(12)]),
        ("pp", alternating),
        ("cp", [1] * 12),
        ("dp", partly),
        ("vpp", [None] * 9 + [1, 2, 3]),
    ]
    first, second, last = dependences(axes, errors)
    assert (first.axis, first.rho, first.rows) == ("tp", pytest.approx(1.0), 12)
    assert (second.axis, second.rows) == ("dp", 11)
    assert (last.axis, last.beyond_chance) == ("pp", False)
    assert first.p == 1 / (DRAWS + 1)
    assert first.p_corrected == 3 * first.p


def test_share_between_groups() -> None:
    """Adjusted eta squared: 1 for equal errors inside groups, 0 where each row is a group."""
    assert share_between(["a", "a", "b", "b"], [1.0, 1.0, 3.0, 3.0]) == pytest.approx(1.0)
    assert share_between(["a", "b", "c"], [1.0, 2.0, 3.0]) == 0.0
    # between 16, within 2 * (0.5 + 0.5): 1 - 2 / 18 * 3 / 2
    assert share_between(["a", "a", "b", "b"], [0.0, 2.0, 4.0, 6.0]) == pytest.approx(1 - 4 / 20 * 3 / 2)
    assert share_between(["a", "b", "a", "b"], [1.0, 1.0, 2.0, 2.0]) < 0.0


def row(row_id: str, **cells: object) -> PublishedRow:
    return PublishedRow("f.csv", 2, {"id": row_id, "family": "f", **{name: str(cell) for name, cell in cells.items()}})


def test_axes_that_a_row_implies() -> None:
    """DP is what TP, PP and CP leave; a ragged last microbatch counts; words that only repeat PP tell nothing."""
    one = row("f_1", gpus=64, tp=4, pp=2, global_batch=100, microbatch=3)
    assert (replicas(one), microbatches(one)) == (8, 5)
    assert microbatches(row("f_2", gpus=8)) is None
    assert replicas(row("f_3", gpus="many")) is None
    alone, piped = row("f_4", gpus=8, pp=1, schedule="none"), row("f_5", gpus=8, pp=2, schedule="1f1b")
    assert varying_categories([alone, piped]) == ()
    assert varying_categories([alone, piped, row("f_6", gpus=8, pp=2, schedule="zb-2p")]) == ("schedule",)
    assert (word(alone, "schedule"), word(piped, "remark")) == ("no pipeline", "none")
    data_parallel = [row(f"f_{n}", gpus=n, dp=n) for n in (8, 16)]
    assert [axis.name for axis in varying(AXES, data_parallel)] == ["gpus"]


def made_up() -> FamilyResiduals:
    """Twelve rows whose error is their TP's, one fitted, one never forecast."""
    rows = tuple(row(f"f_x-{n}", gpus=8, tp=2 ** (n % 4), pp=1, dp=1, hidden=1024) for n in range(14))
    errors = [1.0 + 0.05 * (n % 4) for n in range(12)]
    scores = [RowScore(rows[n].id, "f", 1.0, errors[n], "scored", "", 1e14) for n in range(12)]
    scores.append(RowScore(rows[12].id, "f", 1.0, 1.4, "fitted", "", 1e14))
    scores.append(RowScore(rows[13].id, "f", 1.0, None, "skipped", "no", None))
    (family,) = study_residuals(as_report(scores, rows), rows, {"f": "Something is missing."})
    return family


def test_a_dependence_in_words() -> None:
    family = made_up()
    line = dependence_line(family)
    assert "the error rises with TP (rank correlation +1.00 over 12 rows, p < 0.01 for 1 axis)" in line
    assert "+0.0 % at 1 (3 rows), +5.0 % at 2 (3 rows), +10.0 % at 4 (3 rows), +15.0 % at 8 (3 rows)" in line
    text = section(family)
    assert "Of its other rows 1 fitted, 1 without a forecast." in text
    assert "**What is missing.** Something is missing." in text
    assert short_ids(family)[:2] == ["0", "1"]


def test_many_values_are_told_by_thirds() -> None:
    """Without overlap, also where more than a third of the rows share a value."""
    rows = tuple(row(f"f_{n}", gpus=8, tp=1, microbatch=4 if 3 <= n < 9 else n + 1) for n in range(16))
    scores = [RowScore(one.id, "f", 1.0, 1.0 + 0.01 * n, "scored", "", 1e14) for n, one in enumerate(rows)]
    (family,) = study_residuals(as_report(scores, rows), rows, {})
    axis = next(one for one in AXES if one.name == "microbatch")
    assert means(family, axis) == "+4.0 % up to 4 (9 rows), +12.5 % from 11 on (6 rows)"


def test_the_table_by_family(families: dict[str, FamilyResiduals]) -> None:
    """The figures of `traincast validate`, with the null beside them; families without a scored row stay in it."""
    table = summary_table(list(families.values()))
    assert [cells[0] for cells in table.rows] == list(families)
    assert set(UNSCORED) < set(families)
    text = page([families[name] for name in ("korthikanti", "moe_zoo")])
    assert "## Families without a scored row\n\n- moe_zoo: " in text
    assert render_markdown(Table("", table.columns, table.rows[:1])).splitlines()[0] in text


def chunks(png: bytes) -> set[str]:
    at, names = 8, set()
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        names.add(png[at + 4 : at + 8].decode())
        at += 12 + length
    return names


def test_the_same_bytes_again(families: dict[str, FamilyResiduals], tmp_path: Path) -> None:
    """CONTRIBUTING, habit 8; no date and no version in a picture. A family without a numeric axis is drawn by row."""
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        write_residuals([families["torchao"], families["moe_zoo"]], folder)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert set(contents[0]) == {"residuals.csv", "residuals.md", "residuals_torchao.png"}
    assert contents[0] == contents[1]
    assert not {"tEXt", "iTXt", "zTXt", "tIME"} & chunks(contents[0]["residuals_torchao.png"])


def test_a_folder_that_cannot_be_written(families: dict[str, FamilyResiduals], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match=r"cannot write into .*fix: name a folder"):
        write_residuals([families["torchao"]], tmp_path / "file")


def test_the_command(
    table: list[dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One validation over the rows asked for, files into the folder, the families' table on stdout."""
    asked: list[str] = []

    def validate_rows(rows: tuple[PublishedRow, ...], advance: object) -> ValidationReport:
        asked.extend(one.id for one in rows)
        return as_report([score_of(cells) for cells in table if cells["id"] in asked], rows)

    monkeypatch.setattr("traincast.validate.validate_rows", validate_rows)
    assert main(["report", "residuals", "-o", str(tmp_path / "new"), "--family", "torchao"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "Residuals by family"
    assert f"wrote {tmp_path / 'new' / 'residuals.csv'}" in err
    assert len(asked) == len(set(asked)) == 7
    assert main(["report", "residuals", "-o", str(tmp_path), "--family", "torchao", "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 7


def test_what_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any forecast."""
    assert main(["report", "residuals", "-o", str(tmp_path / "new"), "--family", "vtran"]) == 2
    assert "--family: no row of family 'vtran'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["report", "residuals", "-o", str(tmp_path / "file"), "--family", "torchao"]) == 2
    assert "cannot write into" in capsys.readouterr().err
