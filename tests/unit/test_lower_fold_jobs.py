"""Folding is exact: folded and unfolded steps of real jobs are float-equal on worlds up to 256 ranks."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.engine import simulate
from traincast.lower import Job, lower
from traincast.mesh import Mesh
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import hdr4_a100, selene


def job(mesh: Mesh, *, four_nics: bool = False, **recipe: object) -> Job:
    """A small GPT on whole nodes."""
    model = gpt("small", hidden=2048, layers=16, heads=16, vocab=51200)
    base = Recipe(global_batch=8 * mesh.dp, microbatch=1, sequence=2048, precision="fp16", gradient_dtype="fp16")
    nodes = -(-mesh.world // 8)
    cluster = hdr4_a100(nodes) if four_nics else selene(nodes)
    gpu = load_catalog().gpu("A100-80GB-SXM")
    profile = load_profile("a100-selene-megatron2021")
    return Job(model, mesh, replace(base, **recipe), profile, cluster, gpu)  # type: ignore[arg-type]


CASES = {
    "tp8 pp4 dp2": (Mesh(tp=8, pp=4, dp=2), {}),
    "tp2 pp4 dp8": (Mesh(tp=2, pp=4, dp=8), {"overlap_dp": True}),
    "tp1 dp32": (Mesh(dp=32), {"schedule": "none", "overlap_dp": True}),
    "interleaved": (Mesh(tp=4, pp=4, dp=4), {"schedule": "interleaved", "vpp": 2}),
    "pipeline innermost": (Mesh(tp=4, pp=4, dp=2, order="pp-tp-dp"), {}),
    "asynchronous": (Mesh(tp=2, pp=8, dp=4), {"p2p": "async"}),
    "two scalable units": (Mesh(tp=8, pp=4, dp=8), {}),
    "straddling nodes": (Mesh(tp=16, pp=2, dp=2), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_folded_equals_unfolded(name: str) -> None:
    mesh, recipe = CASES[name]
    one = job(mesh, **recipe)
    folded, whole = lower(one).program, lower(one, fold=False).program
    assert len(whole.classes) == mesh.world
    assert sum(c.ranks for c in folded.classes) == mesh.world
    assert len(folded.classes) < mesh.world
    assert evaluate(folded).step_time_s == evaluate(whole).step_time_s


def test_folded_equals_unfolded_in_the_event_engine() -> None:
    one = job(Mesh(tp=4, pp=4, dp=4), schedule="interleaved", vpp=2)
    assert simulate(lower(one).program).step_time_s == simulate(lower(one, fold=False).program).step_time_s


def test_classes_are_one_a_stage_where_tensor_parallelism_fills_the_node() -> None:
    """SC21's rows with TP 8: every stage is one class (facts of the mesh, not of the numbers)."""
    program = lower(job(Mesh(tp=8, pp=8, dp=4))).program
    assert [c.stage for c in program.classes] == list(range(8))


def test_shared_nics_cost_more() -> None:
    """Four NICs for eight groups of gradients: the reduction takes about twice as long as with eight NICs."""
    mesh = Mesh(tp=8, dp=4)
    eight, four = (lower(job(mesh, four_nics=f, schedule="none")).program.classes[0].buckets[0] for f in (False, True))
    assert four.duration_s == pytest.approx(2 * eight.duration_s, rel=0.1)
