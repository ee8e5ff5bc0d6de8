"""Context parallelism on GPUs that are not alike: who paces a ring, and who waits for whom at the gradients."""

from dataclasses import replace
from pathlib import Path

import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.lower import Job, lower
from traincast.lower.breakdown import breakdown
from traincast.lower.context_report import ContextReport, context_report
from traincast.lower.job import Part
from traincast.mesh import Mesh
from traincast.model import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import Change, Cluster, degraded, load_cluster, selene


def job(mesh: Mesh, cluster: Cluster, **recipe: object) -> Job:
    """Four layers on A100s; a ring unless the recipe says otherwise."""
    base = Recipe(
        global_batch=4 * mesh.dp,
        microbatch=1,
        sequence=16384,
        precision="bf16",
        schedule="none",
        attention="flash",
        p2p="async",
    )
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-80gb-sxm")
    return Job(gpt("small", 2048, 4, 16), mesh, replace(base, **recipe), profile, cluster, gpu)  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", [{}, {"zero_stage": 1}, {"cp_kind": "allgather"}])
def test_waiting_for_the_loaded_rank_at_gradients_is_waiting_for_the_split(recipe: dict[str, object]) -> None:
    """The breakdown's rule: ranks that end their backward pass early wait at the gradient bucket for the loaded rank of
    their own context-parallel group, which is `cp`. So `dp` is equal for all, what reducing takes."""
    one = job(Mesh(cp=8, dp=2), selene(2), cp_balance=False, **recipe)
    program = lower(one).program
    result = evaluate(program)
    found = breakdown(program, result).classes_s
    assert len(found) == 8
    assert [row["dp"] for row in found] == pytest.approx([found[-1]["dp"]] * 8)
    assert program.classes[-1].buckets[0].duration_s <= found[-1]["dp"] * (1 + 1e-12)
    together = [row["compute"] + row["cp"] for row in found]
    assert together == pytest.approx([together[-1]] * 8)
    assert found[0]["cp"] > found[6]["cp"] > found[7]["cp"]
    for row in found:
        assert sum(row.values()) == pytest.approx(result.step_time_s, rel=1e-12)


def test_a_replica_that_is_late_as_a_whole_is_waited_for_at_dp() -> None:
    """One slow GPU slows its context-parallel group: there the others wait as `cp`, the other replica's as `dp`."""
    cluster = degraded(selene(2), [Change("slow_gpu", "n1/gpu0", rate=0.5)])
    one = job(Mesh(cp=8, dp=2), cluster)
    program = lower(one).program
    plain = breakdown(program, evaluate(program))
    rows = {cls.example_rank: row for cls, row in zip(program.classes, plain.classes_s, strict=True)}
    sound, beside = rows[0], rows[9]
    assert beside["cp"] > 10 * sound["cp"]
    assert sound["dp"] > beside["dp"]


def mixed_report(tmp_path: Path, mesh: Mesh, *slow: Change) -> ContextReport:
    """A ring over A100s and H100s, a node of each."""
    path = tmp_path / "mixed.yaml"
    kinds = "".join(f"  - {{gpu: {gpu}, nodes: 1}}\n" for gpu in ("H100-80GB-SXM", "A100-80GB-SXM"))
    path.write_text(f"builder: mixed\ngroups:\n{kinds}")
    one = job(mesh, degraded(load_cluster(str(path)), slow), sequence=131072)
    h100 = Part(load_catalog().gpu("H100-80GB-SXM"), load_profile("h100-80gb-sxm"))
    one = replace(one, others=(h100,))
    found = context_report(one, lower(one).spans)
    assert found is not None
    return found


def test_the_slowest_gpu_of_a_group_paces_its_ring(tmp_path: Path) -> None:
    """A ring moves in step: over both nodes the A100s' attention is what hides a hop, whichever GPU a job names first.
    Rings of one node each: that of the H100s needs more, and is the one that is told of."""
    both = mixed_report(tmp_path, Mesh(cp=16))
    assert (both.gpu, both.rank) == ("A100-80GB-SXM", 0)
    apart = mixed_report(tmp_path, Mesh(cp=8, dp=2))
    assert (apart.gpu, apart.rank) == ("H100-80GB-SXM", 0)


def test_a_slow_gpu_is_named_with_its_speed(tmp_path: Path) -> None:
    """Half the rate: twice the time of attention, half the bytes a second that hide behind it."""
    usual = mixed_report(tmp_path, Mesh(cp=16))
    slow = mixed_report(tmp_path, Mesh(cp=16), Change("slow_gpu", "n1/gpu3", rate=0.5))
    assert slow.gpu == "A100-80GB-SXM at 50 % of its rate"
    assert slow.required_bytes_per_s == pytest.approx(usual.required_bytes_per_s / 2, rel=0.01)
