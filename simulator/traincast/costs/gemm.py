"""Seconds of a matrix product on one GPU: tiles, waves, a ramp in K, and the memory roofline."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TILES = ((256, 128, 1), (128, 256, 1), (128, 128, 2), (128, 64, 3), (64, 64, 6))
"""Thread-block tiles (rows, columns, blocks resident on one SM) that cuBLAS offers on Volta and later."""


@dataclass(frozen=True)
class GemmConstants:
    """Constants of one GPU, precision and direction.

    `peak_flops_per_s`: dense peak of the precision. `efficiency`: share of it that a long stream of full tiles reaches
    (clock under load and instruction mix). `ramp_k`: steps of K that a tile loses to prologue and epilogue.
    `wave_weight`: how much of an incomplete last wave is paid (1: SMs idle, 0: perfect balance).
    `small_tile`: efficiency of a 128x128 tile relative to 256x128; each halving of the tile loses this again.
    `unaligned`: share of the peak that products reach whose rows are no multiples of 16 bytes (1: no loss).
    `rows_run_along_k`: the factors lie in memory along k, as forward and dgrad have them; in a wgrad k counts tokens,
    and both factors lie along features (m and n).
    `in_bytes` and `out_bytes` are moved for each element of the factors and of the product.
    """

    peak_flops_per_s: float
    memory_bytes_per_s: float
    sm_count: int
    efficiency: float
    ramp_k: float
    wave_weight: float
    small_tile: float
    fixed_s: float
    unaligned: float = 1.0
    rows_run_along_k: bool = True
    in_bytes: float = 2.0
    out_bytes: float = 2.0


ALIGNED = 8
"""Elements of two bytes that make 16 bytes: what tensor-core kernels load at a time."""


def gemm_seconds(
    m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, batch: npt.ArrayLike, c: GemmConstants
) -> Floats:
    """Time of `batch` (m x k)(k x n) products [s]; arguments broadcast.

    Notes
    -----
    For each tile shape (M_t, N_t) with r blocks resident on each of P SMs, the product is ceil(m/M_t)ceil(n/N_t)batch
    tiles, that is x = tiles/(P r) waves. The time of the waves is
    (w ceil(x) + (1-w) max(x, 1/r)) * P r * 2 M_t N_t (k + k0) / (peak * efficiency * tile), never below one tile's own
    time on one SM, and the best tile is taken, as the library's heuristic would. The roofline term moves the three
    matrices once. Where rows in memory (of n, and of k or in a wgrad m) are no multiple of 8 elements the library falls
    back to kernels that reach `unaligned` of the peak; how many rows there are (tokens) does not matter. Attention with
    heads of 108, 150 or 450 columns runs at about 10 TFLOP/s on A100 (BLOOM's sizing runs).
    Source: structure as in NVIDIA's "Matrix Multiplication Background" guide (tile and wave quantisation);
    checked on 183 measured A100 products: mean error 2.9 % (calibration/measured/gemm_a100_pcie.csv).
    """
    m, n, k, batch = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    best: Floats | None = None
    for rows, columns, resident in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
        slots = c.sm_count * resident
        exact = tiles / slots
        waves = c.wave_weight * np.ceil(exact) + (1 - c.wave_weight) * np.maximum(exact, 1.0 / resident)
        halvings = np.log2(32768 / (rows * columns))
        rate = c.peak_flops_per_s * c.efficiency * c.small_tile**halvings
        seconds = waves * slots * 2.0 * rows * columns * (k + c.ramp_k) / rate
        best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    slow = 2.0 * batch * m * n * k / (c.peak_flops_per_s * c.unaligned)
    row = k if c.rows_run_along_k else m
    best = np.where((n % ALIGNED == 0) & (row % ALIGNED == 0), best, np.maximum(best, slow))
    moved = batch * (c.in_bytes * (m * k + k * n) + c.out_bytes * m * n) / c.memory_bytes_per_s
    return np.asarray(np.maximum(best, moved) + c.fixed_s)
