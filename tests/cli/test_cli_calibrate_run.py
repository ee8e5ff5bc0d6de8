"""`traincast calibrate run`: the command that it would start, and what it refuses before anything is started."""

import shlex
import subprocess
import sys

import pytest

from traincast.cli import calibrate_launch, calibrate_run
from traincast.cli.calibrate_launch import Ended, Told, launch, passed_on


def test_a_dry_run_prints_the_command(run, checkout, tmp_path):
    output = tmp_path / "r.jsonl"
    outcome = run("calibrate", "run", "-o", output, "--quick", "--tp", 2, "--nproc-per-node", 4, "--dry-run")
    assert outcome.code == 0
    words = shlex.split(outcome.out)
    assert words[:5] == [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    assert words[5:] == [str(checkout / "calibration" / "run.py"), "-o", str(output), "--tp=2", "--quick"]
    assert not output.exists()


def test_several_nodes_are_told_how_to_start(run):
    outcome = run("calibrate", "run", "-o", "r.jsonl", "--nodes", 4, "--nproc-per-node", 8, "--", "--hidden", "1024")
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[1].startswith("srun --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 python ")
    assert lines[3].startswith("torchrun --nnodes=4 --nproc-per-node=8 --rdzv-backend=c10d ")
    assert all(line.endswith("run.py -o r.jsonl --hidden 1024") for line in lines[1::2])


def test_without_pytorch_it_says_what_to_install(run, monkeypatch, tmp_path):
    monkeypatch.setattr(calibrate_run, "find_spec", lambda name: None)
    outcome = run("calibrate", "run", "-o", tmp_path / "r.jsonl")
    assert outcome.code == 2
    assert "pip install 'traincast[calibrate]'" in outcome.err


def test_a_file_that_exists_is_not_added_to_by_mistake(run, monkeypatch, tmp_path):
    output = tmp_path / "r.jsonl"
    output.write_text("", encoding="utf-8")
    started = []
    monkeypatch.setattr(calibrate_run, "find_spec", lambda name: object())
    monkeypatch.setattr(calibrate_run, "_call", lambda command, output: started.append(command) or 0)
    outcome = run("calibrate", "run", "-o", output, "--nproc-per-node", 2)
    assert outcome.code == 2
    assert "add --resume" in outcome.err
    assert run("calibrate", "run", "-o", output, "--nproc-per-node", 2, "--resume").code == 0
    assert len(started) == 1


@pytest.mark.parametrize(
    ("axes", "what"), [(("--tp", 3), "world 4 is not a multiple of tp 3"), (("--order", "tp-tp", "--tp", 2), "order")]
)
def test_a_mesh_that_cannot_be_is_refused_before_anything_starts(run, tmp_path, axes, what):
    outcome = run("calibrate", "run", "-o", tmp_path / "r.jsonl", "--nproc-per-node", 4, "--dry-run", *axes)
    assert outcome.code == 2
    assert what in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--only", "collectiv"), "--only: there is no 'collectiv' (fix: did you mean collectives?"),
        (("--only", ","), "--only: names nothing"),
        (("--max-size", "much"), "--max-size: 'much' is no size (fix: write 4, 64KiB or 4GiB)"),
        (("--max-size", "2"), "--max-size: 2 bytes is below the smallest message (fix: give 4 bytes or more)"),
        (("--max-size", "9" * 30), "is no size"),
        (("--budget", "0"), "--budget: 0 is no time"),
        (("--budget", "nan"), "--budget: nan is no time"),
        (("--backend", "mpi"), "--backend: invalid choice"),
        (("--", "--ops", "all_redcue"), "did you mean all_reduce?"),
        (("--", "--stability", "3"), "--stability: 3 is no share"),
        (("--", "--foo"), "unrecognized arguments: --foo"),
    ],
)
@pytest.mark.parametrize("start", [("--dry-run",), ("--nodes", "2"), ("-o", "new.jsonl")])
def test_what_the_suite_would_refuse_is_refused_before_it_starts(run, tmp_path, monkeypatch, start, arguments, words):
    """Dry or not, here or on other nodes: one reading of the suite's options, calibration/suite/options.py."""
    monkeypatch.chdir(tmp_path)
    outcome = run("calibrate", "run", *start, *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "(fix: " in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_needs_no_file_and_looks_at_the_one_it_gets(run, tmp_path):
    assert shlex.split(run("calibrate", "run", "--dry-run").out)[-2:] == ["-o", "results.jsonl"]
    assert "-o results.jsonl" in run("calibrate", "run", "--nodes", 2).out
    real = run("calibrate", "run")
    assert (real.code, "no file for the records" in real.err) == (2, True)
    (tmp_path / "old.jsonl").write_text("", encoding="utf-8")
    none = ("new/folder/r.jsonl", "no such folder (fix: name a folder that exists)")  # as of the other commands
    for output, what in (
        (tmp_path, "is a folder"),
        ("old.jsonl/r.jsonl", "is no folder"),
        ("old.jsonl", "--resume"),
        none,
    ):
        outcome = run("calibrate", "run", "--dry-run", "-o", tmp_path / output)
        assert (outcome.code, outcome.out) == (2, "")
        assert what in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


def test_a_folder_that_may_not_be_written_is_refused(run, tmp_path, monkeypatch):
    """Whoever is root may write anywhere, so the question itself is answered here."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for command in (("run", "--dry-run"), ("import", __file__), ("show", __file__)):
        outcome = run("calibrate", *command, "-o", tmp_path / "r.jsonl")
        assert outcome.code == 2
        assert f"no permission to write in {tmp_path}" in outcome.err


def test_nccl_wants_a_gpu_for_each_process(run, monkeypatch):
    monkeypatch.setattr(calibrate_run, "find_spec", lambda name: object())
    monkeypatch.setattr(calibrate_run, "_gpus", lambda: 0)
    assert "nccl needs a GPU" in run("calibrate", "run", "--dry-run", "--backend", "nccl").err
    monkeypatch.setattr(calibrate_run, "_gpus", lambda: 4)
    assert "PyTorch sees 4 GPUs" in run("calibrate", "run", "--dry-run", "--nproc-per-node", 8).err
    assert run("calibrate", "run", "--dry-run", "--nproc-per-node", 8, "--backend", "gloo").code == 0
    assert "--nproc-per-node=4" in run("calibrate", "run", "--dry-run").out


TRACE = """\
[1/2] gemm: 3.0 us
E1129 21:14:51.700000 9765 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2) local_rank: 0
Traceback (most recent call last):
  File "/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
run.py FAILED
------------------------------------------------------------
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 9783)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 3 (local_rank: 3)
  exitcode  : -9 (pid: 9782)
============================================================
after
"""


def test_reports_of_torchrun_are_kept_back_and_a_workers_own_trace_is_not():
    told = Told()
    kept = list(passed_on(TRACE.splitlines(keepends=True), told))
    assert kept == ["[1/2] gemm: 3.0 us\n", "after\n"]
    assert told.failed == (3, -9)
    own = ["Traceback (most recent call last):\n", '  File "x.py", line 1\n', "ValueError: x\n", "run.py: a; b\n"]
    told = Told()
    assert list(passed_on(own, told)) == own[:3]
    assert told.users_error == "a; b"
    assert list(passed_on(own[:2], Told())) == own[:2]


def test_lines_come_through_while_a_process_runs_and_its_code_is_kept():
    script = "import sys; print('one', file=sys.stderr); print('run.py: no; yes', file=sys.stderr); sys.exit(2)"
    said = []
    ended = launch([sys.executable, "-c", script], said.append)
    assert said == ["one\n"]
    assert ended == Ended(2, Told("no; yes"))


def test_an_order_to_end_is_passed_on(monkeypatch):
    """Whoever ends `traincast` ends the run, which keeps what it measured (a handler of its own)."""
    script = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('ended', file=sys.stderr), sys.exit(3)))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(20)\n"
    )
    said = []
    ended = launch([sys.executable, "-c", script], said.append)
    assert said == ["ended\n"]
    assert (ended.code, ended.interrupted) == (3, True)


RUN = '{"schema":1,"kind":"run","index":0,"tool":"traincast suite 1","backend":"gloo"}\n'
ROW = '{"schema":1,"kind":"collective","run":0,"op":"all_reduce","ranks":2,"size_bytes":4,"time_us":9.0}\n'


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        (Ended(0, Told()), 0, "measured without a GPU"),
        (Ended(1, Told(None, (0, 1))), 1, "measured without a GPU"),
        (Ended(1, Told("r.jsonl is of another run; name another file")), 2, "(fix: name another file)"),
        (Ended(1, Told(None, (3, -9))), 1, "rank 3 was killed by signal 9 (memory?) (fix: what was measured is in"),
        (Ended(1, Told()), 1, "the suite was stopped: exit code 1"),
        (Ended(1, Told(), True), 1, "keeps what was measured: add --resume to go on"),
    ],
)
def test_how_a_run_ended_is_said(run, tmp_path, monkeypatch, ended, code, words):
    output = tmp_path / "r.jsonl"

    def started(command, say=None):
        output.write_text(RUN + ROW, encoding="utf-8")
        return ended

    monkeypatch.setattr(calibrate_launch, "launch", started)
    monkeypatch.setattr(calibrate_run, "find_spec", lambda name: object())
    monkeypatch.setattr(calibrate_run, "_gpus", lambda: 0)
    outcome = run("calibrate", "run", "-o", output)
    assert outcome.code == code
    assert words in outcome.err
    assert ("all_reduce" in outcome.out) == (code != 2)


def test_a_run_by_hand_refuses_the_same(checkout):
    """calibration/run.py without traincast: usage, what is wrong, exit code 2."""
    command = [sys.executable, str(checkout / "calibration" / "run.py"), "-o", "x", "--only", "gemms"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("run.py: --only: there is no 'gemms'; did you mean gemm?")


@pytest.mark.slow
@pytest.mark.oracle
def test_a_run_of_another_world_is_refused_in_one_line(run, tmp_path):
    """Through torchrun and its processes: what they refuse ends with 2, without a traceback."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    output = tmp_path / "r.jsonl"
    output.write_text(RUN.replace('"backend"', '"world":4,"backend"') + ROW, encoding="utf-8")
    before = output.read_bytes()
    outcome = run("calibrate", "run", "-o", output, "--resume", "--backend", "gloo", "--nproc-per-node", 2)
    assert (outcome.code, outcome.out) == (2, "")
    assert "r.jsonl is of another run: " in outcome.err
    assert "world 4 there, 2 here" in outcome.err
    assert outcome.err.endswith("(fix: name another file with -o)\n")
    assert "Traceback" not in outcome.err
    assert output.read_bytes() == before
