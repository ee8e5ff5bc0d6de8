"""Strategies side by side: each row is the forecast of its layout; the laws between them; what is refused and why."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from traincast.errors import UserError
from traincast.forecast import forecast, memory_of, prepare
from traincast.lower import lower
from traincast.mesh import fsdp_mesh, hsdp_mesh
from traincast.model import total_parameters
from traincast.plan.compared import Comparison, StrategyRow
from traincast.plan.layouts import STRATEGIES, Strategy
from traincast.plan.strategies import Ask, _refuse_all, compare, consider, setting_of
from traincast.report.tables import plain as as_json
from traincast.scenario import Scenario, load_scenario

NAMES = ("DDP", "FSDP", "FSDP on a sub-mesh", "HSDP", "TP+FSDP", "PTD-P")
MODEL = "{hidden: 1024, layers: 8, heads: 16, vocab: 51200}"
JOB = """\
model: {model}
cluster: {{gpu: {gpu}, nodes: {nodes}}}
parallelism: {{dp: {gpus}}}
training: {{global_batch: {batch}, microbatch: 1, sequence: {sequence}}}
"""


def scenario(folder: Path, **fields: object) -> Path:
    given = {"model": MODEL, "gpu": "A100-80GB-SXM", "nodes": 2, "gpus": 16, "batch": 32, "sequence": 1024} | fields
    path = folder / "job.yaml"
    path.write_text(JOB.format(**given), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT on two nodes of eight GPUs."""
    return scenario(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def found(small: Path) -> Comparison:
    return compare(load_scenario(small))


@pytest.fixture(scope="module")
def seventy(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Llama 2 70B on 64 A100 of 40 GB."""
    job = {"model": "llama2-70b", "gpu": "A100-40GB-SXM", "nodes": 8, "gpus": 64, "batch": 64, "sequence": 4096}
    return compare(load_scenario(scenario(tmp_path_factory.mktemp("seventy"), **job)))


def row(found: Comparison, name: str) -> StrategyRow:
    return next(one for one in found.rows if one.strategy == name)


def test_six_strategies_in_a_fixed_order(found: Comparison) -> None:
    assert tuple(one.strategy for one in found.rows) == NAMES
    assert all(one.verdict == "fits" for one in found.rows)
    assert found.fastest in found.rows
    assert found.fastest.forecast.step_time_s == min(one.forecast.step_time_s for one in found.rows)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_the_forecast_of_its_layout(found: Comparison, small: Path, name: str) -> None:
    """Laid over the scenario file, both evaluators give the same step to the last bit, and the same memory."""
    one = row(found, name)
    again = load_scenario(small, one.sets)
    for engine in ("des", "analytic"):
        run = forecast(again, engine=engine)
        assert run.step_time_s == one.forecast.step_time_s
        assert run.memory == one.memory
        assert run.traffic == one.forecast.traffic
        assert run.mesh_signature == one.forecast.mesh_signature


@pytest.mark.parametrize(
    "keys",
    [
        (("training.zero_stage", "3"), ("training.fsdp_shard", "8"), ("training.prefetch", "2")),
        (
            ("parallelism", "{tp: 2, pp: 2, dp: 4, order: dp-tp-cp-ep-pp, placement: '8-15,0-7'}"),
            ("training.schedule", "zb-h1"),
        ),
        (("profile", "h100-nemo-megatroncore2025"), ("cluster", "{gpu: H100-80GB-SXM, nodes: 2}")),
    ],
)
def test_what_the_scenario_says_of_its_own_layout_is_laid_over(small: Path, keys: tuple[tuple[str, str], ...]) -> None:
    """Sharding, order, schedule and stack of the file, and another number of nodes, do not leak into layouts."""
    for one in compare(load_scenario(small, keys), Ask(gpus=32)).rows:
        again = load_scenario(small, (*keys, *one.sets))
        assert again.mesh.world == 32
        assert forecast(again, engine="analytic").step_time_s == one.forecast.step_time_s


def test_layouts_are_what_the_names_say(found: Comparison) -> None:
    shapes = {one.strategy: one.layout for one in found.rows}
    assert (shapes["DDP"].zero_stage, shapes["DDP"].dp, shapes["DDP"].replicate) == (0, 16, 16)
    assert (shapes["FSDP"].zero_stage, shapes["FSDP"].shard, shapes["FSDP"].replicate) == (3, 16, 1)
    sub = shapes["FSDP on a sub-mesh"]
    assert (sub.zero_stage, sub.pp, sub.dp, sub.shard, sub.replicate) == (3, 2, 8, 8, 1)
    assert (shapes["HSDP"].zero_stage, shapes["HSDP"].shard, shapes["HSDP"].replicate) == (3, 8, 2)
    tensor = shapes["TP+FSDP"]
    assert 2 <= tensor.tp <= 8
    assert (tensor.zero_stage, tensor.pp, tensor.shard) == (3, 1, 16 // tensor.tp)
    assert (shapes["PTD-P"].zero_stage, shapes["PTD-P"].tp * shapes["PTD-P"].pp * shapes["PTD-P"].dp) == (1, 16)


def test_sub_meshes_are_cut_as_the_mesh_cuts_them(found: Comparison, small: Path) -> None:
    """DESIGN §3: FSDP takes the dp axis, HSDP a (replicate, shard) pair; by default both shard inside a node."""
    sub = load_scenario(small, row(found, "FSDP on a sub-mesh").sets).mesh
    assert fsdp_mesh(sub, ("dp",)).groups("shard").tolist() == [list(range(8)), list(range(8, 16))]
    pair = hsdp_mesh(load_scenario(small, row(found, "HSDP").sets).mesh, 2, 8)
    assert pair.groups("shard").tolist() == [list(range(8)), list(range(8, 16))]
    assert pair.groups("replicate").tolist() == [[n, n + 8] for n in range(8)]


def test_the_least_recomputation_is_never_slower(small: Path) -> None:
    """What the search rests on: recomputation only adds operators."""
    _, setting = setting_of(load_scenario(small), Ask())
    for one in STRATEGIES:
        for job in one.layouts(setting)[:4]:
            seconds = [_step_s(replace(job, recipe=replace(job.recipe, recompute=mode))) for mode in MODES]
            assert seconds == sorted(seconds)


MODES = ("none", "selective", "full")


def alone(loaded: Scenario, name: str, ask: Ask | None = None) -> StrategyRow:
    """One strategy without the others."""
    wish = ask or Ask()
    return consider(setting_of(loaded, wish), strategy(name), wish)


def strategy(name: str) -> Strategy:
    return next(one for one in STRATEGIES if one.name == name)


def _step_s(job: object) -> float:
    from traincast.analytic import evaluate

    return evaluate(lower(job).program).step_time_s


@pytest.mark.parametrize("name", ["DDP", "HSDP"])
def test_the_fastest_of_all_microbatches_and_recomputations_is_found(small: Path, name: str) -> None:
    """Against trying each, on a GPU that is full: microbatches of 8 fit with recomputation only."""
    model = ("model", "{hidden: 2048, layers: 72, heads: 16, vocab: 51200}")
    loaded = load_scenario(small, (model, ("training.global_batch", "256"), ("training.sequence", "2048")))
    (job,) = strategy(name).layouts(setting_of(loaded, Ask())[1])
    recipes = [replace(job.recipe, microbatch=size, recompute=mode) for size in (1, 2, 4, 8) for mode in MODES]
    jobs = [replace(job, recipe=recipe) for recipe in recipes]
    fit = [one for one in jobs if memory_of(one).worst.total_bytes <= one.gpu.memory_bytes]
    assert len(fit) < len(jobs)
    assert alone(loaded, name).forecast.step_time_s == min(map(_step_s, fit))


def test_sharding_takes_states_by_the_number_of_ranks(found: Comparison) -> None:
    """Rajbhandari et al. 2020, §5: DDP holds 18 bytes a parameter here (2 + 4 + 12), FSDP a share of 1/n."""
    states = {name: row(found, name).memory.worst.states_bytes for name in NAMES}
    parameters = total_parameters(load_parameters(found))
    assert states["DDP"] == 18 * parameters
    assert states["FSDP"] == pytest.approx(states["DDP"] / 16)
    assert states["HSDP"] == pytest.approx(states["DDP"] / 8)
    memory = {name: row(found, name).memory.worst.total_bytes for name in NAMES}
    assert memory["FSDP"] < memory["HSDP"] < memory["DDP"]


def load_parameters(found: Comparison):
    from traincast.model.shape import gpt

    assert found.model == "unnamed"
    return replace(gpt("unnamed", 1024, 8, 16), max_positions=1024)


def test_what_leaves_a_node(found: Comparison) -> None:
    """A ring of n ranks on N nodes crosses on N of its n hops; HSDP sends only sums of shards out of a node.

    DDP: 2 (n - 1)/n gradients a step; HSDP: 2 (R - 1)/R of a shard of them behind each microbatch.
    """
    gradients = 4.0 * total_parameters(load_parameters(found))
    ddp, fsdp, hsdp = (row(found, name) for name in ("DDP", "FSDP", "HSDP"))
    assert ddp.forecast.cross_node_share == pytest.approx(2 / 16)
    assert fsdp.forecast.cross_node_share == pytest.approx(2 / 16)
    assert ddp.cross_node_bytes == pytest.approx(2 * 15 / 16 * gradients * 2 / 16, rel=1e-6)
    assert hsdp.cross_node_bytes == pytest.approx(hsdp.layout.microbatches * gradients / 8, rel=1e-6)
    assert hsdp.forecast.cross_node_share < ddp.forecast.cross_node_share
    assert hsdp.cross_node_bytes < fsdp.cross_node_bytes
    sub = row(found, "FSDP on a sub-mesh").forecast.traffic
    # shards stay inside; the first and the last stage sum the gradients of the tied embedding
    assert sub["dp"].cross_node_share * sub["dp"].bytes_per_gpu == pytest.approx(4.0 * 51200 * 1024)
    assert sub["pp"].cross_node_share == 1.0


def test_shard_groups_as_asked_for(small: Path) -> None:
    """--shard 4: HSDP replicates four groups, FSDP on a sub-mesh has four stages."""
    hsdp, sub = (alone(load_scenario(small), name, Ask(shard=4)) for name in ("HSDP", "FSDP on a sub-mesh"))
    assert (hsdp.layout.shard, hsdp.layout.replicate, hsdp.checkpoint.files) == (4, 4, 4)
    assert (sub.layout.shard, sub.layout.pp, sub.checkpoint.files) == (4, 4, 16)


def test_plain_ddp_cannot_hold_70b_on_40_gb(seventy: Comparison) -> None:
    """The row stays, with figures, the item and what fits; the states alone are 18 bytes a parameter."""
    ddp = row(seventy, "DDP")
    assert ddp.verdict == "does not fit"
    assert ddp.memory.worst.states_bytes == pytest.approx(18 * 69.0e9, rel=0.01)
    assert ddp.memory.limit_bytes == 40 * 2**30
    assert "of 40.0 GiB on stage 0, largest item optimizer (771 GiB)" in ddp.reason
    assert ddp.reason.endswith("nearest that fits: zero_stage 3")  # that is FSDP, the next row
    assert (ddp.layout.recompute, ddp.layout.microbatch) == ("full", 1)
    data = ddp.as_dict()
    assert all(data[key] is None for key in ("step_time_s", "tflops_per_gpu", "cross_node_share", "checkpoint"))
    assert row(seventy, "FSDP").verdict in ("fits", "borderline")
    assert row(seventy, "HSDP").reason.endswith("nearest that fits: tp 8, dp 8")


def test_the_nearest_that_fits_does_fit(seventy: Comparison, tmp_path: Path) -> None:
    job = {"model": "llama2-70b", "gpu": "A100-40GB-SXM", "nodes": 8, "gpus": 64, "batch": 128, "sequence": 4096}
    keys = {"parallelism.tp": "8", "parallelism.dp": "8", "training.zero_stage": "3", "training.recompute": "full"}
    assert memory_of(prepare(load_scenario(scenario(tmp_path, **job), tuple(keys.items()))).job).verdict == "fits"


def test_stages_are_interleaved_where_that_is_faster(tmp_path: Path) -> None:
    """Narayanan et al. 2021 (SC21), §2.2.2: v chunks a stage leave 1/v of the bubble."""
    wide = "{hidden: 16384, layers: 8, heads: 32, vocab: 51200}"
    path = scenario(tmp_path, model=wide, batch=16, sequence=2048)
    one = alone(load_scenario(path), "PTD-P")
    assert (one.layout.schedule, one.layout.pp > 1, one.layout.vpp > 1) == ("interleaved", True, True)
    once = [(key, value) for key, value in one.sets if key not in ("parallelism.vpp", "training.schedule")]
    assert forecast(load_scenario(path, once), engine="analytic").step_time_s > one.forecast.step_time_s


@pytest.mark.parametrize(
    ("keys", "ask", "name", "words", "fix"),
    [
        ([("model.layers", "1")], Ask(), "FSDP on a sub-mesh", "1 layer cannot be cut into 2 stages", "layers"),
        ([("model.layers", "3")], Ask(), "FSDP on a sub-mesh", "3 layers do not divide into 2 stages", "layers"),
        ([], Ask(gpus=8), "HSDP", "groups of 8 ranks leave none outside 8 GPUs: that is FSDP", "--shard 4"),
        ([], Ask(gpus=8), "FSDP on a sub-mesh", "that is FSDP", "--shard 4"),
        ([], Ask(gpus=1), "FSDP", "one rank has nobody to share with", "--gpus 2"),
        ([], Ask(gpus=1), "TP+FSDP", "no tp of 2 or more inside a node of 1 GPUs", "more GPUs"),
        ([], Ask(gpus=64), "DDP", "global batch 32 is not a multiple of microbatch 1 * dp 64", "global batch 64"),
    ],
)
def test_what_does_not_apply_says_why(
    small: Path, keys: list[tuple[str, str]], ask: Ask, name: str, words: str, fix: str
) -> None:
    one = alone(load_scenario(small, keys), name, ask)
    assert (one.verdict, one.layout, one.forecast) == ("not applicable", None, None)
    assert words in one.reason
    assert fix in one.fix


@pytest.mark.parametrize(
    ("keys", "ask", "words"),
    [
        ([], Ask(gpus=7), "--gpus: no strategy has a layout on 7 GPUs; DDP: global batch 32 is not a multiple"),
        ([], Ask(shard=3), "--shard: 16 GPUs do not divide into shard groups of 3 (fix: --shard 2)"),
        ([("parallelism", "{cp: 2, dp: 8}")], Ask(gpus=9), "--gpus: 9 GPUs do not divide over the scenario's cp 2"),
        ([("cluster", "azure_ndv4")], Ask(gpus=10**6), "GPUs, 1000000 are asked for"),
        ([("training.precision", "fp32")], Ask(), "training in fp32 is not modelled yet"),
    ],
)
def test_what_cannot_be_is_refused(small: Path, keys: list[tuple[str, str]], ask: Ask, words: str) -> None:
    with pytest.raises(UserError) as caught:
        compare(load_scenario(small, keys), ask)
    assert words in str(caught.value)
    assert caught.value.fix


def test_same_input_same_bytes(found: Comparison, small: Path) -> None:
    def text(one: Comparison) -> str:
        return json.dumps(as_json(one.as_dict()), allow_nan=False)

    assert text(compare(load_scenario(small))) == text(found)


def test_one_reason_for_all_that_would_run_is_an_error() -> None:
    """Where some do not fit and the others are refused for one reason there is nothing to compare."""
    big = StrategyRow("DDP", "", "does not fit", "148 GiB of 80 GiB")
    refused = StrategyRow("FSDP", "", "not applicable", "no such peak", fix="another")
    setting = SimpleNamespace(world=16)
    with pytest.raises(UserError, match=r"no strategy runs on 16 GPUs: no such peak; DDP: too large for the memory"):
        _refuse_all([big, refused, replace(refused, strategy="HSDP")], setting, Ask())
    _refuse_all([big, refused, replace(refused, strategy="HSDP", reason="another one")], setting, Ask())
    _refuse_all([big], setting, Ask())
