"""`traincast calibrate run`: the command that it would start, and what it refuses before anything is started."""

import shlex
import sys

import pytest

from traincast.cli import calibrate_run


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
    monkeypatch.setattr(calibrate_run, "_call", lambda command: started.append(command) or 0)
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
