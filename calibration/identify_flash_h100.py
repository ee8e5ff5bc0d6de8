"""Identify fused attention on H100, by library, from published points: `python calibration/identify_flash_h100.py`.

The stack decides which kernel runs: PyTorch's scaled_dot_product_attention runs FlashAttention-2 on H100 (2023 to
2025), Transformer Engine cuDNN's. Points: the benchmark figures of FlashAttention's repository, in
`measured/flash_h100.csv`. Each library has a plateau forward and backward, and shares the ramps of the equation
(costs/attention.py); FlashAttention-2 alone has points of both passes together beside those of one, which tell its
backward. FlashAttention-1 has points of both together only: its backward is tied to its forward, and heads of 64 and of
128 columns are different kernels (wide ones are slower), so that those of 128 alone are used.
"""

import csv
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from traincast.costs.attention import FlashConstants, flash_attention_seconds

MEASURED = Path(__file__).resolve().parent / "measured" / "flash_h100.csv"
PEAK = 989.4e12
FIXED_S = 3e-6
NAMES = (
    "attention.flash_forward",
    "attention.flash_backward",
    "attention.ramp",
    "attention.head_ramp",
    "attention.diagonal",
)
WIDTHS = ("64", "128")
"""Head widths used: kernels for 256 columns are others."""

FIRST = "FlashAttention-1"
BACKWARD_RATIO = 0.86
"""Backward rate of FlashAttention-1 by that of forward (Dao 2023)."""


def points(library: str) -> list[dict[str, str]]:
    """Rows of a library with the usual head widths."""
    with MEASURED.open(encoding="utf-8") as file:
        widths = WIDTHS[1:] if library == FIRST else WIDTHS
        return [r for r in csv.DictReader(file) if r["library"] == library and r["head_dim"] in widths]


def attention(library: str) -> tuple[dict[str, float], float]:
    """Constants of a library and the mean error of its points; the backward is missing where no point has it."""
    rows = points(library)
    batch, heads, seq, width = (np.array([float(r[c]) for r in rows]) for c in ("batch", "heads", "seq", "head_dim"))
    causal = np.array([r["causal"] == "y" for r in rows])
    passes = np.array([r["pass"] for r in rows])
    product = 2 * batch * heads * seq * seq * width
    count = np.select([passes == "fwd", passes == "bwd"], [2.0, 5.0], 7.0)
    rate = np.array([float(r["tflop_per_s"]) for r in rows]) * 1e12
    measured = count * product * np.where(causal, 0.5, 1.0) / rate

    def model(q: np.ndarray) -> np.ndarray:
        if library == FIRST:
            q = np.array([q[0], BACKWARD_RATIO * q[0], q[2], 0.0, q[4]])
        forward, backward = (FlashConstants(PEAK, q[i], q[2], q[3], q[4], FIXED_S) for i in (0, 1))
        ahead = flash_attention_seconds(2 * product, seq, width, causal, forward)
        back = flash_attention_seconds(5 * product, seq, width, causal, backward)
        return np.where(passes == "bwd", 0.0, ahead) + np.where(passes == "fwd", 0.0, back)

    start = [0.5, 0.4, 150.0, 20.0, 200.0]
    q = least_squares(
        lambda q: np.log(model(q) / measured),
        start,
        loss="soft_l1",
        f_scale=0.05,
        bounds=(0.0, [1.0, 1.0, 2e3, 2e2, 4e3]),
    ).x
    found = dict(zip(NAMES, q.tolist(), strict=True))
    if library == FIRST:
        found |= {
            "attention.flash_backward": BACKWARD_RATIO * found["attention.flash_forward"],
            "attention.head_ramp": 0.0,
        }
    if not (passes != "fwd").any():
        del found["attention.flash_backward"]
    return found, float(np.abs(model(q) / measured - 1).mean())


def main() -> None:
    """Print the constants of each library."""
    for library in (FIRST, "FlashAttention-2", "cuDNN", "FlashAttention-3"):
        found, error = attention(library)
        print(f"{library}: {len(points(library))} points, mean error {100 * error:.1f} %")
        for name, value in found.items():
            print(f"    {name:28s} {value:.4g}")


if __name__ == "__main__":
    main()
