"""`report schedules`: every schedule drawn; idle time that of its formula, activations within their bound."""

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from traincast.cli.main import app
from traincast.errors import ShapeError, UsageError
from traincast.report.schedules import GROUPS, draw_schedules, formula_in_range_s, schedule_keys
from traincast.report.timeline import schedule_panel
from traincast.schedule import SCHEDULES, SPLIT, PassTimes


def test_every_schedule_is_drawn_and_idles_as_its_formula_says(tmp_path: Path) -> None:
    """Four stages, eight microbatches, F = I = W: what the papers print."""
    drawing = draw_schedules(4, 8, PassTimes(1.0, 1.0, 1.0), tmp_path)
    figures, files = drawing.figures, drawing.files
    assert drawing.left_out == ()
    assert {one.schedule for one in figures} == set(SCHEDULES) - {"none"}
    assert sorted(name for _, names in GROUPS for name in names) == sorted(one.schedule for one in figures)
    for one in figures:
        assert one.held <= one.bound
        if one.formula_s is not None:
            assert one.idle_s == pytest.approx(one.formula_s, abs=1e-9)
    assert [path.name for path in files] == [f"{group}.png" for group, _ in GROUPS]
    assert all(path.stat().st_size > 10_000 for path in files)


def test_shapes_that_some_schedules_do_not_allow_leave_these_out_with_the_reason(tmp_path: Path) -> None:
    """DualPipe needs twice as many microbatches as stages, interleaving a multiple of them."""
    result = CliRunner().invoke(
        app, ["report", "schedules", "--pp", "4", "-m", "6", "-o", str(tmp_path), "--format", "csv"]
    )
    assert result.exit_code == 0
    rows = {line["schedule"]: line for line in csv.DictReader(io.StringIO(result.stdout))}
    left_out = {name for name, row in rows.items() if not row["step s"]}
    assert left_out == {"interleaved", "dualpipe", "dualpipev"}
    assert all(rows[name]["remark"].startswith("left out: ") for name in left_out)
    assert "6 microbatches, pp=4" in rows["interleaved"]["remark"]
    assert set(rows) == set(SCHEDULES) - {"none"}


@pytest.mark.parametrize("weight_s", [0.5, 1.0, 1.4])
def test_a_formula_is_shown_only_where_it_holds(weight_s: float) -> None:
    """Below p microbatches (ZB-H1, looped), 2 p - 1 (ZB-H2, ZB-V) or with W above F and I the papers state nothing."""
    times, shown = PassTimes(1.0, 1.0, weight_s), set()
    for m in (1, 2, 3, 4, 5, 6, 7, 8):
        for key in schedule_keys(4, m):
            formula_s = formula_in_range_s(key, times)
            if formula_s is None:
                continue
            try:
                panel = schedule_panel(key, times, rolling=key[0] in SPLIT)
            except ShapeError:
                continue
            shown.add(key[0])
            assert panel.result.step_time_s - m * times.work_s == pytest.approx(formula_s, abs=1e-9), key
    assert {"gpipe", "1f1b", "interleaved", "looped-bfs"} <= shown
    assert ("zb-h2" in shown) == (weight_s <= 1.0)


@pytest.mark.parametrize(
    ("options", "where", "fix"),
    [
        (["--forward", "inf"], "--forward", "give 0 to 1e+06"),
        (["--message", "inf"], "--message", "give 0 to 1e+06"),
        (["--weight-gradient", "1e300"], "--weight-gradient", "give 0 to 1e+06"),
        (
            ["--forward", "0", "--input-gradient", "0", "--weight-gradient", "0"],
            "--forward",
            "1e-09 s or more together",
        ),
        (["--pp", "32", "-m", "128"], "-m", "use -m "),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_options_of_the_command(
    tmp_path: Path, options: list[str], where: str, fix: str
) -> None:
    """Times that are no seconds or none at all, and more bars than anybody could see."""
    result = CliRunner().invoke(app, ["report", "schedules", *options, "-o", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert result.exception.where == where
    assert fix in (result.exception.fix or "")
    assert "--set" not in str(result.exception)
    assert not list(tmp_path.iterdir())


def test_one_of_a_thing_is_not_many() -> None:
    assert schedule_panel(("none", 1, 1, 1), PassTimes(1.0, 1.0, 1.0)).title.startswith(
        "no pipeline: 1 stage, 1 microbatch, "
    )
