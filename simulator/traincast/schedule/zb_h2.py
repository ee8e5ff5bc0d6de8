"""ZB-H2: no bubble where F, I and W take as long, for twice the memory of 1F1B (Qi et al. 2023)."""

from traincast.schedule.passes import alternate, behind, forwards, input_gradients, weight_gradients
from traincast.schedule.types import Schedule


def zb_h2(p: int, m: int, v: int = 1) -> Schedule:
    """Instructions per stage.

    Stage s runs 2 (p - s) - 1 forwards before its first input gradient, which fills the wait for it, and keeps its
    weight gradients 2 s microbatches behind. The step is a parallelogram: later stages begin and end later, so it
    needs an optimiser that no barrier holds back.

    References: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.2 and Figure 3 (bottom).
    """
    forward, inputs, weights = forwards(m, 0), input_gradients(m, 0), weight_gradients(m, 0)
    return tuple(
        behind(alternate(forward, inputs, min(2 * (p - stage) - 2, m)), weights, 2 * stage) for stage in range(p)
    )
