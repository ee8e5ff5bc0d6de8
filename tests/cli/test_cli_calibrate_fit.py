"""`traincast calibrate fit`, `show`, `check`, and `validate --collectives`."""

import csv
import io
import json
from pathlib import Path

import pytest

HEADER = (
    "curve_id,source,gpu,nodes,gpus,net,nccl_version,op,algo,proto,dtype,"
    "size_bytes,time_us,algbw_gbps,busbw_gbps,inplace"
)
SIZES = [2**k for k in range(10, 33, 2)]


def rows(name: str, nodes: int, ranks: int, *, floor_us: float, gb_per_s: float) -> list[str]:
    """A plain curve: a floor and a rate."""
    net = "8x200G IB HDR" if nodes > 1 else "NVLink3 NVSwitch"
    head = f"{name},made up,A100-SXM4-80GB,{nodes},{ranks},{net},2.8.4,all_reduce,auto,auto,float"
    return [f"{head},{size},{floor_us + size / (1e3 * gb_per_s):.4f},,,0" for size in SIZES]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "curves.csv"
    lines = [HEADER, *rows("one", 1, 8, floor_us=25, gb_per_s=130), *rows("two", 2, 16, floor_us=50, gb_per_s=60)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_fit_check_and_show(run, table, tmp_path):
    profile = tmp_path / "mine.yaml"
    outcome = run("calibrate", "fit", table, "-o", profile)
    assert outcome.code == 0
    assert "network.wire_efficiency" in outcome.out
    text = profile.read_text(encoding="utf-8")
    assert text.startswith("# Fitted by traincast on curves.csv.")
    assert 'inherits: "a100-80gb-sxm"' in text
    outcome = run("calibrate", "check", table, profile, "--within", "60", "--format", "json")
    assert outcome.code == 0
    assert {one["verdict"] for one in json.loads(outcome.out)["changes"]} == {"as before"}
    slow = tmp_path / "slow.csv"
    lines = [HEADER, *rows("two", 2, 16, floor_us=50, gb_per_s=30)]
    slow.write_text("\n".join(lines) + "\n", encoding="utf-8")
    outcome = run("calibrate", "check", slow, profile, "--format", "json")
    assert outcome.code == 1
    found = {one["sizes"]: one["verdict"] for one in json.loads(outcome.out)["changes"]}
    assert found["above 32.0 MiB"] == "slower"
    picture = tmp_path / "fit.png"
    assert run("calibrate", "show", table, "--profile", profile, "-o", picture).code == 0
    assert picture.read_bytes()[:4] == b"\x89PNG"
    outcome = run("calibrate", "show", table, "--profile", profile, "--format", "csv")
    shown = list(csv.DictReader(io.StringIO(outcome.out)))
    assert len(shown) == 2 * len(SIZES)
    assert shown[0]["group"] == "one"
    outcome = run("predict", "examples/gpt_10b_1f1b", "--set", f"profile={profile}", "--format", "json")
    assert json.loads(outcome.out)["profile"] == "mine"


def test_a_profile_stands_for_the_logs_that_told_it(run):
    outcome = run("calibrate", "show", "a100-azure-ndv4", "--format", "json")
    assert outcome.code == 0
    assert {one["group"] for one in json.loads(outcome.out)["cases"]} == {"a100_8g_echo", "a100_2n_echo"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "TABLE", "-o", "x.json"), "end it in .yaml"),
        (("fit", "TABLE", "-o", "x.yaml", "--gpu", "H20"), "H20"),
        (("fit", "TABLE", "-o", "/nowhere/x.yaml"), "cannot write /nowhere/x.yaml"),
        (("check", "TABLE", "no-such-profile"), "no profile 'no-such-profile'"),
        (("check", "TABLE", "a100-node", "--within", "-1"), "--within"),
        (("show", "no-such-profile"), "no profile 'no-such-profile'"),
    ],
)
def test_mistakes_end_with_2_and_a_fix(run, table, tmp_path, arguments, message):
    outcome = run("calibrate", *(table if text == "TABLE" else text for text in arguments))
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_collectives_are_validated_point_by_point(run, table):
    outcome = run("validate", "--collectives", table, "--format", "json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert len(found["rows"]) == 2 * len(SIZES)
    first = found["rows"][0]
    wanted = {"curve_id", "size_bytes", "in_place", "measured_us", "predicted_us", "error_pct", "status", "reason"}
    assert wanted <= set(first)
    assert first["status"] == "scored"
    assert first["error_pct"] == pytest.approx(100 * (first["predicted_us"] / first["measured_us"] - 1))
    assert [one["profile"] for one in found["hardware"]] == ["a100-node", "a100-azure-ndv4"]
    rows_of = list(csv.DictReader(io.StringIO(run("validate", "--collectives", table, "--format", "csv").out)))
    assert len(rows_of) == 2 * len(SIZES)
    assert run("validate", "--collectives", table, "--max-mape", "0.1").code == 1


def test_unknown_hardware_is_skipped_with_its_reason(run, tmp_path):
    path = tmp_path / "unknown.csv"
    line = "x,y,H20,1,8,NVLink4,2.20.5,all_reduce,auto,auto,float,1048576,50,,,0"
    odd = "z,y,A100-SXM4-80GB,1,8,NVLink3,2.20.5,hypercube,auto,auto,float,1048576,50,,,0"
    path.write_text(f"{HEADER}\n{line}\n{odd}\n", encoding="utf-8")
    found = json.loads(run("validate", "--collectives", path, "--format", "json").out)
    assert [one["status"] for one in found["rows"]] == ["skipped", "skipped"]
    assert [one["predicted_us"] for one in found["rows"]] == [None, None]
    assert "H20" in found["rows"][0]["reason"]
    assert "hypercube" in found["rows"][1]["reason"]


def test_a_curve_that_told_a_constant_is_not_scored(run, tmp_path):
    path = tmp_path / "known.csv"
    line = "a100_8g_echo,y,A100-SXM4-40GB,1,8,NVLink3 (Azure NDv4),,all_reduce,auto,auto,float,1048576,72.53,,,0"
    path.write_text(f"{HEADER}\n{line}\n", encoding="utf-8")
    (row,) = json.loads(run("validate", "--collectives", path, "--format", "json").out)["rows"]
    assert row["status"] == "fitted"
    assert "a100-azure-ndv4 was fitted on this curve" in row["reason"]


def test_collectives_have_no_families_and_need_their_columns(run, tmp_path):
    assert "no families" in run("validate", "--collectives", "--family", "sc21").err
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    outcome = run("validate", "--collectives", path)
    assert outcome.code == 2
    assert "x.csv:1: lacks the columns" in outcome.err
