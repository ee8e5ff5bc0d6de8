"""Seconds of the passes that a schedule is made of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traincast.errors import ShapeError


@dataclass(frozen=True)
class PassTimes:
    """Seconds of one microbatch on one stage (all its chunks): F, I and W, and one message to a neighbouring stage.

    A backward that is not split takes `input_s + weight_s`.
    """

    forward_s: float
    input_s: float
    weight_s: float
    send_s: float = 0.0

    @property
    def backward_s(self) -> float:
        """Input and weight gradients together [s]."""
        return self.input_s + self.weight_s

    @property
    def work_s(self) -> float:
        """Computing time of one microbatch [s]."""
        return self.forward_s + self.input_s + self.weight_s


EQUAL = PassTimes(1.0, 1.0, 1.0)
"""F = I = W and messages that take no time: what the figures of the zero-bubble papers assume."""


def of_stages(times: PassTimes | Sequence[PassTimes], p: int) -> tuple[PassTimes, ...]:
    """Times of each of p stages; one entry stands for all.

    Raises ShapeError for another number of stages, or for a time that is negative, infinite or not a number.
    """
    found = (times,) * p if isinstance(times, PassTimes) else tuple(times)
    if len(found) != p:
        raise ShapeError(f"pass times of {len(found)} stages for pp={p}", fix="give one entry a stage, or one for all")
    seconds = [s for one in found for s in (one.forward_s, one.input_s, one.weight_s, one.send_s)]
    if not all(0.0 <= one < math.inf for one in seconds):
        raise ShapeError("a pass time is negative, infinite or undefined", fix="give seconds of 0 or more")
    return found
