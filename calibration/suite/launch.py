"""Who am I in this job: torchrun's variables, Slurm's, or a process by itself."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


class LaunchError(Exception):
    """The environment does not say enough; the text says what to do."""


@dataclass(frozen=True)
class Launch:
    """One process of a job; `address` is None where it is alone."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    address: str | None = None
    port: int = 0
    launcher: str = "single"


def find_launch(environment: Mapping[str, str]) -> Launch:
    """From RANK and its kin (torchrun), else from SLURM_* inside a job step, else one process.

    A batch script has SLURM_* variables too, but no step: there a process is alone. Raises LaunchError.
    """
    try:
        if "RANK" in environment:
            return Launch(
                int(environment["RANK"]),
                int(environment["WORLD_SIZE"]),
                int(environment.get("LOCAL_RANK", environment["RANK"])),
                int(environment.get("LOCAL_WORLD_SIZE", environment["WORLD_SIZE"])),
                environment["MASTER_ADDR"],
                int(environment["MASTER_PORT"]),
                "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "environment",
            )
        step = environment.get("SLURM_STEP_ID", environment.get("SLURM_STEPID"))
        if step is not None and "SLURM_PROCID" in environment:
            return _slurm(environment)
    except (KeyError, ValueError) as error:
        raise LaunchError(f"the launcher's variable {error} is missing or no number; start with torchrun") from error
    return Launch()


def _slurm(environment: Mapping[str, str]) -> Launch:
    world = int(environment.get("SLURM_STEP_NUM_TASKS", environment.get("SLURM_NTASKS", "1")))
    nodes = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    address = environment.get("MASTER_ADDR") or first_host(nodes)
    counts = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", str(world)))
    job = re.sub(r"\D", "", environment.get("SLURM_JOB_ID", "")) or "0"
    return Launch(
        int(environment["SLURM_PROCID"]),
        world,
        int(environment["SLURM_LOCALID"]),
        tasks_of_node(counts, int(environment.get("SLURM_NODEID", "0"))),
        address,
        int(environment.get("MASTER_PORT", 29500 + int(job) % 1000)),
        "srun",
    )


def first_host(nodes: str) -> str:
    """The first host of a Slurm list: ``gpu[07-12,20],x1`` -> ``gpu07``."""
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes.strip())
    if found is None:
        raise LaunchError("Slurm names no nodes; set MASTER_ADDR to the first node's name")
    return found.group(1) + (found.group(2) or "") + (found.group(3) or "")


def tasks_of_node(counts: str, node: int) -> int:
    """Tasks on one node of Slurm's short form: ``8(x4),2`` gives 8 for the first four nodes, 2 for the fifth."""
    place = 0
    for part in counts.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if found is None:
            raise LaunchError(f"cannot read Slurm's tasks per node {counts!r}; start with torchrun")
        place += int(found.group(2) or 1)
        if node < place:
            return int(found.group(1))
    raise LaunchError(f"Slurm's tasks per node {counts!r} do not reach node {node}; start with torchrun")
