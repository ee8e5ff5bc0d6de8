"""`report schedules`: every schedule drawn; idle time that of its formula, activations within their bound."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from traincast.cli.main import app
from traincast.report.schedules import GROUPS, draw_schedules
from traincast.schedule import SCHEDULES, PassTimes


def test_every_schedule_is_drawn_and_idles_as_its_formula_says(tmp_path: Path) -> None:
    """Four stages, eight microbatches, F = I = W: what the papers print."""
    figures, files = draw_schedules(4, 8, PassTimes(1.0, 1.0, 1.0), tmp_path)
    assert {one.schedule for one in figures} == set(SCHEDULES) - {"none"}
    assert sorted(name for _, names in GROUPS for name in names) == sorted(one.schedule for one in figures)
    for one in figures:
        assert one.held <= one.bound
        if one.formula_s is not None:
            assert one.idle_s == pytest.approx(one.formula_s, abs=1e-9)
    assert [path.name for path in files] == [f"{group}.png" for group, _ in GROUPS]
    assert all(path.stat().st_size > 10_000 for path in files)


def test_shapes_that_some_schedules_do_not_allow_leave_these_out(tmp_path: Path) -> None:
    """DualPipe needs twice as many microbatches as stages, interleaving a multiple of them."""
    result = CliRunner().invoke(
        app, ["report", "schedules", "--pp", "4", "-m", "6", "-o", str(tmp_path), "--format", "csv"]
    )
    assert result.exit_code == 0
    named = {line.split(",")[0] for line in result.stdout.splitlines()[1:]}
    assert not {"interleaved", "dualpipe", "dualpipev"} & named
    assert {"1f1b", "zb-v", "zb-2p"} <= named
