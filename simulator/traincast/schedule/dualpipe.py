"""DualPipe: microbatches enter at both ends of the pipeline (DeepSeek-V3, 2024)."""

from traincast.schedule.bidirectional import crossing
from traincast.schedule.types import Schedule


def dualpipe(p: int, m: int, v: int = 2) -> Schedule:
    """Instructions per stage; p and m are even, m >= 2 p.

    Every stage holds two parts of the model, so that there are two copies of it: chunk 0 is part s, through which
    the first half of the microbatches goes down; chunk 1 is part p - 1 - s, through which the others come back.

    References: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.2.1, Figure 5 and Table 2.
    """
    half, first = m // 2, {1: m // 2}
    return tuple(crossing(p // 2, half, min(stage, p - 1 - stage), int(stage >= p // 2), first) for stage in range(p))
