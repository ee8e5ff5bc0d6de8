"""A scenario file becomes a model, a mesh, a recipe; what it leaves open is filled and listed."""

import pickle
from pathlib import Path

import pytest

from traincast.mesh import Mesh
from traincast.recipe import Recipe
from traincast.scenario import load_model, load_scenario, model_names, open_cluster, scenario_names

SMALL = """\
model: llama3-8b
cluster: {gpu: H100-80GB-SXM, nodes: 2}
parallelism: {tp: 2}
training:
  global_batch: 128
  microbatch: 1
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def test_the_1t_row_of_sc21():
    scenario = load_scenario("sc21/t1_1008b")
    assert scenario.name == "sc21/t1_1008b"
    assert scenario.mesh == Mesh(tp=8, pp=64, dp=6)
    assert scenario.recipe == Recipe(
        3072, 1, 2048, precision="fp16", recompute="full", schedule="1f1b", gradient_dtype="fp16"
    )
    assert scenario.cluster_name == "selene"
    assert scenario.profile_name == "a100-selene-megatron2021"
    assert scenario.published is not None
    assert scenario.published["step_time_s"] == 102.6
    assert scenario.assumptions == ()


def test_a_name_a_path_and_a_path_below_scenarios_are_the_same():
    by_name = load_scenario("sc21/t1_1p7b")
    assert load_scenario("sc21/t1_1p7b.yaml") == by_name
    path = Path(__file__).resolve().parents[2] / "scenarios" / "sc21" / "t1_1p7b.yaml"
    assert load_scenario(path) == by_name


def test_schedules_that_split_the_backward_bring_their_chunks_and_messages(small: Path):
    def recipe_of(schedule: str) -> Recipe:
        return load_scenario(small, [("parallelism.pp", "4"), ("training.schedule", schedule)]).recipe

    recipe = recipe_of("zb-v")
    assert (recipe.vpp, recipe.p2p, recipe.post_validation) == (2, "async", False)
    assert recipe_of("dualpipe").vpp == 2
    assert recipe_of("zb-h1").vpp == 1


def test_what_is_left_open_is_filled_and_listed(small: Path):
    scenario = load_scenario(small)
    assert scenario.name == "small"
    assert scenario.mesh == Mesh(tp=2, dp=8)
    assert scenario.recipe == Recipe(
        128, 1, 8192, precision="bf16", schedule="none", attention="flash", gradient_dtype="fp32"
    )
    assert "parallelism.dp not stated: 8" in scenario.assumptions
    assert "training.attention not stated: flash" in scenario.assumptions
    assert not any("schedule" in assumption for assumption in scenario.assumptions)


def test_the_described_cluster_has_the_nodes_that_the_mesh_needs(small: Path):
    small.write_text(SMALL.replace(", nodes: 2", ", gpus_per_node: 4, nics_per_node: 2, nic: 200 Gbit/s ib"))
    spec = load_scenario(small, [("parallelism.dp", "8")]).cluster
    assert (spec.nodes, spec.gpus_per_node, spec.nics_per_node) == (4, 4, 2)
    assert (spec.nic_gbit_per_s, spec.nic_kind) == (200, "ib")


def test_a_described_cluster_can_be_built(small: Path):
    scenario = load_scenario(small)
    cluster = open_cluster(scenario.cluster, scenario.mesh.world)
    assert len(cluster.gpus) == 16
    assert set(cluster.gpu_model) == {"H100-80GB-SXM"}


def test_a_mesh_may_use_a_part_of_the_cluster(small: Path):
    scenario = load_scenario(small, [("parallelism.dp", "4")])
    assert scenario.mesh.world == 8
    assert "the mesh uses 8 of the cluster's 16 GPUs" in scenario.assumptions


def test_overrides_are_yaml_and_make_mappings_where_there_are_none(small: Path):
    overrides = [
        ("training.microbatch", "2"),
        ("training.overlap_dp", "true"),
        ("training.bucket", "25 MiB"),
        ("training.stage_layers", "[7, 9, 9, 7]"),
        ("parallelism.pp", "4"),
        ("published.step_time", "9.5 s"),
        ("published.source", "a log"),
        ("model.layers", "32"),
    ]
    scenario = load_scenario(small, overrides)
    assert scenario.recipe.microbatch == 2
    assert scenario.recipe.overlap_dp
    assert scenario.recipe.bucket_bytes == 25 * 2**20
    assert scenario.recipe.stage_layers == (7, 9, 9, 7)
    assert scenario.published == {"step_time_s": 9.5, "source": "a log"}
    assert small.read_text() == SMALL


def test_model_and_cluster_can_be_exchanged(small: Path):
    scenario = load_scenario(small, [("model", "gpt-1p7b"), ("cluster", "selene"), ("parallelism.dp", "2")])
    assert scenario.model.name == "GPT-1.7B"
    assert scenario.cluster_name == "selene"


def test_an_inline_model_is_a_plain_gpt_unless_it_says_otherwise(small: Path):
    small.write_text(
        SMALL.replace("llama3-8b", "{hidden: 1024, layers: 4, heads: 16, vocab: 1000}") + "  sequence: 512\n"
    )
    model = load_scenario(small).model
    assert (model.kv_heads, model.head_dim, model.ffn_hidden, model.max_positions) == (16, 64, 4096, 512)
    assert model.tied_embeddings
    assert model.biases


def test_a_model_file_beside_the_scenario(small: Path):
    (small.parent / "mine.yaml").write_text("hidden: 64\nlayers: 2\nheads: 2\nvocab: 100\nmax_positions: 32\n")
    small.write_text(SMALL.replace("llama3-8b", "mine.yaml"))
    assert load_scenario(small).model.name == "mine"


def test_balanced_stages(small: Path):
    pipeline = [("model.layers", "30"), ("parallelism.pp", "4"), ("training.stage_layers", "balanced")]
    assert load_scenario(small, pipeline).recipe.stage_layers == (8, 8, 7, 7)
    pipeline[-1] = ("training.stage_layers", "balanced_with_embedding")
    assert load_scenario(small, pipeline).recipe.stage_layers == (7, 8, 8, 7)


def test_chunks_ask_for_interleaving(small: Path):
    shape = [("parallelism.pp", "4"), ("parallelism.vpp", "2")]
    assert load_scenario(small, shape).recipe.schedule == "interleaved"
    assert load_scenario(small, shape[:1]).recipe.schedule == "1f1b"


def test_few_microbatches_are_worth_a_line(small: Path):
    scenario = load_scenario(small, [("parallelism.pp", "8"), ("training.global_batch", "4")])
    assert any("4 microbatches are fewer than pp 8" in assumption for assumption in scenario.assumptions)


def test_scenarios_cross_process_borders(small: Path):
    scenario = load_scenario(small)
    assert pickle.loads(pickle.dumps(scenario)) == scenario


def test_what_comes_along_has_names():
    assert "korthikanti/t5_1t_selective" in scenario_names()
    assert not any(name.startswith(("models/", "published/")) for name in scenario_names())
    assert {"gpt-1008b", "gpt-22b", "llama2-70b", "llama3-405b"} <= set(model_names())
    assert load_model("llama3-405b").kv_heads == 8
