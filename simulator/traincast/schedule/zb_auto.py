"""Automatic zero-bubble schedules: a search over greedy orders, given times and a memory limit (Qi et al. 2023).

References: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 3.1 (the heuristic algorithm).
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product

from traincast.errors import ShapeError
from traincast.schedule.bubble import held
from traincast.schedule.cost import cost
from traincast.schedule.times import EQUAL, PassTimes, of_stages
from traincast.schedule.types import Schedule
from traincast.schedule.zb_greedy import Policy, greedy
from traincast.schedule.zb_h1 import zb_h1
from traincast.schedule.zb_h2 import zb_h2

_TOLERANCE = 1e-9


def zb_1p(p: int, m: int, v: int = 1) -> Schedule:
    """Instructions per stage: the best order for F = I = W that holds no more than 1F1B does (p microbatches)."""
    return automatic(p, m, EQUAL, p)


def zb_2p(p: int, m: int, v: int = 1) -> Schedule:
    """Instructions per stage: the best order for F = I = W that holds no more than twice as much as 1F1B does."""
    return automatic(p, m, EQUAL, 2 * p)


def automatic(
    p: int, m: int, times: PassTimes | Sequence[PassTimes], limit: float, after_input: float = 1.0
) -> Schedule:
    """Instructions per stage of the fastest order found that holds at most `limit` microbatches on every stage.

    Between I and W a microbatch counts `after_input` (0 to 1). Candidates are the handcrafted ZB-H1 and ZB-H2, where
    they fit the limit, and a greedy order for each policy; the cost is that of steps without a barrier.
    Raises ShapeError for a limit below 1, and for times and shares that cannot be.
    """
    if limit < 1:
        raise ShapeError(f"a memory limit of {limit} microbatches runs nothing", fix="give 1 or more")
    if not 0 <= after_input <= 1:
        raise ShapeError(f"a share of {after_input} that is held from I to W cannot be", fix="give 0 to 1")
    return _search(p, m, of_stages(times, p), limit, after_input)


@lru_cache(maxsize=64)
def _search(p: int, m: int, times: tuple[PassTimes, ...], limit: float, after_input: float) -> Schedule:
    found = [greedy(m, times, (limit, after_input), policy) for policy in policies()]
    found += [order for order in (zb_h2(p, m), zb_h1(p, m)) if max(held(order, after_input)) <= limit + _TOLERANCE]
    costs = [cost(order, times) for order in found]
    return min(zip(costs, found, strict=True), key=lambda one: (one[0].rolling_s, one[0].whole_s))[1]


def policies() -> tuple[Policy, ...]:
    """All combinations of the greedy search's binary choices."""
    return tuple(Policy(*choice) for choice in product((False, True), repeat=3))
