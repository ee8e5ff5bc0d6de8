"""The command line run inside the test process: arguments in, exit code and both streams out."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from traincast.cli.main import main

SMALL = """\
description: a small GPT on two pipeline stages
model: {hidden: 1024, layers: 8, heads: 16, vocab: 51200}
cluster: {gpu: A100-80GB-SXM}
parallelism: {tp: 2, pp: 2, dp: 2}
training: {global_batch: 32, microbatch: 2, sequence: 1024, precision: fp16, recompute: full, attention: unfused}
published: {step_time: 200 ms, source: nobody}
"""


@dataclass(frozen=True)
class Outcome:
    """What one call of the command line left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Outcome]]:
    """Runs `traincast ARGUMENTS`; the environment is put back afterwards."""
    before = dict(os.environ)

    def call(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        return Outcome(code, streams.out, streams.err)

    yield call
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A scenario that takes a moment to forecast."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path
