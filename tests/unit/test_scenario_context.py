"""Context parallelism in a scenario file, and in published rows: keys, defaults that are named, refusals with a fix."""

from pathlib import Path

import pytest

from traincast.errors import UserError
from traincast.forecast import forecast
from traincast.recipe import Recipe
from traincast.report.forecast_tables import summary_table
from traincast.scenario import Scenario, load_scenario
from traincast.validate.build import build_case
from traincast.validate.rows import PublishedRow, RowSkippedError

LLAMA = """\
model: {hidden: 4096, layers: 32, heads: 32, kv_heads: 8, vocab: 32000}
cluster: {gpu: H100-80GB-SXM, nodes: 2}
parallelism: {tp: 2, cp: 8}
training:
  global_batch: 8
  microbatch: 1
  sequence: 65536
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def loaded(extra: str = "", text: str = LLAMA) -> Scenario:
        Path("s.yaml").write_text(text + extra)
        return load_scenario("s.yaml")

    return loaded


def test_defaults_are_named(load):
    scenario = load()
    recipe = scenario.recipe
    assert (recipe.cp_kind, recipe.cp_balance, recipe.cp_ulysses, recipe.cp_inner) == ("ring", True, 1, "ulysses")
    assert "training.cp_kind not stated: ring" in scenario.assumptions
    assert "training.cp_balance not stated: true" in scenario.assumptions
    alone = load(text=LLAMA.replace("cp: 8", "dp: 8"))
    assert not any("cp_" in assumption for assumption in alone.assumptions)


def test_every_key_is_read(load):
    keys = "  cp_kind: usp\n  cp_ulysses: 4\n  cp_inner: ring\n  cp_balance: false\n  offload_activations: 0.25\n"
    recipe = load(keys).recipe
    assert (recipe.cp_kind, recipe.cp_ulysses, recipe.cp_inner) == ("usp", 4, "ring")
    assert (recipe.cp_balance, recipe.offload_activations) == (False, 0.25)
    assert load("  cp_kind: allgather\n  cp_keep_kv: true\n").recipe.cp_keep_kv


def test_replicated_key_value_heads_are_an_assumption(load):
    """Both numbers, and what holds each head once."""
    (found,) = [one for one in load("  cp_kind: ulysses\n").assumptions if "kv_heads" in one]
    assert found.startswith(
        "8 kv_heads are fewer than tp 2 * 8 ranks that exchange heads = 16: each is sent to 2 ranks"
    )
    assert "set training.cp_kind: usp and training.cp_ulysses: 2 or 4" in found


@pytest.mark.parametrize(
    ("extra", "where", "message", "fix"),
    [
        (
            "  cp_kind: striped\n",
            "s.yaml:8:3",
            "training.cp_kind is 'striped'",
            "did you mean usp? It is one of ring, allgather",
        ),
        ("  cp_kind: usp\n", "s.yaml:8:3", "cp_kind usp on cp 8 needs cp_ulysses", "set training.cp_ulysses: 2 or 4"),
        ("  cp_kind: usp\n  cp_ulysses: 3\n", "s.yaml:9:3", "cp 8 is not a multiple of cp_ulysses 3", "2 or 4"),
        ("  cp_keep_kv: true\n", "s.yaml:8:3", "says nothing with cp_kind ring", "set training.cp_kind: allgather"),
        ("  cp_ulysses: 4\n", "s.yaml:8:3", "cp_ulysses 4, but cp_kind ring exchanges no heads", "cp_kind: usp"),
        (
            "  cp_kind: allgather\n  cp_ulysses: 8\n",
            "s.yaml:9:3",
            "cp_ulysses 8, but cp_kind allgather",
            "set training.cp_kind: ulysses, or leave training.cp_ulysses out",
        ),
        ("  cp_inner: ring\n", "s.yaml:8:3", "cp_inner says nothing with cp_kind ring", "set training.cp_kind: usp"),
        (
            "  offload_activations: 2.0\n",
            "s.yaml:8:3",
            "training.offload_activations is 2.0",
            "give a number from 0 to 1",
        ),
        (
            "  attention: unfused\n",
            "s.yaml:8:3",
            "which attention unfused cannot",
            "set training.attention: flash, or set training.cp_kind: ulysses",
        ),
    ],
)
def test_refusals_have_place_and_fix(load, extra, where, message, fix):
    with pytest.raises(UserError) as caught:
        load(extra)
    assert caught.value.exit_code == 2
    assert caught.value.where == where
    assert message in str(caught.value)
    assert fix in str(caught.value.fix)


def test_heads_that_do_not_suffice(load):
    text = LLAMA.replace("cp: 8", "cp: 32").replace("nodes: 2", "nodes: 8")
    with pytest.raises(UserError) as caught:
        load("  cp_kind: ulysses\n", text)
    assert "32 heads do not divide over tp 2 * 32 ranks that exchange heads = 64" in str(caught.value)
    assert "set training.cp_kind: usp and training.cp_ulysses: 8 or 16" in str(caught.value)


def test_keys_without_context_parallelism_are_refused(load):
    with pytest.raises(UserError, match=r"s.yaml:8:3: training.cp_kind says nothing with cp 1"):
        load("  cp_kind: ring\n", LLAMA.replace("cp: 8", "dp: 8"))


def test_balance_needs_two_blocks_a_rank_and_nothing_else_does(load):
    """mesh: a sequence of 2 cp blocks; whole blocks where balance is off, or heads are exchanged alone."""
    odd = LLAMA.replace("65536", str(8 * 4095))
    with pytest.raises(UserError, match="not a multiple of 2 \\* cp 8 = 16, which balances causal attention"):
        load("", odd)
    assert load("  cp_balance: false\n", odd).recipe.sequence == 8 * 4095
    assert load("  cp_kind: ulysses\n", odd).recipe.sequence == 8 * 4095


ROW = {
    **{"id": "r", "family": "f", "hidden": "4096", "layers": "32", "heads": "32", "kv_heads": "8", "vocab": "32000"},
    **{"seq": "65536", "gpu": "A800-80GB-SXM", "gpus": "32", "gpus_per_node": "8", "tp": "1", "pp": "1", "cp": "16"},
    **{"microbatch": "1", "global_batch": "2", "recompute": "full", "precision": "bf16", "attention": "flash"},
    **{"gated_mlp": "y"},
}


def recipe_of(**changes: str) -> tuple[Recipe, tuple[str, ...]]:
    case = build_case(PublishedRow("a.csv", 2, {**ROW, **changes}))
    assert (case.mesh.cp, case.mesh.dp) == (16, 2)
    return case.candidates[0].recipe, case.notes


@pytest.mark.parametrize("kind", ["ring", "allgather", "ulysses", "burst"])
def test_kinds_of_rows_are_those_of_scenarios(kind: str) -> None:
    assert recipe_of(cp_kind=kind)[0].cp_kind == kind


def test_a_row_without_a_kind_takes_a_ring_and_says_so() -> None:
    recipe, notes = recipe_of()
    assert recipe.cp_kind == "ring"
    assert any("cp_kind not stated: ring" in note for note in notes)


def test_usp_exchanges_heads_in_the_node_as_far_as_they_go() -> None:
    """8 ranks of a node where the heads allow; 4 where there are 4 key/value heads."""
    recipe, notes = recipe_of(cp_kind="usp")
    assert recipe.cp_ulysses == 8
    assert any("among 8 ranks of a node" in note for note in notes)
    assert recipe_of(cp_kind="usp", kv_heads="4")[0].cp_ulysses == 4


def test_offloaded_share_of_activations() -> None:
    assert recipe_of(offload="activations:0.522")[0].offload_activations == 0.522
    assert recipe_of(offload="none")[0].offload_activations == 0.0
    assert recipe_of(offload="optimizer")[0].offload_states == "optimizer"
    for other in ("parameters", "activations:1.5", "activations"):
        with pytest.raises(RowSkippedError, match="offloading is not modelled yet"):
            recipe_of(offload=other)


def test_a_forecast_says_whether_the_network_keeps_up(load) -> None:
    """Required and reachable rate of a GPU, what of the two is the bound, and the cp from which it does not pay."""
    found = forecast(load("  zero_stage: 1\n"), engine="analytic")
    stated = found.as_dict()["context_parallel"]
    assert stated["kind"] == "ring"
    assert (stated["cp"], stated["bound"]) == (8, found.context_parallel.bound)
    needs_more = stated["required_bytes_per_s"] > stated["available_bytes_per_s"]
    assert stated["bound"] == ("network" if needs_more else "compute")
    assert stated["required_bytes_per_s"] == pytest.approx(stated["bytes_per_exchange"] / stated["beside_s"])
    rows = {row[0]: row for row in summary_table(found).rows}
    assert f"{stated['bound']}-bound on cp 8" in rows["context parallelism"][3]
    assert rows["rate required"][2] == "GB/s per GPU"
    alone = forecast(load(text=LLAMA.replace("cp: 8", "dp: 8")), engine="analytic")
    assert alone.as_dict()["context_parallel"] is None
    assert "context parallelism" not in {row[0] for row in summary_table(alone).rows}


@pytest.mark.parametrize(
    ("keys", "finding"),
    [
        ("  cp_kind: ulysses\n  cp_balance: true\n", "cp_balance says nothing with cp_kind ulysses"),
        ("  recompute: full_but_late_attention\n  cp_balance: false\n", "needs a part of both halves"),
        ("  attention: unfused\n  recompute: full_but_attention\n", "keeps no scores"),
    ],
)
def test_what_a_split_cannot_do_is_refused(load, keys: str, finding: str) -> None:
    with pytest.raises(UserError, match=finding):
        load(keys)


@pytest.mark.parametrize(
    ("keys", "sequence", "message", "fix"),
    [
        ("", 65528, "sequence 65528 is not a multiple of 2 * cp 8 = 16", "set training.sequence: 65520 or 65536"),
        ("  cp_balance: false\n", 65532, "sequence 65532 is not a multiple of cp 8", "set training.sequence: 65528 or"),
        ("  cp_kind: ulysses\n", 65532, "sequence 65532 is not a multiple of cp 8", "set training.sequence: 65528 or"),
    ],
)
def test_sequences_are_refused_at_their_key(load, keys: str, sequence: int, message: str, fix: str) -> None:
    """Two blocks a rank where causal attention is balanced (Llama 3, section 3.3.2), one where it is not."""
    with pytest.raises(UserError) as caught:
        load(keys, LLAMA.replace("65536", str(sequence)))
    assert caught.value.where == "s.yaml:7:3"
    assert message in str(caught.value)
    assert fix in str(caught.value.fix)


def test_key_value_heads_against_the_ranks_that_exchange_heads(load) -> None:
    """12 key/value heads over tp 2 * 8 ranks: neither divides the other, so no rank could hold whole ones."""
    text = LLAMA.replace("heads: 32, kv_heads: 8", "heads: 48, kv_heads: 12").replace("4096", "6144")
    with pytest.raises(UserError) as caught:
        load("  cp_kind: ulysses\n", text)
    assert caught.value.where == "s.yaml:8:3"
    assert "12 kv_heads against tp 2 * 8 ranks that exchange heads = 16" in str(caught.value)
    assert "set training.cp_kind: usp and training.cp_ulysses: 2" in str(caught.value.fix)
    assert load("  cp_kind: usp\n  cp_ulysses: 2\n", text).recipe.cp_ulysses == 2
