"""Microbenchmarks of a cluster; needs PyTorch and the standard library.

    torchrun --nproc-per-node 8 calibration/run.py -o results.jsonl
    srun --ntasks-per-node 8 python calibration/run.py -o results.jsonl --tp 8 --pp 4
    python calibration/run.py -o results.jsonl --quick

What it measures and how is in calibration/README.md.
"""

import os
import sys
from collections.abc import Sequence

from suite.groups import ShapeError
from suite.launch import LaunchError, find_launch
from suite.options import parse


def main(arguments: Sequence[str]) -> int:
    """Runs the suite in this process; returns the exit code."""
    options = parse(arguments)
    try:
        launch = find_launch(os.environ)
        try:
            from suite.runner import run
        except ModuleNotFoundError as error:
            print(f"run.py: no module {error.name}: the suite needs PyTorch; pip install torch", file=sys.stderr)
            return 2
        _check_backend(options.backend)
        return run(options, launch, ["run.py", *arguments], os.environ)
    except (LaunchError, ShapeError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2


def _check_backend(backend: str | None) -> None:
    """Raises LaunchError for NCCL without a GPU: PyTorch would fail later and say less."""
    import torch

    if backend == "nccl" and not torch.cuda.is_available():
        raise LaunchError("--backend nccl needs a GPU, and PyTorch sees none here; leave it out, or give gloo")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
