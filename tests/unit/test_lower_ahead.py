"""Parameters gathered beside the next step's first forward passes. Laws of the recurrence, and of whole steps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.lower import Job, lower
from traincast.lower.ahead import exposed_s, units_of, updated_bytes
from traincast.lower.stages import ChunkPart
from traincast.mesh import Mesh
from traincast.model import ModelShape
from traincast.model.parameters import layer_parameters, stage_parameters
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.topology import NodeRequest, node_cluster, usual_node

PAIRS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=8)


def test_by_hand() -> None:
    """Gathers 2, 2, 5 beside passes 3, 3, 3: begin 2, 5, 10 (the third gather is issued at 5); 13 less 9."""
    assert exposed_s([2, 2, 5], [3, 3, 3]) == 4
    assert exposed_s([1, 1, 1], [3, 3, 3]) == 1
    assert exposed_s([0, 0], [1, 1]) == 0


@given(PAIRS)
def test_bounds(pairs: list[tuple[float, float]]) -> None:
    """At least the first gather and what the passes but the last cannot cover, at most all gathers."""
    gathers, passes = [g for g, _ in pairs], [f for _, f in pairs]
    lost = exposed_s(gathers, passes)
    slack = 1e-9 * (1 + sum(gathers) + sum(passes))
    assert gathers[0] - slack <= lost <= sum(gathers) + slack
    assert lost >= sum(gathers) - sum(passes[:-1]) - slack


def test_units_are_gathered_in_the_order_of_the_pass() -> None:
    units = units_of(ChunkPart(2, embedding=True, head=True))
    assert [(one.layers, one.embedding, one.head) for one in units] == [
        (0, True, False),
        (1, False, False),
        (1, False, False),
        (0, False, True),
    ]


def job(**changes: object) -> Job:
    model = ModelShape("gpt", 4096, 16, 32, 32, 128, 16384, 51200, 2048)
    recipe = Recipe(
        global_batch=64,
        microbatch=1,
        sequence=2048,
        precision="bf16",
        attention="flash",
        zero_stage=1,
        overlap_dp=True,
        gradient_dtype="bf16",
    )
    cluster = node_cluster(usual_node(NodeRequest(gpu="H100-80GB-SXM")), 4)
    gpu = load_catalog().gpu("H100-80GB-SXM")
    mesh = changes.pop("mesh", Mesh(tp=1, pp=1, dp=32))
    assert isinstance(mesh, Mesh)
    recipe = replace(recipe, **changes)  # type: ignore[arg-type]
    return Job(model, mesh, recipe, load_profile("h100-80gb-sxm"), cluster, gpu)


def step_s(one: Job) -> float:
    return evaluate(lower(one).program).step_time_s


@pytest.mark.parametrize("mesh", [Mesh(tp=1, pp=1, dp=32), Mesh(tp=2, pp=4, dp=4)])
def test_a_step_gains_by_it(mesh: Mesh) -> None:
    """Behind the update all of the gather is exposed; beside the passes a part of it."""
    assert step_s(job(mesh=mesh, overlap_params=True)) < step_s(job(mesh=mesh))


def test_later_chunks_hide_behind_the_first_microbatches() -> None:
    """On a slow network one chunk's passes cover little of its gather; of four, three have p passes to hide behind."""
    mesh = Mesh(tp=2, pp=2, dp=8)
    tails = {}
    for vpp in (1, 4):
        recipe = {"vpp": vpp, "schedule": "interleaved" if vpp > 1 else "1f1b", "overlap_params": True}
        slow = job(mesh=mesh, **recipe)
        slow = replace(slow, profile=slow.profile.replaced(network__inter_efficiency=0.1))
        program = lower(slow).program
        tails[vpp] = max(op.duration_s for cls in program.classes for op in cls.tail if op.name == "parameters")
    assert tails[4] < tails[1]


def test_fp8_parameters_are_half_as_much() -> None:
    own = load_profile("h100-nemo-megatroncore2025")
    fp8 = replace(job(precision="fp8", overlap_params=True), profile=own)
    plain = replace(fp8, profile=replace(own, traits=replace(own.traits, fp8_params=False)))
    assert step_s(fp8) < step_s(plain)


def layers_of(one: Job) -> int:
    """Bytes of the gathered layers in half precision; embedding and head are not among them."""
    return 2 * one.model.layers * layer_parameters(one.model, one.mesh.tp)


def gathered(one: Job) -> tuple[float, float]:
    """The plain gather behind the update [s], and what a rank sends for it in a step [bytes]."""
    program = lower(one)
    (tail,) = {op.duration_s for cls in program.program.classes for op in cls.tail if op.name == "parameters"}
    return tail, program.traffic["dp"].bytes_per_gpu


def test_one_width_for_every_way_of_gathering() -> None:
    """Law: behind the update, beside the passes and on the wire an fp8 run gathers layers in fp8, all else in half
    precision; a bf16 run and a stack without `fp8_params` gather all in half precision."""
    own = load_profile("h100-nemo-megatroncore2025")
    fp8 = replace(job(precision="fp8"), profile=own)
    half = replace(fp8, profile=replace(own, traits=replace(own.traits, fp8_params=False)))
    (narrow_s, narrow_bytes), (wide_s, wide_bytes) = gathered(fp8), gathered(half)
    saved = layers_of(fp8) / 2
    assert wide_bytes - narrow_bytes == pytest.approx(saved * 31 / 32)
    whole = stage_parameters(fp8.model, 1, fp8.model.layers, first=True, last=True).total
    assert updated_bytes(fp8, whole, fp8.model.layers) == 2 * whole - saved
    assert narrow_s / wide_s == pytest.approx(1 - saved / (2 * whole), rel=0.02)
    for same in (half, replace(fp8, recipe=replace(fp8.recipe, precision="bf16"))):
        assert updated_bytes(same, whole, same.model.layers) == 2 * whole
