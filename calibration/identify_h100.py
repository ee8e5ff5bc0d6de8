"""Identify the constants of the NeMo and Megatron-Core profiles from measured data, and print them beside the profiles.

Run `python calibration/identify_h100.py` (minutes). Fused attention is told by `identify_flash_h100.py` (cuDNN).

1. fp8 against half precision: 25 products, `measured/gemm_h100.csv`;
2. the stack of 2025 on H100: nine rows of dgxc_h100 (four models, bf16 and fp8, TP 1, 2, 4 and 8, with and without a
   pipeline) tell five constants, each with a weak prior from elsewhere;
3. the NeMo launcher of 2024 on H100: two rates, from two rows of nemo, the others as step 2 has them;
4. NeMo 24.07 on H100: the same two rates, from three rows of nemo;
5. NeMo 25.04 on GB200: the rate of products, from one row of mlperf;
6. Megatron-Bridge on GB200: the same, from that row and one of megatron_bridge;
7. MaxText on H100: the rate of products in bf16 and in fp8, from its smallest run in each.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from traincast.analytic import evaluate
from traincast.costs.gemm import GemmConstants, gemm_seconds
from traincast.lower import Job, lower
from traincast.profile import Profile, load_profile
from traincast.validate import published_files, read_published
from traincast.validate.report import prepare_row

MEASURED = Path(__file__).resolve().parent / "measured"
PEAK = {"bf16": 989.4e12, "fp8": 1978.9e12}
SM_COUNT, MEMORY_BYTES_PER_S = 132, 0.9 * 3.35e12
RAMP_K, WAVE_WEIGHT, SMALL_TILE, FIXED_S = 128.0, 0.646, 0.93, 3e-6
"""Tiles and waves as on A100 (identify_a100.py step 1): these products are too few to tell them again."""

WGRAD_RATIO = 0.95
"""Rate of weight-gradient products to forward ones, as on A100."""

ROW_SPREAD = 0.02
"""Spread of a row's step time about the model."""

PRIORS = {
    # 0.80 of the peak in the best products (step 1), times 0.93, what A100 training reaches of its own best
    "gemm.forward": (0.745, 0.10),
    # between 0.755 of the A100 stacks and 0.93 of a copy
    "memory.efficiency": (0.85, 0.10),
    # step 1
    "gemm.fp8": (0.87, 0.10),
    # 18.9 % on average, 40 % at most (arXiv:2507.03114)
    "overlap.slowdown": (0.19, 1.0),
    # a rail carries what its NIC does, less what NCCL loses across nodes
    "network.one_efficiency": (0.8, 0.30),
}
"""Constant -> its prior and the prior's relative spread."""

DGXC_MODELS = (("gpt3_175b", 128), ("llama31_8b", 8), ("nemotron4_15b", 16), ("llama31_405b_proxy62L", 128))
DGXC_ROWS = (
    *(f"dgxc_{model}_{kind}_{gpus}" for model, gpus in DGXC_MODELS for kind in ("bf16", "fp8")),
    "dgxc_llama31_405b_proxy8L_bf16_32",
)
LAUNCHER_ROWS = ("nemo-launcher-0002", "nemo-launcher-0003")
NEMO_ROWS = ("nemo-24.07-0005", "nemo-24.07-0007", "nemo-24.07-0009")
GB200_ROWS = ("mlperf-5.0-0011",)
BRIDGE_ROWS = (*GB200_ROWS, "mbridge_26.04.01_LLAMA3.1_405B_DGX-GB200_FP8_216")

MAXTEXT_ROWS = tuple(f"dgxc_maxtext_llama3_70b_{kind}_128" for kind in ("bf16", "fp8"))


def products() -> dict[str, float]:
    """Step 1: share of the peak in products of each precision, and their ratio."""
    with (MEASURED / "gemm_h100.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    shares = {kind: _share([r for r in rows if r["dtype"] == kind], kind) for kind in PEAK}
    print(f"1 products: {shares['bf16']:.2f} of the peak in bf16, {shares['fp8']:.2f} in fp8")
    return {"fp8 over bf16, products alone": shares["fp8"] / shares["bf16"]}


def _share(rows: Sequence[dict[str, str]], kind: str) -> float:
    m, n, k = (np.array([float(r[c]) for r in rows]) for c in "mnk")
    measured = 2 * m * n * k / (np.array([float(r["tflop_per_s"]) for r in rows]) * 1e12)

    def errors(q: np.ndarray) -> np.ndarray:
        constants = GemmConstants(
            peak_flops_per_s=PEAK[kind],
            memory_bytes_per_s=MEMORY_BYTES_PER_S,
            sm_count=SM_COUNT,
            efficiency=float(q[0]),
            ramp_k=RAMP_K * PEAK[kind] / PEAK["bf16"],
            wave_weight=WAVE_WEIGHT,
            small_tile=SMALL_TILE,
            fixed_s=FIXED_S,
            in_bytes=PEAK["bf16"] / PEAK[kind] * 2,
        )
        return np.log(gemm_seconds(m, n, k, 1, constants) / measured)

    share = least_squares(errors, [0.7], loss="soft_l1", f_scale=0.05).x
    print(f"  {kind}: {len(rows)} products, mean error {100 * np.abs(errors(share)).mean():.1f} %")
    return float(share[0])


@dataclass(frozen=True)
class Rows:
    """Jobs of published rows and their measured step times [s]."""

    jobs: tuple[Job, ...]
    measured_s: np.ndarray

    def errors(self, profile: Profile) -> np.ndarray:
        """Log errors of the step times under a profile."""
        times = [evaluate(lower(replace(job, profile=profile)).program).step_time_s for job in self.jobs]
        return np.asarray(np.log(np.array(times) / self.measured_s))


def ready(ids: Iterable[str]) -> Rows:
    """The rows of these ids, with the fastest recipe that fits where a row leaves one open."""
    by_id = {row.id: row for row in read_published(published_files())}
    prepared = [prepare_row(by_id[i]) for i in ids]
    best = [min(one.options, key=lambda o: evaluate(o.program).step_time_s) for one in prepared]
    return Rows(tuple(option.job for option in best), np.array([one.measured_s for one in prepared], dtype=float))


def at(profile: Profile, values: dict[str, float]) -> Profile:
    """The profile at other values; dgrad and wgrad are tied to forward."""
    if "gemm.forward" in values:
        rate = values["gemm.forward"]
        values = values | {"gemm.dgrad": rate, "gemm.wgrad": WGRAD_RATIO * rate}
    return profile.replaced(**{name.replace(".", "__"): value for name, value in values.items()})


def fitted(rows: Rows, profile: Profile, priors: dict[str, tuple[float, float]], say: str) -> dict[str, float]:
    """Constants at which the rows' errors and the distances from the priors are smallest (least squares)."""
    start, spread = (np.array(column) for column in zip(*priors.values(), strict=True))

    def values(q: np.ndarray) -> dict[str, float]:
        return dict(zip(priors, (q * start).tolist(), strict=True))

    def residual(q: np.ndarray) -> np.ndarray:
        return np.concatenate([rows.errors(at(profile, values(q))), ROW_SPREAD * (q - 1) / spread])

    found = values(least_squares(residual, np.ones(len(start)), diff_step=1e-2, bounds=(0.05, 20)).x)
    left = 100 * np.abs(rows.errors(at(profile, found)))
    print(f"{say}: mean error {left.mean():.1f} %, worst {left.max():.1f} %, {len(left)} rows")
    return found | ({"gemm.wgrad": WGRAD_RATIO * found["gemm.forward"]} if "gemm.forward" in found else {})


def stack_2025() -> dict[str, float]:
    """Step 2."""
    return fitted(ready(DGXC_ROWS), load_profile("h100-nemo-megatroncore2025"), PRIORS, "2 stack of 2025")


def _rates(rows: Sequence[str], profile: str, say: str) -> dict[str, float]:
    """Rates of products and of memory-bound kernels of an earlier stack: priors are what step 2 found."""
    later = load_profile("h100-nemo-megatroncore2025")
    priors = {name: (later[name], 0.1) for name in ("gemm.forward", "memory.efficiency")}
    return fitted(ready(rows), load_profile(profile), priors, say)


def launcher() -> dict[str, float]:
    """Step 3."""
    return _rates(LAUNCHER_ROWS, "h100-nemo-megatroncore2024", "3 NeMo launcher of 2024")


def stack_2407() -> dict[str, float]:
    """Step 4."""
    return _rates(NEMO_ROWS, "h100-nemo-megatroncore2407", "4 NeMo 24.07")


def _products_on_gb200(rows: Sequence[str], profile: str, say: str) -> dict[str, float]:
    priors = {"gemm.forward": (load_profile("blackwell-sxm")["gemm.forward"], 0.3)}
    return fitted(ready(rows), load_profile(profile), priors, say)


def stack_gb200() -> dict[str, float]:
    """Step 5."""
    return _products_on_gb200(GB200_ROWS, "blackwell-nemo-megatroncore2025", "5 NeMo 25.04 on GB200")


def bridge() -> dict[str, float]:
    """Step 6."""
    return _products_on_gb200(BRIDGE_ROWS, "blackwell-megatronbridge2026", "6 Megatron-Bridge on GB200")


def maxtext() -> dict[str, float]:
    """Step 7: priors as in step 2."""
    priors = {name: PRIORS[name] for name in ("gemm.forward", "gemm.fp8")}
    return fitted(ready(MAXTEXT_ROWS), load_profile("h100-maxtext2025"), priors, "7 MaxText")


STEPS: dict[str, tuple[Callable[[], dict[str, float]], str]] = {
    "products": (products, ""),
    "stack_2025": (stack_2025, "h100-nemo-megatroncore2025"),
    "launcher": (launcher, "h100-nemo-megatroncore2024"),
    "stack_2407": (stack_2407, "h100-nemo-megatroncore2407"),
    "stack_gb200": (stack_gb200, "blackwell-nemo-megatroncore2025"),
    "bridge": (bridge, "blackwell-megatronbridge2026"),
    "maxtext": (maxtext, "h100-maxtext2025"),
}
"""Step -> its function, and the profile that holds its values."""


def main() -> None:
    """Run the steps and print what they say."""
    for step, profile in STEPS.values():
        for name, value in step().items():
            print(f"    {name:32s} {value:.4g}   {profile}")


if __name__ == "__main__":
    main()
