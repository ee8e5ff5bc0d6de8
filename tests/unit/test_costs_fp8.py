"""fp8 products and products beside a reduction on one machine: laws of peak, ramp, traffic and multiprocessors."""

from dataclasses import replace

import pytest

from traincast.catalog import load_catalog
from traincast.costs import Machine, operator_seconds
from traincast.model.operators import FlashAttention, Gemm
from traincast.profile import load_profile

PROFILE = load_profile("h100-nemo-megatroncore2025")
MACHINE = Machine(load_catalog().gpu("H100-80GB-SXM"), PROFILE, "fp8")
LONG = Gemm("long", 8192, 8192, 65536)


def seconds(op: Gemm, machine: Machine = MACHINE) -> float:
    return operator_seconds(op, machine, {})


def test_a_long_product_gains_the_ratio_of_peaks_less_what_fp8_loses() -> None:
    gain = seconds(LONG) / seconds(replace(LONG, fp8=True))
    assert gain == pytest.approx(2 * PROFILE["gemm.fp8"], rel=0.01)


def test_a_short_product_gains_less() -> None:
    """Prologue and epilogue take as long as in half precision, so that a short K gains less than a long one."""
    short = replace(LONG, k=512)
    assert seconds(short) / seconds(replace(short, fp8=True)) < 0.9 * seconds(LONG) / seconds(replace(LONG, fp8=True))


def test_what_is_not_fp8_runs_as_in_half_precision() -> None:
    half = Machine(MACHINE.gpu, PROFILE, "bf16")
    kernel = FlashAttention("attention", 1, 32, 8, 8192, 8192, 128)
    assert seconds(LONG) == seconds(LONG, half)
    assert operator_seconds(kernel, MACHINE, {}) == operator_seconds(kernel, half, {})


def test_a_product_beside_a_reduction_has_fewer_multiprocessors() -> None:
    """22 of 132 are held: a long product takes 132/110 of its time."""
    assert seconds(replace(LONG, shares_sms=True)) / seconds(LONG) == pytest.approx(132 / 110, rel=0.02)


def test_few_tokens_make_a_weight_gradient_wait_for_memory() -> None:
    """With 256 tokens the main gradient is read and written: at least 8 bytes an element through memory."""
    op = Gemm("wgrad", 16384, 16384, 256, role="wgrad", fp8=True, out_bytes=8.0)
    least = 8.0 * 16384**2 / (3.35e12 * PROFILE["memory.efficiency"])
    assert least < seconds(op) < 1.1 * least
    assert seconds(replace(op, out_bytes=2.0)) < seconds(op)
