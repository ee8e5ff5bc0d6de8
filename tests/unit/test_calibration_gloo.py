"""Gloo's two constants and the pipeline forecast of the real loop, on figures made by hand."""

import pytest
from loop.netns import burst_bytes

from traincast.calibration.gloo import GlooModel, GlooPoint, PipelineTimes, fit_gloo, pipeline_seconds
from traincast.errors import DataError

MB = 1e6


def test_a_ring_moves_its_shares_in_steps():
    """Ring all-reduce: 2 (n-1) steps of S/n; all-gather half as many (Thakur et al. 2005, sections 4.1 and 4.5)."""
    model = GlooModel(step_s=1e-3, bytes_per_s=100 * MB)
    assert model.seconds("all_reduce", 8 * MB, 4) == pytest.approx(6 * (1e-3 + 0.02))
    assert model.seconds("all_gather", 8 * MB, 4) == pytest.approx(3 * (1e-3 + 0.02))
    with pytest.raises(DataError, match="no model of Gloo's gather"):
        model.seconds("gather", 8 * MB, 4)


def test_two_ranks_give_both_constants_back():
    """Law: points made by the model give its constants; a step that would cost less than nothing costs nothing."""
    made = GlooModel(2e-3, 50 * MB)
    points = [GlooPoint("all_reduce", 2, s * MB, made.seconds("all_reduce", s * MB, 2)) for s in (4, 8, 16)]
    found = fit_gloo(points)
    assert (found.step_s, found.bytes_per_s) == pytest.approx((2e-3, 50 * MB))
    below = fit_gloo([GlooPoint("all_reduce", 2, 4 * MB, 0.07), GlooPoint("all_reduce", 2, 16 * MB, 0.32)])
    assert below.step_s == 0.0
    rates = (2 * 2 / 0.07 * MB, 2 * 8 / 0.32 * MB)
    assert below.bytes_per_s == pytest.approx(sum(rate**2 for rate in rates) / sum(rates))
    with pytest.raises(DataError, match="two sizes"):
        fit_gloo(points[:1])


def test_a_pipeline_without_messages_is_the_textbook_one():
    """1F1B: (m + p - 1) (f + b) where messages take no time (SC21, section 2.2.1)."""
    assert pipeline_seconds(4, 8, PipelineTimes(1.0, 2.0, 0.0), "async") == pytest.approx(11 * 3.0)
    assert pipeline_seconds(4, 8, PipelineTimes(1.0, 2.0, 0.0), "blocking") == pytest.approx(11 * 3.0)


def test_a_blocking_exchange_costs_more_than_an_asynchronous_one():
    times = PipelineTimes(1.0, 2.0, 0.5)
    assert pipeline_seconds(4, 8, times, "blocking") > pipeline_seconds(4, 8, times, "async") > 33.0


def test_a_bucket_holds_two_milliseconds():
    """Smaller ones let late timers cost bandwidth: 256 kB at 1 Gbit/s; never below one large segment."""
    assert burst_bytes(1e9) == 250_000
    assert burst_bytes(1e8) == 65536
