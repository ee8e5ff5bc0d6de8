"""Looped breadth-first: all microbatches pass a chunk before the next one (Lamy-Poirier 2022)."""

from traincast.schedule.passes import backwards, forwards
from traincast.schedule.types import Schedule


def looped_bfs(p: int, m: int, v: int) -> Schedule:
    """Instructions per stage, the same on all: forwards of chunk 0, 1, ...; backwards from the last chunk to the first.

    Backwards take the microbatches from the last to the first, so that the last stage goes on at once. With it the
    gradients of a chunk are complete early, and its parameters are gathered once a pass where they are sharded.
    Reference: Lamy-Poirier 2022, "Breadth-First Pipeline Parallelism".
    """
    order = [instruction for chunk in range(v) for instruction in forwards(m, chunk)]
    order += [instruction for chunk in reversed(range(v)) for instruction in reversed(backwards(m, chunk))]
    return (tuple(order),) * p
