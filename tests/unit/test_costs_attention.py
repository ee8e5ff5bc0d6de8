"""Flash attention: laws, and 22 measured A100 points."""

import csv

import numpy as np

from traincast.catalog import data_dir
from traincast.costs.attention import FlashConstants, flash_attention_seconds


def constants(efficiency: float) -> FlashConstants:
    return FlashConstants(312e12, efficiency, ramp=150, head_ramp=19, diagonal=289, fixed_s=3e-6)


def test_causal_costs_at_least_half_and_at_most_all() -> None:
    """Law: a causal kernel keeps between one half and all of the tiles."""
    keys = np.array([128, 512, 4096, 131072])
    full = flash_attention_seconds(1e12, keys, 128, False, constants(0.8))
    causal = flash_attention_seconds(1e12, keys, 128, True, constants(0.8))
    assert (causal <= full).all()
    assert (causal - 3e-6 >= 0.5 * (full - 3e-6)).all()


def test_measured_flash_attention_2() -> None:
    """FlashAttention-2 forward + backward on A100-SXM4-80GB: mean error within 3 %."""
    path = data_dir() / "calibration" / "measured" / "flash_a100.csv"
    errors = []
    for row in csv.DictReader(path.open()):
        if row["pass"] != "fwd+bwd":
            continue
        b, a, s, d = (float(row[c]) for c in ("batch", "heads", "seq", "head_dim"))
        causal = row["causal"] == "y"
        product = 2 * b * a * s * s * d
        seconds = flash_attention_seconds(2 * product, s, d, causal, constants(0.814))
        seconds = seconds + flash_attention_seconds(5 * product, s, d, causal, constants(0.70))
        printed = 7 * product * (0.5 if causal else 1.0) / float(row["tflop_per_s"]) / 1e12
        errors.append(float(seconds) / printed - 1)
    assert len(errors) >= 22
    assert 100 * np.mean(np.abs(errors)) <= 3.0


def test_the_last_queries_of_a_sequence_see_what_the_mask_leaves() -> None:
    """Law: the mask's triangle cut into bands of queries is the same work as the whole, ramp and launch left out."""
    c = FlashConstants(312e12, 0.8, ramp=0, head_ramp=0, diagonal=0, fixed_s=0.0)
    tokens, bands = 8192, 4
    whole = flash_attention_seconds(4.0 * tokens * tokens * 128, tokens, 128, True, c)
    length = tokens // bands
    parts = [
        flash_attention_seconds(4.0 * length * keys * 128, keys, 128, length / keys, c)
        for keys in range(length, tokens + 1, length)
    ]
    assert float(sum(parts)) == float(whole)
    assert (np.diff(parts) > 0).all()
