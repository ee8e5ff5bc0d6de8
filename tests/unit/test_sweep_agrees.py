"""A row of a sweep is what `predict` says with the same `--set` options; however the sweep is run."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from traincast.engine import simulate
from traincast.errors import DataError, UserError
from traincast.forecast import forecast, prepare
from traincast.lower import lower
from traincast.plan.compared import over_limit
from traincast.report.sweep_tables import sweep_table
from traincast.report.tables import render
from traincast.scenario import Scenario, load_scenario
from traincast.sweep import Options, Shape, SweepOutcome, SweepRow, confirmed, enumerate_shapes, evaluate_shapes
from traincast.sweep.bound import lower_bound_s
from traincast.sweep.evaluate import job_of
from traincast.sweep.resume import read_rows

LLAMA = """
model: llama3-8b
cluster: {gpu: H100-80GB-SXM, nodes: 2, gpus_per_node: 8}
parallelism: {tp: 1, pp: 2, dp: 8}
training: {global_batch: 128, microbatch: 1, sequence: 8192, precision: bf16}
"""
NEMO = (("profile", "h100-nemo-megatroncore2025"),)
CASES: dict[str, tuple[tuple[str, str], ...]] = {
    "stack, base without tp": NEMO,
    "stack, base with tp and chunks": (
        *NEMO,
        *(("parallelism.tp", "4"), ("parallelism.vpp", "4"), ("parallelism.dp", "2"), ("training.global_batch", "64")),
    ),
    "stated against the stack": (
        *NEMO,
        *(("parallelism.sequence_parallel", "false"), ("training.overlap_tp", "none"), ("training.p2p", "blocking")),
    ),
    "stated null": (*NEMO, ("training.p2p", "null"), ("training.overlap_tp", "null")),
    "other stack": (("profile", "h100-80gb-torchtitan2025"), ("training.recompute", "full")),
    "split backward": (("training.schedule", "zb-h1"), ("training.recompute", "full")),
    "uneven base": (*NEMO, ("training.stage_layers", "[15, 17]")),
    "no profile": (
        *(("training.recompute", "full"), ("parallelism.sequence_parallel", "true")),
        *(("parallelism.tp", "2"), ("parallelism.dp", "4")),
    ),
    "split sequence": (*NEMO, ("parallelism.cp", "2"), ("parallelism.dp", "4"), ("training.cp_kind", "allgather")),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "llama.yaml"
    path.write_text(LLAMA)
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_row_is_what_predict_says(file: Path, case: str) -> None:
    """Random shapes: step time, memory and verdict, by the options that the row itself names."""
    given = CASES[case]
    base = load_scenario(file, given)
    asked = {"microbatch": (1, 2), "cp": (1, 2)} if base.mesh.cp > 1 else {"microbatch": (1, 2)}
    shapes = Random(case).sample(enumerate_shapes(base, asked), 8)
    found = evaluate_shapes(base, shapes)
    assert len(found.ranked) >= 2
    for row in found.ranked[:3]:
        alone = forecast(load_scenario(file, (*given, *row.sets)), engine="analytic")
        assert row.step_time_s == alone.step_time_s, row.sets
        assert row.memory_bytes == alone.memory.worst.total_bytes
        assert row.verdict == alone.memory.verdict
        assert row.over_limit == over_limit(alone.memory)


def test_defaults_of_the_stack_follow_the_shape(file: Path) -> None:
    """tp 8, pp 2, vpp 16 from a base without tp: sequence parallel, split products, asynchronous messages."""
    base = load_scenario(file, NEMO)
    recipe = job_of(prepare(base), Shape(8, 2, 1, 16, 1)).recipe
    assert (recipe.sequence_parallel, recipe.overlap_tp, recipe.p2p) == (True, "split", "async")
    assert (base.recipe.sequence_parallel, base.recipe.overlap_tp, base.recipe.p2p) == (False, None, "blocking")


def test_what_code_has_set_is_kept(file: Path) -> None:
    base = load_scenario(file, NEMO)
    changed = replace(base, recipe=replace(base.recipe, p2p="async"))
    assert job_of(prepare(changed), Shape(1, 2, 8, 1, 1)).recipe.p2p == "async"


MIXED = """
builder: mixed
groups: [{gpu: H200-141GB-SXM, nodes: 1}, {gpu: A100-80GB-SXM, nodes: 1}]
"""


def test_above_the_limit_is_by_the_smallest_gpu(file: Path, tmp_path: Path) -> None:
    """On H200 and A100 a shape of 84 GiB is above the 80 GiB of the A100, as `compare` has it."""
    (tmp_path / "mixed.yaml").write_text(MIXED)
    base = load_scenario(file, (("cluster", str(tmp_path / "mixed.yaml")), ("training.zero_stage", "1")))
    shapes = enumerate_shapes(base, {"tp": (2,), "pp": (1, 2), "microbatch": (1, 2, 4), "vpp": (1,)})
    rows = evaluate_shapes(base, shapes).ranked
    job = prepare(base).job
    limit = min(part.gpu.memory_bytes for part in job.parts)
    assert limit < job.gpu.memory_bytes
    assert {row.over_limit for row in rows} == {True, False}
    assert all(row.over_limit == (row.memory_bytes > limit) for row in rows)
    assert [row.over_limit for row in rows] == sorted(row.over_limit for row in rows)


@cache
def _swept(file: Path) -> tuple[Scenario, tuple[Shape, ...], SweepOutcome]:
    base = load_scenario(file, NEMO)
    shapes = enumerate_shapes(base, {"microbatch": (1, 2), "vpp": (1, 4), "tp": (2, 4, 8)})
    return base, shapes, evaluate_shapes(base, shapes)


def test_the_event_engine_confirms_the_fastest(file: Path) -> None:
    """Nothing is contended, so both evaluators agree to the last bit (DESIGN, section 6)."""
    base, _, found = _swept(file)
    checked = confirmed(base, found).confirmation
    assert checked is not None
    assert checked.equal
    assert checked.step_time_s == found.ranked[0].step_time_s
    assert checked.events > 0


def test_processes_change_nothing(file: Path) -> None:
    base, shapes, _ = _swept(file)
    few = shapes[::2]
    assert evaluate_shapes(base, few, options=Options(2, top=2)) == evaluate_shapes(base, few, options=Options(top=2))


def test_rows_are_told_as_they_come(file: Path) -> None:
    """So that what an interrupted sweep has written is worth resuming."""
    base, shapes, _ = _swept(file)
    few, told = [shape for shape in shapes if shape.vpp == 1], list[int]()
    found = evaluate_shapes(base, few, options=Options(tell=lambda rows: told.append(len(rows))))
    assert len(told) > 1
    assert told == sorted(told)
    assert told[0] < told[-1] == len(found.ranked)


def test_the_screen_keeps_the_fastest(file: Path) -> None:
    """The first k are those of the full sweep; what is left out is counted, and evaluated by nobody."""
    base, shapes, found = _swept(file)
    best = evaluate_shapes(base, shapes, options=Options(top=3))
    assert best.ranked[:3] == found.ranked[:3]
    assert best.screened > 0
    assert len(best.ranked) + best.screened == len(found.ranked)
    left_out = {row.shape for row in found.ranked} - {row.shape for row in best.ranked}
    slowest = max(row.step_time_s for row in best.ranked[:3])
    for row in found.ranked:
        if row.shape in left_out:
            assert lower_bound_s(lower(job_of(prepare(base), row.shape)).program) > slowest


@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [
        *(("none", 1), ("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("looped-bfs", 2), ("zb-h1", 1)),
        *(("zb-h2", 1), ("zb-2p", 1), ("zb-v", 2), ("dualpipe", 2), ("dualpipev", 2)),
    ],
)
def test_the_bound_is_below_every_step(file: Path, schedule: str, vpp: int) -> None:
    """A class works for the sum of its instructions, behind the forward passes of the stages before it."""
    pp = 1 if schedule == "none" else 4
    for microbatch in ("1", "2"):
        sets = (("parallelism.pp", str(pp)), ("parallelism.tp", "2"), ("parallelism.dp", str(8 // pp)))
        sets += (("parallelism.vpp", str(vpp)), ("training.schedule", schedule), ("training.microbatch", microbatch))
        program = lower(prepare(load_scenario(file, (*NEMO, ("training.global_batch", "32"), *sets))).job).program
        bound_s, step_s = lower_bound_s(program), simulate(program).step_time_s
        assert 0.5 * step_s < bound_s <= step_s


def test_schedules_are_swept_side_by_side(file: Path) -> None:
    """Each under its own name, one row a shape without a pipeline, and no stand-in for what was not asked for."""
    base = load_scenario(file, (*NEMO, ("training.recompute", "full")))
    shapes = enumerate_shapes(base, {"schedule": ("1f1b", "zb-h1"), "tp": (8,), "microbatch": (1,), "vpp": (1,)})
    assert [(shape.pp, shape.schedule) for shape in shapes] == [(1, "none"), (2, "1f1b"), (2, "zb-h1")]
    rows = {row.schedule: row for row in evaluate_shapes(base, shapes).ranked}
    assert set(rows) == {"none", "1f1b", "zb-h1"}
    for row in rows.values():
        alone = forecast(load_scenario(file, (*NEMO, ("training.recompute", "full"), *row.sets)), engine="analytic")
        assert row.step_time_s == alone.step_time_s


@pytest.mark.parametrize("form", ["csv", "json"])
def test_an_interrupted_sweep_goes_on(file: Path, tmp_path: Path, form: str) -> None:
    """Rows read back are the rows that were written; the rest is evaluated, and the outcome is the same."""
    base, shapes, found = _swept(file)
    part = replace(found, ranked=found.ranked[1:9])
    path = tmp_path / f"part.{form}"
    path.write_text(render(part.as_dict(complete=False), [sweep_table(part)], form))
    known = read_rows(path, base, shapes)
    assert list(known.values()) == sorted(part.ranked, key=lambda row: row.shape)
    again: list[SweepRow] = []
    few = [shape for shape in shapes if shape in known] + [found.ranked[0].shape]
    whole = evaluate_shapes(base, few, options=Options(known=known, tell=lambda rows: again.extend(rows)))
    assert whole.resumed == 8
    assert whole.ranked == found.ranked[:9]
    assert len(again) == 9


def test_rows_of_another_scenario_are_refused(file: Path, tmp_path: Path) -> None:
    base, shapes, found = _swept(file)
    path = tmp_path / "other.csv"
    path.write_text(render({}, [sweep_table(found)], "csv"))
    other = load_scenario(file, (*NEMO, ("training.overlap_dp", "false"), ("training.recompute", "full")))
    with pytest.raises(DataError, match=r"the scenario or traincast has changed") as caught:
        read_rows(path, other, shapes)
    assert caught.value.where == str(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"not a sweep of this scenario: no 'memory_gib' \(row 1\)"):
        read_rows(path, base, shapes)
    assert read_rows(tmp_path / "none.csv", base, shapes) == {}


def test_a_schedule_that_cannot_wait_is_refused_where_it_is_stated(file: Path) -> None:
    """Looped BFS: the last stage waits for the first from 2 p microbatches on; below that it runs."""
    sets = (("training.schedule", "looped-bfs"), ("parallelism.vpp", "2"), ("training.p2p", "blocking"))
    with pytest.raises(UserError, match=r"looped-bfs with 16 microbatches, 2 \* pp 2 or more, deadlocks") as caught:
        load_scenario(file, sets)
    assert caught.value.where == "--set training.p2p=blocking"
    assert caught.value.fix is not None
    assert "--set training.p2p=async" in caught.value.fix
    short = load_scenario(file, (*sets, ("training.global_batch", "24")))
    assert forecast(short).step_time_s == forecast(short, engine="analytic").step_time_s
    shapes = [Shape(1, 2, 8, 2, 1), Shape(1, 2, 8, 2, 8)]
    base = load_scenario(file, (("training.p2p", "blocking"), ("training.recompute", "full")))
    (line,) = evaluate_shapes(base, [replace(one, schedule="looped-bfs") for one in shapes]).refusals
    assert "deadlocks where every message is waited for (fix: --set training.p2p=async" in line
