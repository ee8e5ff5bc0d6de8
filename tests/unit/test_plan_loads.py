"""Bytes of a step by family: every rank of a stage sends alike, and no family of groups is left out."""

from collections import defaultdict

import numpy as np
import pytest

from traincast.forecast import prepare
from traincast.lower import Job
from traincast.lower.classes import CostBooks
from traincast.lower.seats import take_seats
from traincast.lower.stages import chunk_parts
from traincast.lower.traffic import stage_traffic
from traincast.plan import by_kind, job_loads
from traincast.plan.loads import family_traffic, spans_of
from traincast.scenario import load_scenario

SMALL = [("parallelism.dp", "4"), ("training.global_batch", "32"), ("parallelism.tp", "4")]
CASES: dict[str, list[tuple[str, str]]] = {
    "plain": [],
    "interleaved": [("parallelism.vpp", "2"), ("training.schedule", "interleaved")],
    "states sharded": [("training.zero_stage", "1")],
    "two copies": [("training.schedule", "dualpipe"), ("training.p2p", "async"), ("training.global_batch", "64")],
    "replicas of shards": [("training.zero_stage", "3"), ("training.fsdp_shard", "2")],
    "heads exchanged": [("parallelism.cp", "2"), ("training.cp_kind", "ulysses")],
}


def job(name: str) -> Job:
    """SC21's 39.1B model, embeddings tied, on two stages."""
    return prepare(load_scenario("sc21/t1_39p1b", [*SMALL, *CASES[name]])).job


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_and_families_are_counted(name: str) -> None:
    """Two ways to the bytes of all ranks: rank by rank, and by groups from one rank a stage."""
    one = job(name)
    spans = spans_of(one)
    books = CostBooks(one, chunk_parts(one), take_seats(one, spans))
    stage_of = one.mesh.coordinates()["pp"]
    by_rank: dict[str, float] = defaultdict(float)
    for rank in range(one.mesh.world):
        for sent in stage_traffic(books.at(rank), int(stage_of[rank]), spans.of(rank)):
            by_rank["pp" if sent.family in ("next", "previous") else sent.family] += sent.bytes_sent
    by_group = {
        row.name: float(row.group_bytes.sum()) * (row.groups.shape[1] if row.ring else 1)
        for row in family_traffic(one, spans)
    }
    assert by_group == pytest.approx({family: sent for family, sent in by_rank.items() if sent > 0.0}, rel=1e-12)


def test_tied_embeddings_are_reduced_between_the_first_and_the_last_stage() -> None:
    """2 (n-1)/n V h / t elements of fp32 gradients each, n = 2: Megatron-Core's embedding group; on NICs both ways."""
    one = job("plain")
    model, mesh = one.model, one.mesh
    (row,) = (row for row in family_traffic(one, spans_of(one)) if row.name == "embedding")
    size = 4 if one.recipe.gradient_dtype == "fp32" else 2
    rows = -(-model.vocab // (128 * mesh.tp)) * 128
    assert row.groups.shape == (mesh.tp * mesh.dp, 2)
    assert set(row.group_bytes.tolist()) == {2 * 0.5 * rows * model.hidden * size}
    nic = {load.kind: load for load in by_kind(job_loads(one))}["NIC to leaf"].by_family
    crossing = np.count_nonzero([one.cluster.node_index[a] != one.cluster.node_index[b] for a, b in row.groups])
    assert nic["embedding"] == pytest.approx(2 * crossing * row.group_bytes[0])


def test_untied_embeddings_are_not() -> None:
    one = prepare(load_scenario("sc21/t1_39p1b", [*SMALL, ("model", "llama2-7b")])).job
    assert not one.model.tied_embeddings
    assert "embedding" not in {row.name for row in family_traffic(one, spans_of(one))}


def cp_job(kind: str) -> Job:
    """SC21's 39.1B model without a pipeline; groups of 16 context-parallel ranks lie on four nodes, four on each."""
    keys = {
        **{"parallelism.tp": "2", "parallelism.cp": "16", "parallelism.pp": "1", "parallelism.dp": "2"},
        **{
            "parallelism.vpp": "1",
            "training.schedule": "none",
            "training.global_batch": "4",
            "training.microbatch": "1",
        },
        **{"training.sequence": "65536", "training.attention": "flash", "training.recompute": "none"},
    }
    return prepare(load_scenario("sc21/t1_39p1b", [*keys.items(), ("training.cp_kind", kind)])).job


def nic_bytes(one: Job, family: str) -> float:
    return {load.kind: load for load in by_kind(job_loads(one))}["NIC to leaf"].by_family[family]


def test_heads_are_exchanged_with_every_other_rank() -> None:
    """DeepSpeed Ulysses (Jacobs et al. 2023, section 3): queries, keys, values and the output, b s/c h/t elements each,
    go to c ranks, of which c - 1 are others; backward their gradients. Of the 15 peers of a rank 12 are on other nodes,
    where a ring would leave each node once for four ranks."""
    one = cp_job("ulysses")
    model, mesh, recipe = one.model, one.mesh, one.recipe
    assert (mesh.cp, one.cluster.gpus_per_node) == (16, 8)
    elements = recipe.microbatch * recipe.sequence / mesh.cp * model.hidden / mesh.tp
    a_rank = 2 * 4 * elements * 2 * (mesh.cp - 1) / mesh.cp * model.layers * one.microbatches
    (row,) = (row for row in family_traffic(one, spans_of(one)) if row.name == "cp_heads")
    assert row.groups.shape == (mesh.world * (mesh.cp - 1), 2)
    assert row.group_bytes.sum() == pytest.approx(mesh.world * a_rank)
    assert nic_bytes(one, "cp_heads") == pytest.approx(mesh.world * a_rank * 12 / 15)
    inside = {load.kind: load for load in by_kind(job_loads(one))}["GPU to NVLink"].by_family["cp_heads"]
    assert inside == pytest.approx(mesh.world * a_rank * 3 / 15)


def test_gathered_keys_and_values_pass_every_node_once() -> None:
    """Llama 3, section 3.3.2: K and V are gathered forward and backward, their gradients reduced and scattered; as
    a ring each sends (c - 1)/c of 2 b s h/t elements on, out of each node once."""
    one = cp_job("allgather")
    model, mesh, recipe = one.model, one.mesh, one.recipe
    whole = 2 * recipe.microbatch * recipe.sequence * model.hidden / mesh.tp * 2
    a_rank = 3 * whole * (mesh.cp - 1) / mesh.cp * model.layers * one.microbatches
    (row,) = (row for row in family_traffic(one, spans_of(one)) if row.name == "cp")
    assert row.group_bytes == pytest.approx(a_rank)
    nodes, groups = 4, mesh.tp * mesh.dp
    assert nic_bytes(one, "cp") == pytest.approx(nodes * groups * a_rank)
