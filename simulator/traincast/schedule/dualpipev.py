"""DualPipeV: DualPipe cut in half, one copy of the model folded into a V (DeepSeek-AI 2025)."""

from traincast.schedule.bidirectional import crossing
from traincast.schedule.types import Schedule


def dualpipev(p: int, m: int, v: int = 2) -> Schedule:
    """Instructions per stage; m >= 2 p.

    The stages of DualPipe come in pairs that hold the same two parts of the model; one of each pair does without the
    other, and the stream that comes back carries the microbatches that went down. References: the DualPipe
    repository of DeepSeek-AI, and Qi et al. 2025 ("Cut-in-half"), which derived it.
    """
    return tuple(crossing(p, m, stage, 0, {}) for stage in range(p))
