"""GPipe: all forwards, then all backwards (Huang et al. 2019)."""

from traincast.schedule.passes import backwards, forwards
from traincast.schedule.types import Schedule


def gpipe(p: int, m: int, v: int = 1) -> Schedule:
    """Instructions per stage: F0..F(m-1), B0..B(m-1), the same on every stage.

    Backwards run in the order of the forwards, as in SC21 Figure 3; any other order takes the same time.
    """
    order = forwards(m, 0) + backwards(m, 0)
    return (order,) * p
