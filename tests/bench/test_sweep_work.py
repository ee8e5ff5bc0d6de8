"""How much work a sweep does: graphs, links, instructions and memory are counted; shapes per second are only reported.

Run with `-s` to see the rate of this machine.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from traincast.analytic import plan, recurrence
from traincast.forecast import prepare
from traincast.lower import lower
from traincast.scenario import load_scenario
from traincast.schedule import build, passes
from traincast.sweep import enumerate_shapes, evaluate, evaluate_shapes

SCENARIO = load_scenario("sc21/t1_18p4b")
SHAPES = enumerate_shapes(SCENARIO, {"tp": (4, 8), "microbatch": (1, 2, 4), "vpp": (1, 2)})


def of_links() -> Any:
    """The module, which the function of its name hides."""
    return sys.modules["traincast.schedule.links"]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the functions that a sweep spends its time in are called, from cold caches on."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        plain: Callable[..., Any] = getattr(module, name)

        def once_more(*args: Any, **named: Any) -> Any:
            found[name] += 1
            return plain(*args, **named)

        monkeypatch.setattr(module, name, once_more)

    for cached in (plan._plan, of_links()._links, build, passes._made):
        cached.cache_clear()
    count(plan, "build_graph")
    count(plan, "_sorted")
    count(of_links(), "columns")
    count(evaluate, "memory_of")
    count(recurrence, "_by_node")
    return found


def test_shapes_of_one_wiring_share_a_graph(counted: Counter[str]) -> None:
    """As many graphs and links as there are wirings and schedules, and one estimate of memory a shape."""
    begin = time.perf_counter()
    outcome = evaluate_shapes(SCENARIO, SHAPES)
    seconds = time.perf_counter() - begin
    print(f"sweep: {len(SHAPES)} shapes, {len(SHAPES) / seconds:,.0f} shapes/s")
    work = counted.copy()
    prepared = prepare(SCENARIO)
    programs = [lower(evaluate.job_of(prepared, row.shape)).program for row in outcome.ranked]
    wirings = {plan.wiring(one) for one in programs}
    assert work["build_graph"] == len(wirings) < len(programs)
    assert work["columns"] == len({one.schedule_key for one in programs})
    assert work["memory_of"] == len(SHAPES)
    assert work["_by_node"] < len(programs)
    assert work["_sorted"] < work["build_graph"]


def test_passes_are_made_once() -> None:
    """Schedules of other numbers of stages and microbatches take their passes from the longest run so far."""
    passes._made.cache_clear()
    build.cache_clear()
    made = {id(one) for order in build("1f1b", 4, 64) for one in order}
    for p, m in ((4, 32), (2, 64), (8, 8)):
        assert {id(one) for order in build("1f1b", p, m) for one in order} <= made
