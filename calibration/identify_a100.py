"""Identify the constants of the A100 profiles from measured data, step by step, and print them beside the profile.

Run `python calibration/identify_a100.py` (seconds). Each step uses rows of its own:

1. tiles, waves and the K ramp of products, and the wgrad/forward ratio: 183 products, `measured/gemm_a100_pcie.csv`;
2. flash attention: 22 points, `measured/flash_a100.csv`;
3. collectives inside a node and across nodes: `measured/nccl_a100.csv`;
4. rates of the 2022 stack: the ten printed layer times of Korthikanti et al. 2022, Table 4 (one node, TP 8);
5. rates of the 2021 stack and Selene's network constants: jointly from the ten rows of SC21 that the profile names
   (three of Table 1; Fig. 15 for gradient reductions beside TP; Fig. 18 against Fig. 12 for messages), with step 4 as a
   weak prior. reports/validation/table1_choices.py runs all 120 choices of three rows of Table 1.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.costs.attention import FlashConstants, flash_attention_seconds
from traincast.costs.collectives import NetworkConstants, collective_seconds
from traincast.costs.gemm import GemmConstants, gemm_seconds
from traincast.costs.machine import Machine
from traincast.lower import lower
from traincast.lower.chunk import Segment, chunk_time
from traincast.lower.stages import layer_backward
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
"""Spreads of step 5: of the two rates about those of step 4 (another stack on the same silicon), and of a row."""


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
    """Step 3. Latency factor from node counts 2 to 16, NVLink efficiency from large messages on 2, 4 and 8 GPUs."""

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
            partial_efficiency=1.0,
            message_launch_s=0.0,
            message_efficiency=1.0,
            gpus_per_node=8,
        )

    def errors(data: list[tuple[str, float, Span, float]], c: NetworkConstants) -> np.ndarray:
        return np.array([np.log(collective_seconds(op, size, span, c) / t) for op, size, span, t in data])

    inter = points({f"a100_{n}n_echo": hdr_span(n) for n in (2, 4)}, 65536)
    q = robust(lambda q: errors(inter, constants(1.5e-5, *q)), [1.2, 0.72])
    error = np.abs(errors(inter, constants(1.5e-5, *q))).mean()
    print(f"3 across nodes (NDv4, 2 and 4 nodes): mean error {100 * error:.0f} %")
    held = points({f"a100_{n}n_echo": hdr_span(n) for n in (8, 16)}, 65536)
    print(f"  held out, 8 and 16 nodes: {100 * np.abs(errors(held, constants(1.5e-5, *q))).mean():.0f} %")
    intra = points({f"a100_{n}g_vtrain": nvlink_span(n) for n in (4, 8)}, 4e6)
    e = robust(lambda e: errors(intra, constants(1e-5, e[0], e[1])), [1.2, 0.92])
    print(f"  inside a node: mean error {100 * np.abs(errors(intra, constants(1e-5, *e))).mean():.0f} %")
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
    """Step 4."""
    profile = load_profile("a100-selene-megatron2022")

    def at(q: np.ndarray) -> Profile:
        rates = {"gemm__forward": q[0], "gemm__dgrad": q[0], "gemm__wgrad": WGRAD_RATIO * q[0]}
        return profile.replaced(**rates, memory__efficiency=q[1])

    q = robust(lambda q: layer_errors(at(q)), [0.82, 0.7])
    print(f"4 layer times: mean error {100 * np.abs(layer_errors(at(q))).mean():.1f} % over 10")
    return {"gemm.forward": q[0], "gemm.wgrad": WGRAD_RATIO * q[0], "memory.efficiency": q[1]}


def selene() -> dict[str, float]:
    """Step 5: rates of the 2021 stack and Selene's network constants, jointly from ten whole steps."""
    profile = load_profile("a100-selene-megatron2021")
    base = load_profile("a100-80gb-sxm")
    rows = [r for r in read_published(published_files(), ["sc21"]) if r.id in profile.fitted_rows]
    prepared = [prepare_row(row) for row in rows]
    measured = np.array([p.measured_s for p in prepared], dtype=float)
    prior = np.array([base["gemm.forward"], base["memory.efficiency"]])

    def at(q: np.ndarray) -> Profile:
        rates = {"gemm__forward": q[0], "gemm__dgrad": q[0], "gemm__wgrad": WGRAD_RATIO * q[0]}
        wires = {"network__launch": q[2], "network__partial_efficiency": q[3], "message__efficiency": q[4]}
        return profile.replaced(**rates, memory__efficiency=q[1], **wires)

    def errors(q: np.ndarray) -> np.ndarray:
        jobs = [replace(p.options[0].job, profile=at(q)) for p in prepared]
        return np.log(np.array([evaluate(lower(job).program).step_time_s for job in jobs]) / measured)

    def residual(q: np.ndarray) -> np.ndarray:
        return np.concatenate([errors(q), ROW_SPREAD * (q[:2] / prior - 1) / np.array(PRIOR_SPREAD)])

    q = robust(residual, [*prior, 6e-5, 0.4, 0.5])
    print(f"5 Selene: mean error {100 * np.abs(errors(q)).mean():.1f} % over {len(rows)} rows")
    names = ("gemm.forward", "memory.efficiency", "network.launch", "network.partial_efficiency", "message.efficiency")
    return dict(zip(names, q, strict=True))


def main() -> None:
    """Run the steps and print what they say."""
    for step in (products, flash, collectives, layer_rates, selene):
        for name, value in step().items():
            print(f"    {name:36s} {value:.4g}")


if __name__ == "__main__":
    main()
