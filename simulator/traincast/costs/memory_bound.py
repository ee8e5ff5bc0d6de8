"""Seconds of memory-bound kernels and of the optimiser step."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MemoryConstants:
    """`bytes_per_s`: bandwidth that a large elementwise kernel reaches; `fixed_s`: start and drain of one kernel."""

    bytes_per_s: float
    fixed_s: float


def memory_bound_seconds(bytes_moved: npt.ArrayLike, calls: npt.ArrayLike, c: MemoryConstants) -> Floats:
    """Time of `calls` kernels that together move `bytes_moved` bytes [s]: calls * fixed + bytes / bandwidth."""
    moved = np.asarray(bytes_moved, dtype=np.float64)
    return np.asarray(np.asarray(calls, dtype=np.float64) * c.fixed_s + moved / c.bytes_per_s)


def optimizer_seconds(parameters: float, bytes_per_parameter: float, c: MemoryConstants) -> float:
    """Time of one optimiser step over `parameters` local parameters [s].

    Notes
    -----
    Mixed-precision Adam is memory bound. A fused kernel reads the gradient, the master weight and two moments and
    writes three of them (28 bytes in single precision); around it run the copy to fp32 gradients, unscaling and the
    overflow check, the norm, and the copy back to 2-byte weights, 20 to 30 bytes more. The stack's sum is the
    profile's `optimizer.bytes_per_parameter`.
    """
    return parameters * bytes_per_parameter / c.bytes_per_s
