"""Everything that one GPU can tell, within ten minutes: kernels, one-rank collectives, a real training step.

    python calibration/on_gpu.py

Results lie under calibration/results/<machine>/<date>.jsonl, the step as a scenario beside them. `--small` is for
trying the script where there is no GPU: it tells nothing about a machine.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
_SMALL_RUN = ("--hidden", "64", "--tokens", "64", "--max-size", "4KiB", "--only", "gemm,memory,launch,collectives")
_SMALL = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 512, "sequence": 64, "microbatch": 2, "steps": 3}
_STEPS = (
    {"layers": 12, "hidden": 2048, "heads": 16, "microbatch": 4},
    {"layers": 24, "hidden": 1024, "heads": 16, "microbatch": 8},
)
"""The steps to measure: two shapes of transformers that fit in 32 GB."""


def main(arguments: Sequence[str]) -> int:
    """Runs both scripts one after the other; returns the first exit code that is not 0."""
    parser = argparse.ArgumentParser(prog="on_gpu.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR", help="default: %(default)s")
    parser.add_argument("--machine", metavar="NAME", help="default: the GPU's name")
    parser.add_argument("--budget", type=float, default=420.0, metavar="SECONDS", help="of the suite (%(default).0f)")
    parser.add_argument("--small", action="store_true", help="try the script; no GPU is needed")
    given = parser.parse_args(arguments)
    gpu = _gpu()
    if gpu is None and not given.small:
        print("on_gpu.py: no GPU is visible to PyTorch here; --small tries the script without", file=sys.stderr)
        return 2
    folder = given.results / (given.machine or machine_name(gpu))
    output = folder / f"{datetime.now(UTC):%Y-%m-%d}.jsonl"
    suite = ["run.py", "-o", str(output), "--resume", "--budget", str(given.budget)]
    commands = [[*suite, *(_SMALL_RUN if given.small else ())]]
    for shape in (_SMALL,) if given.small else _STEPS:
        words = [word for name, value in shape.items() for word in (f"--{name}", str(value))]
        commands.append(["train_step.py", "-o", str(output), *words])
    for script, *further in commands:
        code = subprocess.run([sys.executable, str(HERE / script), *further], check=False).returncode
        if code:
            return code
    print(f"{output}\nnext: traincast calibrate import {output.name}, and traincast predict with a scenario beside it")
    return 0


def machine_name(gpu: str | None) -> str:
    """A folder's name for a GPU: ``NVIDIA H200`` -> ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", (gpu or "no gpu").lower()).strip("-")


def _gpu() -> str | None:
    """Name of the first GPU that PyTorch sees."""
    script = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    if found.returncode:
        print("on_gpu.py: PyTorch is not installed here; pip install torch", file=sys.stderr)
        sys.exit(2)
    return found.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
