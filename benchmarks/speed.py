"""Speed beside the work that was done: `python benchmarks/speed.py`. Wall time is reported, never asserted.

Each line: what, how much work (events, classes, shapes), the best and the median wall time of a few runs, and the rate.
The sweep begins with empty caches each time, as a new process does behind its imports. Machines differ; compare lines
of one run, or two commits on one quiet machine.
"""

import gc
import statistics
import time
from collections.abc import Callable
from functools import _lru_cache_wrapper

import scipy.sparse.csgraph  # noqa: F401 - the recurrence imports it when it has many graphs to sort

from traincast.analytic import evaluate
from traincast.engine import simulate
from traincast.forecast import prepare
from traincast.lower import lower
from traincast.scenario import load_scenario
from traincast.sweep import enumerate_shapes, evaluate_shapes

RUNS = 5


def forget() -> None:
    """Empty every cache of the package."""
    for one in gc.get_objects():
        if isinstance(one, _lru_cache_wrapper) and one.__module__.startswith("traincast."):
            one.cache_clear()


def timed(run: Callable[[], object], *, cold: bool) -> tuple[float, float]:
    """Best and median wall time of a few runs [s], each with empty caches if `cold`."""
    seconds = []
    for _ in range(RUNS):
        if cold:
            forget()
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), statistics.median(seconds)


def line(what: str, work: int, unit: str, run: Callable[[], object], *, cold: bool = False) -> None:
    """Time one thing and print it."""
    best, median = timed(run, cold=cold)
    print(f"{what:44s} {work:9,d} {unit:8s} best {best:8.4f} s  median {median:8.4f} s  {work / best:12,.0f} /s")


def main() -> None:
    """Time lowering, both evaluators and the plain sweep."""
    for name in ("sc21/t1_76p1b", "sc21/t1_529p6b", "sc21/t1_1008b"):
        job = prepare(load_scenario(name)).job
        program = lower(job).program
        events = simulate(program).events
        line(f"lower {name}", job.mesh.world, "ranks", lambda job=job: lower(job))  # type: ignore[misc]
        line(f"engine {name}", events, "events", lambda program=program: simulate(program))  # type: ignore[misc]
        line(f"recurrence {name}", events, "events", lambda program=program: evaluate(program))  # type: ignore[misc]
    scenario = load_scenario("sc21/t1_18p4b")
    shapes = enumerate_shapes(scenario, {"tp": (4, 8), "microbatch": (2, 4)})
    line("sweep sc21/t1_18p4b", len(shapes), "shapes", lambda: evaluate_shapes(scenario, shapes), cold=True)


if __name__ == "__main__":
    main()
