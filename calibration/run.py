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
        return run(options, launch, ["run.py", *arguments], os.environ)
    except (LaunchError, ShapeError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
