"""Orders of the pipeline schedules: SC21 Figures 3 and 4, Megatron-LM's warm-up, and refusals."""

import pytest

from traincast.errors import ShapeError, TraincastError
from traincast.schedule import Instruction, build, links
from traincast.schedule.types import Schedule


def words(schedule: Schedule, stage: int) -> str:
    """The order of one stage, such as `F0 B0`; with a dot and the chunk where there are several."""
    several = any(i.chunk for order in schedule for i in order)
    return " ".join(f"{i.kind}{i.microbatch}" + f".{i.chunk}" * several for i in schedule[stage])


def test_no_pipeline_alternates() -> None:
    assert words(build("none", 1, 3, 1), 0) == "F0 B0 F1 B1 F2 B2"


def test_gpipe_runs_all_forwards_first() -> None:
    """SC21 Figure 3."""
    schedule = build("gpipe", 2, 3, 1)
    assert words(schedule, 0) == words(schedule, 1) == "F0 F1 F2 B0 B1 B2"


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        (0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        (2, "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"),
        (3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
    ],
)
def test_1f1b_is_the_top_of_figure_4(stage: int, order: str) -> None:
    """SC21 Figure 4, top: four devices, eight microbatches."""
    assert words(build("1f1b", 4, 8, 1), stage) == order


def test_1f1b_with_fewer_microbatches_than_stages() -> None:
    assert words(build("1f1b", 4, 2, 1), 0) == "F0 F1 B0 B1"


@pytest.mark.parametrize(
    ("stage", "start"),
    [
        # the coloured boxes of devices 1 and 4, counted from 0: dark is chunk 0, light chunk 1
        (
            0,
            "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0 F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1",
        ),
        (3, "F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0 F5.0 B1.0"),
    ],
)
def test_interleaved_is_the_bottom_of_figure_4(stage: int, start: str) -> None:
    """SC21 Figure 4, bottom: four devices, eight microbatches, two chunks a device."""
    assert words(build("interleaved", 4, 8, 2), stage).startswith(start)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 1), (4, 4, 2), (4, 12, 3), (8, 16, 4)])
def test_interleaved_warms_up_like_megatron(p: int, m: int, v: int) -> None:
    """min((p - s - 1) 2 + (v - 1) p, m v) forwards come before the first pair of a forward and a backward."""
    for stage, order in enumerate(build("interleaved", p, m, v)):
        leading = next(index for index, i in enumerate(order) if i.kind == "B")
        warm_up = min((p - stage - 1) * 2 + (v - 1) * p, m * v)
        assert leading == min(warm_up + 1, m * v)
        assert [index for index, i in enumerate(order) if i.fused] == list(range(warm_up, 2 * m * v - warm_up, 2))


@pytest.mark.parametrize("name", ["none", "gpipe", "1f1b", "interleaved"])
@pytest.mark.parametrize(("p", "m", "v"), [(1, 3, 1), (2, 4, 1), (4, 8, 3), (6, 12, 2)])
def test_every_pass_runs_once(name: str, p: int, m: int, v: int) -> None:
    p, v = (1 if name == "none" else p), (v if name == "interleaved" else 1)
    expected = sorted((kind, k, chunk) for kind in "FB" for k in range(m) for chunk in range(v))
    for order in build(name, p, m, v):
        assert sorted((i.kind, i.microbatch, i.chunk) for i in order) == expected


@pytest.mark.parametrize(
    ("key", "words_of_message"),
    [
        (("interleaved", 4, 6, 2), ("6", "pp=4", "4 or 8")),
        (("interleaved", 4, 3, 2), ("3", "pp=4", "use 4 microbatches")),
        (("none", 2, 4, 1), ("pp=2", "1f1b")),
        (("1f1b", 2, 4, 2), ("vpp=2", "interleaved")),
        (("gpipe", 2, 0, 1), ("0 microbatches",)),
        (("zigzag", 2, 4, 1), ("zigzag", "gpipe", "interleaved")),
    ],
)
def test_shapes_that_cannot_be(key: tuple[str, int, int, int], words_of_message: tuple[str, ...]) -> None:
    """The message names the two numbers that clash, and a fix."""
    with pytest.raises(ShapeError) as caught:
        build(*key)
    assert all(word in str(caught.value) for word in words_of_message)
    assert caught.value.fix


def test_links_follow_the_model_chunks_round_the_pipeline() -> None:
    schedule = build("interleaved", 2, 2, 2)
    first, last = links(("interleaved", 2, 2, 2), schedule)
    at = schedule[0].index(Instruction("F", 0, 1))
    assert schedule[1][first.source[at]] == Instruction("F", 0, 0)
    assert first.source[0] == -1
    assert schedule[0][last.target[schedule[1].index(Instruction("F", 0, 0))]] == Instruction("F", 0, 1)
    assert last.target[[(i.kind, i.chunk) for i in schedule[1]].index(("F", 1))] == -1


F, B = Instruction("F", 0, 0), Instruction("B", 0, 0)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (((B, F),), "before its F"),
        (((F, F, B),), "twice"),
        (((F, B), (Instruction("F", 1, 0), Instruction("B", 1, 0))), "stage 1 never runs F of microbatch 0"),
        (((Instruction("F", 0, 1), F, Instruction("B", 0, 1), B),), "before F of microbatch 0, chunk 0"),
    ],
)
def test_schedules_that_cannot_run(schedule: Schedule, message: str) -> None:
    with pytest.raises(TraincastError, match=message):
        links((f"broken {message}", len(schedule), 1, 1), schedule)
