"""What stages hold under schedules that split the backward: Table 4 of Qi et al. 2023, and laws of I and W."""

from pathlib import Path

import pytest

from traincast.forecast import forecast_prepared, memory_of, prepare
from traincast.lower import Job, lower
from traincast.memory import (
    MemoryJob,
    estimate,
    estimate_job,
    layer_activation_bytes,
    nearest_that_fits,
    overheads_of,
    reported_peak,
    weight_gradient_share,
)
from traincast.memory.activations import backward_bytes
from traincast.memory.flight import chunks_in_flight
from traincast.mesh import Mesh
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.scenario import load_scenario
from traincast.schedule import (
    AUTOMATIC,
    SPLIT,
    TWO_CHUNKS,
    Instruction,
    PassTimes,
    build,
    build_timed,
    held,
    in_flight,
    model_parts,
    parts_of,
)
from traincast.sweep import Shape, evaluate_shapes

GIB, A100 = 2.0**30, 80 * 2.0**30

# hidden, layers, heads; stages; microbatch, batch; peak GB of 1F1B, ZB-1p, ZB-2p; F, I, W, message [ms] (Table 9)
TABLE_4 = [
    ((2304, 22, 24), 8, (6, 144), (30, 32, 59), (18.522, 18.086, 9.337, 0.601)),
    ((4096, 30, 32), 8, (3, 72), (39, 42, 70), (29.718, 29.444, 19.927, 0.527)),
    ((5120, 46, 40), 16, (1, 48), (32, 33, 51), (11.347, 11.248, 8.132, 0.377)),
    ((6144, 62, 48), 32, (1, 96), (43, 44, 74), (10.419, 10.207, 7.715, 0.408)),
]


@pytest.mark.parametrize(("shape", "pp", "batch", "measured_gb", "ms"), TABLE_4)
def test_zero_bubble_table_4(
    shape: tuple[int, int, int],
    pp: int,
    batch: tuple[int, int],
    measured_gb: tuple[int, ...],
    ms: tuple[float, ...],
) -> None:
    """Peaks within 6.5 %, and in the measured order, for the orders that are found for the measured times of passes;
    first and last stage are one layer short. What is counted before an order is known is no less."""
    hidden, layers, heads = shape
    profile = load_profile("a100-roce-zerobubble2023")
    model, mesh = gpt("model", hidden=hidden, layers=layers, heads=heads, vocab=32000), Mesh(pp=pp)
    split = [(layers + 2) // pp] * pp
    split[0] -= 1
    split[-1] -= 1
    found = []
    for schedule in ("1f1b", "zb-1p", "zb-2p"):
        recipe = Recipe(batch[1], batch[0], 1024, schedule=schedule, gradient_dtype="fp16")  # type: ignore[arg-type]
        key, share = (schedule, pp, batch[1] // batch[0], 1), weight_gradient_share(model, mesh, recipe)
        _, order = build_timed(key, PassTimes(*(one * 1e-3 for one in ms)), share)
        known = estimate_job(MemoryJob(model, mesh, recipe, overheads_of(profile), order), A100, split)
        unknown = estimate_job(MemoryJob(model, mesh, recipe, overheads_of(profile)), A100, split)
        assert all(
            one.total_bytes <= most.total_bytes * (1 + 1e-12)
            for one, most in zip(known.per_stage, unknown.per_stage, strict=True)
        )
        found.append(reported_peak(known, profile.traits))
    assert found == pytest.approx(measured_gb, rel=0.065)
    assert found == sorted(found)


def test_weight_gradients_need_32_of_34_and_the_scores() -> None:
    """Qi et al. 2023, Table 1: 32 s b h for W of s b h (34 + 5 a s / h)."""
    model, recipe = gpt("1.5B", hidden=2304, layers=24, heads=24, vocab=32000), Recipe(144, 6, 1024)
    assert weight_gradient_share(model, Mesh(pp=8), recipe) == pytest.approx(32 / (34 + 5 * 24 * 1024 / 2304))


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v"), [("zb-h1", 4, 8, 2), ("zb-h2", 4, 8, 1), ("zb-v", 4, 8, 2), ("looped-bfs", 4, 8, 2)]
)
def test_in_flight_is_that_of_the_instructions(schedule: str, p: int, m: int, v: int) -> None:
    recipe = Recipe(m, 1, 128, schedule=schedule, vpp=v)  # type: ignore[arg-type]
    counted = [sum(chunks_in_flight(recipe, Mesh(pp=p), stage)) for stage in range(p)]
    assert counted == list(in_flight(build(schedule, p, m, v)))


def test_a_shape_that_cannot_be_counts_as_its_bound() -> None:
    recipe = Recipe(4, 1, 128, schedule="dualpipe", vpp=2)
    assert sum(chunks_in_flight(recipe, Mesh(pp=8), 0)) == 8


def test_w_of_the_head_holds_its_input_and_the_gradient_of_the_logits() -> None:
    """Both factors of dW = X^T dY, in half precision, of every microbatch whose W is due: 2 (p - 1) on the last stage
    of ZB-H2 (Qi et al. 2023, section 2.2) beside the one that is at its loss, and p - 1 on that of ZB-H1."""
    model, mesh = gpt("model", hidden=1024, layers=8, heads=16, vocab=51200), Mesh(pp=4)
    tokens = 2 * 512
    for schedule, due in (("zb-h1", 3), ("zb-h2", 6)):
        recipe = Recipe(24, 2, 512, schedule=schedule, recompute="selective")  # type: ignore[arg-type]
        last = estimate(model, mesh, recipe, A100).per_stage[-1]
        layer, share = layer_activation_bytes(model, mesh, recipe), weight_gradient_share(model, mesh, recipe)
        ends = 2 * tokens * 1024
        assert last.activations_bytes == pytest.approx(2 * layer * (1 + share * due) + ends * (2 + due), rel=1e-12)
        assert last.logits_bytes == tokens * 51200 * (10 + 2 * due)


def test_w_of_the_embedding_holds_the_gradient_of_its_output() -> None:
    """All of the embedding's backward is in W (`lower.split`): 2 bytes a token and hidden unit, and 1 of the mask."""
    model, mesh = gpt("model", hidden=1024, layers=8, heads=16, vocab=51200), Mesh(pp=4)
    recipe = Recipe(8, 1, 512, schedule="zb-h2", recompute="full")
    order = build("zb-h2", 4, 8)
    first = estimate_job(MemoryJob(model, mesh, recipe, order=order), A100).per_stage[0]
    # W needs what full recomputation has computed again, 32 of 2 bytes: most is held behind the last but one I
    layer, share = layer_activation_bytes(model, mesh, recipe), weight_gradient_share(model, mesh, recipe)
    assert share == 16.0
    waiting, due = max(
        ((w, d) for w, d in _states(order[0])), key=lambda one: 2 * layer * (one[0] + share * one[1]) + 512 * one[1]
    )
    assert first.activations_bytes == 2 * layer * (waiting + share * due) + 512 * 1024 * (waiting + 3 * due)


def _states(order: tuple[Instruction, ...]) -> set[tuple[int, int]]:
    """(forwards less backwards, input parts less weight parts) behind each instruction of one chunk."""
    kinds = [i.kind for i in order]
    counts = [{kind: kinds[: at + 1].count(kind) for kind in "FIW"} for at in range(len(kinds))]
    return {(one["F"] - one["I"], one["I"] - one["W"]) for one in counts}


SCENARIO = """\
model: {hidden: 2304, layers: 8, heads: 24, vocab: 51200}
cluster: selene
parallelism: {pp: 4}
training: {global_batch: 48, microbatch: 3, sequence: 1024, precision: fp16, gradient_dtype: fp16, schedule: zb-2p}
profile: a100-80gb-sxm
"""


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("schedule", SPLIT)
def test_a_forecast_counts_the_order_that_it_runs(tmp_path: Path, schedule: str, recompute: str) -> None:
    """Activations, logits and what a backward pass adds, on every stage at its fullest, pass by pass as the executed
    instructions have them in flight; and the limit that the search was given holds: p or 2 p microbatches, one that is
    due counting as what its W needs, at most as one (Qi et al. 2023, section 3.1)."""
    (tmp_path / "job.yaml").write_text(SCENARIO.replace("zb-2p", schedule))
    vpp = 2 if schedule in TWO_CHUNKS else 1
    sets = [("training.recompute", recompute), ("parallelism.vpp", str(vpp))]
    prepared = prepare(load_scenario(tmp_path / "job.yaml", sets))
    job, found = prepared.job, forecast_prepared(prepared, engine="analytic")
    order = found.run.program.schedule
    assert found.memory == memory_of(job, order)
    for stage, held_bytes in enumerate(found.memory.per_stage):
        moving = held_bytes.fragmentation_bytes / overheads_of(job.profile).fragmentation
        assert moving == pytest.approx(_pass_by_pass(job, order[stage], stage), rel=1e-12)
    if schedule in AUTOMATIC:
        share = weight_gradient_share(job.model, job.mesh, job.recipe, dropout=job.profile.traits.dropout)
        assert max(held(order, min(1.0, share))) <= AUTOMATIC[schedule] * 4 + 1e-9
        for known, most in zip(found.memory.per_stage, memory_of(job).per_stage, strict=True):
            assert known.total_bytes <= most.total_bytes * (1 + 1e-12)
    else:
        assert found.memory == memory_of(job)


def _pass_by_pass(job: Job, order: tuple[Instruction, ...], stage: int) -> float:
    """Most bytes of a stage, by what each microbatch of each chunk keeps behind each instruction."""
    model, mesh, recipe = job.model, job.mesh, job.recipe
    overheads, masked = overheads_of(job.profile), job.profile.traits.dropout
    layer = layer_activation_bytes(model, mesh, recipe, dropout=masked)
    share = weight_gradient_share(model, mesh, recipe, dropout=masked)
    backward = sum(backward_bytes(MemoryJob(model, mesh, recipe, overheads)))
    tokens, parts = recipe.microbatch * recipe.sequence, parts_of(recipe.schedule, 4, recipe.vpp, stage)
    last, layers = model_parts(recipe.schedule, 4, recipe.vpp) - 1, 8 // model_parts(recipe.schedule, 4, recipe.vpp)
    weights = {(i.microbatch, i.chunk) for i in order if i.kind == "W"}
    kept: dict[tuple[int, int], float] = {}
    losses: set[tuple[int, int]] = set()
    most = 0.0
    for i in order:
        own, part = (i.microbatch, i.chunk), parts[i.chunk]
        losses.discard(own)
        if i.kind == "F":
            kept[own] = layers * layer + tokens * 2304 * ((masked if part == 0 else 0) + (4 if part == last else 0))
            losses |= {own} if part == last else set()
        elif i.kind == "W" or own not in weights:
            del kept[own]
        else:
            ends = (2 + masked if part == 0 else 0) + (2 if part == last else 0)
            kept[own] = layers * layer * share + tokens * 2304 * ends
            kept[own] += tokens * 51200 * 2 if part == last else 0
        # one loss at a time; of its logits the gradient is still there when its layers run backward
        at_loss = overheads.logit_bytes * tokens * 51200 if losses else 0.0
        waiting = min(4, overheads.logit_bytes / 2) * max(0, len(losses) - 1) * tokens * 51200
        beside = max(at_loss, backward + (2 * tokens * 51200 if losses else 0))
        most = max(most, sum(kept.values()) + waiting + beside)
    assert not kept
    return most


def test_a_sweep_says_what_the_forecast_says(tmp_path: Path) -> None:
    """Memory of the order that was found for the shape's own times, not of the search's limit."""
    (tmp_path / "job.yaml").write_text(SCENARIO.replace("51200", "1024").replace("zb-2p", "zb-1p"))
    scenario = load_scenario(tmp_path / "job.yaml", [("training.recompute", "full")])
    (row,) = evaluate_shapes(scenario, [Shape(1, 4, 1, 1, 3)]).ranked
    job = prepare(scenario).job
    own, most = memory_of(job, lower(job).program.schedule), memory_of(job)
    assert row.memory_bytes == own.worst.total_bytes < most.worst.total_bytes


def test_no_remedy_where_nothing_needs_one_and_one_that_holds_where_it_does() -> None:
    """A remedy of a searched schedule fits whatever order is found: by the most that its search allows."""
    model = gpt("model", hidden=2304, layers=8, heads=24, vocab=51200)
    recipe = Recipe(48, 3, 1024, schedule="zb-2p", gradient_dtype="fp16")
    most = estimate(model, Mesh(pp=4), recipe, A100).worst.total_bytes
    remedy = nearest_that_fits(model, Mesh(pp=4), recipe, 0.9 * most)
    assert remedy is not None
    assert remedy.changes
    for after_input in (1.0, weight_gradient_share(model, remedy.mesh, remedy.recipe)):
        key = (remedy.recipe.schedule, remedy.mesh.pp, remedy.recipe.microbatches(remedy.mesh.dp), 1)
        _, order = build_timed(key, PassTimes(1.0, 1.1, 0.5, 0.1), min(1.0, after_input))
        held_bytes = estimate_job(MemoryJob(model, remedy.mesh, remedy.recipe, order=order), 0.9 * most)
        assert held_bytes.verdict == "fits"
