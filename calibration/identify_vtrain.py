"""Constants of vTrain's single-node runs (Megatron-DeepSpeed on up to eight A100), told by 62 of its 740 rows.

The rows are every twelfth of the sorted ids, whatever they hold. `python calibration/identify_vtrain.py` prints what
stands in profiles/a100-80gb-megatron-deepspeed.yaml. What the table shows at a glance:

- At one hidden size, tensor parallelism and microbatch, step times are a + b layers + c microbatches + d layers
  microbatches to a microsecond: the table is composed of times that were measured once for each of 32 such cells. Its
  rows are no 740 measurements, and what is odd about one cell is odd about all of its rows.
- Kernels run at the rates of the year before's Megatron-LM on Selene, which is where the profile takes them from; free,
  the two rates end at 0.88 and 0.57 of the peaks and err as much.
- The head's products run at 80 TFLOP/s under TP 1, about 130 under TP 4 and 8, and above 200 under TP 2, as products do
  whose 50257 / TP columns are or are not whole pieces of 16 bytes: the vocabulary is not padded, nor is it in vTrain's
  own model (src/model/gpt_modeling.py).
- Small microbatches are bound by the host, and autograd's calls cost it less than Python's. Large ones exceed their
  kernels and collectives by about a millisecond a layer under TP 2, 4 and 8 alike, whatever the size: a fixed time at
  each all-reduce.
- TP 8 at microbatch 1, two heads a GPU, is a millisecond a layer slower than at microbatch 2: PyTorch's softmax in
  place of the fused one (`model.attention`). Its calls explain half of that; none of these rows told anything.

What stays: TP 8 is 8 to 22 % slower than forecast. Three cells (hidden 2048, TP 4, microbatch 1 and 2; hidden 1024,
TP 2, microbatch 4) are 12 to 22 % faster. They, and TP 8 at hidden 1024, take less time for a layer than at half the
microbatch, or than the layer with half the tensor parallelism: no time of host or GPU that all cells share does that.
"""

import numpy as np
from identify_a100 import step_times
from scipy.optimize import least_squares

from traincast.lower.job import Job
from traincast.profile import Profile, load_profile
from traincast.validate import published_files, read_published
from traincast.validate.report import prepare_row

FAMILY = "vtrain_single"
EVERY = 12
CONSTANTS = {
    "host.call": (45e-6, 1e-6, 100e-6),
    "host.backward": (0.8, 0.2, 1.2),
    "host.collective": (30e-6, 10e-6, 400e-6),
    "collective.handover": (300e-6, 0.0, 1500e-6),
    "optimizer.bytes_per_parameter": (40.0, 28.0, 90.0),
    "step.fixed": (10e-3, 0.0, 40e-3),
}
"""What is fitted: start, least and most. No less than fused Adam itself moves (28 bytes a parameter,
`costs.memory_bound.optimizer_seconds`) and than a launch for a collective."""


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
    found = zip(CONSTANTS, values, strict=True)
    return profile.replaced(**{name.replace(".", "__"): float(value) for name, value in found})


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
