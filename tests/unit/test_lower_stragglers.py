"""Waiting for a slower peer is the collective that one waits in (DESIGN section 9), whatever the evaluator."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.engine import expected_events, simulate
from traincast.lower import Job, lower
from traincast.lower.breakdown import Breakdown, breakdown
from traincast.lower.compare import differences
from traincast.lower.program import LABELS
from traincast.mesh import Mesh
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import Change, degraded, selene


def job(mesh: Mesh, *slow: str, speed: float = 0.9, **recipe: object) -> Job:
    """A small GPT on Selene, some of whose GPUs are slow."""
    base = Recipe(global_batch=8 * mesh.dp, microbatch=1, sequence=2048, precision="fp16", gradient_dtype="fp16")
    cluster = degraded(selene(-(-mesh.world // 8)), [Change("slow_gpu", key, rate=speed) for key in slow])
    return Job(
        gpt("small", hidden=2048, layers=16, heads=16, vocab=51200),
        mesh,
        replace(base, **recipe),  # type: ignore[arg-type]
        load_profile("a100-selene-megatron2021"),
        cluster,
        load_catalog().gpu("A100-80GB-SXM"),
    )


def parts(one: Job) -> tuple[Breakdown, dict[int, dict[str, float]], float]:
    """The breakdown, the seconds of each class by its first rank, and the step; the same from both evaluators."""
    program = lower(one).program
    simulated, evaluated = simulate(program), evaluate(program)
    assert not differences(simulated, evaluated)
    assert simulated.events == expected_events(program)
    found = breakdown(program, simulated)
    assert found == breakdown(program, evaluated)
    for seconds in (*found.classes_s, *found.stages_s, found.mean_s):
        assert sum(seconds.values()) == pytest.approx(simulated.step_time_s, rel=1e-12)
        assert min(seconds.values()) >= -1e-12
    by_rank = {cls.example_rank: dict(row) for cls, row in zip(program.classes, found.classes_s, strict=True)}
    return found, by_rank, simulated.step_time_s


def test_a_straggler_in_a_tensor_parallel_group() -> None:
    """Its seven mates wait as tp for what it computes longer, up to the optimiser; nothing of it is called bubble."""
    mesh = Mesh(tp=8)
    plain, _, before_s = parts(job(mesh, schedule="none"))
    slow, by_rank, after_s = parts(job(mesh, "n0/gpu3", schedule="none"))
    assert set(by_rank) == {0, 3}
    longer_s = sum(by_rank[3][label] - plain.mean_s[label] for label in ("compute", "recompute"))
    optimizer_s = by_rank[3]["optimizer"] - plain.mean_s["optimizer"]
    assert after_s - before_s == pytest.approx(longer_s + optimizer_s, rel=1e-9)
    assert by_rank[0]["tp"] - plain.mean_s["tp"] == pytest.approx(longer_s, rel=1e-9)
    assert by_rank[0]["bubble"] == pytest.approx(optimizer_s, rel=1e-9)  # it ends the step earlier
    assert by_rank[3]["tp"] == pytest.approx(plain.mean_s["tp"], rel=1e-12)
    assert slow.bubble_share_of_ideal == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("overlap_dp", [False, True])
def test_a_slow_replica(overlap_dp: bool) -> None:
    """The other replicas wait as dp for what it computes longer; with buckets overlapped too."""
    mesh = Mesh(dp=16)
    recipe = {"schedule": "none", "overlap_dp": overlap_dp}
    plain, _, before_s = parts(job(mesh, **recipe))
    _, by_rank, _ = parts(job(mesh, "n1/gpu5", **recipe))
    assert set(by_rank) == {0, 13}
    longer_s = sum(by_rank[13][label] - plain.mean_s[label] for label in ("compute", "host"))
    assert longer_s > 0.05 * before_s
    assert by_rank[0]["dp"] - by_rank[13]["dp"] == pytest.approx(longer_s, rel=1e-9)
    assert by_rank[0]["bubble"] == pytest.approx(by_rank[13]["optimizer"] - plain.mean_s["optimizer"], rel=1e-9)
    assert by_rank[13]["bubble"] == pytest.approx(0.0, abs=1e-12)


def test_a_plain_pipeline_knows_only_its_bubble() -> None:
    """TP 8 in a node, four stages, nobody slow: tp is what the chunks say, the rest of the waiting is bubble."""
    one = job(Mesh(tp=8, pp=4), schedule="1f1b")
    program = lower(one).program
    found, by_rank, _ = parts(one)
    for cls, seconds in zip(program.classes, by_rank.values(), strict=True):
        own_s = sum(8 * cost.labels_s.get("tp", 0.0) for cost in cls.chunks.values())
        assert seconds["tp"] == pytest.approx(own_s, rel=1e-12)
        assert (seconds["dp"] > 0.0) == (cls.stage in (0, 3))  # tied embeddings
        assert seconds["bubble"] > 0.0
    assert found.bubble_share_of_ideal > 0.25


def test_a_straggler_in_a_pipeline_slows_other_stages_into_the_bubble() -> None:
    """A slow GPU of the last stage: the first stage waits for it as for any slow stage; folded and unfolded agree."""
    one = job(Mesh(tp=2, pp=4), "n0/gpu7", schedule="1f1b")
    plain, *_ = parts(replace(one, cluster=selene(1)))
    found, by_rank, after_s = parts(one)
    unfolded = lower(one, fold=False).program
    whole = breakdown(unfolded, simulate(unfolded))
    assert whole.mean_s == pytest.approx(found.mean_s, rel=1e-9, abs=1e-12)
    assert found.stages_s[0]["bubble"] > plain.stages_s[0]["bubble"] + 0.02 * after_s
    assert by_rank[6]["tp"] > by_rank[7]["tp"] + 0.02 * after_s
    assert set(found.mean_s) == set(LABELS)
