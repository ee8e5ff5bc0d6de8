"""Seconds of a fused (flash) attention kernel. Unfused attention is lowered to products and memory-bound kernels."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FlashConstants:
    """Dense peak of the precision, the share of it that long sequences and wide heads reach, and what short ones lose.

    `ramp` is in tokens: at `ramp` keys the kernel reaches half of its plateau; `head_ramp` likewise in head columns.
    `diagonal` is the extra work of masked tiles on the diagonal, in tokens per query row.
    """

    peak_flops_per_s: float
    efficiency: float
    ramp: float
    head_ramp: float
    diagonal: float
    fixed_s: float


def flash_attention_seconds(
    flops: npt.ArrayLike, keys: npt.ArrayLike, head_dim: npt.ArrayLike, causal: npt.ArrayLike, c: FlashConstants
) -> Floats:
    """Time of one attention kernel [s].

    `flops` counts the full matrix. `causal` is the share of the keys that are tokens of the queries themselves: 0
    without a mask, 1 where all are, queries/keys where the queries are the last of the keys' tokens. Of that square a
    causal kernel skips the tiles above the diagonal and keeps (1 + diagonal/queries)/2 of them.

    Notes
    -----
    t = fixed + flops * kept / (peak * efficiency) * (1 + ramp/keys) * (1 + head_ramp/head_dim).
    FlashAttention-2 (Dao 2023) on A100 rises from 132 to 176 TFLOP/s between 512 and 16k tokens with heads of 64
    and from 173 to 203 with heads of 128 (calibration/measured/flash_a100.csv).
    """
    keys, square = np.asarray(keys, dtype=np.float64), np.asarray(causal, dtype=np.float64)
    kept = (1.0 - square) + square * 0.5 * (1 + np.minimum(c.diagonal, square * keys) / np.maximum(square * keys, 1.0))
    work = np.asarray(flops, dtype=np.float64) * kept / (c.peak_flops_per_s * c.efficiency)
    width = np.asarray(head_dim, dtype=np.float64)
    return np.asarray(work * (1 + c.ramp / keys) * (1 + c.head_ramp / width) + c.fixed_s)
