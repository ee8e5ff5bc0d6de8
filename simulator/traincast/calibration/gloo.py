"""Gloo over shaped links: two constants from two ranks, and what they say about more ranks and about a pipeline.

Gloo is what a real loop without a GPU can run: it measures, this module forecasts, and the clock decides. The pipeline
runs on the simulator's own engine, with the schedule and the transport discipline of the real one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from traincast.engine import simulate
from traincast.errors import DataError
from traincast.lower.uniform import uniform_program
from traincast.recipe import P2PMode

_ROUNDS: Final = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 2, "alltoall": 1}
"""Rounds of n-1 steps in each of which a rank sends a share of size/n: rings, and a pairwise exchange.

PyTorch's Gloo backend makes its reduce-scatter of an all-reduce: on two ranks both take the same time.
"""


@dataclass(frozen=True)
class GlooModel:
    """Seconds of one step of a collective, and the rate at which a rank sends and receives [bytes/s]."""

    step_s: float
    bytes_per_s: float

    def seconds(self, op: str, size_bytes: float, ranks: int) -> float:
        """Time of a collective [s]: rounds (n-1) (step + size / n / rate); size as nccl-tests counts it."""
        if op not in _ROUNDS:
            raise DataError(f"no model of Gloo's {op}", fix=f"one of {', '.join(_ROUNDS)}")
        return _ROUNDS[op] * (ranks - 1) * (self.step_s + size_bytes / ranks / self.bytes_per_s)


@dataclass(frozen=True)
class GlooPoint:
    """One measured collective."""

    op: str
    ranks: int
    size_bytes: float
    seconds: float


def fit_gloo(points: Sequence[GlooPoint]) -> GlooModel:
    """Least squares of the relative error; linear in both constants. Raises DataError below two sizes.

    Notes
    -----
    t / t_measured = rounds (n-1) / t_measured * step + rounds (n-1) size / n / t_measured * (1 / rate), to be 1. A step
    that would cost less than nothing costs nothing, and the rate is fitted alone.
    """
    if len({point.size_bytes for point in points}) < 2:
        raise DataError("a rate and a step time need two sizes", fix="measure one more size")
    steps = np.array([_ROUNDS[point.op] * (point.ranks - 1) for point in points], dtype=np.float64)
    seconds = np.array([point.seconds for point in points])
    shares = np.array([point.size_bytes / point.ranks for point in points])
    design = np.column_stack((steps / seconds, steps * shares / seconds))
    step_s, inverse = np.linalg.lstsq(design, np.ones(len(points)), rcond=None)[0]
    if step_s < 0:
        column = design[:, 1]
        step_s, inverse = 0.0, float(column.sum() / (column @ column))
    return GlooModel(float(step_s), float(1 / inverse))


@dataclass(frozen=True)
class PipelineTimes:
    """Seconds of one microbatch on one stage, forward and backward, and of one message to a neighbour."""

    forward_s: float
    backward_s: float
    send_s: float


def pipeline_seconds(stages: int, microbatches: int, times: PipelineTimes, p2p: P2PMode) -> float:
    """Time of one 1F1B step on the discrete-event engine [s]: equal stages, the named transport discipline."""
    program = uniform_program(
        ("1f1b", stages, microbatches, 1), times.forward_s, times.backward_s, times.send_s, p2p=p2p
    )
    return simulate(program).step_time_s
