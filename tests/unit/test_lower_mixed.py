"""Ranks on GPUs of different models and speeds: each computes at its own pace, groups wait for the slowest."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincast.analytic import evaluate
from traincast.engine import simulate
from traincast.forecast import forecast_prepared, memory_of, prepare, rates_of
from traincast.lower import Job, lower
from traincast.lower.compare import differences
from traincast.lower.seats import mean_peak_flops_per_s, stage_memory_bytes
from traincast.mesh import Mesh
from traincast.scenario import load_scenario
from traincast.topology.degrade import Change, degraded

TEXT = """\
model: {hidden: 2048, layers: 16, heads: 16, vocab: 51200}
cluster: mixed.yaml
parallelism: {tp: 8, pp: 4, dp: 1}
training: {global_batch: 32, microbatch: 2, sequence: 1024, recompute: full, precision: fp16, p2p: async}
"""
MIXED = """\
builder: mixed
groups:
  - {gpu: A100-80GB-SXM, nodes: 2}
  - {gpu: H100-80GB-SXM, nodes: 2}
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Job:
    """Two nodes of A100, two of H100; stages 0 and 1 on the first."""
    (tmp_path / "mixed.yaml").write_text(MIXED)
    (tmp_path / "job.yaml").write_text(TEXT)
    return prepare(load_scenario(tmp_path / "job.yaml")).job


def compute_s(job: Job) -> list[float]:
    """Seconds of computing of each class's stage: mean of its ranks."""
    program = lower(job).program
    return [
        sum(cost.labels_s["compute"] for cost in cls.chunks.values())
        for cls in sorted(program.classes, key=lambda cls: cls.stage)
    ]


def test_each_stage_computes_as_its_gpu_alone_would(mixed: Job) -> None:
    """Against jobs on clusters of one model."""
    assert [part.gpu.name for part in mixed.parts] == ["A100-80GB-SXM", "H100-80GB-SXM"]
    assert mixed.parts[1].profile.gpu == "H100-80GB-SXM"
    a100 = compute_s(replace(mixed, others=()))
    h100 = compute_s(replace(mixed, others=(), gpu=mixed.parts[1].gpu, profile=mixed.parts[1].profile))
    assert compute_s(mixed) == [*a100[:2], *h100[2:]]


@pytest.mark.parametrize("shape", [Mesh(tp=8, pp=4), Mesh(tp=8, dp=4), Mesh(tp=2, pp=2, dp=8), Mesh(tp=4, pp=4, dp=2)])
def test_folding_is_exact_on_mixed_gpus(mixed: Job, shape: Mesh) -> None:
    """One class for alike ranks, or one for each rank: the same step, in both evaluators."""
    job = replace(mixed, mesh=shape, recipe=replace(mixed.recipe, schedule="1f1b" if shape.pp > 1 else "none"))
    folded, unfolded = lower(job).program, lower(job, fold=False).program
    assert len(folded.classes) < len(unfolded.classes) == 32
    step_s = evaluate(folded).step_time_s
    assert step_s == evaluate(unfolded).step_time_s
    assert not differences(evaluate(folded), simulate(folded))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_folding_is_exact_on_permuted_ranks(mixed: Job, seed: int) -> None:
    """Ranks anywhere: groups over nodes and models at random; one class a rank gives the same step."""
    placed = tuple(np.random.default_rng(seed).permutation(32).tolist())
    job = replace(mixed, mesh=Mesh(tp=2, pp=4, dp=4, placement=placed))
    step_s = evaluate(lower(job).program).step_time_s
    assert step_s == evaluate(lower(job, fold=False).program).step_time_s
    in_order = replace(job, mesh=replace(job.mesh, placement=None))
    assert step_s > evaluate(lower(in_order).program).step_time_s


def test_a_collective_takes_as_long_for_all_its_members(mixed: Job) -> None:
    """Replicas on both models: the slower stack's constants price the gradients of everybody."""
    job = replace(mixed, mesh=Mesh(tp=8, dp=4), recipe=replace(mixed.recipe, schedule="none"))
    found = {bucket.duration_s for cls in lower(job).program.classes for bucket in cls.buckets}
    alone = [
        lower(replace(job, others=(), gpu=part.gpu, profile=part.profile)).program.classes[0].buckets[0].duration_s
        for part in job.parts
    ]
    assert found == {max(alone)}


def test_peak_and_memory_are_those_of_the_gpus_in_use(mixed: Job) -> None:
    """MFU takes the mean peak: 312 and 989.4 TFLOP/s of dense fp16 (A100 and H100 datasheets)."""
    assert mean_peak_flops_per_s(mixed) == pytest.approx((312e12 + 989.4e12) / 2, rel=1e-3)
    assert rates_of(mixed, 1.0).mfu < rates_of(replace(mixed, others=()), 1.0).mfu
    small = replace(mixed.parts[0].gpu, memory_bytes=mixed.parts[0].gpu.memory_bytes / 2)
    halved = replace(mixed, gpu=small)
    assert stage_memory_bytes(halved)[:2] == (small.memory_bytes,) * 2
    assert stage_memory_bytes(halved)[2:] == (mixed.parts[1].gpu.memory_bytes,) * 2
    assert memory_of(halved).limit_bytes == small.memory_bytes


def test_the_notes_say_who_runs_where(tmp_path: Path) -> None:
    (tmp_path / "mixed.yaml").write_text(MIXED)
    (tmp_path / "job.yaml").write_text(TEXT)
    notes = prepare(load_scenario(tmp_path / "job.yaml")).notes
    assert any("16 x A100-80GB-SXM and 16 x H100-80GB-SXM" in note for note in notes)
    placed = prepare(load_scenario(tmp_path / "job.yaml", [("parallelism.placement", "16-31,0-15")])).job
    assert placed.gpu.name == "H100-80GB-SXM"
    kept = prepare(load_scenario(tmp_path / "job.yaml", [("profile", "a100-selene-megatron2021")])).job
    assert [part.profile.name for part in kept.parts] == ["a100-selene-megatron2021", "h100-80gb-sxm"]


@pytest.fixture
def uniform() -> Job:
    """Sixteen A100: TP8, two stages or replicas."""
    scenario = load_scenario(
        "sc21/t1_18p4b",
        [("parallelism.dp", "2"), ("training.global_batch", "32"), ("model.layers", "8"), ("profile", "a100-80gb-sxm")],
    )
    return prepare(scenario).job


def slowed(job: Job, gpu: str, speed: float) -> Job:
    return replace(job, cluster=degraded(job.cluster, [Change("slow_gpu", gpu, rate=speed)]))


def test_a_slow_gpu_takes_longer_by_what_it_is_slower(uniform: Job) -> None:
    """Its device times divide by its speed; those of nobody else change."""
    slow = lower(slowed(uniform, "n0/gpu3", 0.9)).program
    plain = lower(uniform).program.classes[0].chunks["F", 0].labels_s["compute"]
    found = {cls.example_rank: cls.chunks["F", 0].labels_s["compute"] for cls in slow.classes}
    assert found[3] == pytest.approx(plain / 0.9, rel=1e-12)
    assert {seconds for rank, seconds in found.items() if rank != 3} == {plain}


def test_a_group_waits_for_its_slowest_member(uniform: Job) -> None:
    """The other ranks of the TP group, and the other replica, wait as long as the slow one computes longer."""
    prepared = prepare(load_scenario("sc21/t1_18p4b"))
    slow = slowed(uniform, "n0/gpu3", 0.9)
    before, after = evaluate(lower(uniform).program), evaluate(lower(slow).program)
    kernels = forecast_prepared(replace(prepared, job=slow)).breakdown
    slowest = lower(slow).program.classes.index(
        next(cls for cls in lower(slow).program.classes if cls.example_rank == 3)
    )
    extra = after.step_time_s - before.step_time_s
    works = kernels.classes_s[slowest]
    assert extra == pytest.approx(0.1 * (works["compute"] + works["recompute"]), rel=0.05)
    mates = [kernels.classes_s[i] for i in range(len(kernels.classes_s)) if i != slowest]
    plain = forecast_prepared(replace(prepared, job=uniform)).breakdown.mean_s
    assert all(one["tp"] + one["dp"] - plain["tp"] - plain["dp"] > 0.9 * extra for one in mates)


def test_a_slow_gpu_in_an_idle_group_changes_nothing(uniform: Job) -> None:
    """A GPU that no rank is on may be as slow as it likes."""
    one = replace(uniform, mesh=Mesh(tp=8, dp=1), recipe=replace(uniform.recipe, global_batch=16))
    assert evaluate(lower(slowed(one, "n1/gpu0", 0.5)).program).step_time_s == evaluate(lower(one).program).step_time_s


def test_all_gpus_equally_slow_are_one_machine(uniform: Job) -> None:
    gpus = [Change("slow_gpu", key, rate=0.8) for key in uniform.cluster.gpus]
    job = replace(uniform, cluster=degraded(uniform.cluster, gpus))
    assert len(lower(job).program.classes) == len(lower(uniform).program.classes)
