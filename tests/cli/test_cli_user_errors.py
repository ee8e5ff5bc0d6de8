"""What a newcomer types wrong: exit code 2, one line that names the number, and a fix; never a hang or "unexpected"."""

import json
import subprocess
import sys

import pytest

from traincast import __main__ as entry
from traincast.mesh.problems import near_divisors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tp", "9" * 20), "above the limit of 4000000"),
        (("--tp", "100000", "--dp", "100000"), "a mesh of 10000000000 ranks is above the limit of 4000000"),
        (("--tp", "2", "--pp", "2", "--placement", "0-99999999999"), "lists more than 4000000 numbers"),
        (("--global-batch", "1" + "0" * 15, "--dp", "7"), "global batch"),
        (("--hidden", "0"), "--hidden"),
        (("--heads", "7", "--hidden", "100"), "--heads 5 or 10"),
        (("--gpus-per-node", "0"), "--gpus-per-node"),
        (("--tp", "2", "--dp", "2", "--fsdp", "mesh"), "name them: dp or dp-cp"),
        (("--pp", "2", "--stage-layers", "3,x"), "such as 8,8,7,7"),
        (("--dp", "4", "--placement", "0,x"), "such as 8-15,0-7"),
    ],
)
def test_meshes_that_cannot_be(run, arguments, words):
    outcome = run("mesh", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "(fix: " in outcome.err
    assert outcome.err.count("\n") == 1


def test_no_fix_names_an_option_that_is_not_there(run):
    assert "ragged" not in run("mesh", "--global-batch", "32", "--dp", "23").err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.bucket=0 MB", "'0 MB' is not above 0"),
        ("published.step_time=0 s", "'0 s' is not above 0"),
        ("training.global_batch=1000000000000", "give 10000000 or less"),
        ("training.global_batch=8000000", "above the limit of 4000000"),
        ("training.sequence=1000000000", "give 100000000 or less"),
        ("model.layers=1000000", "give 10000 or less"),
        ("model.hidden=" + "9" * 30, "give 1000000 or less"),
        ("parallelism.etp=2", "not modelled yet"),
        ("cluster.gpu=MI300X", "gpus.csv in a folder of your own (--catalog DIR)"),
        ("cluster.nic=123 Gbit/s ib", "nics.csv in a folder of your own (--catalog DIR)"),
    ],
)
def test_scenarios_that_cannot_be(run, small, override, words):
    outcome = run("predict", small, "--set", override)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "(fix: " in outcome.err


def test_a_sweep_over_a_size_that_nobody_means(run, small):
    outcome = run("sweep", small, "--axis", "tp=" + "9" * 23)
    assert outcome.code == 2
    assert "above the limit of 4000000" in outcome.err


def test_a_folder_is_no_scenario(run, tmp_path):
    outcome = run("predict", tmp_path)
    assert outcome.code == 2
    assert "is a folder" in outcome.err


def test_a_catalogue_that_is_no_text(run, small, tmp_path):
    (tmp_path / "gpus.csv").write_bytes(b"\x7fELF\xff\xfe\x00")
    outcome = run("predict", small, "--catalog", tmp_path)
    assert outcome.code == 2
    assert f"{tmp_path / 'gpus.csv'}: is not UTF-8 text" in outcome.err


@pytest.mark.parametrize("limit", ["nan", "-1", "inf"])
def test_a_mean_error_that_nothing_exceeds(run, limit):
    outcome = run("validate", "--max-mape", limit)
    assert outcome.code == 2
    assert "--max-mape" in outcome.err


def test_a_suffix_says_the_form_or_is_refused(run, small, tmp_path):
    outcome = run("predict", small, "-o", tmp_path / "x.xlsx")
    assert outcome.code == 2
    assert "end it in .json, .csv, .txt, or add --format" in outcome.err
    assert run("predict", small, "-o", tmp_path / "x.dat", "--format", "json").code == 0
    assert json.loads((tmp_path / "x.dat").read_text())["step_time_s"] > 0


def test_the_trace_does_not_overwrite_the_result(run, small, tmp_path):
    outcome = run("predict", small, "-o", tmp_path / "x.json", "--trace", tmp_path / "x.json")
    assert outcome.code == 2
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize(
    ("redirection", "words"), [("> /dev/full", "cannot write to standard output"), (">&-", "standard output is closed")]
)
def test_a_stdout_that_takes_nothing(redirection, words):
    command = f"{sys.executable} -m traincast topology list {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_interrupt_is_quiet(monkeypatch, capsys):
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("traincast.cli.main.main", interrupted)
    assert entry.main() == 130
    assert capsys.readouterr() == ("", "")


def test_a_row_counts_once(run, tmp_path):
    header = "id,family,gpu,gpus,hidden,layers,seq,global_batch\n"
    row = "one,f,A100-80GB-SXM,8,1024,8,1024,32\n"
    (tmp_path / "rows.csv").write_text(header + row + row)
    outcome = run("validate", tmp_path / "rows.csv", "--format", "json")
    rows = json.loads(outcome.out)["rows"]
    assert [entry["status"] for entry in rows] == ["skipped", "skipped"]
    assert rows[1]["reason"] == "the id stands already in rows.csv:2"
    assert "stands already" not in rows[0]["reason"]


def test_the_divisors_next_to_a_number():
    """Law: the same as by trying every number."""
    for number in range(1, 60):
        for wanted in range(1, 70):
            divisors = [d for d in range(1, number + 1) if number % d == 0]
            around = [d for d in divisors if d < wanted][-1:] + [d for d in divisors if d > wanted][:1]
            assert near_divisors(number, wanted) == tuple(around)
