"""1F1B: after a short warm-up each stage alternates one forward and one backward (PipeDream-Flush)."""

from traincast.schedule.passes import alternate, backwards, forwards
from traincast.schedule.types import Schedule


def one_f_one_b(p: int, m: int, v: int = 1) -> Schedule:
    """Instructions per stage; stage s warms up with min(p - s - 1, m) forwards.

    References: Narayanan et al. 2021 (SC21), section 2.2.1 and Figure 4 (top).
    """
    forward, backward = forwards(m, 0), backwards(m, 0)
    return tuple(alternate(forward, backward, min(p - stage - 1, m)) for stage in range(p))
