"""Schedules that split the backward or fold the model: the figures of their papers, bubbles, memory, refusals."""

import pytest

from traincast.analytic import evaluate
from traincast.errors import ShapeError, TraincastError
from traincast.lower.uniform import passes_program
from traincast.schedule import (
    EQUAL,
    Instruction,
    PassTimes,
    Schedule,
    ScheduleKey,
    bubble_s,
    bubble_share_of_ideal,
    bubble_share_of_step,
    build,
    held,
    held_chunks,
    in_flight,
    in_flight_bound,
    links,
    model_part,
    model_parts,
    neighbours,
    stages_of,
)


def words(schedule: Schedule, stage: int) -> str:
    """The order of one stage, such as `F0 I0 W0`; with a dot and the chunk where there are several, + where joint."""
    several = any(i.chunk for order in schedule for i in order)
    return " ".join(f"{i.kind}{i.microbatch}" + f".{i.chunk}" * several + "+" * i.joint for i in schedule[stage])


@pytest.mark.parametrize(
    ("stage", "order"),
    [
        (0, "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"),
        (1, "F0 F1 F2 I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 F6 I4 W3 F7 I5 W4 I6 W5 I7 W6 W7"),
        (3, "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"),
    ],
)
def test_zb_h1_is_the_top_of_figure_3(stage: int, order: str) -> None:
    """Qi et al. 2023, Figure 3 (top): four stages, eight microbatches."""
    assert words(build("zb-h1", 4, 8), stage) == order


@pytest.mark.parametrize(
    ("stage", "start"),
    [
        (0, "F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2"),
        (3, "F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2"),
    ],
)
def test_zb_h2_is_the_bottom_of_figure_3(stage: int, start: str) -> None:
    """Qi et al. 2023, Figure 3 (bottom): 2 p - 1 forwards first; the last stage ends with weight gradients."""
    assert words(build("zb-h2", 4, 8), stage).startswith(start)


def test_looped_breadth_first_passes_a_chunk_at_a_time() -> None:
    """Lamy-Poirier 2022: every microbatch on a chunk before the next chunk."""
    assert words(build("looped-bfs", 2, 2, 2), 1) == "F0.0 F1.0 F0.1 F1.1 B1.1 B0.1 B1.0 B0.0"


def test_dualpipe_is_figure_5_of_deepseek_v3() -> None:
    """Eight stages, ten microbatches each way: the first stage's order, and the middle ones mirror each other."""
    schedule = build("dualpipe", 8, 20, 2)
    assert words(schedule, 0).startswith("F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 F10.1 I10.1 W10.1 F11.1 I11.1 W11.1")
    assert words(schedule, 0).endswith("B19.1 I6.0 W6.0 I7.0 W7.0 I8.0 W8.0 I9.0 W9.0")
    assert words(schedule, 3).startswith("F0.0 F10.1 F1.0 F11.1 F2.0 F12.1 F3.0 F13.1 F4.0 B10.1 F14.1+ B0.0")
    for stage in range(8):
        mirrored = [i._replace(microbatch=(i.microbatch + 10) % 20, chunk=1 - i.chunk) for i in schedule[stage]]
        assert tuple(mirrored) == schedule[7 - stage]


def test_dualpipev_is_dualpipe_cut_in_half() -> None:
    """The first half of DualPipe's stages runs the same passes, the far stream's microbatches numbered from 0."""
    whole, half = build("dualpipe", 8, 20, 2), build("dualpipev", 4, 10, 2)
    for stage in range(4):
        same = [i._replace(microbatch=i.microbatch % 10) for i in whole[stage]]
        assert tuple(same) == half[stage]


UNEVEN, F_IS_I = PassTimes(4.0, 3.0, 2.0), PassTimes(3.0, 3.0, 2.0)


@pytest.mark.parametrize(
    ("key", "times", "idle_s"),
    [
        (("1f1b", 4, 8, 1), UNEVEN, 3 * (4 + 3 + 2)),
        (("zb-h1", 4, 8, 1), UNEVEN, 3 * (4 + 3 - 2)),
        (("zb-h2", 4, 8, 1), UNEVEN, 3 * (4 + 3 - 2 * 2)),
        (("zb-h1", 4, 8, 3), UNEVEN, 3 * (4 + 3 - 2) / 3),
        (("zb-v", 4, 8, 2), EQUAL, 0),
        (("dualpipe", 8, 20, 2), F_IS_I, 3 * (8 + 5 - 3 * 2)),
        (("dualpipev", 4, 10, 2), F_IS_I, 3 * (8 + 5 - 3 * 2) / 2),
    ],
)
def test_bubbles_of_the_papers(key: ScheduleKey, times: PassTimes, idle_s: float) -> None:
    """Qi et al. 2023, Table 2: (p - 1)(F + I + W), (F + I - W), (F + I - 2 W); DeepSeek-V3 Table 2: F&B + B - 3 W."""
    assert bubble_s(key, times) == pytest.approx(idle_s)
    step_s = evaluate(passes_program(key, times, rolling=key[0] in ("zb-h2", "zb-v"))).step_time_s
    assert step_s == pytest.approx(key[2] * times.work_s + idle_s)


def test_shares_of_schedules_that_split() -> None:
    """ZB-H1's bubble is a third of 1F1B's for F = I = W; where no formula is known the share is not a number."""
    assert bubble_share_of_ideal("zb-h1", 4, 8) == pytest.approx(bubble_share_of_ideal("1f1b", 4, 8) / 3)
    ideal = bubble_share_of_ideal("zb-h1", 4, 8, times=UNEVEN)
    assert ideal == pytest.approx(15 / 72)
    assert bubble_share_of_step("zb-h1", 4, 8, times=UNEVEN) == pytest.approx(ideal / (1 + ideal))
    assert bubble_s(("zb-2p", 4, 8, 1), EQUAL) is None
    assert bubble_share_of_ideal("zb-2p", 4, 8) != bubble_share_of_ideal("zb-2p", 4, 8)
    assert bubble_s(("zb-h2", 4, 8, 1), PassTimes(1.0, 1.0, 2.0)) == 0.0


@pytest.mark.parametrize(
    ("key", "counts"),
    [
        (("zb-h1", 4, 8, 1), (4, 4, 4, 4)),
        (("zb-h2", 4, 8, 1), (7, 7, 7, 7)),
        (("zb-v", 4, 8, 2), (8, 8, 8, 8)),
        (("dualpipe", 8, 20, 2), (9,) * 8),
        (("dualpipev", 4, 10, 2), (9,) * 4),
        (("looped-bfs", 4, 8, 2), (16,) * 4),
    ],
)
def test_memory_in_flight_reaches_its_bound(key: ScheduleKey, counts: tuple[int, ...]) -> None:
    """p, 2 p - 1 and 2 p halves (Qi et al. 2023, Table 2 and section 6), PP + 1 (DeepSeek-V3, Table 2)."""
    assert in_flight(build(*key)) == counts == in_flight_bound(key)


def test_what_a_weight_gradient_needs_is_less() -> None:
    """1F1B's order by hand: held 1 after F, 1/4 between I and W, nothing after W or a whole B."""
    f, i, w = (Instruction(kind, 0, 0) for kind in "FIW")
    assert held(((f, i, w),), 0.25) == (1.0,)
    assert held(((f, i, Instruction("F", 1, 0), w),), 0.25) == (1.25,)
    assert held(((f, Instruction("B", 0, 0), Instruction("F", 1, 0)),), 0.25) == (1.0,)
    assert held_chunks(build("zb-v", 4, 8, 2))[0] == (7.0, 1.0)
    assert held(((),), 1.0) == (0.0,)


def test_the_last_gradient_of_a_chunk_is_a_w_or_a_whole_b() -> None:
    order = tuple(Instruction(kind, k, 0) for kind, k in (("F", 0), ("F", 1), ("I", 0), ("W", 0), ("B", 1)))
    assert links(("by hand", 1, 2, 1), (order,))[0].last_gradient == {0: 4}
    split = (*order[:4], Instruction("I", 1, 0), Instruction("W", 1, 0))
    assert links(("by hand, split", 1, 2, 1), (split,))[0].last_gradient == {0: 5}


def test_a_v_folds_the_model() -> None:
    """Two chunks on four stages: 0 1 2 3 down, 4 5 6 7 back; the turn hands over on its own stage."""
    assert [[model_part("zb-v", 4, s, c) for c in (0, 1)] for s in range(4)] == [[0, 7], [1, 6], [2, 5], [3, 4]]
    near = neighbours("zb-v", 4, 2)
    assert [near[s, 1].after.way if near[s, 1].after else None for s in range(4)] == [None, -1, -1, -1]
    assert near[3, 0].after == near[0, 0].after.__class__((3, 1), 0)  # type: ignore[union-attr]
    assert stages_of("zb-v", 4, 2, 5) == ((2, 1),)
    assert model_parts("zb-v", 4, 2) == 8


def test_dualpipe_holds_two_copies() -> None:
    assert [[model_part("dualpipe", 4, s, c) for c in (0, 1)] for s in range(4)] == [[0, 3], [1, 2], [2, 1], [3, 0]]
    assert stages_of("dualpipe", 4, 2, 1) == ((1, 0), (2, 1))
    assert model_parts("dualpipe", 4, 2) == 4
    first, last = neighbours("dualpipe", 4, 2)[0, 0], neighbours("dualpipe", 4, 2)[0, 1]
    assert first.before is None
    assert last.after is None


def test_a_loop_goes_on_from_the_last_stage_to_the_next() -> None:
    """Also with two stages, where the next and the previous one are the same."""
    near = neighbours("interleaved", 2, 2)
    assert [near[place].after.way for place in ((0, 0), (1, 0), (0, 1))] == [1, 1, 1]  # type: ignore[union-attr]
    assert near[0, 1].before.way == -1  # type: ignore[union-attr]
    assert near[1, 1].after is None


def test_links_of_a_v_follow_the_fold() -> None:
    first, last = links(("zb-v", 2, 4, 2), build("zb-v", 2, 4, 2))
    turn = last.instructions.index(Instruction("F", 0, 1))
    assert last.source[turn] == -1
    onward = first.instructions.index(Instruction("F", 0, 1))
    assert last.instructions[first.source[onward]] == Instruction("F", 0, 1)
    assert first.source_way[onward] == 1
    back = first.instructions.index(Instruction("I", 0, 1))
    assert first.target_way[back] == 1
    assert first.source[back] == -1


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (("zb-v", 4, 8, 1), "2 chunks a stage, not vpp=1"),
        (("dualpipe", 4, 6, 2), "6 microbatches, pp=4"),
        (("dualpipe", 3, 8, 2), "pp=3"),
        (("dualpipev", 4, 7, 2), "7 microbatches, pp=4"),
        (("zb-h1", 4, 6, 2), "6 microbatches, pp=4"),
        (("zb-2p", 4, 8, 2), "1 chunk a stage, not vpp=2"),
    ],
)
def test_shapes_that_cannot_be(key: ScheduleKey, said: str) -> None:
    with pytest.raises(ShapeError, match=said) as caught:
        build(*key)
    assert caught.value.fix


def test_orders_that_cannot_be() -> None:
    f, i, b, w = (Instruction(kind, 0, 0) for kind in "FIBW")
    for order, said in (((f, w, i), "before its B"), ((f, i, b), "twice"), ((i, f), "before its F")):
        with pytest.raises(TraincastError, match=said):
            links((f"broken {said}", 1, 1, 1), (order,))
