"""The files that come along: all load, name their source, and say what the published rows say."""

import csv
import math
import re
from functools import cache
from pathlib import Path

import pytest

from traincast.model import step_flops, total_parameters
from traincast.scenario import Scenario, load_model, load_scenario, model_names, scenario_names, scenarios_dir
from traincast.scenario.schema import (
    ClusterSection,
    ModelSection,
    ParallelismSection,
    PublishedSection,
    TrainingSection,
)

NAMES = [name for name in scenario_names() if name.split("/")[0] in ("sc21", "korthikanti", "vtrain")]
PUBLISHED = sorted((scenarios_dir() / "published").glob("*.csv"))
LARGEST_FILE_BYTES = 2 * 2**20


@cache
def published_rows() -> dict[str, dict[str, str]]:
    rows: dict[str, dict[str, str]] = {}
    for path in PUBLISHED:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                assert row["id"] not in rows
                rows[row["id"]] = row
    return rows


def test_the_studies_are_complete():
    assert sum(name.startswith("sc21/t1_") for name in NAMES) == 10
    assert sum(name.startswith("korthikanti/t5_") for name in NAMES) == 8
    assert sum(name.startswith("vtrain/gpt3p6b_") for name in NAMES) == 2


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_loads(name: str):
    assert load_scenario(name).mesh.world >= 1


@pytest.mark.parametrize("name", NAMES)
def test_scenarios_of_studies_leave_nothing_open_and_name_their_source(name: str):
    scenario = load_scenario(name)
    assert scenario.source
    assert scenario.description
    assert scenario.profile_name
    assert not any("not stated" in assumption for assumption in scenario.assumptions)


def as_row(scenario: Scenario) -> dict[str, str]:
    """The columns of a published row, as a scenario has them."""
    model, mesh, recipe = scenario.model, scenario.mesh, scenario.recipe
    numbers = {
        "hidden": model.hidden,
        "layers": model.layers,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "ffn_hidden": model.ffn_hidden,
        "vocab": model.vocab,
        "seq": recipe.sequence,
        "gpus": mesh.world,
        "tp": mesh.tp,
        "pp": mesh.pp,
        "cp": mesh.cp,
        "dp": mesh.dp,
        "vpp": recipe.vpp,
        "microbatch": recipe.microbatch,
        "global_batch": recipe.global_batch,
        "zero_stage": recipe.zero_stage,
    }
    words = {
        "schedule": recipe.schedule,
        "recompute": recipe.recompute,
        "sequence_parallel": "y" if recipe.sequence_parallel else "n",
        "precision": recipe.precision,
        "attention": recipe.attention,
        "overlap_dp": "y" if recipe.overlap_dp else "n",
    }
    return {key: str(value) for key, value in numbers.items()} | words


@pytest.mark.parametrize("name", NAMES)
def test_published_figures_are_those_of_the_row(name: str):
    scenario = load_scenario(name)
    assert scenario.published is not None
    row = published_rows()[scenario.published["row"]]
    assert as_row(scenario) == {key: row[key] for key in as_row(scenario)}
    assert scenario.published["step_time_s"] == float(row["iter_time_s"])
    assert scenario.published["tflops_per_gpu"] == float(row["tflops_per_gpu"])
    assert scenario.published["convention"] == row["flop_convention"]


@pytest.mark.parametrize("name", NAMES)
def test_published_time_and_rate_agree_under_the_convention(name: str):
    # the rates are printed with three or four digits
    scenario = load_scenario(name)
    recipe, published = scenario.recipe, scenario.published
    assert published is not None
    flops = step_flops(scenario.model, recipe.global_batch, recipe.sequence, published["convention"], recipe.recompute)
    rate = flops / (published["step_time_s"] * scenario.mesh.world)
    assert rate / 1e12 == pytest.approx(published["tflops_per_gpu"], rel=0.006)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-22b", 22),
        ("gpt-175b", 175),
        ("gpt-530b", 530),
        ("gpt-1t", 1008),
        ("llama2-7b", 6.7),
        ("llama2-13b", 13.0),
        ("llama2-70b", 69.0),
        ("llama3-8b", 8.0),
        ("llama3-70b", 70.6),
        ("llama3-405b", 405.8),
    ],
)
def test_models_have_the_size_of_their_name(name: str, billions: float):
    assert total_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", model_names())
def test_every_model_file_names_its_source(name: str):
    assert load_model(name).name
    assert "\nsource: " in (scenarios_dir() / "models" / f"{name}.yaml").read_text()


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_published_files_have_one_header_and_sources(path: Path):
    assert path.stat().st_size < LARGEST_FILE_BYTES
    with path.open(newline="") as file, PUBLISHED[0].open(newline="") as first:
        rows = list(csv.DictReader(file))
        assert list(rows[0]) == next(csv.reader(first))
    assert "notes" not in rows[0]
    for row in rows:
        assert row["id"]
        assert row["source"]
        assert row["family"] == path.stem
        assert row["grade"] in ("A", "B", "C")
        assert row["flop_convention"] in ("", "hardware", "model", "model, causal attention at half")
        for code in ("remark", "unusual"):
            assert " " not in row[code], f"{row['id']}: {code} is a short code"


def test_published_shapes_multiply_to_their_gpus():
    checked = 0
    for row in published_rows().values():
        if all(row[key] for key in ("gpus", "tp", "pp", "cp", "dp")) and not row["unusual"]:
            shape = math.prod(int(row[key]) for key in ("tp", "pp", "cp", "dp"))
            assert shape == int(row["gpus"]), row["id"]
            checked += 1
    assert checked > 1000


def test_the_example_of_the_readme_loads(tmp_path: Path):
    text = (scenarios_dir() / "README.md").read_text()
    example = tmp_path / "example.yaml"
    example.write_text(text.split("```yaml\n")[1].split("```")[0])
    scenario = load_scenario(example)
    assert scenario.model.name == "Llama-3-8B"
    assert scenario.mesh.world == 16


def test_the_readme_names_every_key():
    text = (scenarios_dir() / "README.md").read_text()
    for section in (ParallelismSection, TrainingSection, ClusterSection, ModelSection, PublishedSection):
        for key in section.model_fields:
            assert re.search(rf"[`.]{key}`", text), f"{section.__name__}.{key}"


def test_files_beside_the_rows_are_explained() -> None:
    """What lies among the published rows and is none of their tables has a line in the README."""
    folder = scenarios_dir() / "published"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    others = [path.name for path in folder.iterdir() if path.suffix != ".csv" and path.name != "README.md"]
    assert "residual_notes.yaml" in others
    assert all(f"`{name}`" in readme for name in others)
