"""Where groups go on a cluster, and what a step puts on its links."""

from dataclasses import replace

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.forecast import prepare
from traincast.lower import lower
from traincast.lower.spans import rank_spans
from traincast.mesh import Mesh
from traincast.plan import busiest, by_kind, job_loads, nodes_of, reaches, wiring_of
from traincast.plan.loads import family_traffic, spans_of
from traincast.scenario import load_scenario
from traincast.topology import Cluster, NodeRequest, load_cluster, node_cluster, selene, tree_cluster, usual_node
from traincast.topology.clusters import fat_tree_for
from traincast.topology.mixed import NodeGroup, mixed_cluster


def test_the_16_rank_case_on_two_nodes() -> None:
    """TP2 PP4 DP2 (DESIGN §3): TP and DP pairs inside a node, every pipeline over both nodes of a unit."""
    found = {one.family: one for one in reaches(Mesh(tp=2, pp=4, dp=2), selene(2))}
    assert found["tp"].groups == {"node": 8}
    assert found["dp"].groups == {"node": 8}
    assert found["pp"].groups == {"leaf": 4}
    assert found["cp"].groups == {"alone": 16}
    assert found["pp"].farthest == "leaf"
    assert found["tp"].bytes_per_s == 300e9
    assert nodes_of(Mesh(tp=2, pp=4, dp=2), selene(2)) == (0,) * 8 + (1,) * 8


def test_groups_by_tier_are_those_that_units_and_pods_say() -> None:
    """SC21's 145.6B row: stage s holds nodes 24s to 24s+23; units have 20 nodes, pods 140, so stage 5 crosses a pod."""
    mesh, cluster = Mesh(tp=8, pp=8, dp=24), selene(192)
    found = {one.family: one for one in reaches(mesh, cluster)}
    assert found["dp"].groups == {"spine": 56, "core": 8}
    assert found["pp"].groups == {"core": 192}
    for one in found.values():
        assert one.count * one.size == mesh.world or one.family == "embedding"


def test_an_nvlink_domain_of_several_nodes_is_told_apart() -> None:
    """72 GPUs of a rack of 18 trays: a group of 8 spans two trays without leaving NVLink."""
    cluster = load_cluster("nvl72_pod", gpus=72)
    found = {one.family: one for one in reaches(Mesh(tp=8, dp=9), cluster)}
    assert found["tp"].groups == {"NVLink domain": 9}


def test_a_group_that_shares_nics_says_so() -> None:
    """Two GPUs to a NIC: the eight DP groups of a node meet in pairs on its four NICs."""
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, 4))
    found = {one.family: one for one in reaches(Mesh(tp=8, dp=4), node_cluster(design, 4))}
    assert found["dp"].sharing == 2.0
    assert found["dp"].bytes_per_s == pytest.approx(12.5e9)


def test_nodes_of_eight_and_of_four_split_groups_where_they_do() -> None:
    """Two nodes of eight, then four of four: TP groups of eight stay in the first two and need two of the others."""
    eight, four = (usual_node(NodeRequest("A100-80GB-SXM", gpus, gpus)) for gpus in (8, 4))
    cluster = mixed_cluster("8 and 4", [NodeGroup(eight, 2), NodeGroup(four, 4)])
    found = {one.family: one for one in reaches(Mesh(tp=8, dp=4), cluster)}
    assert found["tp"].groups == {"node": 2, "leaf": 2}
    assert nodes_of(Mesh(tp=8, dp=4), cluster)[14:22] == (1, 1, 2, 2, 2, 2, 3, 3)
    spread = {one.family: one for one in reaches(Mesh(tp=4, dp=8), cluster)}
    assert spread["tp"].groups == {"node": 8}


@pytest.mark.parametrize("order", ["tp-cp-ep-dp-pp", "tp-pp-dp", "dp-tp-pp"])
def test_bytes_on_nics_are_those_that_leave_nodes(order: str) -> None:
    """Two ways to the same number: loads of links by routes, and the traffic of a GPU times its share of hops."""
    job = prepare(load_scenario("sc21/t1_145p6b", [("parallelism.order", order)])).job
    loads, lowered = job_loads(job), lower(job)
    nic = {one.kind: one for one in by_kind(loads)}["NIC to leaf"].by_family
    for axis in ("tp", "pp", "dp"):
        crossing = lowered.traffic[axis].cross_node_bytes * job.mesh.world
        routed = nic.get(axis, 0.0) + (nic.get("embedding", 0.0) if axis == "dp" else 0.0)
        assert routed == pytest.approx(crossing, rel=1e-9), axis


def test_what_goes_up_comes_down() -> None:
    """Each kind of link carries as much in one direction as in the other."""
    job = prepare(load_scenario("sc21/t1_145p6b")).job
    found = {one.kind: one.bytes for one in by_kind(job_loads(job))}
    for up, down in (
        ("NIC to leaf", "leaf to NIC"),
        ("leaf to spines", "spines to leaf"),
        ("spines to cores", "cores to spines"),
        ("GPU to NVLink", "NVLink to GPU"),
    ):
        assert found[up] == pytest.approx(found[down])


def test_messages_are_counted_in_both_directions_and_not_round_the_end() -> None:
    """Without interleaving the last stage sends nothing to the first: 2 (p-1) messages a microbatch and pipeline."""
    scenario = load_scenario("sc21/t1_145p6b", [("parallelism.vpp", "1"), ("training.schedule", "1f1b")])
    job = prepare(scenario).job
    traffic = {one.name: one for one in family_traffic(job, rank_spans(job.mesh, job.cluster))}
    pairs = traffic["pp"]
    assert len(pairs.groups) == 2 * 7 * 192
    assert not pairs.ring
    size = 2 * 2048 * 12288 * 2 / 8  # b s h of 2 bytes, split over TP (scatter/gather)
    assert set(np.round(pairs.group_bytes).tolist()) == {48 * size}


def test_alike_links_stand_together() -> None:
    """Every link in use is in one group; their bytes add up."""
    job = prepare(load_scenario("sc21/t1_145p6b")).job
    loads = job_loads(job)
    groups = busiest(loads, 10**6)
    assert sum(one.links for one in groups) == int((loads.bytes.sum(axis=0) > 0).sum())
    assert sum(one.links * one.bytes for one in groups) == pytest.approx(float(loads.bytes.sum()), rel=1e-6)
    seconds = [one.seconds for one in groups]
    assert seconds == sorted(seconds, reverse=True) or max(np.diff(seconds)) < 1e-8
    only = busiest(loads, 3, ("dp",))
    assert {name for one in only for name in one.by_family} == {"dp"}


def two_units() -> Cluster:
    """Four nodes in units of two, on rails."""
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, 8))
    tree = replace(fat_tree_for(design.nic, 8, load_catalog()), nodes_per_unit=2)
    return tree_cluster("two units", design, 4, tree)


def test_a_permuted_rank_inside_a_group_changes_the_ring() -> None:
    """A ring of four nodes on two leaves crosses the spine twice in order, four times when ranks alternate."""
    job = prepare(load_scenario("sc21/t1_145p6b")).job
    tree = two_units()
    sorted_ring = job_loads(replace(job, mesh=Mesh(tp=8, dp=4), cluster=tree))
    alternating = tuple(node * 8 + gpu for node in (0, 2, 1, 3) for gpu in range(8))
    mixed_ring = job_loads(replace(job, mesh=Mesh(tp=8, dp=4, placement=alternating), cluster=tree))
    up = [{one.kind: one.bytes for one in by_kind(one)}["leaf to spines"] for one in (sorted_ring, mixed_ring)]
    assert up[1] == pytest.approx(2.0 * up[0])


def test_a_fold_ties_embeddings_on_the_first_stage() -> None:
    """ZB-V and DualPipeV: first and last part lie on stage 0, so no rank sends embedding gradients to another."""
    mesh = Mesh(tp=2, pp=4, dp=2)
    for schedule in ("zb-v", "dualpipev"):
        wiring = wiring_of(mesh, schedule, 2)
        assert wiring.groups["embedding"].tolist() == [[0], [1], [2], [3]]
        assert (set(wiring.groups), wiring.wraps) == ({"embedding"}, False)
        found = {one.family: one for one in reaches(mesh, selene(2), wiring)}
        assert found["embedding"].groups == {"alone": 4}
        assert found["dp-cp"].groups == {"node": 8}


def test_two_copies_of_the_model_double_the_gradient_groups() -> None:
    """DualPipe: stages s and p - 1 - s hold the same two parts; the groups are those that the forecast reduces in."""
    mesh = Mesh(tp=2, pp=4, dp=2)
    wiring = wiring_of(mesh, "dualpipe", 2)
    assert wiring.groups["dp"].tolist() == [[0, 2, 12, 14], [1, 3, 13, 15], [4, 6, 8, 10], [5, 7, 9, 11]]
    assert wiring.groups["embedding"].ravel().tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    for shape in (mesh, Mesh(tp=2, cp=2, pp=4, dp=2, order="cp-tp-pp-dp")):
        groups = wiring_of(shape, "dualpipe", 2).groups
        reduced = rank_spans(shape, selene(4), "dualpipe").groups["dp"]
        assert {frozenset(row) for row in groups["dp-cp"].tolist()} == {frozenset(row) for row in reduced.tolist()}
    found = {one.family: one for one in reaches(mesh, selene(2), wiring)}
    assert found["dp"].groups == {"leaf": 4}
    assert (found["dp"].size, found["dp"].count) == (4, 4)


def test_interleaving_goes_round_the_end() -> None:
    """Chunk c of the last stage sends to chunk c + 1 of the first: one more hop over nodes for each pipeline."""
    mesh = Mesh(tp=8, pp=4)
    plain, looped = (wiring_of(mesh, *key) for key in (("1f1b", 1), ("interleaved", 2)))
    assert (plain.wraps, looped.wraps) == (False, True)
    assert not looped.groups
    assert wiring_of(Mesh(tp=8), "none", 1).groups == {}


@pytest.mark.parametrize(("schedule", "vpp"), [("1f1b", 1), ("interleaved", 2), ("zb-v", 2), ("dualpipe", 2)])
def test_groups_of_a_scenario_are_those_that_are_priced(schedule: str, vpp: int) -> None:
    """Two ways to the groups of gradients and embeddings: the table of `mesh`, and what a forecast lowers."""
    keys = [("training.schedule", schedule), ("parallelism.vpp", str(vpp)), ("training.p2p", "async")]
    job = prepare(load_scenario("sc21/t1_39p1b", keys)).job
    wiring, lowered = wiring_of(job.mesh, job.recipe.schedule, job.chunks), spans_of(job).groups
    own = {"dp-cp": job.mesh.groups("dp", "cp"), "embedding": job.mesh.embedding_groups(), **wiring.groups}
    assert {frozenset(row) for row in own["dp-cp"].tolist()} == {frozenset(row) for row in lowered["dp"].tolist()}
    pairs = {frozenset(row) for row in lowered["embedding"].tolist() if len(row) > 1}
    assert {frozenset(row) for row in own["embedding"].tolist() if len(row) > 1} == pairs
