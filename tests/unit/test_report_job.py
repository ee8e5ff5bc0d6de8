"""The job that a forecast echoes holds whatever can change its step."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from traincast.recipe import Recipe
from traincast.report.job_text import job_of, job_rows
from traincast.scenario import load_scenario

BASE = """\
model: {hidden: 1024, layers: 8, heads: 16, vocab: 51200}
cluster: {gpu: H100-80GB-SXM, nodes: 1}
parallelism: {tp: 2, pp: 2, dp: 2}
training: {global_batch: 8, microbatch: 1, sequence: 1024}
"""


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else "another"


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_no_two_recipes_have_one_job(tmp_path: Path, name: str) -> None:
    """Law: recipes that differ in a field, any field, are echoed differently."""
    (tmp_path / "s.yaml").write_text(BASE)
    base = load_scenario(tmp_path / "s.yaml")
    changed = (3, 5) if name == "stage_layers" else other(getattr(base.recipe, name))
    assert job_of(replace(base, recipe=replace(base.recipe, **{name: changed}))) != job_of(base)


@pytest.mark.parametrize(
    "key",
    [
        *("model.hidden=2048", "model.vocab=32000", "cluster.gpu=H200-141GB-SXM", "cluster.nic=200 Gbit/s ib"),
        *("parallelism.placement=[1, 0, 2, 3, 4, 5, 6, 7]", "profile=h100-80gb-torchtitan2025"),
    ],
)
def test_model_cluster_and_placement_are_of_the_job(tmp_path: Path, key: str) -> None:
    (tmp_path / "s.yaml").write_text(BASE)
    name, _, value = key.partition("=")
    assert job_of(load_scenario(tmp_path / "s.yaml", [(name, value)])) != job_of(load_scenario(tmp_path / "s.yaml"))


def test_the_table_names_what_is_unusual(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(BASE)
    sets = [("training.overlap_tp", "bulk"), ("training.bucket", "1 MiB"), ("training.stage_layers", "[3, 5]")]
    rows = {row[0]: row[1] for row in job_rows(load_scenario(tmp_path / "s.yaml", sets))}
    assert rows["recipe, further"] == "bucket_bytes 1.00 MiB, stage_layers 3-5, overlap_tp bulk"
    assert "recipe, further" not in {row[0] for row in job_rows(load_scenario(tmp_path / "s.yaml"))}
