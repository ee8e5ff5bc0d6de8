"""The forecast against the clock: Gloo between network namespaces with shaped links.

Opt-in, as it needs root, iproute2 and PyTorch: `pytest -m namespaces`. Where these cannot be had it is skipped and says
why, as on a busy machine. What is measured and how it is forecast stands in calibration/loop/loop.py.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.namespaces


BARS = {"all_reduce": 0.06, "1F1B": 0.08}
"""Largest error of the rows of a kind."""


@pytest.fixture(scope="module")
def rows(checkout):
    """All rows of one run. Whoever else computes here can disturb one: it is repeated once where it misses a bar."""
    if idle_share() < 0.7:
        pytest.skip("the machine is busy: the clock would tell about others")
    found = run_loop(checkout)
    return run_loop(checkout) if beyond(found) or untold(found) else found


def idle_share(seconds=2.0):
    """Share of the processors' time that nobody uses."""

    def ticks():
        values = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return values[3] + values[4], sum(values)

    idle, total = ticks()
    time.sleep(seconds)
    later_idle, later_total = ticks()
    return (later_idle - idle) / max(later_total - total, 1)


def run_loop(checkout):
    """Rows of the script."""
    script = checkout / "calibration" / "loop" / "loop.py"
    command = [sys.executable, str(script), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def beyond(rows):
    """Judged rows that miss the bar of their kind."""
    return [
        (row["what"], row["ranks"], row["size_bytes"], row["error"])
        for kind, bar in BARS.items()
        for row in rows
        if row["what"].startswith(kind) and row["shown_only"] is None and abs(row["error"]) > bar
    ]


def untold(rows):
    """Pairs of pipelines whose clock does not tell the disciplines apart: (ranks, measured share, forecast share).

    The share is blocking over async - 1; a pair was measured within seconds, so what else the machine did meanwhile
    lengthens both. Told apart: the measured share is nearer to the forecast's than to none at all.
    """
    found = {}
    for row in rows:
        if row["what"].startswith("1F1B") and row["shown_only"] is None:
            discipline = row["what"].split()[1].rstrip(",")
            found.setdefault((row["ranks"], row["size_bytes"]), {})[discipline] = row
    shares = []
    for (ranks, _), pair in found.items():
        if len(pair) == 2:
            measured, forecast = (
                pair["blocking"][key] / pair["async"][key] - 1 for key in ("measured_s", "forecast_s")
            )
            shares.append((ranks, measured, forecast))
    return [(ranks, measured, forecast) for ranks, measured, forecast in shares if not measured > forecast / 2 > 0]


def judged(rows, kind, least):
    """The judged rows of a kind; skips where too few were steady enough to say anything."""
    found = [row for row in rows if row["what"].startswith(kind) and row["shown_only"] is None]
    if len(found) < least:
        pytest.skip(f"the machine is busy: only {len(found)} rows of {kind} are steady enough to judge")
    return found


def test_two_ranks_forecast_the_all_reduce_of_three_and_four(rows):
    """Law: 2 (n-1) steps that each move S/n; both constants come from two ranks. Within 6 % from 4 MiB on."""
    found = judged(rows, "all_reduce", 4)
    assert {row["ranks"] for row in found} == {3, 4}
    assert beyond(found) == []


@pytest.mark.xfail(
    reason="all-to-all 25 to 37 % fast, reduce-scatter up to 7: Gloo's copies, TCP's unfair shares are not modelled",
    raises=AssertionError,
    strict=True,
)
def test_two_ranks_forecast_every_collective_of_three_and_four(rows):
    """What the loop shows without judging it, by the bar of the all-reduce."""
    found = [row for row in rows if row["what"] in ("reduce_scatter", "all_gather", "alltoall")]
    assert max(abs(row["error"]) for row in found) <= BARS["all_reduce"]


def test_the_engine_forecasts_a_real_pipeline(rows):
    """1F1B with the message time of two ranks, under the discipline that the transport has: within 8 %."""
    assert beyond(judged(rows, "1F1B", 3)) == []


def test_the_clock_tells_the_transport_disciplines_apart(rows):
    """A blocking exchange takes longer than an asynchronous one, by the clock as by the engine."""
    judged(rows, "1F1B", 3)
    assert untold(rows) == []


def test_every_row_is_there_with_its_reason(rows):
    """What is not judged is shown all the same."""
    assert {row["what"] for row in rows} >= {"all_reduce", "reduce_scatter", "all_gather", "alltoall"}
    assert len(rows) == 6 + 6 + 6
    assert all(row["shown_only"] for row in rows if row["what"] in ("reduce_scatter", "all_gather", "alltoall"))
