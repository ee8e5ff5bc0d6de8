"""`traincast report sc21`: which rows are drawn where, figures that hold the numbers of their CSV, plain words."""

import csv
import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from matplotlib.axes import Axes

from traincast.errors import UsageError
from traincast.report import sc21
from traincast.report.sc21_draw import draw_study
from traincast.report.sc21_points import mean_error_pct, study_score
from traincast.report.sc21_studies import STUDIES, Study
from traincast.report.tables import render_csv
from traincast.validate import PublishedRow, RowScore, published_files, read_published
from traincast.validate.score import Status

NAMES = [study.name for study in STUDIES]
MISSING = ("sc21_t2_ZeRO-3_529B_640", "sc21_f13_pp8tp8_B32")
FITTED = ("sc21_t1_1.7B", "sc21_f15_tp2dp32_B512")


def rows() -> tuple[PublishedRow, ...]:
    return sc21.study_rows(STUDIES)


def stub_scores(published: Sequence[PublishedRow]) -> list[RowScore]:
    """Scores as validate gives them, made up: a few percent off, two rows without a forecast, two fitted."""
    found = []
    for number, row in enumerate(published):
        measured = float(row.text("iter_time_s"))
        predicted = None if row.id in MISSING else measured * (1.0 + 0.01 * (number % 7 - 3))
        status: Status = "fitted" if row.id in FITTED else "skipped" if predicted is None else "scored"
        if row.text("unusual"):
            status = "skipped"
        rate = float(row.text("tflops_per_gpu") or 100.0)
        reason = "not modelled yet" if predicted is None else ""
        found.append(RowScore(row.id, row.family, measured, predicted, status, reason, rate * 1e12 * measured))
    return found


@pytest.fixture(scope="module")
def results() -> tuple[sc21.StudyResult, ...]:
    published = rows()
    return sc21.with_scores(STUDIES, published, stub_scores(published))


def by_name(results: Sequence[sc21.StudyResult], name: str) -> sc21.StudyResult:
    return next(one for one in results if one.study.name == name)


def printed(result: sc21.StudyResult) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(render_csv(sc21.study_table(result)))))


def test_every_row_of_tables_1_2_and_figures_11_to_18_is_drawn() -> None:
    """SC21: the published rows but Fig. 7's (no batch stated) and a figure from the text; Fig. 10 is Table 2."""
    everything = read_published(published_files(), families=("sc21",))
    left_out = {row.text("table") for row in everything} - {row.text("table") for row in rows()}
    assert left_out == {"Fig 7 (single GPU microbatch)", "Sec 5.1 text / Megatron README"}


COUNTS = {"table1": 10, "table2": 12, "fig11": 8, "fig12": 10, "fig13": 10, "fig14": 10, "fig15": 15, "fig16": 8}
COUNTS |= {"fig17": 13, "fig18": 10}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_points_of_a_study(results: tuple[sc21.StudyResult, ...], name: str, count: int) -> None:
    """As many points as the paper plots; each place and series holds one of them."""
    points = by_name(results, name).points
    assert len(points) == count
    assert len({(point.place, point.series) for point in points}) == count


def test_printed_figures(results: tuple[sc21.StudyResult, ...]) -> None:
    """SC21 Fig. 13 at batch 32 (103, 134, 140, 111, 91 TFLOP/s), Fig. 17 in sequences/s (0.6 at batch 1), Table 2."""
    fig13 = [p.published for p in by_name(results, "fig13").points if p.series == "batch 32"]
    assert fig13 == [103, 134, 140, 111, 91]
    fig17 = by_name(results, "fig17").points
    assert fig17[0].published == pytest.approx(0.6)
    assert max(p.published or 0.0 for p in fig17) == pytest.approx(7.8)
    days = {(r["scheme"], r["gpus"]): float(r["published_training_days"]) for r in printed(by_name(results, "table2"))}
    # printed: 90, 74 and 84, 23 days for 300 billion tokens
    assert days["ZeRO-3", "384"] == pytest.approx(90, abs=0.5)
    assert days["ZeRO-3", "1536"] == pytest.approx(74, abs=0.5)
    assert days["PTD-P", "384"] == pytest.approx(84, abs=1.0)
    assert days["PTD-P", "1536"] == pytest.approx(23, abs=0.5)


def test_figure_18_takes_its_optimised_runs_from_figure_12(results: tuple[sc21.StudyResult, ...]) -> None:
    """SC21 Fig. 18: with scatter/gather 11 % faster at batch 12; its two series are the same jobs but for that."""
    points = by_name(results, "fig18").points
    kinds = {p.series: [q.score.id for q in points if q.series == p.series] for p in points}
    assert all(name.startswith("sc21_f12_interleaved") for name in kinds["scatter/gather"])
    assert all(name.startswith("sc21_f18_unopt") for name in kinds["without scatter/gather"])
    assert "+11 %" in by_name(results, "fig18").finding


def drawn(axes: Axes) -> Iterator[tuple[str, list[float]]]:
    """Label and plotted values of every line and every group of bars."""
    for line in axes.lines:
        yield str(line.get_label()), [float(y) for y in line.get_ydata()]
    for container in axes.containers:
        yield str(container.get_label()), [bar.get_height() for bar in container.patches]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_numbers_in_the_figure_equal_the_csv(results: tuple[sc21.StudyResult, ...], name: str) -> None:
    """Issue: numbers in figures equal the CSVs. Read back from the artists, `==`; what has no forecast is not drawn."""
    result = by_name(results, name)
    study = result.study
    upper, lower = draw_study(study, result.points).axes
    found = {**dict(drawn(upper)), **dict(drawn(lower))}
    table = printed(result)
    columns = (("measured", f"published_{study.rate}"), ("forecast", f"forecast_{study.rate}"), ("error", "error_pct"))
    series = [point.series for point in result.points]
    expected: dict[str, list[float]] = {f"{one}, {what}": [] for one in series for what, _ in columns}
    for one, row in zip(series, table, strict=True):
        for what, column in columns:
            if row[column]:
                expected[f"{one}, {what}"].append(float(row[column]))
    assert {label: found[label] for label in expected} == expected


@pytest.mark.parametrize("name", NAMES)
def test_axes_have_units_and_the_legend_is_beside_them(results: tuple[sc21.StudyResult, ...], name: str) -> None:
    """A reader needs units and sees every point: the legend lies right of both axes."""
    result = by_name(results, name)
    figure = draw_study(result.study, result.points)
    figure.draw_without_rendering()
    upper, lower = figure.axes
    assert ("sequences" if name == "fig17" else "TFLOP/s") in upper.get_ylabel()
    assert "%" in lower.get_ylabel()
    assert lower.get_xlabel()
    (legend,) = figure.legends
    assert legend.get_window_extent().x0 >= max(axes.get_window_extent().x1 for axes in (upper, lower)) - 1.0


def test_a_row_without_a_forecast_is_told_not_drawn(results: tuple[sc21.StudyResult, ...]) -> None:
    """DESIGN §10: nothing is dropped silently."""
    result = by_name(results, "fig13")
    page = sc21.study_markdown(result)
    (line,) = [line for line in page.splitlines() if MISSING[1] in line]
    assert "| - |" in line
    assert "not modelled yet" in line
    (legend,) = draw_study(result.study, result.points).legends
    assert any("1 of 10 rows without\na forecast" in text.get_text() for text in legend.get_texts())


def test_fitted_rows_are_not_scored(results: tuple[sc21.StudyResult, ...]) -> None:
    """DESIGN §10: a row that a profile was fitted on is shown, hatched, and not scored."""
    result = by_name(results, "table1")
    assert (result.score.n, result.score.scored, result.score.fitted) == (10, 9, 1)
    _, lower = draw_study(result.study, result.points).axes
    (bars,) = lower.containers
    assert [bool(bar.get_hatch()) for bar in bars.patches] == [True] + 9 * [False]  # type: ignore[attr-defined]


def test_shown_rows_have_an_error_of_their_own(results: tuple[sc21.StudyResult, ...]) -> None:
    """Table 2's PTD-P rows state no split: shown, not scored, so their error stands by itself."""
    result = by_name(results, "table2")
    shown = [point for point in result.points if point.standing == "shown"]
    assert {point.series for point in shown} == {"PTD-P"}
    errors = [abs(point.score.error_pct or 0.0) for point in shown]
    assert mean_error_pct(result.points, "shown") == pytest.approx(sum(errors) / 6)
    assert mean_error_pct(result.points, "fitted") is None


def test_index_has_every_study_with_its_mean_error(results: tuple[sc21.StudyResult, ...]) -> None:
    """The index names files that are written, and each study's mean error and finding."""
    text = sc21.index_markdown(results)
    table = sc21.index_table(results)
    for one, row in zip(results, table.rows, strict=True):
        assert row[table.columns.index("mean |error| %")] == study_score(one.points).mape_pct
        assert one.finding in text
        for suffix in ("md", "csv", "png"):
            assert f"]({one.study.name}.{suffix})" in text
    unique = len({point.score.id for one in results for point in one.points if point.row.text("zero_stage") != "3"})
    assert unique == 95
    assert "All tables and figures but ZeRO-3. Step time over" in text


def chunks(png: bytes) -> list[str]:
    at, names = 8, []
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        names.append(png[at + 4 : at + 8].decode())
        at += 12 + length
    return names


def test_the_same_bytes_again(results: tuple[sc21.StudyResult, ...], tmp_path: Path) -> None:
    """CONTRIBUTING, habit 8; no date and no version in a picture."""
    contents: list[Mapping[str, bytes]] = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        sc21.write_studies(results[2:3], folder)
        contents.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert set(contents[0]) == {"fig11.csv", "fig11.md", "fig11.png"}
    assert contents[0] == contents[1]
    assert not {"tEXt", "iTXt", "zTXt", "tIME"} & set(chunks(contents[0]["fig11.png"]))


def test_a_folder_that_cannot_be_written(results: tuple[sc21.StudyResult, ...], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    for attempt in (
        lambda: sc21.ready_folder(tmp_path / "file"),
        lambda: sc21.write_studies(results[:1], tmp_path / "file"),
    ):
        with pytest.raises(UsageError, match=r"cannot write into .*fix: name a folder"):
            attempt()


def test_names() -> None:
    """Studies come in the paper's order, each once; another name is refused with those that there are."""
    assert [study.name for study in sc21.chosen_studies(())] == NAMES
    assert [study.name for study in sc21.chosen_studies(("fig13", "table1", "fig13"))] == ["table1", "fig13"]
    with pytest.raises(UsageError, match=r"--only: no table or figure 'fig9' \(fix: use some of table1,table2,fig11"):
        sc21.chosen_studies(("fig9",))


def test_points_keep_the_papers_order() -> None:
    """Table 2 by model and GPUs; a figure as its rows stand."""
    published = rows()
    order: dict[str, list[str]] = {}
    for one in sc21.with_scores(STUDIES, published, stub_scores(published)):
        order[one.study.name] = list(dict.fromkeys(point.where for point in one.points))
    assert order["table2"][:4] == ["175B 384 GPUs", "175B 768 GPUs", "175B 1536 GPUs", "530B 560 GPUs"]
    assert order["fig13"] == ["PP 2 TP 32", "PP 4 TP 16", "PP 8 TP 8", "PP 16 TP 4", "PP 32 TP 2"]
    assert order["fig17"] == [str(2**power) for power in range(9)]


def test_a_study_owns_rows_by_the_whole_name_of_its_table() -> None:
    """`Table 1` does not own `Table 12`."""
    study: Study = STUDIES[0]
    cells = {"table": "Table 12"}
    assert not study.owns(PublishedRow("a.csv", 2, cells))
    assert study.owns(PublishedRow("a.csv", 2, {"table": "Table 1"}))
