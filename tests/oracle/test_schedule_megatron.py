"""The interleaved order against Megatron-Core's schedule table, where it is installed."""

import pytest

from traincast.schedule import build

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 12, 3), (8, 16, 4)])
def test_interleaved_order_is_megatrons_table(p: int, m: int, v: int) -> None:
    """Forwards follow the table; backwards follow it with the chunks in reverse."""
    schedules = pytest.importorskip("megatron.core.pipeline_parallel.schedules")
    table = schedules.get_schedule_table(m, v, p)
    for order in build("interleaved", p, m, v):
        assert [(i.microbatch, i.chunk) for i in order if i.kind == "F"] == table
        assert [(i.microbatch, v - 1 - i.chunk) for i in order if i.kind == "B"] == table
