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
        (("--dp", "8", "--pp", "2", "--hsdp", "2x4"), "with --fsdp dp or --fsdp dp-cp"),
        (("--dp", "8", "--pp", "2", "--hsdp", "2x3", "--fsdp", "dp"), "--hsdp 4x2"),
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


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("paralelism.tp=4", "--set paralelism.tp=4: unknown key 'paralelism' (fix: did you mean parallelism?)"),
        ("training.microbatch=3", "--set training.microbatch=3: global batch 32 is not a multiple of microbatch 3"),
        ("training.recompute=op:", "training.recompute is 'op:', which YAML takes for a mapping"),
        ("profile=./nope.yaml", "--set profile=./nope.yaml: no profile file './nope.yaml'"),
        ("profile=a100-nod", "--set profile=a100-nod: no profile 'a100-nod'"),
        ("training.precision=fp4", "It is one of fp16, bf16, fp8, mxfp8)"),
    ],
)
def test_an_option_is_blamed_for_what_it_changed(run, small, override, words):
    """The file was right before: it is the option that is to be mended, in the words that were typed."""
    outcome = run("predict", small, "--set", override)
    assert outcome.code == 2
    assert words in outcome.err
    assert "None" not in outcome.err


SPLIT_IN_PASSES = ("training.schedule=zb-h1", "training.zero_stage=3", "training.reshard_after_forward=true")


@pytest.mark.parametrize("command", ["predict", "plan", "compare", "sweep"])
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.precision=fp8", "A100-80GB-SXM has no fp8 peak"),
        ("training.precision=mxfp8", "A100-80GB-SXM has no mxfp8 peak"),
        ("training.precision=fp32", "training in fp32 is not modelled yet"),
    ],
)
def test_a_precision_that_cannot_be_is_refused_once_at_its_key(run, small, command, override, words):
    """What is offered instead a scenario takes, the GPU has, and a cost stands behind."""
    outcome = run(command, small, "--set", override)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count(words) == 1
    assert f"--set {override}: training.precision: {words}" in outcome.err
    assert "(fix: --set training.precision=fp16 or bf16)" in outcome.err


def test_what_is_not_modelled_names_its_key_and_place(run, small):
    sets = [word for one in SPLIT_IN_PASSES for word in ("--set", one)]
    outcome = run("predict", small, *sets)
    assert outcome.code == 2
    assert "--set training.reshard_after_forward=true: training.reshard_after_forward: gathers or red" in outcome.err
    small.write_text(small.read_text().replace("precision: fp16", "precision: tf32"))
    outcome = run("predict", small)
    assert f"{small.name}:5:61: training.precision: training in tf32 is not modelled yet" in outcome.err
    assert "(fix: set training.precision: fp16 or bf16)" in outcome.err


@pytest.mark.parametrize(
    "words",
    [
        *(("predict",), ("compare",), ("plan",), ("sweep",), ("sweep", "--format", "json")),
        *(("validate",), ("mesh", "--scenario")),
    ],
)
def test_a_folder_that_lacks_is_told_before_any_work(run, small, tmp_path, monkeypatch, words):
    monkeypatch.setattr("traincast.scenario.load.find_scenario", lambda name: pytest.fail("work was begun"))
    monkeypatch.setattr("traincast.validate.read_published", lambda *_, **__: pytest.fail("work was begun"))
    scenario = () if words == ("validate",) else (small,)
    outcome = run(*words, *scenario, "-o", tmp_path / "no" / "x.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        f"traincast: -o: cannot write {tmp_path / 'no' / 'x.csv'}: no such folder (fix: name a folder that exists)\n"
    )


def test_a_trace_without_a_folder_and_results_that_are_folders(run, small, tmp_path, monkeypatch):
    monkeypatch.setattr("traincast.scenario.load.find_scenario", lambda name: pytest.fail("work was begun"))
    outcome = run("predict", small, "--trace", tmp_path / "no" / "t.json")
    assert outcome.code == 2
    assert "--trace: cannot write" in outcome.err
    (tmp_path / "x.csv").mkdir()
    assert "it is a folder" in run("sweep", small, "-o", tmp_path / "x.csv").err


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
