"""Constants of vTrain's single-node runs (Megatron-DeepSpeed on up to eight A100), told by 62 of its 740 rows.

The rows are every twelfth of the sorted ids, whatever they hold. `python calibration/identify_vtrain.py` prints what
stands in profiles/a100-80gb-megatron-deepspeed.yaml. What the table shows at a glance: time is linear in microbatches
and in layers to a tenth of a millisecond, so that a shape's rows tell its time per layer, per microbatch and per step
apart. Small microbatches are bound by the host. Large ones exceed their kernels and collectives by about a millisecond
a layer under TP 2, 4 and 8 alike, whatever the size: a fixed time at each all-reduce. TP 8 at microbatch 1 is a third
slower than that (two heads a GPU: Megatron's fused softmax wants a multiple of four), three cells (hidden 2048, TP 4,
microbatch 1 and 2; hidden 1024, TP 2, microbatch 4) are a tenth to a quarter faster than their neighbours.
"""

import numpy as np
from identify_a100 import WGRAD_RATIO, step_times
from scipy.optimize import least_squares

from traincast.lower.job import Job
from traincast.profile import Profile, load_profile
from traincast.validate import published_files, read_published
from traincast.validate.report import prepare_row

FAMILY = "vtrain_single"
EVERY = 12
TIED = {
    "gemm.forward": ("gemm.forward", 1.0),
    "gemm.dgrad": ("gemm.forward", 1.0),
    "gemm.wgrad": ("gemm.forward", WGRAD_RATIO),
}
"""Products that follow the forward one: constant, the one it follows, ratio."""
CONSTANTS = {
    "host.call": (45e-6, 1e-6, 100e-6),
    "host.collective": (30e-6, 10e-6, 400e-6),
    "collective.handover": (300e-6, 0.0, 1500e-6),
    "optimizer.bytes_per_parameter": (40.0, 28.0, 90.0),
    "step.fixed": (10e-3, 0.0, 40e-3),
    "gemm.forward": (0.84, 0.5, 0.95),
    "memory.efficiency": (0.61, 0.3, 0.95),
}
"""What is fitted: start, least and most. No less than fused Adam itself moves (28 bytes a parameter,
`costs.memory_bound.optimizer_seconds`) and than a launch for a collective. Both end on that bound: the rows would have
less, so the profile calls them assumed."""


def told_by() -> list[str]:
    """Ids of the rows that tell the constants."""
    return sorted(row.id for row in read_published(published_files(), [FAMILY]))[::EVERY]


def jobs_of(ids: list[str]) -> tuple[list[Job], np.ndarray]:
    """The rows' jobs, without recomputation where that is open and fits, and their measured step times [s]."""
    rows = {row.id: row for row in read_published(published_files(), [FAMILY])}
    prepared = [prepare_row(rows[one]) for one in ids]
    least = [next((o for o in p.options if o.job.recipe.recompute == "none"), p.options[0]) for p in prepared]
    return [option.job for option in least], np.array([p.measured_s for p in prepared], dtype=float)


def at(profile: Profile, values: np.ndarray) -> Profile:
    """The profile at these constants, in the order of `CONSTANTS`."""
    found = dict(zip(CONSTANTS, values, strict=True))
    found |= {name: ratio * found[leader] for name, (leader, ratio) in TIED.items()}
    return profile.replaced(**{name.replace(".", "__"): float(value) for name, value in found.items()})


def main() -> None:
    """Fit, and print each constant in SI."""
    profile = load_profile("a100-80gb-megatron-deepspeed")
    jobs, measured = jobs_of(told_by())
    start, least, most = (np.array(column) for column in zip(*CONSTANTS.values(), strict=True))

    def residual(share: np.ndarray) -> np.ndarray:
        return np.log(step_times(jobs, at(profile, share * most)) / measured)

    bounds = (least / most, np.ones_like(most))
    found = least_squares(residual, start / most, bounds=bounds, loss="soft_l1", f_scale=0.05, diff_step=2e-2)
    print(f"mean error {100 * np.abs(residual(found.x)).mean():.1f} % over {len(measured)} rows")
    for name, value in zip(CONSTANTS, found.x * most, strict=True):
        print(f"    {name:36s} {value:.4g}")
    print("fitted_rows:", ", ".join(told_by()))


if __name__ == "__main__":
    main()
