"""What operators cost beside their own work: waiting for the last rank."""

import numpy as np
import pytest

from traincast.costs.machine import last_of


def test_the_last_of_n_ranks() -> None:
    """Expected maximum of n standard normals: 0 for one, 1.42 for eight (by simulation within 4 %, from three on)."""
    assert last_of(1) == 0.0
    assert last_of(8) == pytest.approx(1.42, rel=0.02)
    rng = np.random.default_rng(7)
    for n in (3, 4, 8, 16, 64):
        assert last_of(n) == pytest.approx(rng.standard_normal((40000, n)).max(axis=1).mean(), rel=0.04)
