"""Identify the constants of sharded stacks: `python calibration/identify_fsdp.py` prints what the profiles hold.

All steps fit whole published steps, whose rows the profiles name. Physics comes from the GPU's own profile; free are
the rates that a stack reaches of it, and never more than three of them:

1. llm-foundry on A100 (80 and 40 GB): products, memory-bound kernels, fused attention (FlashAttention-1: equal rates
   for heads of 64 and 128 columns), from every fifth row; once for February 2023, once for April 2023 and January 2024
   together, where each row has the traits of its own revision;
2. llm-foundry on H100: the same;
3. torchtitan on A100 and on H100: products and memory-bound kernels, from two rows each; fused attention is PyTorch's
   FlashAttention-2 (identify_a100.py step 2, identify_flash_h100.py), which a power limit slows on H100 as it slows
   products; how its asynchronous TP overlaps, from a pair of rows that differ in nothing else;
4. torchtitan on B200: products, from the one bf16 row there is;
5. InternEvo on A100: products, and the network share of gradient groups beside TP 2, from four rows;
6. DeepSpeed ZeRO-3 as in SC21 Table 2: the share of the network that its gathers and reductions reach, from two rows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from traincast.analytic import evaluate
from traincast.lower import Job, lower
from traincast.profile import Profile, load_profile
from traincast.recipe import TpOverlap
from traincast.validate import PublishedRow, published_files, read_published
from traincast.validate.report import prepare_row

WGRAD_RATIO, BACKWARD_RATIO = 0.95, 0.86
"""Rates of weight-gradient products to others (identify_a100.py step 1), of backward attention to forward (Dao)."""

TORCHTITAN_A100 = ("titan-old-0005", "titan-old-0012")
TORCHTITAN_H100 = ("titan-0019", "titan-0026")
TORCHTITAN_OVERLAP = ("titan-0019", "titan-0020")
"""The same 70B on the same 256 GPUs, without and with asynchronous TP; the first told rates as well."""
TORCHTITAN_B200 = ("torchao-0004",)
INTERNEVO = ("internevo_tp1_z8_8", "internevo_tp1_z-1_64", "internevo_tp2_z4_8", "internevo_tp2_z4_128")
ZERO_3 = ("sc21_t2_ZeRO-3_174B_768", "sc21_t2_ZeRO-3_529B_1120")
"""The middle row of each model."""

FLASH_AT_FULL_POWER = {"forward": 0.439, "backward": 0.367}
"""Shares of the peak that FlashAttention-2 reaches on H100 (identify_flash_h100.py)."""

PRIOR_SPREAD, ROW_SPREAD = 0.3, 0.02
"""Spreads: of the rate of memory-bound kernels about the GPU profile's, and of a row's step time."""

Set = Callable[[Profile, Sequence[float]], Profile]


def every_fifth(gpus: tuple[str, ...]) -> list[str]:
    """Every fifth bf16 row of llm-foundry on these GPUs, in the order of the file."""
    rows = read_published(published_files(), ["foundry"])
    return [r.id for r in rows if r.text("gpu") in gpus and r.text("precision") == "bf16"][2::5]


def ready(ids: Iterable[str], families: list[str]) -> tuple[list[Job], np.ndarray]:
    """Jobs of published rows, and their measured step times [s]."""
    wanted: dict[str, PublishedRow] = {r.id: r for r in read_published(published_files(), families)}
    prepared = [prepare_row(wanted[i]) for i in ids]
    return [p.options[0].job for p in prepared], np.array([p.measured_s for p in prepared], dtype=float)


def step_times(jobs: Iterable[Job], profile: Profile) -> np.ndarray:
    """Step times of jobs [s] under the constants of a profile, each with the traits of its own stack."""
    own = [replace(job, profile=replace(profile, traits=job.profile.traits)) for job in jobs]
    return np.array([evaluate(lower(job).program).step_time_s for job in own])


def with_rates(profile: Profile, gemm: float, memory: float | None = None, flash: float | None = None) -> Profile:
    """The profile at other rates; dgrad and wgrad are tied to forward, backward attention to forward."""
    values = {"gemm__forward": gemm, "gemm__dgrad": gemm, "gemm__wgrad": WGRAD_RATIO * gemm}
    if memory is not None:
        values["memory__efficiency"] = memory
    if flash is not None:
        values |= {"attention__flash_forward": flash, "attention__flash_backward": BACKWARD_RATIO * flash}
    return profile.replaced(**values)


def fit(rows: tuple[list[Job], np.ndarray], profile: Profile, at: Set, start: list[float]) -> np.ndarray:
    """Least squares of log errors with a soft-L1 loss over positive constants.

    A rate of memory-bound kernels, always the second constant, is held near that of the GPU's own profile: whole steps
    tell it from that of products only as far as their shapes differ.
    """
    jobs, measured = rows
    prior = load_profile("a100-80gb-sxm")["memory.efficiency"]
    holds = len(start) > 1 and at is not wires

    def residual(q: np.ndarray) -> np.ndarray:
        values = np.exp(q)
        errors = np.log(step_times(jobs, at(profile, values)) / measured)
        weak = [ROW_SPREAD * (values[1] / prior - 1) / PRIOR_SPREAD] if holds else []
        return np.concatenate([errors, weak])

    found = least_squares(residual, np.log(start), loss="soft_l1", f_scale=0.05, diff_step=0.01, xtol=1e-4)
    q = np.exp(found.x)
    error = np.abs(step_times(jobs, at(profile, q)) / measured - 1)
    print(f"{profile.name}: mean error {100 * error.mean():.1f} % over {len(measured)} rows")
    return np.asarray(q)


def rates(profile: Profile, q: Sequence[float]) -> Profile:
    """Products, memory-bound kernels and, with three, fused attention."""
    return with_rates(profile, *q)


def wires(profile: Profile, q: Sequence[float]) -> Profile:
    """Products, and the further network factor of groups with some GPUs of a node."""
    return with_rates(profile, q[0]).replaced(network__some_efficiency=q[1])


def sharded(profile: Profile, q: Sequence[float]) -> Profile:
    """The share of the network that gathers and reductions of ZeRO-3 reach."""
    return profile.replaced(sharded__efficiency=q[0])


def named(q: np.ndarray) -> dict[str, float]:
    """Rates by the names of the constants."""
    names = ("gemm.forward", "memory.efficiency", "attention.flash_forward")
    found = dict(zip(names, q.tolist(), strict=False))
    found |= {"gemm.dgrad": found["gemm.forward"], "gemm.wgrad": WGRAD_RATIO * found["gemm.forward"]}
    if len(q) == 3:
        found["attention.flash_backward"] = BACKWARD_RATIO * found["attention.flash_forward"]
    return found


def told(name: str) -> list[str]:
    """Those of every fifth A100 row that a profile names: of February 2023, or later."""
    fitted = load_profile(name).fitted_rows
    return [row for row in every_fifth(("A100-80GB-SXM", "A100-40GB-SXM")) if row in fitted]


def mosaicgpt_a100() -> dict[str, float]:
    """Step 1, February 2023."""
    profile = load_profile("a100-80gb-mosaicgpt2023")
    return named(fit(ready(told(profile.name), ["foundry"]), profile, rates, [0.75, 0.5, 0.3]))


def foundry_a100() -> dict[str, float]:
    """Step 1, later."""
    profile = load_profile("a100-80gb-llmfoundry2023")
    return named(fit(ready(told(profile.name), ["foundry"]), profile, rates, [0.75, 0.5, 0.36]))


def foundry_h100() -> dict[str, float]:
    """Step 2."""
    rows = ready(every_fifth(("H100-80GB-SXM",)), ["foundry"])
    return named(fit(rows, load_profile("h100-80gb-llmfoundry2023"), rates, [0.6, 0.6, 0.2]))


def torchtitan_a100() -> dict[str, float]:
    """Step 3 on A100."""
    rows = ready(TORCHTITAN_A100, ["torchtitan"])
    return named(fit(rows, load_profile("a100-80gb-torchtitan2024"), rates, [0.7, 0.5]))


def limited(profile: Profile, q: Sequence[float]) -> Profile:
    """Rates of a GPU whose power limit slows attention as it slows products, each by its rate at full power."""
    kept = q[0] / load_profile("h100-80gb-sxm")["gemm.forward"]
    attention = {f"attention__flash_{way}": kept * share for way, share in FLASH_AT_FULL_POWER.items()}
    return with_rates(profile, *q).replaced(**attention)


def torchtitan_h100() -> dict[str, float]:
    """Step 3 on H100."""
    rows = ready(TORCHTITAN_H100, ["torchtitan"])
    profile = load_profile("h100-96gb-torchtitan2024")
    q = fit(rows, profile, limited, [0.55, 0.7])
    found = limited(profile, q)
    return named(q) | {name: found[name] for name in ("attention.flash_forward", "attention.flash_backward")}


def torchtitan_overlap() -> dict[str, float]:
    """Step 3, asynchronous TP: by how many times the step without it is longer, measured and by way of overlapping.

    The profile takes the way that comes nearest. Pieces in symmetric memory go to where they belong, so that split ones
    need no copies either (torch/distributed/_symmetric_memory/__init__.py, `_fused_all_gather_matmul_impl`).
    """
    (without, with_it), measured = ready(TORCHTITAN_OVERLAP, ["torchtitan"])
    profile = load_profile("h100-96gb-torchtitan2024")
    (plain,) = step_times([without], profile)
    ways: tuple[TpOverlap, ...] = ("bulk", "split", "async")
    stack = with_it.profile
    in_place = replace(stack, traits=replace(stack.traits, copies_sequence=False))
    jobs = [
        replace(
            with_it,
            recipe=replace(with_it.recipe, overlap_tp=way),
            profile=in_place if way == "split" else stack,
        )
        for way in ways
    ]
    found = dict(zip(ways, (plain / step_times(jobs, profile)).tolist(), strict=True))
    return {"measured": float(measured[0] / measured[1]), **found}


def torchtitan_b200() -> dict[str, float]:
    """Step 4."""
    rows = ready(TORCHTITAN_B200, ["torchao"])
    return named(fit(rows, load_profile("b200-torchtitan2025"), rates, [0.4]))


def internevo() -> dict[str, float]:
    """Step 5."""
    rows = ready(INTERNEVO, ["internevo"])
    q = fit(rows, load_profile("a100-80gb-internevo"), wires, [0.7, 0.5])
    return {**named(q[:1]), "network.some_efficiency": float(q[1])}


def zero_3() -> dict[str, float]:
    """Step 6."""
    q = fit(ready(ZERO_3, ["sc21"]), load_profile("a100-selene-megatron2021"), sharded, [0.1])
    return {"sharded.efficiency": float(q[0])}


STEPS = (
    mosaicgpt_a100,
    foundry_a100,
    foundry_h100,
    torchtitan_a100,
    torchtitan_h100,
    torchtitan_b200,
    internevo,
    zero_3,
)


def main() -> None:
    """Run the steps and print what they say."""
    for step in (*STEPS, torchtitan_overlap):
        for name, value in step().items():
            print(f"    {name:36s} {value:.4g}")


if __name__ == "__main__":
    main()
