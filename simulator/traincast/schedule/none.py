"""No pipeline: one stage runs the forward and the backward of each microbatch, then the next microbatch."""

from traincast.schedule.passes import backwards, forwards
from traincast.schedule.types import Schedule


def no_pipeline(p: int, m: int, v: int = 1) -> Schedule:
    """Instructions of the single stage: F0 B0 F1 B1 ... (gradient accumulation; p and v are 1)."""
    pairs = zip(forwards(m, 0), backwards(m, 0), strict=True)
    return (tuple(instruction for pair in pairs for instruction in pair),)
