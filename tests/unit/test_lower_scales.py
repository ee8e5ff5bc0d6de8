"""Scales of fp8 tensors, reduced over all ranks behind each pass. Laws, and a step by hand."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.lower import Job, lower
from traincast.lower.scales import joint
from traincast.mesh import Mesh
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import NodeRequest, family_spans, node_cluster, usual_node


def job(dp: int, *, tp: int = 2, precision: str = "fp8", reduces: bool = True, **recipe: object) -> Job:
    own = load_profile("h100-nemo-megatroncore2025")
    base = Recipe(global_batch=4 * dp, microbatch=1, sequence=2048, precision=precision, attention="flash")
    return Job(
        model=gpt("gpt", 4096, 4, 32),
        mesh=Mesh(tp=tp, dp=dp),
        recipe=replace(base, sequence_parallel=tp > 1, **recipe),
        profile=replace(own, traits=replace(own.traits, reduces_amax=reduces)),
        gpu=load_catalog().gpu("H100-80GB-SXM"),
        cluster=node_cluster(usual_node(NodeRequest(gpu="H100-80GB-SXM")), max(1, tp * dp // 8)),
    )


def step_s(one: Job) -> float:
    return evaluate(lower(one).program).step_time_s


def lost_s(dp: int, **changes: object) -> float:
    return step_s(job(dp, **changes)) - step_s(job(dp, reduces=False, **changes))


def test_each_pass_waits_for_one_reduction() -> None:
    """Law: without a pipeline a step of m microbatches loses 2 m of them, and twice the microbatches lose twice."""
    assert lost_s(8, global_batch=64) == pytest.approx(2 * lost_s(8), rel=1e-6)


def test_it_is_latency_that_grows_with_the_job() -> None:
    """A few hundred bytes: 27 us on one node, 80 to 130 us on 64 to 128 nodes; not more than twice that a pass."""
    passes = 2 * 4
    small, large = lost_s(4) / passes, lost_s(256) / passes
    assert 15e-6 < small < 50e-6
    assert 70e-6 < large < 200e-6


def test_split_backward_passes_reduce_once() -> None:
    """The input part ends with the reduction, the weight part has none: one for F, one for I, as for F and B."""
    whole, split = (
        {
            (kind, chunk): cost.labels_s.get("dp", 0.0)
            for (kind, chunk), cost in lower(pipelined(schedule)).program.classes[0].chunks.items()
        }
        for schedule in ("1f1b", "zb-h1")
    )
    assert whole["F", 0] == whole["B", 0] == split["F", 0] == split["I", 0] > 0.0
    assert split["W", 0] == 0.0


def pipelined(schedule: str) -> Job:
    one = job(4, schedule=schedule, p2p="async")
    return replace(one, mesh=Mesh(tp=2, pp=2, dp=2))


@pytest.mark.parametrize("changes", [{"precision": "bf16"}, {"fp8_scaling": "tensorwise"}])
def test_only_delayed_scaling_reduces(changes: dict[str, str]) -> None:
    """Half precision has no scales, current scaling finds them in the tensor itself."""
    assert lost_s(8, **changes) == 0.0


def test_one_rank_has_nobody_to_ask() -> None:
    assert lost_s(1, tp=1) == 0.0


def test_a_joint_group_is_the_group_of_all_ranks() -> None:
    """Ranks, nodes and ranks a node of tp 2 in each of 16 places are those of the group of 32 itself."""
    one = job(16)
    mesh, cluster = one.mesh, one.cluster
    families = (("tp",), ("dp",), ("tp", "dp"))
    tp, dp, whole = (family_spans(cluster, mesh.physical(mesh.groups(*axes)))[0] for axes in families)
    found = joint(tp, dp)
    assert found is not None
    assert (found.ranks, found.nodes, found.ranks_per_node) == (whole.ranks, whole.nodes, whole.ranks_per_node)
    assert joint(None, dp) is dp
    assert joint(None, None) is None
