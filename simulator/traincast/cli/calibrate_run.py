"""`traincast calibrate run`: starts the microbenchmark suite on this machine, or says how to start it on several."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from traincast.cli.output import refuse_unwritable
from traincast.errors import TraincastError, UsageError

if TYPE_CHECKING:
    from traincast.cli.calibrate_launch import Ended

Size = Annotated[int | None, typer.Option(metavar="N", min=1, help="Ranks along this axis.")]
_UNNAMED = Path("results.jsonl")
"""What a dry run calls the file where none is named."""


def run(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Records are appended to FILE; a dry run needs none."),
    ] = None,
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all of it, print the command, run nothing.")
    ] = False,
    further: Annotated[list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of run.py.")] = None,
) -> None:
    """Measure this machine: collectives over the groups of a mesh, kernels, start-up; needs PyTorch.

    Records are JSON lines, written as they come; `traincast calibrate import FILE` reads them.
    """
    target = output or _UNNAMED
    if output is None and not dry_run and nodes == 1:
        raise UsageError("no file for the records", fix="add -o FILE, such as -o results.jsonl", where="-o")
    values = {"budget": budget, "backend": backend, "order": order, "max-size": max_size, "only": only}
    values |= {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep}
    arguments = ["-o", str(target), *(f"--{name}={value}" for name, value in values.items() if value is not None)]
    arguments += [*(["--quick"] if quick else []), *(["--resume"] if resume else []), *(further or [])]
    script = suite_script()
    options = checked_options(script, arguments)
    sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "ep": ep}
    if nodes > 1:
        if processes is not None:
            _check_mesh(sizes, order, nodes * processes)
        typer.echo(_on_nodes(script, nodes, processes, arguments))
        return
    each = processes or _processes(dry_run)
    _check_mesh(sizes, order, each)
    if output is not None:
        _check_output(output, resume)
    if not dry_run:
        _require_torch()
    _check_devices(options.backend, each)
    command = launch_command(script, each, arguments)
    if dry_run:
        typer.echo(shlex.join(command))
        return
    raise typer.Exit(_call(command, target))


def _check_mesh(sizes: Mapping[str, int | None], order: str | None, world: int) -> None:
    """Raises ShapeError for a mesh that does not fit the processes, before any of them is started."""
    if any(size is not None for size in sizes.values()):
        from traincast.mesh import DEFAULT_ORDER, ShapeRequest, build_mesh

        tp, cp, pp, ep = (sizes[axis] or 1 for axis in ("tp", "cp", "pp", "ep"))
        build_mesh(ShapeRequest(tp, cp, pp, sizes["dp"], ep, order=order or DEFAULT_ORDER, world=world))


def _check_output(output: Path, resume: bool) -> None:
    """Raises UsageError where the records could not be written, or would be added to others by mistake."""
    refuse_unwritable(output, "-o")
    if output.exists() and not resume:
        raise UsageError(f"{output} exists", fix="add --resume to go on in it, or name another file", where="-o")


def _check_devices(backend: str | None, processes: int) -> None:
    """Raises UsageError where NCCL would have fewer GPUs than processes. Without PyTorch nothing is known."""
    if backend == "gloo" or find_spec("torch") is None:
        return
    gpus = _gpus()
    if backend == "nccl" and not gpus:
        raise UsageError(
            "nccl needs a GPU, and PyTorch sees none here", fix="leave it out, or give gloo", where="--backend"
        )
    if 0 < gpus < processes:
        raise UsageError(
            f"{processes} processes, but PyTorch sees {gpus} GPU{'s' if gpus > 1 else ''}",
            fix=f"give {gpus} or less, or --backend gloo",
            where="--nproc-per-node",
        )


def suite_script() -> Path:
    """The suite's entry, in a checkout or in the installed package; raises UsageError where it is missing."""
    from traincast.catalog import data_dir

    script = data_dir() / "calibration" / "run.py"
    if not script.is_file():
        raise UsageError("the microbenchmark suite is not installed", fix="reinstall traincast, or use a checkout")
    return script


def checked_options(script: Path, arguments: Sequence[str]) -> Any:
    """The suite's own options, from its own command line. Raises UsageError where the suite would refuse it."""
    sys.path.insert(0, str(script.parent))
    try:
        suite = import_module("suite.options")
    finally:
        sys.path.remove(str(script.parent))
    try:
        return suite.checked(arguments)
    except suite.OptionError as error:
        what, _, fix = str(error).partition("; ")
        raise UsageError(what, fix=fix or "see calibration/README.md", where="calibrate run") from error
    except SystemExit as ended:  # --help after --
        raise typer.Exit(0) from ended


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
    return _gpus() or 2


def _gpus() -> int:
    try:
        return int(import_module("torch").cuda.device_count())
    except ImportError:
        return 0


def _call(command: Sequence[str], output: Path) -> int:
    """Runs the suite and says what came of it; its exit code: 0, or 1 where a result was wrong or it was stopped.

    Raises UsageError for what the suite refuses, TraincastError where a process failed.
    """
    from traincast.cli.calibrate_launch import launch
    from traincast.cli.output import remark

    ended = launch(command)
    if ended.told.users_error is not None:
        what, _, fix = ended.told.users_error.partition("; ")
        raise UsageError(what, fix=fix or "see calibration/README.md", where="calibrate run")
    done = _measured(output)
    if ended.interrupted:
        go_on = f"{output} keeps what was measured: add --resume to go on" if done else "nothing was measured"
        remark(f"stopped; {go_on}")
        return 1
    if ended.code and (not done or ended.told.failed is None or ended.told.failed[1] != 1):
        raise TraincastError(_failure(ended), fix=f"what was measured is in {output}: add --resume to go on")
    return 1 if ended.code else 0


def _measured(output: Path) -> bool:
    """Prints what a file of records holds, if it holds any."""
    from traincast.calibration.collect import import_files
    from traincast.cli.calibrate import measurements_table
    from traincast.cli.output import emit, remark

    if not output.is_file():
        return False
    found = import_files([output])
    if not found[0].imported.records:
        return False
    emit({}, [measurements_table(found)], "table", None)
    gpus = any(record.run.gpu for record in found[0].imported.records)
    learn = f"a profile of it: traincast calibrate fit {shlex.quote(str(output))} -o mine.yaml"
    remark(
        learn if gpus else "measured without a GPU: tells nothing of NCCL or a GPU, so no profile can be fitted on it"
    )
    return True


def _failure(ended: "Ended") -> str:
    """Which rank failed first and how."""
    if ended.told.failed is None:
        return f"the suite was stopped: exit code {ended.code}"
    rank, code = ended.told.failed
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"rank {rank} {how}{' (memory?)' if code == -9 else ''}"
