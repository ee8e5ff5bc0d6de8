"""Sweeps. The laws: every legal shape once, and each gets the time that `forecast` gives it alone."""

from dataclasses import replace

import pytest

from traincast.errors import ShapeError, UsageError
from traincast.forecast import forecast
from traincast.mesh import Mesh
from traincast.model import gpt
from traincast.recipe import Recipe
from traincast.scenario import ClusterSpec, Scenario
from traincast.sweep import Shape, enumerate_shapes, evaluate_shapes, parse_axes

SMALL = Scenario(
    name="small",
    model=gpt("small", 1024, 12, 16),
    cluster=ClusterSpec("4 GPUs", gpu="A100-80GB-SXM", nodes=1, gpus_per_node=4),
    mesh=Mesh(tp=2, pp=2),
    recipe=Recipe(global_batch=8, microbatch=1, sequence=1024, recompute="full"),
)


def brute_force(world: int, layers: int, heads: int, batch: int) -> set[Shape]:
    """All shapes by the rules of the design, section 3, tried one by one."""
    found = set()
    for tp in range(1, world + 1):
        for pp in range(1, world + 1):
            for dp in range(1, world + 1):
                for vpp in range(1, layers + 1):
                    for microbatch in range(1, batch + 1):
                        fits = tp * pp * dp == world and heads % tp == 0 and layers % (pp * vpp) == 0
                        whole = batch % (microbatch * dp) == 0
                        m = batch // (microbatch * dp) if whole else 0
                        interleaves = vpp == 1 or (pp > 1 and m % pp == 0)
                        if fits and whole and interleaves:
                            found.add(Shape(tp, pp, dp, vpp, microbatch))
    return found


def test_every_legal_shape_once():
    shapes = enumerate_shapes(SMALL)
    assert len(set(shapes)) == len(shapes)
    assert set(shapes) == brute_force(4, 12, 16, 8)


def test_axes_keep_what_they_name():
    shapes = enumerate_shapes(SMALL, {"tp": (1, 4), "vpp": (1,)})
    assert set(shapes) == {shape for shape in brute_force(4, 12, 16, 8) if shape.tp in (1, 4) and shape.vpp == 1}


def test_a_sweep_agrees_with_the_forecast_of_each_shape():
    outcome = evaluate_shapes(SMALL, enumerate_shapes(SMALL, {"microbatch": (1, 2)}))
    assert outcome.refused == 0
    for row in outcome.ranked[::7]:
        shape = row.shape
        schedule = "none" if shape.pp == 1 else "1f1b" if shape.vpp == 1 else "interleaved"
        recipe = replace(SMALL.recipe, microbatch=shape.microbatch, vpp=shape.vpp, schedule=schedule)
        alone = forecast(replace(SMALL, mesh=Mesh(tp=shape.tp, pp=shape.pp, dp=shape.dp), recipe=recipe))
        assert row.step_time_s == alone.step_time_s
        assert row.tflops_hardware == alone.rates.tflops_per_gpu["hardware"]


def test_what_does_not_fit_is_pruned_and_counted():
    big = replace(SMALL, model=gpt("big", 8192, 12, 64), recipe=replace(SMALL.recipe, recompute="none"))
    shapes = enumerate_shapes(big)
    outcome = evaluate_shapes(big, shapes)
    assert outcome.too_big > 0
    assert len(outcome.ranked) + outcome.too_big + outcome.refused == len(shapes)
    assert all(row.verdict != "does not fit" for row in outcome.ranked)


def test_progress_reaches_the_total():
    shapes = enumerate_shapes(SMALL, {"tp": (4,)})
    done: list[int] = []
    evaluate_shapes(SMALL, shapes, done.append)
    assert sum(done) == len(shapes)


def test_no_shape_is_refused_with_two_numbers():
    with pytest.raises(ShapeError, match="tp 3"):
        enumerate_shapes(SMALL, {"tp": (3,)})


def test_axes_are_parsed():
    assert parse_axes(["tp=1,2,2", "microbatch= 4"]) == {"tp": (1, 2), "microbatch": (4,)}
    assert parse_axes(["cp=2", "schedule=1f1b, zb-h1"]) == {"cp": (2,), "schedule": ("1f1b", "zb-h1")}
    with pytest.raises(UsageError, match="no axis"):
        parse_axes(["ep=2"])
    with pytest.raises(UsageError, match="'zb-h9', which is no schedule"):
        parse_axes(["schedule=zb-h9"])


def test_a_sweep_keeps_the_kind_of_schedule() -> None:
    """Schedules of two chunks a stage stay with two; those of one become 1F1B's kin only where nothing else can be."""
    folded = replace(SMALL, recipe=replace(SMALL.recipe, schedule="zb-v", vpp=2, p2p="async"))
    shapes = enumerate_shapes(folded)
    assert {shape.vpp for shape in shapes if shape.pp > 1} == {2}
    outcome = evaluate_shapes(folded, [shape for shape in shapes if shape.microbatch == 1])
    assert outcome.refused == 0
    assert outcome.legal == len(outcome.ranked)
    split = replace(SMALL, recipe=replace(SMALL.recipe, schedule="zb-h1", p2p="async"))
    (row,) = evaluate_shapes(split, [Shape(2, 2, 1, 1, 1)]).ranked
    assert row.step_time_s == forecast(split, engine="analytic").step_time_s


def test_schedules_of_one_chunk_are_not_replaced_by_interleaving() -> None:
    """What predict refuses, a sweep does not run under another name."""
    searched = replace(SMALL, recipe=replace(SMALL.recipe, schedule="zb-h2", p2p="async"))
    assert {shape.vpp for shape in enumerate_shapes(searched)} == {1}


BOTH_ENDS = replace(
    SMALL,
    model=gpt("small", 1024, 24, 16),
    cluster=ClusterSpec("24 GPUs", gpu="A100-80GB-SXM", nodes=3, gpus_per_node=8),
    mesh=Mesh(tp=2, pp=4, dp=3),
    recipe=replace(SMALL.recipe, global_batch=48, schedule="dualpipe", vpp=2, p2p="async"),
)


def test_shapes_that_a_schedule_does_not_take_are_listed_with_the_reason() -> None:
    """DualPipe: an even number of stages, two microbatches each. Every shape is evaluated, too big, or told why not."""
    shapes = enumerate_shapes(BOTH_ENDS, {"tp": (4,)})
    outcome = evaluate_shapes(BOTH_ENDS, shapes)
    assert len(outcome.ranked) + outcome.too_big + outcome.refused == outcome.legal == len(shapes)
    odd = [line for line in outcome.refusals if line.startswith("tp 4, pp 3,")]
    assert odd
    assert all("an even number of them, but pp is 3 (fix: --axis pp=2,4" in line for line in odd)
    few = next(line for line in outcome.refusals if line.startswith("tp 4, pp 2, dp 3, vpp 2, microbatch 16:"))
    assert "2 * pp 2 = 4, but a step has 1 (fix: --set training.global_batch=192 or more" in few
    assert all(row.shape.pp % 2 == 0 or row.shape.pp == 1 for row in outcome.ranked)


@pytest.mark.parametrize(
    ("axes", "where", "message"),
    [
        ({"pp": (3,)}, "--axis pp=3", "an even number of them, but pp is 3"),
        ({"pp": (4,), "microbatch": (16,)}, "--axis pp=4", "2 * pp 4 = 8, but a step has 1"),
        ({"pp": (4,), "vpp": (1,)}, "--axis vpp=1", "2 chunks a stage, but vpp is 1"),
    ],
)
def test_axes_that_leave_no_shape_of_a_schedule_are_named(axes: dict, where: str, message: str) -> None:
    with pytest.raises(ShapeError) as caught:
        enumerate_shapes(BOTH_ENDS, axes)
    assert caught.value.where == where
    assert message in caught.value.message
    assert "--axis" in str(caught.value.fix) or "--set" in str(caught.value.fix)


def split_sequence(kind: str, sequence: int = 4096, **recipe: object) -> Scenario:
    """Four context-parallel ranks, 16 heads, 8 GPUs for tp, pp and dp."""
    own = replace(SMALL.recipe, sequence=sequence, attention="flash", cp_kind=kind, **recipe)  # type: ignore[arg-type]
    cluster = ClusterSpec("32 GPUs", gpu="A100-80GB-SXM", nodes=4, gpus_per_node=8)
    return replace(SMALL, cluster=cluster, mesh=Mesh(tp=2, cp=4, dp=4), recipe=replace(own, schedule="none"))


def test_heads_that_do_not_suffice_are_listed() -> None:
    """Ulysses over four ranks: 16 heads divide over tp 4 * 4, not over tp 8 * 4."""
    one = split_sequence("ulysses")
    outcome = evaluate_shapes(one, enumerate_shapes(one, {"pp": (1,), "microbatch": (1,)}))
    assert {row.shape.tp for row in outcome.ranked} == {1, 2, 4}
    (line,) = outcome.refusals
    assert line.startswith("tp 8, pp 1, dp 1")
    assert "16 heads do not divide over tp 8 * 4 ranks that exchange heads = 32" in line
    assert "--set training.cp_kind=usp and --set training.cp_ulysses=2" in line
    with pytest.raises(ShapeError, match="16 heads do not divide over tp 8"):
        enumerate_shapes(one, {"tp": (8,)})


def test_sequences_need_two_blocks_a_rank_only_where_they_are_balanced() -> None:
    """As `predict`: 2 cp blocks for a balanced ring, cp for one that is not, and where heads are exchanged."""
    with pytest.raises(ShapeError, match=r"sequence 4100 is not a multiple of 2 \* cp 4 = 8"):
        enumerate_shapes(split_sequence("ring", 4100), {"pp": (1,)})
    assert enumerate_shapes(split_sequence("ring", 4100, cp_balance=False), {"pp": (1,)})
    assert enumerate_shapes(split_sequence("ulysses", 4100), {"pp": (1,)})
