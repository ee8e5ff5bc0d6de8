"""Matrix products: laws of the formula, and 183 measured A100 products."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from traincast.catalog import data_dir
from traincast.costs.gemm import GemmConstants, gemm_seconds


def constants(efficiency: float = 0.78) -> GemmConstants:
    return GemmConstants(
        peak_flops_per_s=312e12,
        memory_bytes_per_s=1.5e12,
        sm_count=108,
        efficiency=efficiency,
        ramp_k=130,
        wave_weight=0.6,
        small_tile=0.93,
        fixed_s=3e-6,
    )


def test_no_product_is_faster_than_peak_or_memory() -> None:
    """Law: seconds >= FLOPs / (peak * efficiency), and >= bytes / bandwidth."""
    rng = np.random.default_rng(1)
    m, n, k = (rng.integers(1, 20000, 500) for _ in range(3))
    seconds = gemm_seconds(m, n, k, 1, constants())
    assert (seconds >= 2.0 * m * n * k / (312e12 * 0.78)).all()
    assert (seconds >= 2.0 * (m * k + k * n + m * n) / 1.5e12).all()


def test_one_wave_costs_the_same_for_any_number_of_full_tiles_up_to_the_machine() -> None:
    """Law of wave quantisation: 1 to 108 tiles of 256x128 run side by side when the whole wave is paid."""
    c = GemmConstants(312e12, 1e15, 108, 0.8, 0.0, 1.0, 1e-6, 0.0)
    one, full, more = (float(gemm_seconds(256 * t, 128, 4096, 1, c)) for t in (1, 108, 109))
    assert one == pytest.approx(full)
    assert more == pytest.approx(2 * full)


def test_rows_that_are_no_multiples_of_16_bytes_fall_off_the_tensor_cores() -> None:
    """Law: a tensor-core kernel loads 8 elements of two bytes; heads of 108 or 150 columns are not such, 112 are."""
    slow = replace(constants(), unaligned=0.03)
    for heads in (108, 150, 450):
        rate = 2.0 * 64 * 2048 * 2048 * heads / gemm_seconds(2048, 2048, heads, 64, slow)
        assert rate == pytest.approx(0.03 * 312e12, rel=0.01)
        assert gemm_seconds(2048, heads, 2048, 64, slow) > 5 * gemm_seconds(
            2048, heads + heads % 8, 2048, 64, constants()
        )
    for heads in (112, 144, 128):
        assert gemm_seconds(2048, 2048, heads, 64, slow) == gemm_seconds(2048, 2048, heads, 64, constants())


def test_scalar_and_array_calls_agree() -> None:
    m = np.array([512, 4096])
    both = gemm_seconds(m, 1024, 4096, 2, constants())
    assert [float(gemm_seconds(int(x), 1024, 4096, 2, constants())) for x in m] == both.tolist()


@pytest.mark.parametrize(("layout", "efficiency", "bar"), [("TN", 0.775, 4.0), ("NN", 0.775, 4.0), ("NT", 0.725, 6.0)])
def test_measured_products(layout: str, efficiency: float, bar: float) -> None:
    """183 products on A100-PCIe (forward TN, dgrad NN, wgrad NT); the structure holds with one rate a direction."""
    path = data_dir() / "calibration" / "measured" / "gemm_a100_pcie.csv"
    rows = [r for r in csv.DictReader(path.open()) if r["layout"] == layout]
    m, n, k = (np.array([float(r[c]) for r in rows]) for c in "mnk")
    measured = 2 * m * n * k / (np.array([float(r["tflop_per_s"]) for r in rows]) * 1e12)
    error = np.abs(gemm_seconds(m, n, k, 1, constants(efficiency)) / measured - 1)
    assert len(rows) == 61
    assert 100 * error.mean() <= bar


def test_the_number_of_tokens_need_not_be_even() -> None:
    """Tokens count rows, whose length is what loads want aligned: m of a forward product, k of a weight gradient."""
    slow = replace(constants(), unaligned=0.03)
    forward = gemm_seconds(8191, 4096, 4096, 1, slow)
    assert forward == pytest.approx(float(gemm_seconds(8192, 4096, 4096, 1, slow)), rel=1e-3)
    wgrad = replace(slow, rows_run_along_k=False)
    assert gemm_seconds(4096, 4096, 8191, 1, wgrad) == pytest.approx(
        float(gemm_seconds(4096, 4096, 8192, 1, wgrad)), rel=1e-3
    )
    assert gemm_seconds(4100, 4096, 8192, 1, wgrad) > 5 * gemm_seconds(4096, 4096, 8192, 1, wgrad)
