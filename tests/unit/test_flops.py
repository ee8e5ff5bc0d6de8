"""FLOP conventions against the printed formulas and figures."""

import pytest

from traincast.errors import DataError
from traincast.model import (
    Grouping,
    Repeated,
    executed_flops,
    forward_flops,
    gpt,
    hardware_flops,
    llama,
    mfu,
    model_causal_flops,
    model_flops,
    step_flops,
)

GPT_1T = gpt("GPT 1T", 25600, 128, 160)
GPT_175B = gpt("GPT 175B", 12288, 96, 96)
LLAMA_8B = llama("Llama 3 8B", 4096, 32, 32, Grouping(kv_heads=8, ffn_hidden=14336))


def printed(factor: float, shape, batch: int, sequence: int, attention: float, logits: float) -> float:
    h, layers, vocab = shape.hidden, shape.layers, shape.vocab
    inner = 1 + sequence / (attention * h) + vocab / (logits * layers * h)
    return factor * batch * sequence * layers * h**2 * inner


@pytest.mark.parametrize("shape", [GPT_1T, GPT_175B], ids=lambda shape: shape.name)
def test_sc21_equation_3(shape):
    expected = printed(96, shape, 3072, 2048, attention=6, logits=16)
    assert hardware_flops(shape, 3072, 2048, "full") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("shape", [GPT_1T, GPT_175B], ids=lambda shape: shape.name)
def test_korthikanti_appendix_a(shape):
    model = printed(72, shape, 64, 2048, attention=6, logits=12)
    selective = printed(72, shape, 64, 2048, attention=3, logits=12)
    assert model_flops(shape, 64, 2048) == pytest.approx(model, rel=1e-12)
    assert hardware_flops(shape, 64, 2048) == pytest.approx(model, rel=1e-12)
    assert hardware_flops(shape, 64, 2048, "selective") == pytest.approx(selective, rel=1e-12)


def test_sc21_table_1_last_row():
    # 1T on 3072 A100: 502.0 PFLOP/s, 163 TFLOP/s per GPU, 52 % of 312 TFLOP/s; the step was derived from the
    # rounded 163, which leaves 0.4 %
    flops = step_flops(GPT_1T, 3072, 2048, "hardware", "full")
    assert flops / 102.6 / 1e15 == pytest.approx(502.0, rel=0.004)
    assert round(flops / 102.6 / 3072 / 1e12) == 163
    assert round(100 * mfu(flops, 102.6, 3072, 312e12)) == 52


# Korthikanti et al. 2022, Table 5 ("present work"): step s, GPUs, batch, MFU and HFU in percent
@pytest.mark.parametrize(
    ("shape", "step_s", "gpus", "batch", "mfu_pct", "hfu_pct"),
    [
        (gpt("22B", 6144, 48, 64), 1.10, 8, 4, 41.5, 43.7),
        (GPT_175B, 13.75, 64, 64, 51.4, 52.8),
        (gpt("530B", 20480, 105, 128), 37.83, 280, 280, 56.0, 57.0),
        (GPT_1T, 71.49, 512, 512, 56.3, 57.0),
    ],
    ids=["22B", "175B", "530B", "1T"],
)
def test_korthikanti_table_5(shape, step_s, gpus, batch, mfu_pct, hfu_pct):
    model = mfu(model_flops(shape, batch, 2048), step_s, gpus, 312e12)
    hardware = mfu(hardware_flops(shape, batch, 2048, "selective"), step_s, gpus, 312e12)
    assert 100 * model == pytest.approx(mfu_pct, abs=0.3)
    assert 100 * hardware == pytest.approx(hfu_pct, abs=0.3)


def test_six_times_parameters_and_attention():
    # llama: per token 6 x (parameters that multiply) and 12 L h s for full attention (PaLM, appendix B)
    per_layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
    weights = 32 * per_layer + 4096 * 128256
    tokens = 16 * 8192
    expected = tokens * (6 * weights + 12 * 32 * 4096 * 8192)
    assert model_flops(LLAMA_8B, 16, 8192) == pytest.approx(expected, rel=1e-12)


def test_causal_halves_only_the_attention_core():
    forward = forward_flops(LLAMA_8B, 16, 8192)
    difference = model_flops(LLAMA_8B, 16, 8192) - model_causal_flops(LLAMA_8B, 16, 8192)
    assert difference == pytest.approx(1.5 * forward.attention_core, rel=1e-9)


def test_executed_selective_runs_the_core_forward_once_more():
    forward = forward_flops(GPT_175B, 64, 2048)
    extra = executed_flops(GPT_175B, 64, 2048, "selective") - model_flops(GPT_175B, 64, 2048)
    assert extra == pytest.approx(forward.attention_core, rel=1e-9)
    for recompute in ("none", "full"):
        assert executed_flops(GPT_175B, 64, 2048, recompute) == hardware_flops(GPT_175B, 64, 2048, recompute)


def test_recomputation_that_stops_early_executes_no_down_projection():
    # 96 less 8 B s l h^2 of a plain GPT; the printed formula (SC21 eq. 3) stays
    shape = GPT_1T
    stopped = executed_flops(shape, 3072, 2048, Repeated("full", early_stop=True))
    down = 8.0 * 3072 * 2048 * shape.layers * shape.hidden**2
    assert hardware_flops(shape, 3072, 2048, "full") - stopped == pytest.approx(down, rel=1e-9)
    assert executed_flops(shape, 3072, 2048, Repeated("selective", early_stop=True)) == executed_flops(
        shape, 3072, 2048, "selective"
    )


def test_more_than_peak_is_refused():
    with pytest.raises(DataError, match=r"104\.0 % of peak is impossible"):
        mfu(1.04 * 312e12, 1.0, 1, 312e12)
