"""Textbook bubbles under their two definitions, and activations in flight."""

import pytest

from traincast.schedule import bubble_share_of_ideal, bubble_share_of_step, build, in_flight


def test_bubble_share_of_ideal_of_sc21_figure_4() -> None:
    """SC21, section 2.2: (p - 1) / m, with v chunks (p - 1) / (m v)."""
    assert bubble_share_of_ideal("1f1b", 4, 8) == 3 / 8
    assert bubble_share_of_ideal("gpipe", 4, 8) == 3 / 8
    assert bubble_share_of_ideal("interleaved", 4, 8, 2) == 3 / 16
    assert bubble_share_of_ideal("none", 1, 8) == 0.0


def test_bubble_share_of_step_of_gpipe() -> None:
    """Huang et al. 2019, section 2.3: (K - 1) / (M + K - 1)."""
    assert bubble_share_of_step("gpipe", 4, 8) == 3 / 11
    assert bubble_share_of_step("interleaved", 4, 8, 2) == 3 / 19
    assert bubble_share_of_step("none", 1, 8) == 0.0


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 1), (4, 8, 2), (64, 512, 1)])
def test_the_two_definitions_say_the_same(p: int, m: int, v: int) -> None:
    ideal = bubble_share_of_ideal("interleaved", p, m, v)
    assert bubble_share_of_step("interleaved", p, m, v) == pytest.approx(ideal / (1 + ideal), rel=1e-12)


def test_activations_in_flight() -> None:
    """SC21, section 2.2: GPipe holds m microbatches, 1F1B at most p; interleaving warm-up + 1 chunks."""
    assert in_flight(build("none", 1, 5)) == (1,)
    assert in_flight(build("gpipe", 4, 8)) == (8, 8, 8, 8)
    assert in_flight(build("1f1b", 4, 8)) == (4, 3, 2, 1)
    assert in_flight(build("1f1b", 4, 2)) == (2, 2, 2, 1)
    assert in_flight(build("interleaved", 4, 8, 2)) == (11, 9, 7, 5)
