"""The backward in two passes: together they are the whole, and each has what its name says."""

from collections import Counter
from dataclasses import replace
from typing import get_args

import pytest

from traincast.catalog import load_catalog
from traincast.lower import Job
from traincast.lower.chunk import Segment, chunk_time
from traincast.lower.classes import SINGLE, CostBook
from traincast.lower.program import ChunkCost
from traincast.lower.split import SEGMENTS, input_segments, stage_times, weight_segments
from traincast.lower.stages import ChunkPart, backward_segments, chunk_parts
from traincast.mesh import Mesh
from traincast.model.casts import Scaling
from traincast.model.operators import Collective, Gemm, Operator
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.schedule import PassTimes
from traincast.topology import selene

WHOLE = ChunkPart(layers=2, embedding=True, head=True)


def job(tp: int = 1, **recipe: object) -> Job:
    model = gpt("small", hidden=2048, layers=8, heads=16, vocab=51200)
    base = Recipe(global_batch=8, microbatch=2, sequence=2048, gradient_dtype="fp16")
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-selene-megatron2021")
    return Job(model, Mesh(tp=tp), replace(base, **recipe), profile, selene(1), gpu)  # type: ignore[arg-type]


def operators(segments: tuple[Segment, ...]) -> list[Operator]:
    return [op for one in segments for op in one.operators]


def flops(segments: tuple[Segment, ...], phase: str = "compute") -> float:
    return sum(op.flops for one in segments if one.phase == phase for op in one.operators if isinstance(op, Gemm))


CASES: list[dict[str, object]] = [
    {},
    {"attention": "flash"},
    {"tp": 4},
    {"tp": 4, "sequence_parallel": True},
    {"tp": 4, "sequence_parallel": True, "recompute": "full"},
    {"recompute": "selective"},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_parts_make_the_whole(case: dict[str, object]) -> None:
    """Every operator of the backward once, in I or in W; what ran behind another may no longer."""
    one = job(**case)  # type: ignore[arg-type]

    def named(segments: tuple[Segment, ...]) -> Counter[Operator]:
        return Counter(replace(op, behind=0) if isinstance(op, Collective) else op for op in operators(segments))

    parts = named(input_segments(one, WHOLE)) + named(weight_segments(one, WHOLE))
    assert parts == named(backward_segments(one, WHOLE))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights_wait_for_nothing_but_their_inputs(case: dict[str, object]) -> None:
    """W: products of weights, their sums, the embedding, and the gathers of sequence parallelism; one mark a part."""
    one = job(**case)  # type: ignore[arg-type]
    weights, inputs = weight_segments(one, WHOLE), input_segments(one, WHOLE)
    products = [op for op in operators(weights) if isinstance(op, Gemm)]
    assert {op.role for op in products} == {"wgrad"}
    assert {op.name.rpartition(".")[2] for op in operators(weights) if isinstance(op, Collective)} <= {"all_gather"}
    assert sum(one.mark for one in weights) == sum(one.mark for one in backward_segments(one, WHOLE)) == 4
    assert not any(one.mark for one in inputs)
    assert all(one.phase == "compute" for one in weights)
    dgrads = [op for op in operators(inputs) if isinstance(op, Gemm) and op.name.endswith(".dgrad") and op.batch == 1]
    assert sum(op.flops for op in dgrads) == sum(op.flops for op in products)  # 2 m n k each way


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("scaling", [None, *get_args(Scaling)])
def test_both_parts_keep_the_order_of_the_whole(scaling: str | None, copies: bool, autocast: bool) -> None:
    """Zero bubble: what reads gathered data, a product or a gradient stands behind it, in the part that has it."""
    one = job(
        tp=4,
        sequence_parallel=True,
        schedule="zb-h1",
        **({"precision": "fp8", "fp8_scaling": scaling} if scaling else {}),
    )
    traits = replace(one.profile.traits, copies_sequence=copies, autocast=autocast)
    one = replace(one, profile=replace(one.profile, traits=traits))
    whole = [op.name for op in operators(backward_segments(one, WHOLE))]
    inputs, weights = (operators(made(one, WHOLE)) for made in (input_segments, weight_segments))
    for part in (inputs, weights):
        left = iter(whole)
        assert all(op.name in left for op in part)
    assert Counter(whole) == Counter(op.name for op in (*inputs, *weights))
    for part in (inputs, weights):
        names = [op.name for op in part]
        for place, name in enumerate(names):
            if name.endswith(".all_gather.copy"):
                assert names[place - 1] == name.removesuffix(".copy")
    ends = (".transpose", ".transpose.columns", ".accumulate", ".weights.grad.cast", ".wgrad")
    core = ("attention.values", "attention.scores")
    for_weights = [op.name for op in inputs if op.name.endswith(ends) and not op.name.startswith(core)]
    assert not for_weights
    assert any(op.name.endswith(".weights.grad.cast") for op in weights) == autocast


def test_without_attention_the_halves_are_equal() -> None:
    """Qi et al. 2023, Table 1: I does the work of W and that of the attention core, twice its forward."""
    one, layer = job(), ChunkPart(layers=1, embedding=False, head=False)
    s, b, h = 2048, 2, 2048
    assert flops(weight_segments(one, layer)) == 24 * s * b * h * h
    assert flops(input_segments(one, layer)) == 24 * s * b * h * h + 8 * s * s * b * h
    assert flops(SEGMENTS["F"](one, layer)) == 24 * s * b * h * h + 4 * s * s * b * h


def test_recomputation_belongs_to_the_input_part() -> None:
    """Its gathers, too, although they are called as those of the weight gradients are."""
    one = job(tp=4, sequence_parallel=True, recompute="full")
    again = [one for one in input_segments(one, WHOLE) if one.phase == "recompute"]
    assert [one for one in backward_segments(one, WHOLE) if one.phase == "recompute"] == again


def test_the_parts_take_as_long_as_the_whole() -> None:
    """Without tensor parallelism nothing overlaps: the seconds add up, but for the host's run-ahead."""
    one = job()
    book, layer = CostBook(one, chunk_parts(one)), ChunkPart(layers=4, embedding=False, head=False)
    seconds = {
        kind: chunk_time(segments(one, layer), book.machine, {"tp": SINGLE}).duration_s
        for kind, segments in SEGMENTS.items()
    }
    assert seconds["I"] + seconds["W"] == pytest.approx(seconds["B"], rel=0.01)
    assert seconds["I"] > seconds["W"] > 0.3 * seconds["B"]


def test_times_of_a_stage_are_those_of_all_its_chunks() -> None:
    costs = {
        (kind, chunk): ChunkCost(seconds, {}, 0.0 if kind == "W" else 0.5 * chunk)
        for chunk in range(2)
        for kind, seconds in (("F", 1.0), ("B", 9.0), ("I", 2.0), ("W", 3.0))
    }
    assert stage_times(costs) == PassTimes(2.0, 4.0, 6.0, 0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_both_parts_are_issued_by_whom_the_whole_is(recompute: str) -> None:
    """Autograd issues all of a backward but what is computed again in front of it; a forward is Python's."""
    made = job(recompute=recompute)
    for kind in ("B", "I", "W"):
        found = SEGMENTS[kind](made, WHOLE)  # type: ignore[index]
        assert all(one.autograd == (one.phase == "compute") for one in found)
    assert not any(one.autograd for one in SEGMENTS["F"](made, WHOLE))


@pytest.mark.parametrize(
    ("tp", "padded", "columns"), [(1, True, 50304), (1, False, 50257), (8, True, 6400), (8, False, 6282)]
)
def test_columns_of_the_head(tp: int, padded: bool, columns: int) -> None:
    """Megatron-LM pads 50257 words to a multiple of 128 a rank; vTrain's model has 50257 // tp (src/model)."""
    made = job(tp)
    traits = replace(made.profile.traits, pads_vocabulary=padded)
    made = replace(made, model=replace(made.model, vocab=50257), profile=replace(made.profile, traits=traits))
    head = [op for op in operators(SEGMENTS["F"](made, WHOLE)) if op.name == "head.logits"]
    assert [op.n for op in head if isinstance(op, Gemm)] == [columns]
