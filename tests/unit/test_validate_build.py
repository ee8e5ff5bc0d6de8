"""Rows to cases. The laws: what is stated is kept, what is open becomes choices, predict and validate agree."""

import pytest

from traincast.errors import DataError
from traincast.forecast import forecast
from traincast.profile import shipped_profiles
from traincast.scenario import load_scenario, scenario_names
from traincast.validate import published_files, read_published, validate_rows
from traincast.validate.build import build_case
from traincast.validate.inferred import inferred_file, load_inferences
from traincast.validate.measured import named_convention
from traincast.validate.place import cluster_of, place_of
from traincast.validate.revisions import load_revisions, revisions_file
from traincast.validate.rows import PublishedRow, RowSkippedError

PLAIN = {
    "id": "r",
    "family": "f",
    "hidden": "1024",
    "layers": "24",
    "heads": "16",
    "vocab": "51200",
    "seq": "1024",
    "gpu": "A100-80GB-SXM",
    "gpus": "16",
    "tp": "2",
    "pp": "4",
    "microbatch": "2",
    "global_batch": "32",
    "recompute": "full",
    "precision": "fp16",
    "attention": "unfused",
}


def row(**changes: str) -> PublishedRow:
    return PublishedRow("a.csv", 2, {**PLAIN, **changes})


def recipes(**changes: str):
    return [candidate.recipe for candidate in build_case(row(**changes)).candidates]


def test_a_row_that_states_everything_has_one_candidate():
    case = build_case(row(vpp="1", schedule="1f1b", ffn_hidden="4096"))
    (candidate,) = case.candidates
    assert candidate.chosen == ()
    assert case.notes == ()
    assert (case.mesh.tp, case.mesh.pp, case.mesh.dp) == (2, 4, 2)  # dp is what 16 GPUs leave
    assert (candidate.recipe.schedule, candidate.recipe.microbatches(2)) == ("1f1b", 8)


def test_open_chunks_take_every_even_split():
    assert [recipe.vpp for recipe in recipes()] == [1, 2, 3, 6]
    assert [recipe.vpp for recipe in recipes(schedule="interleaved")] == [2, 3, 6]
    assert [recipe.schedule for recipe in recipes(vpp="3")] == ["interleaved"]
    assert [recipe.schedule for recipe in recipes(pp="1", gpus="4")] == ["none"]


def test_open_microbatch_and_recomputation_are_choices():
    found = build_case(row(vpp="1", microbatch="", recompute="")).candidates
    assert {candidate.recipe.microbatch for candidate in found} == {1, 2, 4, 8, 16}
    assert {candidate.recipe.recompute for candidate in found} == {"none", "selective", "full"}
    assert found[0].chosen == ("microbatch 1", "recompute none")


@pytest.mark.parametrize(
    ("changes", "split"),
    [
        ({"layers": "22", "stage_layers": "first-1,last-1"}, (5, 6, 6, 5)),
        ({"layers": "22"}, (5, 6, 6, 5)),
        ({"layers": "25"}, (7, 6, 6, 6)),
        ({"layers": "24", "stage_layers": "5,7,7,5"}, (5, 7, 7, 5)),
        ({"layers": "24"}, None),
    ],
)
def test_stage_layers(changes, split):
    (recipe,) = recipes(vpp="1", **changes)
    assert recipe.stage_layers == split


@pytest.mark.parametrize(
    ("offload", "expected"),
    [
        ("", ("none", 0.0)),
        ("none", ("none", 0.0)),
        ("optimizer", ("optimizer", 0.0)),
        ("activations:0.25", ("none", 0.25)),
    ],
)
def test_what_waits_in_the_host_s_memory(offload, expected):
    """As `training.offload_states` and `training.offload_activations` of a scenario."""
    (recipe,) = recipes(vpp="1", zero_stage="3", offload=offload)
    assert (recipe.offload_states, recipe.offload_activations) == expected


def test_an_offload_that_is_not_known_skips_the_row():
    with pytest.raises(RowSkippedError, match="offloading is not modelled yet: weights"):
        build_case(row(vpp="1", offload="weights"))


@pytest.mark.parametrize(
    ("unusual", "words"), [("lora", "LoRA is not modelled"), ("sft", "fine-tuning is not modelled")]
)
def test_other_work_than_training_from_scratch_is_no_forecast_of_it(unusual, words):
    """Shown with what is missing, and without a figure that would be another job's."""
    with pytest.raises(RowSkippedError, match=words):
        build_case(row(vpp="1", unusual=unusual))
    (score,) = validate_rows([row(unusual=unusual, iter_time_s="1.5", grade="B")]).rows
    assert (score.status, score.measured_s, score.predicted_s) == ("skipped", 1.5, None)
    assert words in score.reason


def test_a_column_that_the_table_s_makers_inferred_is_open():
    """scenarios/published/inferred.yaml: a column of a family, with source and reason; others keep what they state."""
    found = build_case(row(family="vtrain_single", vpp="1", pp="1", gpus="4"))
    assert {candidate.recipe.recompute for candidate in found.candidates} == {"none", "selective", "full"}
    (note,) = [note for note in found.notes if "inferred" in note]
    assert "decided after seeing residuals" in note
    assert found.row.text("recompute") == "full"
    assert [recipe.recompute for recipe in recipes(vpp="1")] == ["full"]


def test_an_inference_may_be_of_the_cells_with_one_value_only():
    """BurstEngine's sheets: `op:selective` stands at baselines whose scripts recompute all, `op:seq_selective` not."""
    found = build_case(row(family="burst_cp", vpp="1", recompute="op:selective"))
    assert any("sele_ckpt=0" in note for note in found.notes)
    assert {candidate.recipe.recompute for candidate in found.candidates} == {"none", "selective", "full"}
    kept = build_case(row(family="burst_cp", vpp="1", recompute="op:seq_selective"))
    assert [candidate.recipe.recompute for candidate in kept.candidates] == ["op:seq_selective"]
    assert not any("inferred" in note for note in kept.notes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not YAML"),
        ("- a", "not a list of columns"),
        ("a: 3", "names no column"),
        ("a: {colour: {source: x, reason: y}}", "no column 'colour'"),
        ("a: {recompute: {reason: y}}", "needs a source and a reason"),
    ],
)
def test_a_wrong_list_of_inferences_is_refused_with_its_place(tmp_path, text, words):
    path = tmp_path / "inferred.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match=words) as caught:
        load_inferences(path)
    assert str(path) in str(caught.value.where)


def test_what_is_inferred_is_a_column_of_a_family_that_comes_along():
    rows = read_published(published_files())
    families = {one.family for one in rows}
    assert set(load_inferences(inferred_file())) <= families


def test_a_source_tells_the_revision_of_a_stack():
    """scenarios/published/revisions.yaml: the same stack, GPU and shape at three commits are three profiles' rows."""
    known = load_revisions(revisions_file())
    foundry = {"family": "foundry", "stack": "llm-foundry/Composer PyTorch FSDP", "gpu": "A100-80GB-SXM"}
    found = {source: place_of(row(**foundry, source=source)) for family, source in known if family == "foundry"}
    profiles = {place.profile.name for place in found.values()}
    assert profiles == {"a100-80gb-mosaicgpt2023", "a100-80gb-llmfoundry202304", "a100-80gb-llmfoundry2023"}
    assert all(any("stack by its source" in note for note in place.notes) for place in found.values())
    unknown = place_of(row(**foundry, source="somebody's log"))
    assert unknown.profile.name == "a100-80gb-llmfoundry2023"
    assert not any("source" in note for note in unknown.notes)


def test_revisions_are_of_sources_that_come_along_and_have_a_profile():
    sources = {(one.family, one.text("source")) for one in read_published(published_files())}
    stacks = {stack for profile in shipped_profiles() for stack in profile.stacks}
    for where, revision in load_revisions(revisions_file()).items():
        assert where in sources
        assert revision.stack in stacks


@pytest.mark.parametrize("text", ["a: {b: 3}", "a: {b: {stack: x}}", "a: {b: {stack: x, reason: ''}}"])
def test_a_wrong_list_of_revisions_is_refused_with_its_place(tmp_path, text):
    path = tmp_path / "revisions.yaml"
    path.write_text(text)
    with pytest.raises(DataError, match="needs a stack and a reason") as caught:
        load_revisions(path)
    assert "a.b" in str(caught.value.where)


def test_stage_layers_that_are_not_understood():
    with pytest.raises(RowSkippedError, match="not understood"):
        build_case(row(vpp="1", stage_layers="a,b"))


def test_gated_rows_are_llamas_and_plain_ones_gpts():
    gated = build_case(row(gated_mlp="y", kv_heads="4", ffn_hidden="2816")).model
    assert (gated.positions, gated.norm, gated.tied_embeddings, gated.biases) == ("rotary", "rmsnorm", False, False)
    assert (gated.kv_heads, gated.mlp_matrices) == (4, 3)
    plain = build_case(row()).model
    assert (plain.positions, plain.norm, plain.tied_embeddings, plain.ffn_hidden) == (
        "learned",
        "layernorm",
        True,
        4096,
    )


@pytest.mark.parametrize(
    ("text", "convention"),
    [
        ("hardware FLOPs incl. full recompute (SC21 eq.3)", "hardware"),
        ("model FLOPs (formula in README, full attention)", "model"),
        ("model FLOPs; attention NOT halved for causal", "model"),
        ("Bridge model TFLOPs; causal attention counted at HALF", "model_causal"),
        ("Megatron/NeMo model FLOPs (full, non-causal attention)", "model"),
        ("model TFLOPs; LoRA uses reduced FLOPs", None),
        ("sequences/s", None),
        ("", None),
    ],
)
def test_named_conventions(text, convention):
    assert named_convention(text) == convention


def test_known_clusters_are_recognised_and_others_are_built_of_usual_nodes():
    eight_rails = {"gpus_per_node": "8", "nics_per_node": "8", "nic_gbit_per_s": "200", "nic_kind": "ib"}
    assert place_of(row(**eight_rails)).cluster.name == "selene"
    four_rails = {**eight_rails, "nics_per_node": "4"}
    assert place_of(row(**four_rails)).cluster.name == "hdr4_a100"
    silent = place_of(row())
    assert len(silent.cluster.gpus) == 16
    assert any("not stated" in note for note in silent.notes)
    assert place_of(row(gpus="8", dp="1")).notes == (
        *(note for note in place_of(row(gpus="8", dp="1")).notes if "profile" in note),
    )  # inside a node nothing about the network has to be assumed


def test_clusters_are_built_once():
    before = cluster_of.cache_info().hits
    assert place_of(row()).cluster is place_of(row()).cluster
    assert cluster_of.cache_info().hits > before


@pytest.mark.parametrize("study", ["sc21", "korthikanti", "vtrain"])
def test_predict_and_validate_agree_to_the_last_bit(study):
    scenarios = [load_scenario(name) for name in scenario_names() if name.startswith(f"{study}/")]
    rows = {published.id: published for published in read_published(published_files())}
    report = validate_rows([rows[scenario.published["row"]] for scenario in scenarios])
    for scenario, score in zip(scenarios, report.rows, strict=True):
        assert score.predicted_s == forecast(scenario, engine="analytic").step_time_s, scenario.name
        assert score.measured_s == scenario.published["step_time_s"], scenario.name


def test_nemotron_is_no_plain_gpt() -> None:
    """Its published configuration: rotary positions, no biases, an output matrix of its own; a plain MLP."""
    case = build_case(row(model="Nemotron-8B", gated_mlp="n"))
    model = case.model
    assert (model.positions, model.biases, model.tied_embeddings) == ("rotary", False, False)
    assert model.mlp_matrices == 2
    assert any("Nemotron" in note for note in case.notes)
    assert build_case(row(model="GPT3-5B", gated_mlp="n")).model.tied_embeddings
