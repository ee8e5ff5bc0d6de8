"""`traincast predict --sharing ecmp`: flows and seed of the hash, said in the forecast; a range of seeds."""

import json
from pathlib import Path

import pytest

CLUSTER = """\
builder: fat_tree
nodes: 8
description: pods of two leaves without rails, tapered above
node: {gpu: A100-80GB-SXM, gpus: 8, nics: 8, nic: HDR200-IB}
fabric: {levels: 3, rail_optimised: false, nodes_per_unit: 2, units_per_pod: 2, spine_oversubscription: 7}
"""
SCENARIO = """\
model: {hidden: 2048, layers: 8, heads: 16, vocab: 51200}
cluster: tapered.yaml
parallelism: {tp: 8, pp: 2, dp: 4, order: tp-pp-dp}
training: {global_batch: 16, microbatch: 1, sequence: 2048, precision: fp16}
"""


@pytest.fixture
def tapered(tmp_path: Path) -> Path:
    (tmp_path / "tapered.yaml").write_text(CLUSTER)
    path = tmp_path / "hashed.yaml"
    path.write_text(SCENARIO)
    return path


def test_flows_and_seed_are_said_and_count(run, tapered):
    """Two flows and seed 0 unless asked otherwise; more flows come closer to ideal routing."""

    def forecast(*arguments: object) -> dict:
        outcome = run("predict", tapered, "--format", "json", *arguments)
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    usual = forecast("--sharing", "ecmp")
    assert any("2 flows from NIC to NIC" in text and "seed 0" in text for text in usual["assumptions"])
    assert (usual["ecmp"]["flows"], usual["ecmp"]["seeds"]) == (2, [0])
    many = forecast("--sharing", "ecmp", "--ecmp-flows", 64, "--ecmp-seed", 3)
    assert any("64 flows from NIC to NIC" in text and "seed 3" in text for text in many["assumptions"])
    ideal = forecast("--sharing", "adaptive")
    assert ideal["ecmp"] is None
    assert ideal["step_time_s"] <= many["step_time_s"] < usual["step_time_s"]
    assert forecast("--sharing", "ecmp") == usual


def test_a_range_of_seeds_shows_best_median_and_worst(run, tapered):
    found = json.loads(run("predict", tapered, "--sharing", "ecmp", "--ecmp-seed", "0..4", "--format", "json").out)
    spread = found["ecmp"]
    times = dict(zip(spread["seeds"], spread["step_times_s"], strict=True))
    assert list(times) == [0, 1, 2, 3, 4]
    ranked = sorted(times.values())
    assert list(spread["step_time_s"].values()) == [ranked[0], ranked[2], ranked[4]]
    assert ranked[0] < ranked[4]
    assert found["step_time_s"] == times[spread["seed"]["median"]] == ranked[2]
    assert any(f"seed {spread['seed']['median']} " in text for text in found["assumptions"])
    table = run("predict", tapered, "--sharing", "ecmp", "--ecmp-seed", "0..4").out
    assert "5 seeds" in table
    assert "median" in table


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--sharing", "ecmp", "--ecmp-flows", "0"), "--ecmp-flows: 0 flows"),
        (("--sharing", "ecmp", "--ecmp-seed", "3..1"), "--ecmp-seed: '3..1'"),
        (("--sharing", "ecmp", "--ecmp-seed", "all"), "a range of at most 100 such as 0..9"),
        (("--ecmp-seed", "3"), "add --sharing ecmp"),
        (("--sharing", "adaptive", "--ecmp-flows", "4"), "add --sharing ecmp"),
    ],
)
def test_what_cannot_be_is_refused(run, tapered, arguments, words):
    outcome = run("predict", tapered, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err


def test_the_default_is_stated(run):
    """Static sharing, in the help and where the fabric's options are explained."""
    help_text = " ".join(run("predict", "--help").out.split())
    assert "static (the default)" in help_text
    readme = Path(__file__).parents[2] / "topologies" / "README.md"
    assert "`traincast predict SCENARIO --sharing static` is the default" in readme.read_text(encoding="utf-8")
