"""Sharded data parallelism in a step: bytes by closed form, overlap laws, limits, evaluators that agree."""

from dataclasses import replace

import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.engine import simulate
from traincast.errors import ShapeError
from traincast.lower import Job, lower
from traincast.lower import chunk as chunk_module
from traincast.lower.chunk import Segment, chunk_time
from traincast.lower.classes import CostBook
from traincast.lower.offload import host_bytes_per_s
from traincast.lower.sharded import Root, Unit, backward_pass, forward_pass, owners
from traincast.lower.stages import chunk_parts
from traincast.mesh import Mesh, hsdp_mesh
from traincast.model.operators import Collective, MemoryBound, Operator
from traincast.model.parameters import embedding_parameters, head_parameters, layer_parameters, norm_parameters
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import selene

MODEL = gpt("small", hidden=2048, layers=8, heads=16, vocab=51200)
LAYERS = 8 * layer_parameters(MODEL)
ROOT = embedding_parameters(MODEL) + norm_parameters(MODEL)
FSDP: dict[str, object] = {"zero_stage": 3, "overlap_dp": True}


def job(mesh: Mesh, **recipe: object) -> Job:
    base = Recipe(
        global_batch=4 * mesh.dp,
        microbatch=1,
        sequence=2048,
        precision="bf16",
        schedule="none" if mesh.pp == 1 else "1f1b",
        attention="flash",
        gradient_dtype="bf16",
    )
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-80gb-sxm")
    nodes = -(-mesh.world // 8)
    return Job(MODEL, mesh, replace(base, **recipe), profile, selene(nodes), gpu)  # type: ignore[arg-type]


def step_s(one: Job) -> float:
    return evaluate(lower(one).program).step_time_s


CASES = {
    "zero-3": (Mesh(dp=16), FSDP),
    "zero-3 exposed": (Mesh(dp=8), {"zero_stage": 3}),
    "zero-3 beside tp": (Mesh(tp=2, dp=8), {**FSDP, "sequence_parallel": True, "recompute": "full"}),
    "zero-3, kept after forward": (Mesh(dp=8), {**FSDP, "reshard_after_forward": False}),
    "zero-3 in a pipeline": (Mesh(tp=2, pp=2, dp=4), FSDP),
    "zero-3 in a pipeline, gathered in each pass": (Mesh(pp=2, dp=8), {**FSDP, "reshard_after_forward": True}),
    "zero-2": (Mesh(dp=16), {"zero_stage": 2, "overlap_dp": True}),
    "zero-2, summed locally": (Mesh(dp=16), {"zero_stage": 2, "no_sync": True, "overlap_dp": True}),
    "hsdp": (Mesh(dp=32), {**FSDP, "fsdp_shard": 8}),
    "hsdp across nodes": (Mesh(dp=32), {**FSDP, "fsdp_shard": 16}),
    "matrices": (Mesh(dp=16), {**FSDP, "prefetch_bytes": 4e6}),
    "ddp after each microbatch": (Mesh(dp=16), {"no_sync": False, "overlap_dp": True}),
    "zero-1 in groups": (Mesh(dp=16), {"zero_stage": 1, "fsdp_shard": 8}),
    "on the host": (Mesh(dp=8), {**FSDP, "offload_states": "parameters"}),
}


@pytest.mark.parametrize("name", CASES)
def test_engine_and_recurrence_agree_and_folding_changes_nothing(name: str) -> None:
    mesh, recipe = CASES[name]
    folded, whole = (lower(job(mesh, **recipe), fold=fold).program for fold in (True, False))
    assert len(folded.classes) < len(whole.classes) == mesh.world
    seconds = evaluate(folded).step_time_s
    assert simulate(folded).step_time_s == seconds
    assert evaluate(whole).step_time_s == seconds


def gradients_and_parameters(one: Job) -> float:
    return lower(one).traffic["dp"].bytes_per_gpu


def test_zero_3_moves_three_parameters_a_microbatch_where_ddp_moves_two_a_step() -> None:
    """Rajbhandari et al. 2020, §7; the root is gathered once (PyTorch FSDP keeps it from forward to backward)."""
    ranks, microbatches, width = 8, 4, 2.0
    share = (ranks - 1) / ranks
    ddp = gradients_and_parameters(job(Mesh(dp=ranks)))
    assert ddp == pytest.approx(2 * width * (LAYERS + ROOT) * share)
    fsdp = gradients_and_parameters(job(Mesh(dp=ranks), **FSDP))
    assert fsdp == pytest.approx(microbatches * width * (3 * LAYERS + 2 * ROOT) * share)
    kept = gradients_and_parameters(job(Mesh(dp=ranks), **FSDP, reshard_after_forward=False))
    assert kept == pytest.approx(microbatches * width * 2 * (LAYERS + ROOT) * share)
    local = gradients_and_parameters(job(Mesh(dp=ranks), **FSDP, no_sync=True))
    assert local == pytest.approx(width * (microbatches * (2 * LAYERS + ROOT) + LAYERS + ROOT) * share)
    zero_2 = gradients_and_parameters(job(Mesh(dp=ranks), zero_stage=2))
    assert zero_2 == pytest.approx(width * (microbatches + 1) * (LAYERS + ROOT) * share)
    single = gradients_and_parameters(job(Mesh(dp=ranks), **FSDP, reduce_dtype="fp32"))
    assert single - fsdp == pytest.approx(microbatches * width * (LAYERS + ROOT) * share)
    assert gradients_and_parameters(job(Mesh(dp=ranks), **FSDP, prefetch_bytes=1e6)) == pytest.approx(fsdp)


def test_under_autocast_gathers_are_single_precision() -> None:
    """FSDP casts a gathered parameter to MixedPrecision.param_dtype; without it shards travel as they are (4 bytes)."""
    one = job(Mesh(dp=8), **FSDP)
    cast = replace(one, profile=replace(one.profile, traits=replace(one.profile.traits, autocast=True)))
    gathered = 4 * (2 * LAYERS + ROOT) * 7 / 8
    assert gradients_and_parameters(cast) - gradients_and_parameters(one) == pytest.approx(2.0 * gathered)


def test_under_autocast_gradients_are_joined_cast_and_divided() -> None:
    """FSDP1's flat parameter: 4 + 4 to join its gradients, 4 + 2 to cast them, 2 + 2 to divide; else 2 + 2 to copy."""
    one = job(Mesh(dp=8), **FSDP)
    cast = replace(one, profile=replace(one.profile, traits=replace(one.profile.traits, autocast=True)))
    root = Root(embedding=True, head=True)

    def copied(of: Job) -> float:
        segments = backward_pass(of, root, [Unit((Segment((), mark=True),))])
        found = [op for one in segments for op in one.operators if op.name.endswith("gradients.copy")]
        return sum(op.bytes_moved for op in found if isinstance(op, MemoryBound))

    assert copied(cast) - copied(one) == (18 - 4) * (layer_parameters(MODEL) + root.parameters(one))


def test_a_pipeline_gathers_and_reduces_once_a_step() -> None:
    """Llama 3, §3.3.2: parameters stay gathered, gradients are reduce-scattered behind the last microbatch."""
    one = job(Mesh(pp=2, dp=4), **FSDP)
    whole = 2.0 * (LAYERS + 2 * embedding_parameters(MODEL) - 2048 * 2048 + norm_parameters(MODEL)) / 2
    tied = 2.0 * head_parameters(MODEL)  # all-reduced by the first and the last stage
    assert gradients_and_parameters(one) == pytest.approx(2 * whole * 3 / 4 + tied)
    again = job(Mesh(pp=2, dp=4), **FSDP, reshard_after_forward=True)
    assert gradients_and_parameters(again) > 4 * 1.9 * whole * 3 / 4
    tail = {op.name: op.duration_s for op in lower(one).program.classes[0].tail}
    behind = {op.name: op.duration_s for op in lower(job(Mesh(pp=2, dp=4), zero_stage=1)).program.classes[0].tail}
    assert 0 < tail["parameters"] < behind["parameters"]  # most of it runs beside the first passes


def test_hsdp_crosses_nodes_with_its_own_share_only() -> None:
    """Shards inside nodes of 8, four replicas: of an all-reduce over the nodes each GPU sends 1/8 of the gradients."""
    hybrid = lower(job(Mesh(dp=32), **FSDP, fsdp_shard=8)).traffic["dp"]
    crossing = 4 * 2.0 * 2 * (LAYERS + ROOT) / 8 * 3 / 4
    assert hybrid.cross_node_bytes == pytest.approx(crossing)
    whole = lower(job(Mesh(dp=32), **FSDP)).traffic["dp"]
    assert whole.cross_node_bytes == pytest.approx(whole.bytes_per_gpu / 8)  # a ring crosses on 4 of 32 hops
    assert hybrid.cross_node_bytes < whole.cross_node_bytes


def test_hsdp_is_fsdp_where_one_group_shards_and_ddp_where_none_does() -> None:
    fsdp = job(Mesh(dp=16), **FSDP)
    assert step_s(job(Mesh(dp=16), **FSDP, fsdp_shard=16)) == step_s(fsdp)
    alone = job(Mesh(dp=16), **FSDP, fsdp_shard=1)
    assert step_s(alone) == step_s(job(Mesh(dp=16), overlap_dp=True, no_sync=False))


def test_groups_are_those_of_the_submesh() -> None:
    mesh = Mesh(tp=2, dp=16)
    spans = lower(job(mesh, **FSDP, fsdp_shard=4)).spans
    pair = hsdp_mesh(mesh, 4, 4, ("cp", "dp"))
    assert spans.groups["shard"].tolist() == pair.groups("shard").tolist()
    assert spans.groups["replica"].tolist() == pair.groups("replicate").tolist()


def test_stages_0_and_1_communicate_between_passes_only() -> None:
    """Nothing of the dp axis is inside a pass, and no replica waits for another one there."""
    for stage in (0, 1):
        for cls in lower(job(Mesh(dp=16), zero_stage=stage, overlap_dp=True)).program.classes:
            assert cls.meets == ()
            assert all("dp" not in cost.labels_s for cost in cls.chunks.values())
            assert cls.buckets


def test_replicas_that_gather_wait_for_each_other_in_each_pass() -> None:
    program = lower(job(Mesh(tp=2, dp=4), **FSDP), fold=False).program
    first = program.classes[0]
    assert first.meets == (1, 2, 4, 6)
    assert first.meet_labels == {2: "dp", 4: "dp", 6: "dp"}
    assert first.buckets == ()


# laws of overlap, with operators that take given times: a unit computes c, a gather takes g, a reduction r


class Book(dict[str, float]):
    traits = load_profile("a100-80gb-sxm").traits


class Machine:
    profile = Book({"overlap.slowdown": 0.0})


def run(segments: tuple[Segment, ...]) -> chunk_module.ChunkTime:
    return chunk_time(segments, Machine(), {})  # type: ignore[arg-type]


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Seconds by kind of operator; copies into and out of buffers take none."""
    seconds = {"all_gather": 0.0, "reduce_scatter": 0.0, "work": 1.0}

    def device(op: Operator, machine: object, spans: object) -> float:
        return seconds[op.op] if isinstance(op, Collective) else seconds.get(op.name, 0.0)

    monkeypatch.setattr(chunk_module, "operator_seconds", device)
    monkeypatch.setattr(chunk_module, "host_seconds", lambda op, machine, autograd: 0.0)
    return seconds


def units(count: int) -> list[Unit]:
    return [Unit((Segment((MemoryBound("work", 1.0),)),))] * count


NO_ROOT = Root(embedding=False, head=False)


@pytest.mark.parametrize("gather", [0.25, 1.0, 3.0])
def test_exposed_is_what_gathers_take_longer_than_compute(times: dict[str, float], gather: float) -> None:
    """L layers: the first gather, then max(g, c) a layer; without prefetching g + c a layer."""
    times["all_gather"] = gather
    count = 6
    found = run(forward_pass(job(Mesh(dp=8), **FSDP), NO_ROOT, units(count)))
    assert found.duration_s == pytest.approx(gather + count + (count - 1) * max(0.0, gather - 1.0))
    assert found.labels_s["dp"] == pytest.approx(found.duration_s - count)
    exposed = run(forward_pass(job(Mesh(dp=8), **FSDP, prefetch=0), NO_ROOT, units(count)))
    assert exposed.duration_s == pytest.approx(count * (gather + 1.0))
    assert run(forward_pass(job(Mesh(dp=8), zero_stage=3), NO_ROOT, units(count))) == exposed  # nothing overlaps


def test_two_gathers_ahead_cover_one_slow_one(times: dict[str, float]) -> None:
    """Deeper prefetching is never slower; with equal layers the wire is the bound."""
    times["all_gather"] = 2.0
    deep, shallow = (run(forward_pass(job(Mesh(dp=8), **FSDP, prefetch=n), NO_ROOT, units(6))) for n in (2, 1))
    assert deep.duration_s == shallow.duration_s == pytest.approx(6 * 2.0 + 1.0)


@pytest.mark.parametrize("reduction", [0.5, 1.0, 2.0])
def test_a_reduction_runs_beside_the_layers_before_it(times: dict[str, float], reduction: float) -> None:
    times["reduce_scatter"] = reduction
    kept = job(Mesh(dp=8), **FSDP, reshard_after_forward=False)
    found = run(backward_pass(kept, NO_ROOT, units(5)))
    assert found.duration_s == pytest.approx(5 + reduction + 4 * max(0.0, reduction - 1.0))
    beside = job(Mesh(dp=8), zero_stage=3, reshard_after_forward=False)
    assert run(backward_pass(beside, NO_ROOT, units(5))).duration_s == pytest.approx(5 * (1 + reduction))


def test_gathers_and_reductions_of_one_communicator_queue_up(times: dict[str, float]) -> None:
    """Backward, g + r > c: each layer but the last waits for its gather behind the reduction of the layer before."""
    times |= {"all_gather": 1.0, "reduce_scatter": 1.0}
    found = run(backward_pass(job(Mesh(dp=8), **FSDP), NO_ROOT, units(4)))
    # gather 1, then 2 beside compute 1, reduction 1 ends at 3, gather 3 at 4, ...: the wire never rests
    assert found.duration_s == pytest.approx(4 * 2.0)


def test_matrices_gathered_in_part_expose_the_rest() -> None:
    """DeepSpeed: of each matrix no more than the prefetch bucket runs ahead; with all of it, or none, as expected."""
    steps = [step_s(job(Mesh(dp=64), **FSDP, prefetch_bytes=size)) for size in (0.0, 4e6, 16e6, 1e9)]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_a_shared_connection_starts_kernels_in_order() -> None:
    """CUDA_DEVICE_MAX_CONNECTIONS=1: compute issued behind a gather that waits for its stream waits as well."""

    class OneConnection(Machine):
        profile = Book({"overlap.slowdown": 0.0})

    OneConnection.profile.traits = replace(Book.traits, one_connection=True)
    gather = Collective("g", "all_gather", "dp", 1.0, behind=3, needs=False)
    ops = (gather, gather, MemoryBound("work", 1.0), MemoryBound("work", 1.0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_module, "host_seconds", lambda op, machine, autograd: 0.0)
        seconds = {"g": 3.0, "work": 1.0}
        patch.setattr(chunk_module, "operator_seconds", lambda op, machine, spans: seconds[op.name])
        assert run((Segment(ops),)).duration_s == 6.0
        found = chunk_time([Segment(ops)], OneConnection(), {})  # type: ignore[arg-type]
    assert found.duration_s == 6.0
    assert found.labels_s["dp"] == pytest.approx(4.0)  # work begins when the second gather does, at 3
    assert found.labels_s["compute"] == 2.0


def test_a_smaller_last_microbatch_takes_its_own_time() -> None:
    """Without a pipeline the step is the sum of its passes: two microbatches of 4 sequences and one of 2."""
    ragged, whole, small = (
        job(Mesh(dp=8), **FSDP, global_batch=8 * batch, microbatch=size) for batch, size in ((10, 4), (4, 4), (2, 2))
    )
    assert (ragged.microbatches, ragged.recipe.last_microbatch(8)) == (3, 2)

    def passes_s(one: Job) -> float:
        spans = lower(one).spans.of(0)
        book = CostBook(one, chunk_parts(one))
        return sum(book.time(kind, book.parts[0], spans).duration_s for kind in ("F", "B"))  # type: ignore[arg-type]

    assert 3 * passes_s(ragged) == pytest.approx(2 * passes_s(whole) + passes_s(small))
    sent = [lower(one).traffic["dp"].bytes_per_gpu for one in (ragged, whole)]
    assert sent[0] == pytest.approx(3 * sent[1])


def test_states_on_the_host_take_the_way_there() -> None:
    """Ren et al. 2021, §4: gradients out, update by the node's cores, parameters back; bytes over the links' rate."""
    plain, host = (
        job(Mesh(dp=8), overlap_dp=True, zero_stage=1, **more) for more in ({}, {"offload_states": "optimizer"})
    )
    tails = [{op.name: op.duration_s for op in lower(one).program.classes[0].tail} for one in (plain, host)]
    own, rate = (LAYERS + ROOT) / 8, host_bytes_per_s(plain.cluster)
    assert tails[1]["gradients to host"] == pytest.approx(2.0 * own / rate)
    assert tails[1]["parameters from host"] == pytest.approx(2.0 * own / rate)
    assert tails[1]["optimizer"] == pytest.approx((LAYERS + ROOT) * plain.profile["host.update"] / 1e6)
    assert tails[1]["optimizer"] > tails[0]["optimizer"]
    fetched = job(Mesh(dp=8), **FSDP, offload_states="parameters")
    assert step_s(fetched) > step_s(job(Mesh(dp=8), **FSDP))


def test_owners_broadcast_whole_matrices_one_after_the_other() -> None:
    """Four matrices a layer of a plain MLP and the tied embedding: 33 owners, however many ranks there are, each with a
    chain of all ranks. Inside a node chains are few and short."""
    assert [owners(job(Mesh(dp=dp), zero_stage=1), Root(True, True), 8) for dp in (8, 32, 64)] == [8, 32, 33]
    assert owners(job(Mesh(dp=64), zero_stage=1, fsdp_shard=8), Root(True, True), 8) == 8
    more_s = {}
    for name, recipe in {"all": {}, "groups": {"fsdp_shard": 8}}.items():
        plain = job(Mesh(dp=512), zero_stage=1, **recipe)
        traits = replace(plain.profile.traits, owners=True)
        chained = replace(plain, profile=replace(plain.profile, traits=traits))
        tails = [{op.name: op.duration_s for op in lower(one).program.classes[0].tail} for one in (plain, chained)]
        assert {name for name in tails[0] if tails[0][name] != tails[1][name]} == {"parameters"}
        more_s[name] = tails[1]["parameters"] - tails[0]["parameters"]
    assert 33 * 511 * 5e-6 < more_s["all"] < 33 * 511 * 30e-6
    assert more_s["groups"] < 0.02 * more_s["all"]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"zero_stage": 3, "fsdp_shard": 3}, "fsdp_shard 3 does not divide 16 replicas"),
        ({"fsdp_shard": 4}, "zero_stage 0 shards nothing"),
    ],
)
def test_groups_that_cannot_be(recipe: dict[str, object], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        lower(job(Mesh(dp=16), **recipe))


def test_what_is_not_modelled_is_refused() -> None:
    with pytest.raises(ShapeError, match="cannot share links yet"):
        lower(job(Mesh(dp=16), **FSDP, fsdp_shard=8), contention=True)
    with pytest.raises(ShapeError, match="gathers or reductions in each pass of schedule zb-h1"):
        lower(job(Mesh(pp=2, dp=4), **FSDP, schedule="zb-h1", reshard_after_forward=True))
