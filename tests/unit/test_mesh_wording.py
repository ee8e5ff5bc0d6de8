"""Fixes in the words of who asked: settings as keys, options or axes, other words as they are."""

import pytest

from traincast.mesh.wording import NAMES, as_option, worded
from traincast.scenario.schema import ClusterSection, ModelSection, ParallelismSection, TrainingSection
from traincast.scenario.text import Places
from traincast.scenario.wording import dotted, keys_of, place_of, scenario_fix
from traincast.sweep import _axis_fix


@pytest.mark.parametrize(
    ("fix", "key", "option"),
    [
        ("schedule 1f1b", "set training.schedule: 1f1b", "--schedule 1f1b"),
        (
            "vpp 2, or schedule 1f1b",
            "set parallelism.vpp: 2, or set training.schedule: 1f1b",
            "--vpp 2, or --schedule 1f1b",
        ),
        ("global batch 23 or 46", "set training.global_batch: 23 or 46", "--global-batch 23 or 46"),
        (
            "tp 4 or 8, or 24 or 32 heads",
            "set parallelism.tp: 4 or 8, or set model.heads: 24 or 32",
            "--tp 4 or 8, or --heads 24 or 32",
        ),
        ("pp 2 or more", "set parallelism.pp: 2 or more", "--pp 2 or more"),
        ("pp 2 with vpp 1", "set parallelism.pp: 2 and parallelism.vpp: 1", "--pp 2 and --vpp 1"),
        ("cp_kind usp, or no cp_ulysses", "set training.cp_kind: usp, or leave training.cp_ulysses out", None),
        ("world 8 or 16, or tp 2", "a cluster of 8 or 16 GPUs, or set parallelism.tp: 2", "--world 8 or 16, or --tp 2"),
        ("put pp last: tp-cp-ep-dp-pp", "put pp last: tp-cp-ep-dp-pp", "put pp last: tp-cp-ep-dp-pp"),
        (
            "ep 1, or a model with experts",
            "set parallelism.ep: 1, or a model with experts",
            "--ep 1, or a model with experts",
        ),
        ("leave training.p2p out", "leave training.p2p out", "leave training.p2p out"),
    ],
)
def test_settings_are_written_as_they_are_typed(fix: str, key: str, option: str | None) -> None:
    assert scenario_fix(fix, "s.yaml:3:1") == key
    if option is not None:
        assert worded(fix, as_option) == option


def test_what_an_option_set_is_mended_by_an_option() -> None:
    """A clash that `--set` made names `--set`; an axis of a sweep names `--axis`."""
    assert scenario_fix("vpp 2, or schedule 1f1b", "--set parallelism.vpp=1") == (
        "--set parallelism.vpp=2, or --set training.schedule=1f1b"
    )
    assert _axis_fix("pp 2 or 4, or schedule dualpipev, or global batch 8 or more") == (
        "--axis pp=2,4, or --set training.schedule=dualpipev, or --set training.global_batch=8 or more"
    )


def test_every_setting_is_a_key_of_a_scenario() -> None:
    """One table serves all checks: what they name exists, but for the world, which a cluster makes."""
    sections = {"parallelism": ParallelismSection, "training": TrainingSection, "model": ModelSection}
    for name in NAMES:
        section, *rest = keys_of(name)
        if name == "world":
            assert section == "cluster"
            assert "nodes" in ClusterSection.model_fields
            continue
        assert rest[0] in sections[str(section)].model_fields, name
        assert dotted(name) == f"{section}.{rest[0]}"


def test_the_first_stated_key_is_the_place() -> None:
    places = Places("s.yaml", {(): "s.yaml:1:1", ("training",): "s.yaml:4:1", ("parallelism", "cp"): "s.yaml:3:20"})
    assert place_of(("cp_ulysses", "cp"), places) == "s.yaml:3:20"
    assert place_of(("cp_ulysses",), places) == "s.yaml:4:1"
