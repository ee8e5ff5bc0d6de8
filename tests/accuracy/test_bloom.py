"""BLOOM's sizing runs on Jean Zay (bigscience, chronicles-prequel): steps, peaks, and what ran out of memory."""

from dataclasses import replace

import pytest

from traincast.catalog import load_catalog
from traincast.memory import MemoryEstimate, MemoryJob, estimate_job, overheads_of, reported_peak
from traincast.mesh import Mesh, balanced_layers
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.validate import published_files, read_published, validate_rows
from traincast.validate.report import ValidationReport
from traincast.validate.rows import PublishedRow

PROFILE = "a100-jeanzay-megatron-deepspeed2022"


@pytest.fixture(scope="module")
def rows() -> tuple[PublishedRow, ...]:
    return read_published(published_files(), ["bloom"])


@pytest.fixture(scope="module")
def report(rows: tuple[PublishedRow, ...]) -> ValidationReport:
    return validate_rows(rows)


def test_steps(report: ValidationReport) -> None:
    """One pair told what heads of 108 columns cost and how late the last rank comes (when written: 3.9 %, 0.91)."""
    (family,) = report.families
    assert family.scored >= 25
    assert family.mape_pct is not None
    assert family.mape_pct <= 8.0
    assert family.spearman is not None
    assert family.spearman >= 0.85


def test_runs_before_launches_were_made_blocking(report: ValidationReport) -> None:
    """The first runs, on 1 and 20 nodes, whose hosts could run ahead: within 10 %, and told no constant (when written:
    0.1 % and 9.5 %; with the later setting 32 % and 19 %)."""
    early = [one for one in report.rows if one.id.startswith("bloom_0217")]
    assert len(early) == 2
    assert max(abs(one.error_pct or 100.0) for one in early) <= 10.0


def test_the_best_rate_is_among_the_predicted_top_3(report: ValidationReport) -> None:
    """All scored runs by what they execute a second: the best is a 182B with TP4 PP12 (bloom_pre_080)."""
    scores = [one for one in report.rows if one.status == "scored" and one.executed_flops_per_gpu]
    predicted = sorted(scores, key=lambda one: (one.predicted_s or 0.0) / (one.executed_flops_per_gpu or 1.0))
    best = min(scores, key=lambda one: (one.measured_s or 0.0) / (one.executed_flops_per_gpu or 1.0))
    assert best.id in [one.id for one in predicted[:3]]


def test_regret_of_the_predicted_best_shape(rows: tuple[PublishedRow, ...], report: ValidationReport) -> None:
    """181B, 72 layers, on 384 GPUs, per sequence: the predicted best of nine shapes is within 3 % of the measured best
    (TP2 PP12 in place of TP4 PP12: 1.8 % when written)."""
    sized = {row.id: row for row in rows if row.text("model").startswith("181B") and row.count("gpus") == 384}
    per_sequence = {
        score.id: (score.predicted_s / batch, score.measured_s / batch)
        for score in report.rows
        if score.status == "scored"
        and score.id in sized
        and score.predicted_s
        and score.measured_s
        and (batch := sized[score.id].essential("global_batch"))
    }
    assert len(per_sequence) >= 9
    chosen = min(per_sequence, key=lambda one: per_sequence[one][0])
    assert per_sequence[chosen][1] <= 1.03 * min(measured for _, measured in per_sequence.values())


def bloom(hidden: int, layers: int, mesh: Mesh, microbatch: int, precision: str, heads: int = 64) -> MemoryEstimate:
    """Memory of a BLOOM-size model with full recomputation; gradients of bf16 runs are kept in both precisions."""
    split = balanced_layers(layers, mesh.pp, 1, embedding_as_layer=True) if layers % mesh.pp else None
    recipe = Recipe(
        global_batch=2016 if mesh.dp % 3 == 0 else 2048,
        microbatch=microbatch,
        sequence=2048,
        precision=precision,
        gradient_dtype="fp16" if precision == "fp16" else "fp32",
        recompute="full",
        zero_stage=1,
        stage_layers=split,
        schedule="none" if mesh.pp == 1 else "1f1b",
    )
    model = gpt("bloom", hidden=hidden, layers=layers, heads=heads, vocab=250680)
    job = MemoryJob(model, mesh, recipe, overheads_of(load_profile(PROFILE)))
    return estimate_job(job, load_catalog().gpu("A100-80GB-SXM").memory_bytes)


RAN_OUT = {
    "181B TP8 PP1 DP48, microbatch 1": (14336, 72, Mesh(tp=8, pp=1, dp=48), 1, "fp16"),
    "181B TP2 PP6 DP32, microbatch 1": (14336, 72, Mesh(tp=2, pp=6, dp=32), 1, "fp16"),
    "181B TP2 PP6 DP32, microbatch 2": (14336, 72, Mesh(tp=2, pp=6, dp=32), 2, "fp16"),
    "184B TP4 PP6 DP16, microbatch 1": (12288, 100, Mesh(tp=4, pp=6, dp=16), 1, "bf16"),
    "184B TP4 PP6 DP16, microbatch 2": (12288, 100, Mesh(tp=4, pp=6, dp=16), 2, "bf16"),
    "206B TP4 PP12 DP8, microbatch 2": pytest.param(
        (14336, 82, Mesh(tp=4, pp=12, dp=8), 2, "bf16"),
        marks=pytest.mark.xfail(
            reason="66 GB by the items that put seven runs of its table (59 to 67 GB measured) within 2 GB; the 176B of"
            " the same width has a layer less on each stage and took 60. Its record does not say what else it needed",
        ),
    ),
}


@pytest.mark.parametrize("shape", RAN_OUT.values(), ids=RAN_OUT.keys())
def test_what_ran_out_of_memory_is_above_the_limit(shape: tuple[int, int, Mesh, int, str]) -> None:
    """Refused, or borderline and above the GPU's 80 GiB (then a sweep ranks it behind all that fit)."""
    found = bloom(*shape)
    assert found.verdict != "fits"
    assert found.worst.total_bytes > found.limit_bytes


@pytest.mark.parametrize(
    ("shape", "peak_gb"),
    [
        ((14336, 72, Mesh(tp=8, pp=2, dp=24), 1, "fp16"), 65),
        ((14336, 72, Mesh(tp=4, pp=6, dp=16), 2, "fp16"), 57),
        ((12288, 100, Mesh(tp=8, pp=6, dp=8), 2, "bf16"), 61),
        ((13312, 94, Mesh(tp=4, pp=12, dp=8), 2, "bf16", 128), 67),
    ],
)
def test_its_neighbours_that_ran_are_accepted_near_their_peaks(
    shape: tuple[int, int, Mesh, int, str], peak_gb: float
) -> None:
    found = bloom(*shape)
    assert found.verdict == "fits"
    assert reported_peak(found, load_profile(PROFILE).traits) == pytest.approx(peak_gb, rel=0.08)


def test_sharding_the_optimiser_saves_what_was_measured() -> None:
    """TP8 PP12 DP4: 72 GB without ZeRO-1, 37 GB with it in the source's own pair; 30 to 40 GB saved.

    21 GB of it are three quarters of 12 bytes for 2.3e9 parameters. The rest is DeepSpeed's fp16 optimiser, which
    copies every gradient to single precision and then flattens the copies into one tensor (fused_optimizer.py, step).
    """
    model = gpt("181B", hidden=14336, layers=72, heads=64, vocab=250680)
    recipe = Recipe(2048, 2, 2048, precision="fp16", gradient_dtype="fp16", recompute="full", zero_stage=0)
    mesh, profile = Mesh(tp=8, pp=12, dp=4), load_profile(PROFILE)
    jobs = [MemoryJob(model, mesh, replace(recipe, zero_stage=stage), overheads_of(profile)) for stage in (0, 1)]
    plain, sharded = (reported_peak(estimate_job(job, 80e9), profile.traits) for job in jobs)
    assert 30 <= plain - sharded <= 40
    assert plain == pytest.approx(72, rel=0.08)
    assert sharded == pytest.approx(37, rel=0.08)
