"""Context parallelism from a whole job: both evaluators, folding, traffic, what attention hides and what it cannot."""

from dataclasses import replace

import numpy as np
import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.engine import simulate
from traincast.errors import ShapeError
from traincast.lower import Job, lower
from traincast.lower.breakdown import breakdown
from traincast.lower.classes import CostBook, CostBooks
from traincast.lower.context_report import ContextReport, context_report
from traincast.lower.listing import operations
from traincast.lower.offload import host_bytes_per_s, host_copy
from traincast.lower.recompute import layer_backward
from traincast.lower.rings import ContextSplit, head_groups, ring_groups, ring_turn
from traincast.lower.seats import take_seats
from traincast.lower.spans import rank_spans
from traincast.lower.stages import ChunkPart, block_of, chunk_parts
from traincast.memory import layer_activation_bytes
from traincast.mesh import Mesh
from traincast.model.operators import Collective, FlashAttention, Gemm
from traincast.model.shape import ModelShape
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import Change, Cluster, NodeGroup, NodeRequest, degraded, mixed_cluster, selene, usual_node

MODEL = ModelShape(
    name="small",
    hidden=2048,
    layers=4,
    heads=16,
    kv_heads=8,
    head_dim=128,
    ffn_hidden=8192,
    vocab=51200,
    max_positions=65536,
    gated_mlp=True,
    tied_embeddings=False,
    positions="rotary",
    norm="rmsnorm",
    biases=False,
)
KINDS: dict[str, dict[str, object]] = {
    "ring": {},
    "ring, unbalanced": {"cp_balance": False},
    "gathered": {"cp_kind": "allgather"},
    "gathered, unbalanced": {"cp_kind": "allgather", "cp_balance": False},
    "gathered and kept": {"cp_kind": "allgather", "cp_keep_kv": True},
    "heads": {"cp_kind": "ulysses"},
    "both": {"cp_kind": "usp", "cp_ulysses": 2},
    "both, rings inside": {"cp_kind": "usp", "cp_ulysses": 2, "cp_inner": "ring"},
    "burst": {"cp_kind": "burst"},
    "recomputed": {"recompute": "full"},
    "offloaded": {"offload_activations": 0.9},
    "sharded": {"zero_stage": 3, "overlap_dp": True},
}


def job(mesh: Mesh, cluster: Cluster | None = None, **recipe: object) -> Job:
    base = Recipe(
        global_batch=4 * mesh.dp,
        microbatch=1,
        sequence=16384,
        precision="bf16",
        schedule="1f1b" if mesh.pp > 1 else "none",
        attention="flash",
        gradient_dtype="fp32",
        p2p="async",
    )
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-80gb-sxm")
    place = cluster or selene(max(2, mesh.world // 8))
    return Job(MODEL, mesh, replace(base, **recipe), profile, place, gpu)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluators_folding_and_breakdown_agree(kind: str) -> None:
    """DESIGN section 6: equal to the last bit, folded or not; section 9: the breakdown sums to the step."""
    one = job(Mesh(tp=2, cp=4, pp=2, dp=2), **KINDS[kind])
    folded, unfolded = lower(one).program, lower(one, fold=False).program
    assert len(folded.classes) < len(unfolded.classes) == 32
    des = simulate(folded)
    assert des.step_time_s == evaluate(folded).step_time_s == evaluate(unfolded).step_time_s
    for seconds in breakdown(folded, des).classes_s:
        assert sum(seconds.values()) == pytest.approx(des.step_time_s, rel=1e-12)
        assert min(seconds.values()) >= -1e-12


@pytest.mark.parametrize("schedule", ["interleaved", "zb-h1", "zb-v", "dualpipe"])
def test_every_kind_of_schedule_takes_context_parallelism(schedule: str) -> None:
    """Interleaving, split backwards and two copies: tokens s/cp in every pass, and W needs none of the exchange."""
    chunks = 1 if schedule == "zb-h1" else 2
    mesh = Mesh(tp=2, cp=2, pp=2, dp=1)
    one = job(mesh, schedule=schedule, vpp=chunks, sequence_parallel=True)
    program = lower(one).program
    assert evaluate(program).step_time_s == simulate(program).step_time_s
    if schedule != "interleaved":
        weights = [line for line in operations(one, 0) if line.startswith("W ")]
        assert weights
        assert not any(" cp " in line for line in weights)


def traffic(cp: int, **recipe: object) -> float:
    return lower(job(Mesh(cp=cp), **recipe)).traffic["cp"].bytes_per_gpu


@pytest.mark.parametrize("kind", ["ring", "allgather"])
@pytest.mark.parametrize("cp", [2, 8])
def test_traffic_is_the_closed_form(kind: str, cp: int) -> None:
    """3 (forward, and keys, values and their gradients backward) times 2 b (s/c) kv_heads d (c - 1) elements of two
    bytes, a layer and microbatch; a recomputed forward pass, or attention core, sends once more."""
    block = 2 * 16384 / cp * MODEL.kv_heads * MODEL.head_dim * 2
    steps = 4 * MODEL.layers * (cp - 1) * block
    assert traffic(cp, cp_kind=kind) == pytest.approx(3 * steps)
    assert traffic(cp, cp_kind=kind, recompute="full") == pytest.approx(4 * steps)
    assert traffic(cp, cp_kind=kind, recompute="selective") == pytest.approx(4 * steps)


@pytest.mark.parametrize(("mode", "again", "sent"), [("full_but_attention", 0, 0), ("full_but_late_attention", 1, 1)])
def test_long_sequences_need_not_compute_all_of_attention_again(mode: str, again: int, sent: int) -> None:
    """Sun et al. 2025: with the output of the later half of a sequence kept, the causal core of the first half runs
    again, a quarter of the work, and half of the keys and values travel again; with all of it kept, nothing."""
    block = block_of(job(Mesh(cp=4), cp_kind="burst"))
    full, kept = (layer_backward(block, recompute)[0].operators for recompute in ("full", mode))
    causal = [
        sum(op.flops * (0.5 if op.causal else 1) for op in ops if isinstance(op, FlashAttention))
        for ops in (full, kept)
    ]
    assert causal[1] == pytest.approx(again * causal[0] / 4)
    passed = [
        sum(op.size_bytes for op in ops if isinstance(op, Collective) and op.axis == "cp") for ops in (full, kept)
    ]
    assert passed[1] == sent * passed[0] / 2
    products = [[op for op in ops if isinstance(op, Gemm)] for ops in (full, kept)]
    assert products[0] == products[1]


def test_share_of_traffic_across_nodes() -> None:
    """A ring of 16 over two nodes crosses on 2 of 16 hops; each of 16 ranks sends 8 of 15 parts of its heads across; a
    ring by node crosses once a turn: one of 15 hops forward, one of 15 and two of 16 backward."""
    found = {
        kind: lower(job(Mesh(cp=16), selene(2), sequence=32768, cp_kind=kind)).traffic["cp"]
        for kind in ("ring", "ulysses", "burst")
    }
    shares = {kind: one.cross_node_bytes / one.bytes_per_gpu for kind, one in found.items()}
    assert shares["ring"] == pytest.approx(1 / 8)
    assert shares["ulysses"] == pytest.approx(8 / 15)
    assert shares["burst"] == pytest.approx((1 + 1 + 2) / (15 + 15 + 16))


def test_groups_of_both_kinds_cover_every_rank_once() -> None:
    """Heads inside: neighbours exchange heads, rings stride over them; the other way round otherwise."""
    mesh = Mesh(tp=2, cp=8, dp=2)
    for inside in (True, False):
        split = ContextSplit(ulysses=4, heads_inside=inside)
        heads, rings = head_groups(mesh, split), ring_groups(mesh, split)
        for groups in (heads, rings):
            assert sorted(groups.ravel().tolist()) == list(range(mesh.world))
        assert heads.shape[1] * rings.shape[1] == 8
        neighbours, apart = (heads, rings) if inside else (rings, heads)
        assert set(np.diff(neighbours, axis=1).ravel().tolist()) == {2}
        assert set(np.diff(apart, axis=1).ravel().tolist()) == {2 * neighbours.shape[1]}


def test_rings_by_node_need_equal_parts_in_each_node() -> None:
    by_node = ContextSplit(by_node=True)
    assert ring_turn(Mesh(cp=16), selene(2), by_node) == 8
    assert ring_turn(Mesh(tp=2, cp=16), selene(4), by_node) == 4
    assert ring_turn(Mesh(tp=8, cp=4), selene(4), by_node) == 0  # one rank a node
    assert ring_turn(Mesh(cp=8), selene(2), by_node) == 0  # one node
    assert ring_turn(Mesh(cp=16), selene(2), ContextSplit()) == 0


def step_s(mesh: Mesh, nodes: int, **recipe: object) -> float:
    return evaluate(lower(job(mesh, selene(nodes), **recipe)).program).step_time_s


def test_without_balance_the_last_rank_sets_the_pace() -> None:
    """Of c blocks it attends to c - 1/2, each balanced rank to c/2: 2 - 1/c times as much attention, and its group
    waits for it, labelled cp."""
    mesh = Mesh(cp=8)
    even, uneven = (job(mesh, sequence=131072, cp_balance=balanced) for balanced in (True, False))
    layer = ChunkPart(1, False, False)

    def attention_s(one: Job) -> float:
        book = CostBook(one, chunk_parts(one))
        spans = rank_spans(one.mesh, one.cluster).of(0)
        long, short = (replace(one, recipe=replace(one.recipe, sequence=s)) for s in (131072, 65536))
        assert book.job is one
        # attention grows with s^2, all else with s: t(2s) - 2 t(s) is half of attention at 2s
        times = [CostBook(some, chunk_parts(some)).time("F", layer, spans).duration_s for some in (long, short)]
        return 2 * (times[0] - 2 * times[1])

    assert attention_s(uneven) / attention_s(even) == pytest.approx(2 - 1 / 8, rel=0.06)
    program = lower(uneven).program
    assert len(program.classes) == 8
    found = breakdown(program, evaluate(program)).classes_s
    assert found[0]["cp"] > 10 * found[7]["cp"]


def test_heads_inside_the_node_and_blocks_between_nodes_beat_the_reverse_of_it() -> None:
    """Hierarchical placement: all-to-all over NVLink, few hops over NICs, each with a NIC of its own (LoongTrain 2024,
    head-first placement; Transformer Engine's a2a+p2p)."""
    common = {"cp_kind": "usp", "cp_ulysses": 8, "sequence": 131072}
    mesh, nodes = Mesh(cp=32), 4
    assert step_s(mesh, nodes, **common) < step_s(mesh, nodes, **common, cp_inner="ring")
    assert step_s(mesh, nodes, **common) < step_s(mesh, nodes, sequence=131072)  # one plain ring over all nodes


def test_a_ring_by_node_beats_a_plain_ring_over_nodes() -> None:
    """Sun et al. 2025: every hop of a plain ring waits for the one NIC at its node's end; once a turn does not."""
    mesh = Mesh(cp=32)
    assert step_s(mesh, 4, cp_kind="burst", sequence=131072) < 0.7 * step_s(mesh, 4, sequence=131072)


def report(efficiency: float, sequence: int = 262144, cp: int = 4) -> tuple[ContextReport, float]:
    """What a ring over nodes, one rank a node, is bound by, and the seconds that its step waits for it, when messages
    reach this share of a NIC's rate."""
    one = job(Mesh(tp=8, cp=cp), selene(cp), sequence=sequence)
    one = replace(one, profile=one.profile.replaced(message__efficiency=efficiency))
    lowered = lower(one)
    found = context_report(one, lowered.spans)
    assert found is not None
    return found, breakdown(lowered.program, evaluate(lowered.program)).mean_s["cp"]


def test_a_ring_across_nodes_is_network_bound_below_the_required_rate_and_not_above() -> None:
    """The required rate is bytes of a hop by the time of a block; exposure begins where the wire gives less."""
    plenty, exposed_s = report(0.9)
    assert (plenty.bound, exposed_s) == ("compute", 0.0)
    # bytes / required is the time of a hop; what of it is launch and latency no wire changes
    hop_s = plenty.bytes_per_exchange / plenty.required_bytes_per_s
    fixed_s = plenty.bytes_per_exchange * (1 / plenty.available_bytes_per_s - 1 / (0.9 * 25e9))
    edge = plenty.bytes_per_exchange / (hop_s - fixed_s) / 25e9
    for factor, bound in ((0.5, "network"), (0.98, "network"), (1.02, "compute"), (2.0, "compute")):
        found, exposed_s = report(factor * edge)
        assert found.required_bytes_per_s == plenty.required_bytes_per_s
        assert found.bound == bound
        assert (exposed_s > 0) == (bound == "network")


def test_required_rate_is_the_arithmetic_of_a_block() -> None:
    """A hop moves 2 n kv_heads/t d elements while 2 n^2 heads/t d FLOPs of a half block run: the rate falls as 1/n, and
    with the square of nothing else: twice the sequence, half the rate."""
    short, long = report(0.9)[0], report(0.9, sequence=524288)[0]
    assert short.direction == long.direction == "forward"
    assert short.bytes_per_exchange == 2 * 262144 / 4 * 1 * 128 * 2
    assert short.required_bytes_per_s == pytest.approx(2 * long.required_bytes_per_s, rel=0.05)


def test_where_context_parallelism_stops_paying() -> None:
    """Up to `pays_to_cp` the exchange is hidden, at twice that it is not; more tokens move the point out."""
    near, far = report(0.9)[0].pays_to_cp, report(0.9, sequence=1048576)[0].pays_to_cp
    assert near
    assert far
    assert 4 <= near < far
    assert report(0.9, cp=near)[0].bound == "compute"
    assert report(0.9, cp=2 * near)[0].bound == "network"


def test_messages_between_stages_carry_the_tokens_of_a_rank() -> None:
    """Activations b (s/c) h: a message of a quarter of the bytes for cp 4."""
    sent = {cp: lower(job(Mesh(cp=cp, pp=2))).traffic["pp"].bytes_per_gpu for cp in (1, 4)}
    assert sent[1] == 4 * sent[4] > 0


def test_weight_gradients_are_reduced_over_dp_and_cp() -> None:
    """Every rank of a context-parallel group has the whole weights and a part of their gradient."""
    spans = rank_spans(Mesh(tp=2, cp=4, dp=2), selene(2)).of(0)
    assert spans["dp"].ranks == 8
    assert spans["cp"].ranks == 4
    bytes_of = {mesh.cp: lower(job(mesh)).traffic["dp"].bytes_per_gpu for mesh in (Mesh(cp=4, dp=2), Mesh(dp=8))}
    assert bytes_of[4] == bytes_of[1]


def test_offloading_is_bound_by_the_host_s_link() -> None:
    """A pass is at least as long as its copies: share x layers x kept bytes at the rate of a GPU beside its neighbours
    on one PCIe switch; below that copies cost nothing."""
    one, layer = job(Mesh(cp=4)), ChunkPart(4, False, False)
    rate = host_bytes_per_s(one.cluster)
    assert rate == pytest.approx(31.508e9 / 1.2 / 2, rel=1e-3)  # two GPUs on a PCIe 4 switch

    def pass_s(share: float) -> float:
        some = replace(one, recipe=replace(one.recipe, offload_activations=share))
        return CostBook(some, chunk_parts(some)).time("F", layer, rank_spans(one.mesh, one.cluster).of(0)).duration_s

    copies_s = 4 * layer_activation_bytes(one.model, one.mesh, one.recipe) / rate
    assert copies_s > pass_s(0.0)
    assert pass_s(1.0) == pytest.approx(copies_s, rel=1e-3)
    hidden = 0.9 * pass_s(0.0) / copies_s
    assert pass_s(hidden) == pytest.approx(pass_s(0.0), rel=1e-3)  # the host issues one copy more


def test_evaluators_and_folding_agree_where_activations_leave() -> None:
    """Four stages, of which the first two have more than two passes in flight."""
    one = job(Mesh(cp=2, pp=4, dp=2), offload_activations=0.9)
    folded, unfolded = lower(one).program, lower(one, fold=False).program
    assert simulate(folded).step_time_s == evaluate(folded).step_time_s == evaluate(unfolded).step_time_s
    assert [part.stays for part in chunk_parts(one)] == [False, False, True, True]
    stages = {cls.stage: cls.chunks["F", 0].duration_s for cls in folded.classes}
    plain = {cls.stage: cls.chunks["F", 0].duration_s for cls in lower(job(Mesh(cp=2, pp=4, dp=2))).program.classes}
    assert [stages[stage] > plain[stage] for stage in range(4)] == [True, True, False, False]


def test_each_rank_copies_at_the_rate_of_its_own_node() -> None:
    """A root port of node 1 at half its rate, every stage on both nodes: copies take twice as long there, ranks of both
    rates are kept apart, and folding stays exact."""
    cluster = degraded(selene(2), [Change("slow_link", "n1/pcie0", "n1/cpu0", rate=0.5)])
    whole = host_bytes_per_s(cluster, 0)
    assert host_bytes_per_s(cluster, 8) == pytest.approx(whole / 2)
    mesh = Mesh(pp=4, dp=4, order="pp-tp-cp-ep-dp")
    one = job(mesh, cluster, offload_activations=1.0, sequence=8192)
    books = CostBooks(one, chunk_parts(one), take_seats(one, rank_spans(mesh, cluster)))
    for rank in range(16):
        (copy,) = host_copy(books.at(rank).job, 1, "out")[0].operators
        assert copy.bytes_per_s == host_bytes_per_s(cluster, rank)  # type: ignore[union-attr]
    folded, unfolded = lower(one).program, lower(one, fold=False).program
    assert len(folded.classes) < len(unfolded.classes) == 16
    assert evaluate(folded).step_time_s == evaluate(unfolded).step_time_s
    assert {host_bytes_per_s(cluster, cls.example_rank) for cls in folded.classes} == {whole, whole / 2}


def test_hosts_of_mixed_nodes_have_rates_of_their_own() -> None:
    """H100 nodes reach the host over PCIe 5, A100 nodes over PCIe 4."""
    nodes = (usual_node(NodeRequest(gpu)) for gpu in ("A100-80GB-SXM", "H100-80GB-SXM"))
    cluster = mixed_cluster("mixed", [NodeGroup(node, 1) for node in nodes])
    assert host_bytes_per_s(cluster, 8) > 1.5 * host_bytes_per_s(cluster, 0)


@pytest.mark.parametrize(
    ("recipe", "message", "fix"),
    [
        ({"cp_kind": "usp"}, "cp_kind usp on cp 8 needs cp_ulysses", "cp_ulysses 2 or 4"),
        ({"cp_kind": "usp", "cp_ulysses": 3}, "cp 8 is not a multiple of cp_ulysses 3", "cp_ulysses 2 or 4"),
        ({"cp_kind": "ulysses", "cp_ulysses": 2}, "cp_ulysses 2, but cp_kind ulysses", "cp_kind usp"),
        ({"cp_ulysses": 4}, "cp_ulysses 4, but cp_kind ring exchanges no heads", "cp_kind usp, or no cp_ulysses"),
        ({"cp_kind": "allgather", "cp_ulysses": 8}, "cp_kind allgather exchanges no heads", "cp_kind ulysses"),
        ({"attention": "unfused"}, "which attention unfused cannot", "attention flash"),
        ({"sequence": 16384 + 8}, "does not divide over 16 blocks", "sequence 16384 or 16400"),
    ],
)
def test_splits_that_cannot_be_are_refused(recipe: dict[str, object], message: str, fix: str) -> None:
    with pytest.raises(ShapeError) as caught:
        lower(job(Mesh(cp=8), **recipe))
    assert message in str(caught.value)
    assert fix in str(caught.value.fix)


def test_heads_limit_how_many_ranks_can_exchange_them() -> None:
    """Both numbers and a way out: heads over tp x ranks, and key/value heads that neither divide nor are divided."""
    with pytest.raises(ShapeError, match=r"16 heads do not divide over tp 2 \* 16 ranks that exchange heads = 32"):
        lower(job(Mesh(tp=2, cp=16), cp_kind="ulysses", sequence=32768))
    twelve = replace(job(Mesh(cp=8), cp_kind="ulysses"), model=replace(MODEL, heads=24, kv_heads=12))
    with pytest.raises(ShapeError, match=r"12 kv_heads against tp 1 \* 8 ranks .* neither divides the other"):
        lower(twelve)
