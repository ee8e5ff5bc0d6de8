"""Lowering with shared links: folding stays exact, what never meets stays as it was, and tapered cores stagger."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.engine import simulate
from traincast.lower import Job, lower
from traincast.lower.compare import differences
from traincast.lower.flows import Contention
from traincast.lower.losses import describe_losses
from traincast.lower.program import ChunkCost, Sharing
from traincast.mesh import Mesh
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import Cluster, NodeRequest, hdr4_a100, selene, usual_node
from traincast.topology.clusters import fat_tree_for, tree_cluster
from traincast.topology.links import Spread

HELD, FREE, ECMP = Contention(), Contention(gaps="free"), Contention(Spread("ecmp", seed=3))


def tapered(nodes: int) -> Cluster:
    """Pods of four nodes without rails, seven times oversubscribed above."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, 8, nic="HDR200-IB"), parts)
    tree = fat_tree_for(design.nic, 8, parts)
    tree = replace(tree, levels=3, rail_optimised=False, nodes_per_unit=2, units_per_pod=2, oversubscription=(1.0, 7.0))
    return tree_cluster("tapered", design, nodes, tree)


def railed(nodes: int) -> Cluster:
    """Units of two nodes on eight rails, not oversubscribed."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, 8, nic="HDR200-IB"), parts)
    tree = replace(fat_tree_for(design.nic, 8, parts), levels=2, nodes_per_unit=2)
    return tree_cluster("railed", design, nodes, tree)


def job(mesh: Mesh, cluster: Cluster, **recipe: object) -> Job:
    """A small GPT, gradients overlapped with the last backward."""
    model = gpt("small", hidden=2048, layers=16, heads=16, vocab=51200)
    base = Recipe(
        global_batch=8 * mesh.dp,
        microbatch=1,
        sequence=2048,
        precision="fp16",
        gradient_dtype="fp16",
        overlap_dp=True,
        p2p="async",
    )
    profile = load_profile("a100-80gb-sxm")
    return Job(model, mesh, replace(base, **recipe), profile, cluster, load_catalog().gpu("A100-80GB-SXM"))  # type: ignore[arg-type]


CASES = {
    "one NIC a rank": job(Mesh(tp=8, pp=4, dp=2), selene(8)),
    "four NICs": job(Mesh(tp=2, pp=4, dp=8), hdr4_a100(8)),
    "four NICs interleaved": job(Mesh(tp=4, pp=4, dp=4), hdr4_a100(8), schedule="interleaved", vpp=2, p2p="blocking"),
    "stages side by side on a node": job(Mesh(tp=2, pp=4, dp=8, order="pp-tp-dp"), hdr4_a100(8)),
    "three units": job(Mesh(tp=8, pp=2, dp=3), railed(6)),
    "tapered core, stages over pods": job(Mesh(tp=8, pp=4, dp=2), tapered(8)),
    "tapered core, replicas over pods": job(Mesh(tp=8, pp=4, dp=3, order="tp-cp-ep-pp-dp"), tapered(12)),
    "tapered, straddling": job(Mesh(tp=4, pp=3, dp=8), tapered(12), stage_layers=(5, 5, 6)),
}


def sharing_of(one: Job, contention: Contention = HELD) -> Sharing:
    found = lower(one, contention=contention).program.sharing
    assert found is not None
    return found


@pytest.mark.parametrize("contention", [HELD, FREE, ECMP], ids=["held", "free", "ecmp"])
@pytest.mark.parametrize("name", CASES)
def test_folded_equals_unfolded(name: str, contention: Contention) -> None:
    """One flow for all alike ones, with their number as its weight, gives the times of the whole cluster."""
    one = CASES[name]
    folded = lower(one, contention=contention).program
    whole = lower(one, contention=contention, fold=False).program
    assert sum(cls.ranks for cls in folded.classes) == len(whole.classes) == one.mesh.world
    result = simulate(folded)
    assert result.step_time_s == pytest.approx(simulate(whole).step_time_s, rel=1e-9)
    assert result.step_time_s >= evaluate(folded).step_time_s * (1 - 1e-12)


def test_the_cases_contend() -> None:
    """Each kind of overlap occurs above: messages of one rank, messages with gradients, gradients of two stages."""
    lost = {name: simulate(lower(one, contention=True).program).losses for name, one in CASES.items()}
    assert any(loss.pp_s > 2 * loss.dp_s for loss in lost["four NICs interleaved"])
    assert any(loss.pp_s > 0 and loss.dp_s > 0 for loss in lost["four NICs"])
    assert any(loss.dp_s > 0 and loss.pp_s == 0 for loss in lost["stages side by side on a node"])


def test_what_never_meets_is_as_it_was() -> None:
    """To the last bit, with the same classes: flows that do not overlap, and a mesh of which only one kind leaves."""
    one = job(Mesh(tp=8, pp=4, dp=2), selene(8), p2p="blocking", overlap_dp=False)
    assert sharing_of(one).flows
    assert not differences(simulate(lower(one, contention=True).program), simulate(lower(one).program))
    data_only = job(Mesh(dp=32), hdr4_a100(4), schedule="none")
    shared = lower(data_only, contention=True).program
    assert shared.sharing is not None
    assert shared.sharing.flows == ()
    assert not differences(simulate(shared), simulate(lower(data_only).program))


def test_siblings_count_by_weight() -> None:
    """Four NICs for eight ranks: two ranks of a class on each, and each message by its static share."""
    sharing = sharing_of(CASES["four NICs"])
    messages = [flow for flow in sharing.flows if flow.label == "pp"]
    assert {weight for flow in messages for weight in flow.weights} == {2.0}
    assert {flow.bytes_per_s for flow in messages} == {12.5e9}
    assert {link.bytes_per_s for link in sharing.links} == {25e9}
    assert sum(link.links for link in sharing.links) <= 64
    free = sharing_of(CASES["four NICs"], FREE)
    efficiency = CASES["four NICs"].profile["message.efficiency"]
    rates = {flow.bytes_per_s for flow in free.flows if flow.label == "pp"}
    assert max(rates) == pytest.approx(12.5e9 * efficiency, rel=1e-12)


def test_stages_that_stagger_over_a_tapered_core_are_faster_than_the_static_share() -> None:
    """Statically all stages reduce at once over the core; in the step they do so one after the other."""
    one = CASES["tapered core, replicas over pods"]
    static, shared = simulate(lower(one).program), simulate(lower(one, contention=True).program)
    assert shared.step_time_s < 0.95 * static.step_time_s
    program = lower(one, contention=True).program
    assert any("block" in line and "gradient" in line for line in describe_losses(program, shared))


def test_gradients_at_once_cost_the_static_share() -> None:
    """Where both stages start their one bucket together over the core, the last byte arrives when all bytes have
    passed at full rate; the static share says the same of stages of equal size (the larger is 7 % larger here)."""
    one = job(Mesh(tp=8, pp=2, dp=8, order="tp-cp-ep-pp-dp"), tapered(16), overlap_dp=False, schedule="gpipe")
    static, shared = lower(one).program, lower(one, contention=True).program
    assert shared.sharing is not None
    flows = [shared.sharing.flows[shared.sharing.buckets[index, 0]] for index in range(2)]
    idle = tuple(
        replace(cls, chunks={key: ChunkCost(0.0, {}) for key in cls.chunks}, buckets=cls.buckets, tail=())
        for cls in shared.classes
    )
    result = simulate(replace(shared, classes=idle, sharing=replace(shared.sharing, messages={})))
    end_s = max(times.bucket_end_s[0] for times in result.classes)
    alone_s = shared.classes[0].buckets[0].duration_s
    moving_s = [flow.size_bytes / flow.bytes_per_s for flow in flows]
    assert end_s == pytest.approx(alone_s - moving_s[0] + sum(moving_s), rel=1e-12)
    assert end_s == pytest.approx(static.classes[0].buckets[0].duration_s, rel=0.035)


def test_ecmp_is_no_faster_than_ideal_adaptive_routing() -> None:
    one = CASES["three units"]
    adaptive = simulate(lower(one, contention=HELD).program).step_time_s
    hashed = [simulate(lower(one, contention=Contention(Spread("ecmp", seed))).program) for seed in range(3)]
    assert min(result.step_time_s for result in hashed) >= adaptive * (1 - 1e-12)
    assert max(result.step_time_s for result in hashed) > adaptive
    program = lower(one, contention=ECMP).program
    assert any("cable" in line for line in describe_losses(program, simulate(program)))


def test_links_that_cannot_be_overloaded_are_left_out() -> None:
    """On a tree without oversubscription only NICs can be; classes stay as many as without contention."""
    one = CASES["three units"]
    program = lower(one, contention=True).program
    assert len(program.classes) == len(lower(one).program.classes) == 2
    assert program.sharing is not None
    assert all("nic" in link.name for link in program.sharing.links)
