"""Identify the constants of the A100 profiles from measured data, step by step, and print them beside the profile.

Run `python calibration/identify_a100.py` (seconds). Each step uses rows of its own:

1. tiles, waves and the K ramp of products, and the wgrad/forward ratio: 183 products, `measured/gemm_a100_pcie.csv`;
2. flash attention: 23 points, `measured/flash_a100.csv`;
3. collectives inside a node and across nodes: `measured/nccl_a100.csv`;
4. rates of the 2022 stack: the ten printed layer times of Korthikanti et al. 2022, Table 4 (one node, TP 8);
5. Selene's network inside a step: gradient reductions beside TP (SC21 Fig. 15, what data parallelism of 8 adds to
   Korthikanti's 530B, and the bisection bandwidth of SC21 §5.9), messages (Fig. 18 against Fig. 12), the hand-over of a
   collective; rates free, no row of Table 1;
6. rates of the 2021 stack: three rows of SC21 Table 1, with step 4 as a weak prior (the same silicon under another
   stack). reports/validation/table1_choices.py runs all 120 choices of three;
7. products whose rows are no multiples of 16 bytes: BLOOM's 182B with 128 heads of 108 columns against 96 of 144; and
   how late the last rank comes to a collective where the host waits for every kernel: the level of the second of them;
8. what a pass costs in the zero-bubble fork: the twelve rows of its 1.5B model.
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq, least_squares

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.costs.attention import FlashConstants, flash_attention_seconds
from traincast.costs.collectives import NetworkConstants, collective_seconds
from traincast.costs.gemm import GemmConstants, gemm_seconds
from traincast.costs.machine import Machine
from traincast.lower import Job, lower
from traincast.lower.chunk import Segment, chunk_time
from traincast.lower.recompute import layer_backward
from traincast.model.operators import Block, block_forward
from traincast.profile import Profile, load_profile
from traincast.topology import Span
from traincast.validate import published_files, read_published
from traincast.validate.report import prepare_row

MEASURED = Path(__file__).resolve().parent / "measured"
PEAK, SM_COUNT = 312e12, 108

KORTHIKANTI_TABLE_4 = (
    # sequence parallel, recomputation, forward ms, backward ms
    (False, "none", 7.7, 11.9),
    (True, "none", 7.2, 11.8),
    (False, "full", 7.7, 19.5),
    (False, "selective", 7.7, 13.2),
    (True, "selective", 7.2, 13.1),
)
"""One layer of the 22B model: h 6144, 64 heads, s 2048, b 4, TP 8 (arXiv:2205.05198, Table 4)."""

WGRAD_RATIO = 0.95
"""Rate of weight-gradient products to forward ones, from step 1."""

PRIOR_SPREAD = (0.10, 0.30)
ROW_SPREAD = 0.02
GRADIENT_SPREAD = 0.10
"""Spreads: of the rates of step 6 about those of step 4 (another stack on the same silicon), of a row's step time, of
the difference of two of them."""

SC21_TABLE_1_FITTED = ("sc21_t1_1.7B", "sc21_t1_18.4B", "sc21_t1_1008.0B")
SELENE_ROWS = (
    *(f"sc21_f15_tp{tp}dp{64 // tp}_B{batch}" for tp in (2, 4, 8) for batch in (32, 512)),
    *("sc21_f18_unopt_B60", "sc21_f12_interleaved_B60"),
)
GRADIENT_PAIR = ("kor_t5_530B_selective", "kor_text_530B_dp8")
"""37.83 s without and 39.15 s with data parallelism of 8: 1.32 s of gradient reduction that nothing hides."""
GRADIENT_BISECTION = 12.9e12
"""Bytes/s of the 1T row's gradient reduction (SC21 §5.9)."""


def rows_of(name: str) -> Iterator[dict[str, str]]:
    """Rows of a measured file."""
    with (MEASURED / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def robust(residual: Callable[[np.ndarray], np.ndarray], start: list[float]) -> np.ndarray:
    """Least squares of log errors with a soft-L1 loss, in units of the start values."""
    scale = np.array(start)
    solution = least_squares(
        lambda q: residual(q * scale), np.ones(len(start)), bounds=(0.05, 20), loss="soft_l1", f_scale=0.05
    )
    return np.asarray(solution.x * scale)


def products() -> dict[str, float]:
    """Step 1. `small_tile` and `fixed` stay at their priors: no product here is small enough to tell them."""
    rows = list(rows_of("gemm_a100_pcie.csv"))
    m, n, k = (np.array([float(r[c]) for r in rows]) for c in "mnk")
    measured = 2 * m * n * k / (np.array([float(r["tflop_per_s"]) for r in rows]) * 1e12)
    wgrad = np.array([r["layout"] == "NT" for r in rows])

    def model(q: np.ndarray) -> np.ndarray:
        def one(rate: float) -> np.ndarray:
            c = GemmConstants(PEAK, 1.5e12, SM_COUNT, rate, q[2], float(np.clip(q[3], 0, 1)), 0.93, 3e-6)
            return gemm_seconds(m, n, k, 1, c)

        return np.where(wgrad, one(q[1]), one(q[0]))

    q = robust(lambda q: np.log(model(q) / measured), [0.77, 0.72, 120.0, 0.6])
    error = np.abs(model(q) / measured - 1)
    print(f"1 products: {len(rows)} rows, mean error {100 * error.mean():.1f} %, worst {100 * error.max():.0f} %")
    return {"gemm.ramp_k": q[2], "gemm.wave_weight": q[3], "gemm.wgrad / gemm.forward": q[1] / q[0]}


def flash() -> dict[str, float]:
    """Step 2. The points time forward and backward together; their ratio of rates is FlashAttention-2's own (0.86)."""
    rows = [r for r in rows_of("flash_a100.csv") if r["pass"] == "fwd+bwd"]
    b, a, s, d = (np.array([float(r[c]) for r in rows]) for c in ("batch", "heads", "seq", "head_dim"))
    causal = np.array([r["causal"] == "y" for r in rows])
    product = 2 * b * a * s * s * d
    rate = np.array([float(r["tflop_per_s"]) for r in rows]) * 1e12
    measured = 7 * product * np.where(causal, 0.5, 1.0) / rate

    def model(q: np.ndarray) -> np.ndarray:
        forward, backward = (FlashConstants(PEAK, q[0] * f, q[1], q[2], q[3], 3e-6) for f in (1.0, 0.86))
        return flash_attention_seconds(2 * product, s, d, causal, forward) + flash_attention_seconds(
            5 * product, s, d, causal, backward
        )

    q = robust(lambda q: np.log(model(q) / measured), [0.8, 150.0, 20.0, 200.0])
    error = np.abs(model(q) / measured - 1)
    print(f"2 flash attention: {len(rows)} points, mean error {100 * error.mean():.1f} %")
    names = ("attention.flash_forward", "attention.ramp", "attention.head_ramp", "attention.diagonal")
    return {**dict(zip(names, q, strict=True)), "attention.flash_backward": 0.86 * q[0]}


def nvlink_span(ranks: int) -> Span:
    """Ranks of one A100 node."""
    return Span(ranks, 1, ranks, "nvlink", 300e9, 1e-6, 0.0, 0.0, 25e9, 1.0)


def hdr_span(nodes: int) -> Span:
    """Whole nodes of 8 A100 and 8 HDR NICs."""
    return Span(8 * nodes, nodes, 8, "leaf", 300e9, 1e-6, 200e9, 1e-6, 25e9, 1.0)


def collectives() -> dict[str, float]:
    """Step 3. Latency factor across nodes from 2 and 4 nodes, held against 8 and 16; NVLink from 4 and 8 GPUs.

    The profiles of the stacks hold it. Those of fabrics do not (`fit_public_logs.NEUTRAL`): there 4 nodes are held out.
    """

    def points(curves: dict[str, Span], least: float) -> list[tuple[str, float, Span, float]]:
        return [
            (r["op"], float(r["size_bytes"]), curves[r["curve_id"]], float(r["time_us"]) * 1e-6)
            for r in rows_of("nccl_a100.csv")
            if r["curve_id"] in curves and r["inplace"] == "0" and float(r["size_bytes"]) >= least
        ]

    def constants(launch: float, factor: float, efficiency: float) -> NetworkConstants:
        return NetworkConstants(
            nccl="2.8",
            generation="ampere",
            launch_s=launch,
            intra_latency_factor=factor,
            intra_efficiency=efficiency,
            intra_mixing=0.0,
            inter_latency_factor=factor,
            inter_efficiency=efficiency,
            inter_mixing=0.0,
            one_efficiency=1.0,
            some_efficiency=1.0,
            message_launch_s=0.0,
            message_efficiency=1.0,
            gpus_per_node=8,
        )

    def errors(data: list[tuple[str, float, Span, float]], c: NetworkConstants) -> np.ndarray:
        return np.array([np.log(collective_seconds(op, size, span, c) / t) for op, size, span, t in data])

    launch = load_profile("a100-80gb-sxm")["network.launch"]
    inter = points({f"a100_{n}n_echo": hdr_span(n) for n in (2, 4)}, 65536)
    q = robust(lambda q: errors(inter, constants(launch, *q)), [1.2, 0.72])
    error = np.abs(errors(inter, constants(launch, *q))).mean()
    print(f"3 across nodes (NDv4, 2 and 4 nodes, from 64 KB): mean error {100 * error:.0f} %")
    held = points({f"a100_{n}n_echo": hdr_span(n) for n in (8, 16)}, 65536)
    print(f"  held out, 8 and 16 nodes: {100 * np.abs(errors(held, constants(launch, *q))).mean():.0f} %")
    intra = points({f"a100_{n}g_vtrain": nvlink_span(n) for n in (4, 8)}, 4e6)
    e = robust(lambda e: errors(intra, constants(launch, e[0], e[1])), [1.2, 0.92])
    print(f"  inside a node, from 4 MB: mean error {100 * np.abs(errors(intra, constants(launch, *e))).mean():.0f} %")
    return {
        "network.intra_latency": e[0],
        "network.inter_latency": q[0],
        "network.intra_efficiency": e[1],
        "(NDv4) network.inter_efficiency": q[1],
    }


def layer_errors(profile: Profile) -> np.ndarray:
    """Log errors of the ten printed layer times under a profile."""
    machine = Machine(load_catalog().gpu("A100-80GB-SXM"), profile, "bf16")
    found = []
    for sequence_parallel, recompute, forward_ms, backward_ms in KORTHIKANTI_TABLE_4:
        traits: dict[str, Any] = {
            "dropout": profile.traits.dropout,
            "overlap_tp": profile.traits.overlap_tp,
            "fused_accumulation": profile.traits.fused_accumulation,
        }
        block = Block(6144, 64, 64, 96, 24576, False, False, 4, 2048, 8, sequence_parallel, **traits)
        spans = {"tp": nvlink_span(8)}
        forward = chunk_time([Segment(block_forward(block))], machine, spans).duration_s
        backward = chunk_time(layer_backward(block, recompute), machine, spans).duration_s
        found += [np.log(forward * 1e3 / forward_ms), np.log(backward * 1e3 / backward_ms)]
    return np.array(found)


def layer_rates() -> dict[str, float]:
    """Step 4. The hand-over of a collective stays at the profile's: ten layer times cannot tell it from the rates."""
    profile = load_profile("a100-selene-megatron2022")

    def at(q: np.ndarray) -> Profile:
        return with_rates(profile, q[0], q[1])

    q = robust(lambda q: layer_errors(at(q)), [0.82, 0.7])
    print(f"4 layer times: mean error {100 * np.abs(layer_errors(at(q))).mean():.1f} % over 10")
    return {"gemm.forward": q[0], "gemm.wgrad": WGRAD_RATIO * q[0], "memory.efficiency": q[1]}


def ready(ids: Iterable[str], family: str) -> tuple[list[Job], np.ndarray]:
    """Jobs of published rows, and their measured step times [s]."""
    wanted = {r.id: r for r in read_published(published_files(), [family])}
    prepared = [prepare_row(wanted[i]) for i in ids]
    return [p.options[0].job for p in prepared], np.array([p.measured_s for p in prepared], dtype=float)


def step_times(jobs: Iterable[Job], profile: Profile) -> np.ndarray:
    """Step times of jobs under a profile [s]."""
    return np.array([evaluate(lower(replace(job, profile=profile)).program).step_time_s for job in jobs])


def with_rates(profile: Profile, gemm: float, memory: float) -> Profile:
    """The profile at other rates; dgrad and wgrad are tied to forward."""
    tied = {"gemm__forward": gemm, "gemm__dgrad": gemm, "gemm__wgrad": WGRAD_RATIO * gemm}
    return profile.replaced(**tied, memory__efficiency=memory)


WIRES = ("collective.handover", "network.one_efficiency", "network.some_efficiency", "message.efficiency")


def with_wires(profile: Profile, values: Iterable[float]) -> Profile:
    """The profile at other network constants."""
    return profile.replaced(**{n.replace(".", "__"): v for n, v in zip(WIRES, values, strict=True)})


def selene_wires() -> dict[str, float]:
    """Step 5, the two rates free, so that no row of Table 1 tells anything."""
    jobs, measured = ready(SELENE_ROWS, "sc21")
    pair, pair_measured = ready(GRADIENT_PAIR, "korthikanti")
    profile, later = load_profile("a100-selene-megatron2021"), load_profile("a100-selene-megatron2022")

    def rows(q: np.ndarray) -> np.ndarray:
        return np.log(step_times(jobs, with_wires(with_rates(profile, q[0], q[1]), q[2:])) / measured)

    def residual(q: np.ndarray) -> np.ndarray:
        without, with_gradients = step_times(pair, with_wires(later, q[2:]))
        added = np.log((with_gradients - without) / (pair_measured[1] - pair_measured[0]))
        bisection = np.log(gradient_bisection(with_wires(profile, q[2:])) / GRADIENT_BISECTION)
        return np.concatenate([rows(q), np.array([added, bisection]) * ROW_SPREAD / GRADIENT_SPREAD])

    q = robust(residual, [0.83, 0.65, 4e-5, 0.4, 0.3, 0.45])
    print(f"5 Selene's wires: mean error {100 * np.abs(rows(q)).mean():.1f} % over {len(measured)} rows")
    return dict(zip(WIRES, q[2:], strict=True))


def gradient_bisection(profile: Profile) -> float:
    """Bisection bandwidth of the 1T row's gradient all-reduce [bytes/s]: the cut between replicas 0-2 and 3-5, both
    directions, in the time of one operation; 512 rings of six ranks pass it twice each (topology/bisection.py)."""
    network = Machine(load_catalog().gpu("A100-80GB-SXM"), profile, "fp16").network
    size = 2 * 1008e9 / 512
    ring = Span(6, 6, 1, "leaf", 300e9, 1e-6, 25e9, 1e-6, 25e9, 1.0)
    edge = size * 2 * 5 / 6 / collective_seconds("all_reduce", size, ring, network)
    return 2 * 512 * edge


def selene_rates() -> dict[str, float]:
    """Step 6: rates of the 2021 stack, with the network constants of step 5 as the profile has them."""
    profile, base = load_profile("a100-selene-megatron2021"), load_profile("a100-80gb-sxm")
    jobs, measured = ready(SC21_TABLE_1_FITTED, "sc21")
    prior = np.array([base["gemm.forward"], base["memory.efficiency"]])

    def rows(q: np.ndarray) -> np.ndarray:
        return np.log(step_times(jobs, with_rates(profile, q[0], q[1])) / measured)

    def residual(q: np.ndarray) -> np.ndarray:
        return np.concatenate([rows(q), ROW_SPREAD * (q / prior - 1) / np.array(PRIOR_SPREAD)])

    q = robust(residual, list(prior))
    print(f"6 rates of the 2021 stack: mean error {100 * np.abs(rows(q)).mean():.1f} % over {len(measured)} rows")
    return {"gemm.forward": q[0], "gemm.wgrad": WGRAD_RATIO * q[0], "memory.efficiency": q[1]}


HEADS_PAIR = ("bloom_pre_052", "bloom_pre_086")
"""The same 182B model on the same 384 GPUs, with 128 heads of 108 columns and with 96 of 144."""


def blocking() -> dict[str, float]:
    """Step 7: rate of unaligned products from the ratio of two steps that differ in the width of a head, and the skew
    of ranks from the level of one of them."""
    profile = load_profile("a100-jeanzay-megatron-deepspeed2022")
    jobs, measured = ready(HEADS_PAIR, "bloom")
    share, skew = profile["gemm.unaligned"], profile["collective.skew"]

    def ratio(share: float) -> float:
        odd, even = step_times(jobs, profile.replaced(gemm__unaligned=share, collective__skew=skew))
        return float(odd / even - measured[0] / measured[1])

    def level(skew: float) -> float:
        return float(step_times(jobs[1:], profile.replaced(collective__skew=skew))[0] / measured[1] - 1)

    skew = brentq(level, 0.0, 5e-3, xtol=1e-6)
    share = brentq(ratio, 0.005, 0.5, xtol=1e-4)
    print(f"7 unaligned products: {share * PEAK / 1e12:.0f} TFLOP/s, from a ratio of {measured[0] / measured[1]:.2f}")
    return {"gemm.unaligned": share, "collective.skew": skew}


def passes() -> dict[str, float]:
    """Step 8: time of a pass beside its operators in the stack of Qi et al. 2023; three other models are held out."""
    profile = load_profile("a100-roce-zerobubble2023")
    jobs, measured = ready(sorted(profile.fitted_rows), "zero_bubble")

    def residual(q: np.ndarray) -> np.ndarray:
        return step_times(jobs, profile.replaced(pass__fixed=1e-3 * q[0])) / measured - 1

    q = least_squares(residual, [0.5], diff_step=1e-2).x
    print(f"8 passes: mean error {100 * np.abs(residual(q)).mean():.1f} % over {len(measured)} rows")
    return {"pass.fixed": 1e-3 * q[0]}


def main() -> None:
    """Run the steps and print what they say."""
    for step in (products, flash, collectives, layer_rates, selene_wires, selene_rates, blocking, passes):
        for name, value in step().items():
            print(f"    {name:36s} {value:.4g}")


if __name__ == "__main__":
    main()
