"""Hashed links on many ranks: alike ranks at the pace of the slowest, against every rank by itself."""

from statistics import fmean

import pytest
from test_lower_contention import CASES

from traincast.engine import simulate
from traincast.lower import lower, pace
from traincast.lower.flows import Contention
from traincast.topology.links import Spread

HARD = ("three units", "tapered core, replicas over pods", "tapered, straddling")


def hashed(name: str, seed: int, flows: int = 1) -> float:
    return simulate(lower(CASES[name], contention=Contention(Spread("ecmp", seed, flows))).program).step_time_s


@pytest.mark.parametrize("name", HARD)
@pytest.mark.parametrize("seed", range(3))
def test_the_pace_of_the_slowest_is_a_near_upper_bound(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All members of a class at one rate load no cable beyond what it can: not faster than each by itself; and not much
    slower, because the step waits for the slowest anyway. One flow a lane, where hashes are most uneven."""
    exact = hashed(name, seed)
    monkeypatch.setattr(pace, "EXACT_PASSES", 0)
    assert lower(CASES[name], contention=Contention(Spread("ecmp", seed, 1))).paced
    assert exact * (1 - 1e-12) <= hashed(name, seed) <= 1.04 * exact


def test_small_worlds_are_exact() -> None:
    found = lower(CASES["three units"], contention=Contention(Spread("ecmp")))
    assert not found.paced
    assert len(found.program.classes) == CASES["three units"].mesh.world
    assert not lower(CASES["three units"], contention=True).paced


def test_the_step_comes_closer_to_ideal_routing_with_more_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the mean over seeds; with 64 flows a lane it is within 5 %."""
    monkeypatch.setattr(pace, "EXACT_PASSES", 0)
    name = "tapered core, replicas over pods"
    ideal = simulate(lower(CASES[name], contention=True).program).step_time_s
    means = [fmean(hashed(name, seed, flows) for seed in range(4)) for flows in (1, 8, 64)]
    assert means == sorted(means, reverse=True)
    assert means[0] > 1.2 * ideal
    assert ideal <= means[-1] <= 1.05 * ideal
