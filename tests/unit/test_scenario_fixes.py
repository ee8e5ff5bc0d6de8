"""What a fix offers, the same checks take: every value of it is set, and nothing is refused any more."""

import re
from pathlib import Path

import pytest

from traincast.errors import UserError
from traincast.mesh import balanced_layers
from traincast.scenario import load_scenario

BASE = """\
model: {hidden: 4096, layers: 32, heads: 32, vocab: 51200, max_positions: 4096}
cluster: {gpu: H100-80GB-SXM, nodes: 4}
parallelism: {tp: 4, pp: 8, dp: 1}
training: {global_batch: 64, microbatch: 1, sequence: 4096}
"""
CONTEXT = """\
model: llama3-8b
cluster: {gpu: H100-80GB-SXM, nodes: 4}
parallelism: {cp: 32}
training: {global_batch: 1, microbatch: 1, sequence: 1048576, recompute: full, zero_stage: 3}
"""
MANY_CHUNKS = """\
model: llama3-405b
cluster: {gpu: H100-80GB-SXM}
parallelism: {tp: 8, pp: 16, dp: 1, vpp: 8}
training: {global_batch: 16, microbatch: 1, sequence: 8192, stage_layers: balanced_with_embedding}
"""


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """(text, options) -> the error, with its file and options at hand."""
    monkeypatch.chdir(tmp_path)

    def load(text: str, *sets: tuple[str, str]) -> UserError:
        Path("s.yaml").write_text(text)
        with pytest.raises(UserError) as caught:
            load_scenario("s.yaml", sets)
        return caught.value

    return load


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        (
            CONTEXT,
            {
                "parallelism.cp": "8",
                "training.global_batch": "4",
                "training.cp_kind": "usp",
                "training.cp_ulysses": "3",
            },
        ),
        (CONTEXT, {"training.sequence": "1048608"}),
        (BASE, {"parallelism.vpp": "2", "training.schedule": "none"}),
        (BASE, {"parallelism.pp": "6", "training.schedule": "dualpipe"}),
        (BASE, {"parallelism.pp": "5", "training.schedule": "zb-v"}),
        (BASE, {"parallelism.tp": "2", "parallelism.pp": "4", "parallelism.dp": "3"}),
        (BASE, {"parallelism.pp": "8", "training.schedule": "dualpipe", "training.global_batch": "9"}),
    ],
)
def test_every_value_of_a_fix_is_accepted(refused, text: str, sets: dict[str, str]) -> None:
    error = refused(text, *sets.items())
    fix = error.fix or ""
    tried = 0
    for alternative in fix.split(", or "):
        settings = re.findall(r"(?:--set |set |and )?([a-z]+\.[a-z_]+)(?:=|: )([\w-]+(?: or [\w-]+)*)", alternative)
        if not settings or "stage_layers" in alternative or "or more" in alternative:
            continue
        (key, values), *beside = settings
        for value in values.split(" or "):
            load_scenario("s.yaml", [*{**sets, key: value, **dict(beside)}.items()])
            tried += 1
    assert tried or "stage_layers" in fix


def test_an_odd_dualpipe_is_not_sent_to_uneven_stages(refused) -> None:
    """Stages in pairs: whatever the split, three of them stay refused."""
    error = refused(BASE, ("training.schedule", "dualpipe"), ("parallelism.pp", "3"))
    assert "stage_layers" not in str(error)
    assert "--set parallelism.pp=2 or 4" in str(error)


def test_chunks_of_dualpipe_are_those_of_a_copy_of_the_model(refused) -> None:
    """Two chunks a stage, one of each direction (DeepSeek-V3 Technical Report, section 3.2.1)."""
    error = refused(BASE, ("training.schedule", "dualpipe"), ("parallelism.pp", "6"))
    assert "pp 6 = 6 chunks of a copy of the model (vpp 2: a stage holds 2 copies)" in error.message


def test_embedding_and_head_fill_chunks_that_layers_alone_do_not(tmp_path: Path) -> None:
    """126 layers and two ends on 128 chunks: none on the first and the last, one on each other."""
    path = tmp_path / "s.yaml"
    path.write_text(MANY_CHUNKS)
    assert load_scenario(path).recipe.stage_layers == (0, *[1] * 126, 0) == balanced_layers(126, 16, 8, True)


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        (("balanced_with_embedding", "balanced"), "set training.stage_layers: balanced_with_embedding"),
        (("vpp: 8", "vpp: 9"), "set parallelism.pp: "),
    ],
)
def test_too_many_chunks_are_refused_with_their_place(refused, change: tuple[str, str], fix: str) -> None:
    error = refused(MANY_CHUNKS.replace(*change))
    assert error.where == "s.yaml:3:22"
    assert "126 layers do not divide over pp 16" in error.message
    assert fix in (error.fix or "")


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("offload_activations", "-0.1", "give a number from 0 to 1"),
        ("offload_activations", "50%", "give a number from 0 to 1"),
        ("zero_stage", "2.5", "give a whole number from 0 to 3"),
        ("prefetch", "1.5", "give a whole number from 0 to 8"),
        ("microbatch", "0", "give a whole number of 1 or more"),
    ],
)
def test_a_range_is_told_as_it_is(refused, key: str, value: str, fix: str) -> None:
    assert refused(BASE, (f"training.{key}", value)).fix == fix
