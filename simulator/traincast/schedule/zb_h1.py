"""ZB-H1: the memory of 1F1B, a third of its bubble (Qi et al. 2023)."""

from traincast.schedule.passes import alternate, behind, forwards, in_groups, input_gradients, weight_gradients
from traincast.schedule.types import Schedule


def zb_h1(p: int, m: int, v: int = 1) -> Schedule:
    """Instructions per stage; with v > 1 chunks a stage, m must be a multiple of p.

    1F1B's order with the backwards split: stage s warms up with p - s - 1 forwards, and its weight gradients stay s
    microbatches behind its input gradients, so that every stage holds as much as the first one of 1F1B. The last
    weight gradients fill what would be the bubble of the cool-down. With chunks, forwards and backwards go in groups
    as in interleaved 1F1B, after a warm-up that is (v - 1) p longer.

    References: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.1 and Figure 3 (top).
    """
    forward = in_groups(tuple(forwards(m, chunk) for chunk in range(v)), p)
    chunks = range(v)[::-1]
    inputs = in_groups(tuple(input_gradients(m, chunk) for chunk in chunks), p)
    weights = in_groups(tuple(weight_gradients(m, chunk) for chunk in chunks), p)
    orders = []
    for stage in range(p):
        warm_up = min(p - stage - 1 + (v - 1) * p, m * v)
        orders.append(behind(alternate(forward, inputs, warm_up), weights, stage))
    return tuple(orders)
