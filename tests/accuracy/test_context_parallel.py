"""Measured steps with context parallelism: BurstEngine's comparison, Megatron-Kwai, NeMo, torchtitan, Llama 3."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.lower import Job, lower
from traincast.validate import published_files, read_published, validate_rows
from traincast.validate.report import prepare_row
from traincast.validate.score import RowScore


def scores(family: str, *ids: str) -> dict[str, RowScore]:
    """Forecasts of a family's rows, of those named only where any are."""
    rows = [row for row in read_published(published_files(), [family]) if not ids or row.id in ids]
    return {score.id: score for score in validate_rows(rows).rows if score.predicted_s is not None}


def mean_error_pct(found: list[RowScore]) -> float:
    assert found
    return sum(abs(one.error_pct or 0.0) for one in found) / len(found)


@pytest.fixture(scope="module")
def burst() -> dict[str, RowScore]:
    return {name: one for name, one in scores("burst_cp").items() if one.status == "scored"}


def test_burst_engine_s_comparison(burst: dict[str, RowScore]) -> None:
    """Rings, heads and both on 1, 4 and 8 nodes of A800, 64K to 4M tokens; no constant was fitted on any of them (when
    written: 6.3 % over 52 rows)."""
    assert len(burst) >= 52
    assert mean_error_pct(list(burst.values())) <= 8.0


def test_rings_on_one_node(burst: dict[str, RowScore]) -> None:
    """BurstEngine's and LoongTrain's rings, all recomputed and the optimiser on the host as their scripts say; the
    update there is a sixth of the shortest step (when written: 1.5 % mean, none above 7 %)."""
    found = [one for name, one in burst.items() if "1n_burst" in name or "1n_loongtrain" in name]
    assert len(found) == 17
    assert mean_error_pct(found) <= 4.0
    assert max(abs(one.error_pct or 0.0) for one in found) <= 10.0


def test_rings_by_node_up_to_four_million_tokens(burst: dict[str, RowScore]) -> None:
    """BurstEngine's own rows of several nodes, all stated: half of each sequence's attention kept, ring or USP by node
    (when written: 6.2 % mean, none above 8.5 %)."""
    own = [one for name, one in burst.items() if "_burst-" in name]
    assert len(own) == 8
    assert mean_error_pct(own) <= 8.0
    assert max(abs(one.error_pct or 0.0) for one in own) <= 12.0


def test_rings_against_exchange_of_heads_come_in_the_measured_order(burst: dict[str, RowScore]) -> None:
    """Four of five pairs of one size and length, those left out that measured within 1 % of each other (when written: 8
    of 10; the two wrong ones are on 8 ranks, where the forecasts differ by less than 1 %)."""
    right = []
    for name, heads in burst.items():
        for stack in ("megatron-cp", "loongtrain-cp"):
            ring = burst.get(name.replace("ds-ulysses", stack)) if "ds-ulysses" in name else None
            if ring and ring.measured_s and heads.measured_s and ring.predicted_s and heads.predicted_s:
                measured = ring.measured_s / heads.measured_s - 1
                if abs(measured) > 0.01:
                    right.append((measured < 0) == (ring.predicted_s < heads.predicted_s))
    assert len(right) >= 10
    assert sum(right) >= 0.8 * len(right)


def test_baselines_over_several_nodes(burst: dict[str, RowScore]) -> None:
    """LoongTrain's rings and USP and DeepSpeed Ulysses on 32 GPUs, all recomputed as their scripts say (inferred.yaml;
    when written: 11.7 %, of which LoongTrain's ring on the 14B is a third too fast)."""
    found = [burst[name] for name in burst if "_32_loongtrain" in name or "_32_ds" in name]
    assert mean_error_pct(found) <= 12.0


def test_megatron_kwai_without_offload() -> None:
    """65B and 70B on up to 256 H800, with keys and values gathered over cp 4 in three of seven rows (when written:
    7.3 %)."""
    found = [one for one in scores("kwai_cp").values() if one.status == "scored"]
    assert len(found) == 7
    assert mean_error_pct(found) <= 10.0


def test_megatron_kwai_with_activations_on_the_host() -> None:
    """Rows without recomputation, 28 to 52 % of activations offloaded: shown, not scored (when written: 5.5 %)."""
    found = list(scores("kwai_cp", "kwai-0001", "kwai-0002", "kwai-0003", "kwai-0011").values())
    assert len(found) == 4
    assert mean_error_pct(found) <= 8.0


def test_nemo_long_sequences() -> None:
    """Llama 2 7B in FP8 on 4 to 1,024 H100, 4K to 1M tokens; no row told a constant (when written: 4.6 %)."""
    assert mean_error_pct([one for one in scores("nemo_cp").values() if one.status == "scored"]) <= 12.0


@pytest.mark.xfail(strict=True, reason="15 %: two and four ranks 3 and 11 % fast, eight ranks 32 %")
def test_torchtitan_context_parallelism() -> None:
    """As in residual_notes.yaml; `test_attention_of_torchtitan_runs_at_one_rate_but_on_eight_ranks` has the figures."""
    found = scores("torchtitan", "titan-0005", "titan-0007", "titan-0017")
    assert mean_error_pct(list(found.values())) <= 12.0


CONTEXT_ROWS = {"titan-0015": 1, "titan-0005": 2, "titan-0017": 4, "titan-0007": 8}
"""Rows of the 8B and the 405B on 32,768 tokens a GPU, by ranks that share a sequence."""


def test_attention_of_torchtitan_runs_at_one_rate_but_on_eight_ranks() -> None:
    """What these rows leave for attention, forward, is 0.30, 0.36, 0.30 and 0.24 of the peak at cp 1, 2, 4 and 8 (when
    written); the card's power limit slows it to 0.37 as it slows products. So one rate meets all but the last."""
    shares = {cp: attention_share(name) for name, cp in CONTEXT_ROWS.items()}
    assert max(shares[1], shares[2], shares[4]) <= 1.25 * min(shares[1], shares[2], shares[4])
    assert shares[8] < 0.85 * min(shares[1], shares[2], shares[4])
    errors = attention_errors_pct(1.0)
    assert max(abs(errors[cp]) for cp in (1, 2, 4)) <= 12.0


def test_unequal_work_is_not_what_slows_torchtitan_s_ranks() -> None:
    """PyTorch balances causal work (`_cp_options.enable_load_balance`, on by default). Without it the last rank would
    have 2 - 1/cp times its share: two and four ranks would be more than a tenth too slow."""
    for name, cp in (("titan-0005", 2), ("titan-0017", 4)):
        job, measured_s = prepared(name)
        unequal = replace(job, recipe=replace(job.recipe, cp_balance=False))
        assert evaluate(lower(unequal).program).step_time_s >= 1.1 * measured_s, cp


def test_keys_repeated_for_every_query_head_are_most_of_what_torchtitan_sends() -> None:
    """405B over four nodes: 16 query heads a rank share one key head, and torchtitan repeats it before the gather
    (models/llama, repeat_kv): the forecast without that is 23 % too fast, with it 11 %."""
    job, measured_s = prepared("titan-0017")
    plain = replace(job.profile, traits=replace(job.profile.traits, cp_by_block=False))
    once_s, repeated_s = (evaluate(lower(one).program).step_time_s for one in (replace(job, profile=plain), job))
    assert once_s <= 0.8 * measured_s
    assert 0.85 * measured_s <= repeated_s <= measured_s


def attention_share(name: str) -> float:
    """Share of the peak at which forward attention would run for the forecast to meet the row."""
    job, measured_s = prepared(name)
    own = job.profile["attention.flash_forward"]
    times = {share: at_rate(job, share) for share in (own, own / 2)}
    attention_s = times[own / 2] - times[own]  # at `own`; half the rate takes it once more
    return own * attention_s / (measured_s - times[own] + attention_s)


def attention_errors_pct(factor: float) -> dict[int, float]:
    """Errors of the rows with attention at that share of its rate, by context-parallel ranks."""
    found = {}
    for name, cp in CONTEXT_ROWS.items():
        job, measured_s = prepared(name)
        found[cp] = 100 * (at_rate(job, factor * job.profile["attention.flash_forward"]) / measured_s - 1)
    return found


def prepared(name: str) -> tuple[Job, float]:
    (row,) = [row for row in read_published(published_files(), ["torchtitan"]) if row.id == name]
    found = prepare_row(row)
    assert found.measured_s is not None
    return found.options[0].job, found.measured_s


def at_rate(job: Job, forward: float) -> float:
    """Step time with attention at `forward` of the peak, backward in proportion [s]."""
    own = job.profile
    backward = own["attention.flash_backward"] / own["attention.flash_forward"] * forward
    profile = own.replaced(attention__flash_forward=forward, attention__flash_backward=backward)
    return evaluate(lower(replace(job, profile=profile)).program).step_time_s


def test_torchtitan_s_405b_runs_faster_interleaved() -> None:
    """512 H100, TP8 PP8 DP8: 40.96 s under 1F1B, 32.0 s with two chunks a stage."""
    found = scores("torchtitan", "titan-0013", "titan-0014")
    plain, interleaved = (found[name].predicted_s or 0.0 for name in ("titan-0013", "titan-0014"))
    assert interleaved < 0.9 * plain


@pytest.mark.slow
def test_llama_3_table_4() -> None:
    """The Llama 3 Herd of Models, Table 4: three rows within 8 % (when written: -3.5, 3.6, -0.3), and what 131,072
    tokens on cp 16 lose of the rate at 8,192 within 4 points (measured 430 or 400 to 380 TFLOP/s)."""
    found = scores("llama3")
    rows = [found[f"llama3_405b_r{n}"] for n in (1, 2, 3)]
    assert all(abs(one.error_pct or 100.0) <= 8.0 for one in rows)
    predicted = [rate / (1 + (one.error_pct or 0.0) / 100) for rate, one in zip((430, 400, 380), rows, strict=True)]
    for short, measured_pct in ((0, 100 * (1 - 380 / 430)), (1, 100 * (1 - 380 / 400))):
        assert 100 * (1 - predicted[2] / predicted[short]) == pytest.approx(measured_pct, abs=4.0)
