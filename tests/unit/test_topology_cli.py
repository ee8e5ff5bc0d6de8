"""`traincast topology list|show`."""

import csv
import io
import json
from typing import Any

import pytest

from traincast.cli.main import main


def output(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["topology", *arguments]) == 0
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(output(capsys, *arguments, "--format", "json"))


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    payload = as_json(capsys, "list")
    clusters = {entry["name"]: entry for entry in payload["clusters"]}
    assert clusters["selene"]["gpus"] == 4480
    gpus = {entry["name"]: entry for entry in payload["gpus"]}
    assert gpus["A100-80GB-SXM"]["peaks_flops_per_s"]["bf16"] == 312e12
    text = output(capsys, "list")
    assert "hdr4_a100" in text
    assert "H100-80GB-SXM" in text


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    payload = as_json(capsys, "show", "selene", "--gpus", "1120")
    assert payload["counts"] == {"gpus": 1120, "nics": 1120, "switches": 164, "nodes": 140}
    assert payload["parts"] | {"leaf": 56, "spine": 80, "core": 28} == payload["parts"]
    assert {row["between"] for row in payload["links"]} >= {
        "gpu-nvswitch",
        "nic-leaf",
        "leaf-spine",
        "spine-core",
    }
    assert [row["tier"] for row in payload["tiers"]] == ["nvlink", "leaf", "spine", "core"]
    assert payload["assumed"]
    text = output(capsys, "show", "selene")
    assert "25.0 GB/s" in text
    assert "oversubscription" in text


def test_show_csv(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(output(capsys, "show", "hdr4_a100", "--format", "csv"))))
    assert {row["part"]: int(row["count"]) for row in rows}["nic"] == 256


def test_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "show", "seleen"]) == 2
    error = capsys.readouterr().err
    assert "did you mean" in error or "use selene" in error
    assert "Traceback" not in error
