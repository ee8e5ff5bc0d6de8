"""The use case: every legal shape of a scenario, pruned by memory, evaluated by the recurrence, ranked, confirmed."""

from traincast.sweep.base import load_base
from traincast.sweep.evaluate import Options, confirmed, evaluate_shapes
from traincast.sweep.outcome import Confirmation, SweepOutcome, SweepRow
from traincast.sweep.shapes import AXES, Shape, enumerate_shapes, parse_axes
from traincast.sweep.wording import axis_fix

__all__ = [
    "AXES",
    "Confirmation",
    "Options",
    "Shape",
    "SweepOutcome",
    "SweepRow",
    "axis_fix",
    "confirmed",
    "enumerate_shapes",
    "evaluate_shapes",
    "load_base",
    "parse_axes",
]

_axis_fix = axis_fix
