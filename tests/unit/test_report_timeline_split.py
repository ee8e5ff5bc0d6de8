"""Timelines of schedules that split the backward, run passes as one, or roll."""

from pathlib import Path

import pytest

from traincast.report.bars import bars
from traincast.report.timeline import Panel, draw_timeline, schedule_panel
from traincast.schedule import PassTimes, ScheduleKey

TIMES = PassTimes(1.0, 1.0, 1.0, 0.05)


def panel(key: ScheduleKey, rolling: bool = False) -> Panel:
    return schedule_panel(key, TIMES, rolling=rolling)


def test_the_title_says_what_is_drawn() -> None:
    title = schedule_panel(("zb-v", 4, 8, 2), PassTimes(1.0, 1.0, 1.0), rolling=True).title
    assert title == "ZB-V, 2 chunks a stage: 4 stages, 8 microbatches, 24.0 s (idle 0 %), steps roll"


def test_every_pass_is_a_bar_of_its_kind() -> None:
    one = panel(("dualpipev", 2, 4, 2))
    found = [bar for bar in bars(one.program, one.result) if bar.stream == "compute"]
    assert {bar.kind for bar in found} == {"forward", "backward", "input gradient", "weight gradient"}
    assert len(found) == sum(len(order) for order in one.program.schedule)


def test_passes_that_run_as_one_are_framed() -> None:
    """The frame goes from the begin of the forward to the end of the backward that follows at once."""
    one = panel(("dualpipev", 2, 4, 2))
    found = [bar for bar in bars(one.program, one.result) if bar.stream == "compute" and bar.stage == 0]
    framed = [k for k, bar in enumerate(found) if bar.joint_until_s is not None]
    assert len(framed) == sum(i.joint for i in one.program.schedule[0]) > 0
    for k in framed:
        assert found[k + 1].start_s == found[k].end_s
        assert found[k + 1].end_s == found[k].joint_until_s


@pytest.mark.parametrize(
    ("key", "rolling"),
    [
        (("zb-h2", 3, 6, 1), True),
        (("zb-v", 3, 6, 2), False),
        (("dualpipe", 4, 8, 2), False),
        (("zb-2p", 3, 6, 1), True),
    ],
)
def test_a_picture_of_each(tmp_path: Path, key: ScheduleKey, rolling: bool) -> None:
    draw_timeline([panel(key, rolling), panel(("1f1b", 3, 6, 1))], tmp_path / "steps.svg", dpi=40)
    text = (tmp_path / "steps.svg").read_text()
    assert len(text) > 20_000
