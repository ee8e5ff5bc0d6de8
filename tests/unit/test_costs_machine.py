"""What operators cost beside their own work: waiting for the last rank, and the host that issues them."""

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.costs.machine import Machine, host_seconds, last_of
from traincast.model.operators import Collective, MemoryBound
from traincast.profile import load_profile


def test_the_last_of_n_ranks() -> None:
    """Expected maximum of n standard normals: 0 for one, 1.42 for eight (by simulation within 4 %, from three on)."""
    assert last_of(1) == 0.0
    assert last_of(8) == pytest.approx(1.42, rel=0.02)
    rng = np.random.default_rng(7)
    for n in (3, 4, 8, 16, 64):
        assert last_of(n) == pytest.approx(rng.standard_normal((40000, n)).max(axis=1).mean(), rel=0.04)


def test_autograd_issues_calls_for_less_and_collectives_for_the_same() -> None:
    """`host.backward` of a call's time; collectives of a backward pass stand in Python functions of the stack."""
    profile = load_profile("a100-80gb-sxm").replaced(host__backward=0.7)
    machine = Machine(load_catalog().gpu("A100-80GB-SXM"), profile, "fp16")
    work, total = MemoryBound("work", 1.0, calls=3), Collective("sum", "all_reduce", "tp", 1.0)
    assert host_seconds(work, machine) == 3 * profile["host.call"]
    assert host_seconds(work, machine, autograd=True) == pytest.approx(0.7 * 3 * profile["host.call"])
    assert host_seconds(total, machine, autograd=True) == host_seconds(total, machine) == profile["host.collective"]
