"""Intervals for a source that nobody has seen: sources count alike, and what is left out is held as promised."""

import math

import numpy as np
import pytest

from traincast.calibration.conformal import (
    LEAST_SOURCES,
    Residual,
    conformal_band,
    conformal_interval,
    coverage,
    left_out,
    one_interval,
    source_of,
)


@pytest.mark.parametrize("n", [9, 99])
def test_conformal_bands_cover_what_they_promise(n: int) -> None:
    """Exchangeable residuals: of many draws the next one lies inside in 80 % of cases (Vovk et al. 2005)."""
    random = np.random.default_rng(3)
    inside = 0
    for _ in range(2000):
        draw = np.exp(0.2 * random.standard_normal(n + 1))
        band = conformal_band([Residual(r, group=str(k)) for k, r in enumerate(draw[:-1].tolist())], math.inf)
        inside += band.low <= draw[-1] <= band.high
    assert 0.77 < inside / 2000 < 0.86


@pytest.mark.parametrize("sources", [6, 20])
def test_the_next_source_is_covered_where_cases_of_one_hang_together(sources: int) -> None:
    """Sites that are off as a whole (30 %), with 20 cases each that hardly differ (3 %): the next site's cases lie
    inside in about 80 % of draws, or more where the sites are few (Lee, Barber, Willett 2023)."""
    random = np.random.default_rng(5)
    inside = []
    for _ in range(400):
        sites = 0.3 * random.standard_normal((sources + 1, 1))
        draws = np.exp(sites + 0.03 * random.standard_normal((sources + 1, 20)))
        residuals = [
            Residual(ratio, group=f"{site} {case}", source=str(site))
            for site, row in enumerate(draws[:-1].tolist())
            for case, ratio in enumerate(row)
        ]
        band = conformal_band(residuals, math.inf)
        inside.append(float(np.mean((draws[-1] >= band.low) & (draws[-1] <= band.high))))
    assert 0.74 < np.mean(inside) < 0.92


def test_sources_weigh_the_same_however_much_they_measured() -> None:
    long = [Residual(2.0, 1e6, "log", "one site")] * 900
    others = [Residual(1.0 + 0.01 * k, 1e6, f"log {k}") for k in range(19)]
    assert conformal_band([*long, *others], math.inf).high < 1.2
    many_logs = [Residual(2.0, 1e6, f"log {k}", "one site") for k in range(900)]
    assert conformal_band([*many_logs, *others], math.inf).high < 1.2
    assert conformal_band([Residual(one.ratio, 1e6, one.group) for one in (*many_logs, *others)], math.inf).high > 1.9


def test_a_band_of_few_sources_takes_those_of_all_sizes() -> None:
    """Three sources cannot promise 80 %: their next is the furthest of four in a quarter of cases."""
    small = [Residual(3.0, 1e3, str(k)) for k in range(LEAST_SOURCES - 1)]
    large = [Residual(1.0 + 0.01 * k, 1e9, str(k)) for k in range(12)]
    found = conformal_interval([*small, *large], "made up")
    assert found is not None
    assert found.band(1e3).low < 1.1
    more = conformal_interval([*small, Residual(3.0, 1e3, "4"), *large], "made up")
    assert more is not None
    assert more.band(1e3).low == pytest.approx(3.0)


def test_without_residuals_there_is_no_interval() -> None:
    assert conformal_interval([], "none") is None
    assert one_interval([Residual(1.0, group=str(k)) for k in range(7)], "few") is None
    assert coverage([], lambda one: None) is None


def test_what_is_left_out_is_held_against_the_others() -> None:
    """Nine sites agree, a tenth is three times slower: it is not held by the others, each of which is."""
    residuals = [Residual(1.0 + 0.01 * k, 1e6, f"log {k}", f"site {k}") for k in range(9)]
    residuals += [Residual(3.0, 1e6, f"log {k}", "slow site") for k in range(5)]
    others = left_out(residuals, lambda rest: conformal_interval(rest, "others"))
    assert len(others) == 10
    found = coverage(residuals, lambda one: others[one.whose])
    assert found is not None
    assert dict(found.by_source)["slow site"] == 0.0
    assert (found.cases, found.sources) == (14, 10)
    assert found.cases_share <= 9 / 14
    assert found.sources_share <= 0.9


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("github.com/NetX-lab/Echo nccl-test-log/nccl_16.log@15f0d12", "github.com/NetX-lab/Echo"),
        ("github.com/NVIDIA/nccl-tests/issues/309 (NCCL_MIN_CTAS=24)", "github.com/NVIDIA/nccl-tests/issues/309"),
        ("OCI GPU quick start GB300", "OCI GPU quick start GB300"),
    ],
)
def test_a_source_is_a_repository_or_the_author_of_an_issue(text: str, source: str) -> None:
    assert source_of(text) == source
