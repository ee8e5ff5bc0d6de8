"""`traincast calibrate run`: starts the microbenchmark suite on this machine, or says how to start it on several."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from traincast.errors import UsageError

Size = Annotated[int | None, typer.Option(metavar="N", min=1, help="Ranks along this axis.")]


def run(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Records are appended to FILE.")],
    quick: Annotated[bool, typer.Option("--quick", help="The most telling part, within three minutes.")] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="SECONDS", help="Time to measure; the rest is left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on in FILE; what it holds is not repeated.")] = False,
    processes: Annotated[
        int | None,
        typer.Option("--nproc-per-node", metavar="N", min=1, help="Processes; default: one a GPU, 2 without one."),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, help="Above 1: print how to start it.")] = 1,
    backend: Annotated[str | None, typer.Option("--backend", help="nccl or gloo; default: by the device.")] = None,
    tp: Size = None,
    cp: Size = None,
    pp: Size = None,
    dp: Size = None,
    ep: Size = None,
    order: Annotated[str | None, typer.Option("--order", help="Axes, the leftmost with stride 1.")] = None,
    max_size: Annotated[str | None, typer.Option("--max-size", metavar="SIZE", help="Largest message.")] = None,
    only: Annotated[str | None, typer.Option("--only", metavar="A,B", help="Parts of the suite.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command, run nothing.")] = False,
    further: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of run.py.")] = None,
) -> None:
    """Measure this machine: collectives over the groups of a mesh, kernels, start-up; needs PyTorch.

    Records are JSON lines, written as they come; `traincast calibrate import FILE` reads them.
    """
    values = {"budget": budget, "backend": backend, "order": order, "max-size": max_size, "only": only}
    values |= {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep}
    arguments = ["-o", str(output), *(f"--{name}={value}" for name, value in values.items() if value is not None)]
    arguments += [*(["--quick"] if quick else []), *(["--resume"] if resume else []), *(further or [])]
    script = suite_script()
    if nodes > 1:
        typer.echo(_on_nodes(script, nodes, processes, arguments))
        return
    each = processes or _processes(dry_run)
    _check({"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep}, order, each)
    if output.exists() and not resume and not dry_run:
        raise UsageError(f"{output} exists", fix="add --resume to go on in it, or name another file", where="-o")
    command = launch_command(script, each, arguments)
    if dry_run:
        typer.echo(shlex.join(command))
        return
    _require_torch()
    raise typer.Exit(_call(command))


def _check(sizes: Mapping[str, int | None], order: str | None, world: int) -> None:
    """Raises ShapeError for a mesh that does not fit the processes, before any of them is started."""
    if any(size is not None for size in sizes.values()):
        from traincast.mesh import DEFAULT_ORDER, ShapeRequest, build_mesh

        tp, cp, pp, ep = (sizes[axis] or 1 for axis in ("tp", "cp", "pp", "ep"))
        build_mesh(ShapeRequest(tp, cp, pp, sizes["dp"], ep, order=order or DEFAULT_ORDER, world=world))


def suite_script() -> Path:
    """The suite's entry, in a checkout or in the installed package; raises UsageError where it is missing."""
    from traincast.catalog import data_dir

    script = data_dir() / "calibration" / "run.py"
    if not script.is_file():
        raise UsageError("the microbenchmark suite is not installed", fix="reinstall traincast, or use a checkout")
    return script


def launch_command(script: Path, processes: int, arguments: Sequence[str]) -> list[str]:
    """The command that starts the suite on this machine."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*torchrun, str(script), *arguments]


def _on_nodes(script: Path, nodes: int, processes: int | None, arguments: Sequence[str]) -> str:
    """How to start the suite on several nodes: under Slurm, and by torchrun on each node."""
    each = str(processes) if processes else "GPUS_PER_NODE"
    tail = shlex.join([str(script), *arguments])
    meeting = "--rdzv-backend=c10d --rdzv-endpoint=FIRST_NODE:29500"
    return "\n".join(
        (
            "# under Slurm",
            f"srun --nodes={nodes} --ntasks-per-node={each} --gpus-per-node={each} python {tail}",
            "# on every node, with the name of the first one for FIRST_NODE",
            f"torchrun --nnodes={nodes} --nproc-per-node={each} {meeting} {tail}",
        )
    )


def _require_torch() -> None:
    if find_spec("torch") is None:
        raise UsageError(
            "the suite needs PyTorch, which is not installed",
            fix="pip install 'traincast[calibrate]', or run calibration/run.py where PyTorch is",
            where="calibrate run",
        )


def _processes(dry_run: bool) -> int:
    """One process a GPU; 2 where there is none. A dry run without PyTorch counts none."""
    if find_spec("torch") is None:
        if not dry_run:
            _require_torch()
        return 2
    return int(import_module("torch").cuda.device_count()) or 2


def _call(command: Sequence[str]) -> int:
    """Runs the suite; its exit code. An interruption reaches it too: it is left the time to end its file."""
    import subprocess

    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
