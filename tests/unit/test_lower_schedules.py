"""Every schedule from a whole job: both evaluators, folding, where the model's ends lie, what is reduced and held."""

from dataclasses import replace

import numpy as np
import pytest

from traincast.analytic import evaluate
from traincast.catalog import load_catalog
from traincast.engine import simulate
from traincast.lower import Job, lower
from traincast.lower.breakdown import breakdown
from traincast.lower.classes import CostBook
from traincast.lower.flows import Contention
from traincast.lower.spans import gradient_groups, rank_spans
from traincast.lower.stages import chunk_parts
from traincast.memory import estimate, weight_gradient_share
from traincast.mesh import Mesh
from traincast.model.parameters import embedding_parameters, head_parameters, layer_parameters
from traincast.model.shape import gpt
from traincast.profile import load_profile
from traincast.recipe import Recipe
from traincast.schedule import SCHEDULES, SPLIT, TWO_CHUNKS
from traincast.topology import selene

PIPELINED = tuple(name for name in SCHEDULES if name != "none")


def job(schedule: str, mesh: Mesh | None = None, **recipe: object) -> Job:
    mesh = mesh or Mesh(tp=2, pp=4, dp=2)
    chunks = 2 if schedule in (*TWO_CHUNKS, "interleaved") else 1
    base = Recipe(
        global_batch=8 * mesh.dp,
        microbatch=1,
        sequence=1024,
        schedule=schedule,  # type: ignore[arg-type]
        vpp=chunks,
        p2p="async",
        gradient_dtype="fp16",
    )
    model = gpt("small", hidden=1024, layers=16, heads=16, vocab=51200)
    gpu, profile = load_catalog().gpu("A100-80GB-SXM"), load_profile("a100-80gb-sxm")
    recipe = {"overlap_dp": True} | recipe
    return Job(model, mesh, replace(base, **recipe), profile, selene(max(2, mesh.world // 8)), gpu)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", PIPELINED)
def test_engine_and_recurrence_agree_and_every_instant_has_a_label(schedule: str) -> None:
    """DESIGN section 6: equal to the last bit; section 9: the breakdown sums to the step."""
    program = lower(job(schedule)).program
    des, recurrence = simulate(program), evaluate(program)
    assert des.step_time_s == recurrence.step_time_s
    assert sum(breakdown(program, des).mean_s.values()) == pytest.approx(des.step_time_s, rel=1e-12)


@pytest.mark.parametrize("schedule", PIPELINED)
def test_folding_changes_nothing(schedule: str) -> None:
    """One class a kind of rank stands for all of them, float-equal."""
    one = job(schedule, Mesh(tp=2, pp=4, dp=2))
    folded, unfolded = lower(one).program, lower(one, fold=False).program
    assert len(folded.classes) < len(unfolded.classes) == 16
    assert evaluate(folded).step_time_s == evaluate(unfolded).step_time_s


@pytest.mark.parametrize("schedule", [name for name in SPLIT if name != "dualpipe"])
def test_splitting_the_backward_shortens_the_pipeline(schedule: str) -> None:
    """Qi et al. 2023: the same work with less waiting than 1F1B, wherever nothing is communicated but messages."""
    mesh = Mesh(pp=4)
    plain, split = (lower(job(name, mesh)).program for name in ("1f1b", schedule))
    assert evaluate(split).step_time_s < evaluate(plain).step_time_s


@pytest.mark.parametrize("schedule", PIPELINED)
def test_every_parameter_is_reduced_once(schedule: str) -> None:
    """Gradient bytes of the buckets of all stages are those of one model, or of two copies in DualPipe."""
    one = job(schedule, Mesh(pp=4, dp=2))
    model, copies = one.model, 2 if schedule == "dualpipe" else 1
    program = lower(one).program
    stages = {cls.stage: cls for cls in program.classes}
    sent = sum(bucket.bytes_per_rank for cls in stages.values() for bucket in cls.buckets)
    tied_apart = 0 if schedule in TWO_CHUNKS else head_parameters(model)  # a second copy on the last stage
    norm = 2 * model.hidden
    once = 16 * layer_parameters(model) + embedding_parameters(model) + norm + tied_apart
    assert sent == 2 * copies * once


def test_the_ends_of_a_folded_model_share_a_stage() -> None:
    """ZB-V: embedding and head on the first stage, so that nothing is summed between stages; 1F1B has to."""
    folded, straight = job("zb-v"), job("1f1b")
    names = [{op.name for cls in lower(one).program.classes for op in cls.tail} for one in (folded, straight)]
    assert "embedding" not in names[0]
    assert "embedding" in names[1]
    parts = chunk_parts(folded)
    assert len(parts) == 8
    assert [part.embedding for part in parts] == [True] + [False] * 7
    assert CostBook(folded, parts).held(0) == (0, 7)
    assert CostBook(folded, parts).held(3) == (3, 4)


def test_dualpipe_reduces_over_both_copies() -> None:
    """Stage s and p - 1 - s hold the same two parts: one gradient group of twice dp ranks, everybody in one."""
    mesh = Mesh(tp=2, pp=4, dp=2)
    groups = gradient_groups(mesh, "dualpipe")
    assert groups.shape == (4, 4)
    assert sorted(groups.ravel().tolist()) == list(range(16))
    where = mesh.coordinates()
    for members in groups:
        assert len(set(where["tp"][members].tolist())) == 1
        stages = set(where["pp"][members].tolist())
        assert sum(stages) == 3
        assert len(stages) == 2
    assert np.array_equal(gradient_groups(mesh, "1f1b"), mesh.groups("dp", "cp"))
    assert rank_spans(mesh, selene(2), "dualpipe").of(0)["dp"].ranks == 4


def test_dualpipe_holds_twice_the_weights_and_sharding_halves_that_again() -> None:
    """DeepSeek-V3 report, Table 2: parameters twice; optimiser states over twice as many ranks."""
    both, straight = (estimate(one.model, one.mesh, one.recipe, 80e9) for one in (job("dualpipe"), job("dualpipev")))
    layers = [sum(stage.parameters_bytes for stage in found.per_stage) for found in (both, straight)]
    assert layers[0] == 2 * layers[1]
    sharded = [job(name, zero_stage=1) for name in ("dualpipe", "dualpipev")]
    found = [estimate(one.model, one.mesh, one.recipe, 80e9).per_stage for one in sharded]
    states = [sum(stage.optimizer_bytes for stage in stages) for stages in found]
    assert states[0] == states[1]


def test_post_validation_drops_the_norm_and_lets_steps_roll() -> None:
    """Qi et al. 2023, section 4: no operation of the tail meets other stages; never slower."""
    barrier, rolling = job("zb-h2", Mesh(pp=4)), job("zb-h2", Mesh(pp=4), post_validation=True)
    programs = [lower(one).program for one in (barrier, rolling)]
    names = [{op.name for cls in program.classes for op in cls.tail} for program in programs]
    assert names[0] - names[1] == {"gradient norm"}
    times = [evaluate(program).step_time_s for program in programs]
    assert times[1] < times[0]
    assert simulate(programs[1]).step_time_s == times[1]


@pytest.mark.parametrize("schedule", ["zb-1p", "zb-2p"])
def test_the_search_sees_the_times_of_the_job(schedule: str) -> None:
    """The key of an automatic schedule is marked by its order; more memory never makes it slower."""
    one = job(schedule, Mesh(pp=4))
    program = lower(one).program
    assert program.schedule_key[0].startswith(f"{schedule}#")
    assert 0 < weight_gradient_share(one.model, one.mesh, one.recipe) <= 1
    if schedule == "zb-2p":
        tighter = lower(job("zb-1p", Mesh(pp=4))).program
        assert evaluate(program).step_time_s <= evaluate(tighter).step_time_s


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe", "zb-h1", "looped-bfs"])
def test_shared_links_fold_exactly_too(schedule: str) -> None:
    """Messages go the way that the schedule says; folded and unfolded meet on the same links at the same times."""
    one = job(schedule, Mesh(tp=2, pp=4, dp=4))
    times = [simulate(lower(one, fold=fold, contention=Contention()).program).step_time_s for fold in (True, False)]
    assert times[0] == pytest.approx(times[1], rel=1e-9)
    assert times[0] >= evaluate(lower(one).program).step_time_s * (1 - 1e-9)


def test_traffic_counts_each_message_once() -> None:
    """ZB-V turns round on the last stage: 2 (2 p - 2) messages a microbatch pass between p stages; 1F1B 2 (p - 1)."""
    found = {name: lower(job(name, Mesh(pp=4))).traffic["pp"] for name in ("1f1b", "zb-v", "dualpipe", "interleaved")}
    m, p = 8, 4
    assert found["1f1b"].calls == 2 * (p - 1) * m / p
    assert found["zb-v"].calls == 2 * (2 * p - 2) * m / p
    assert found["dualpipe"].calls == 2 * (p - 1) * m / p
    assert found["interleaved"].calls == 2 * (2 * p - 1) * m / p


def test_buckets_grow_with_the_ranks_that_reduce_them() -> None:
    """Megatron-Core: max(40 M, 1 M x dp) gradients, unless a size is stated; here two bytes each."""
    assert job("1f1b", Mesh(pp=4, dp=2)).bucket_bytes == 160e6
    assert job("1f1b", Mesh(pp=1, dp=128)).bucket_bytes == 256e6
    assert job("1f1b", Mesh(pp=1, dp=128), bucket_bytes=25 * 2.0**20).bucket_bytes == 25 * 2.0**20
