"""Interleaved 1F1B: every rank holds v chunks of the model (SC21, section 2.2.2)."""

from traincast.schedule.passes import alternate, backwards, forwards, in_groups
from traincast.schedule.types import Schedule


def interleaved(p: int, m: int, v: int) -> Schedule:
    """Instructions per stage in Megatron-LM's order; m must be a multiple of p.

    Microbatches go in groups of p: a group passes chunk 0, then chunk 1, and so on; the backwards take the
    chunks in reverse. Stage s warms up with min(2 (p - s - 1) + (v - 1) p, m v) forwards.

    In the steady state a forward is `fused` with the backward after it: Megatron exchanges the outputs of
    both in one batch. A blocking stack that exchanged after each of them would deadlock (p=2, m=4, v=2).
    """
    forward = in_groups(tuple(forwards(m, chunk) for chunk in range(v)), p)
    backward = in_groups(tuple(backwards(m, chunk) for chunk in reversed(range(v))), p)
    fused = in_groups(tuple(forwards(m, chunk, fused=True) for chunk in range(v)), p)
    orders = []
    for stage in range(p):
        warm_up = min(2 * (p - stage - 1) + (v - 1) * p, m * v)
        orders.append(alternate(forward[:warm_up] + fused[warm_up:], backward, warm_up))
    return tuple(orders)
