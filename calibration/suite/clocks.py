"""What each rank's GPU says about its clock while it works: an idle one says nothing of use."""

import subprocess
import time
from typing import Any

from suite import meta
from suite.facts import gpu_uuid
from suite.world import Run, World

_BATCH = 10
"""Products between two looks at whether the question is answered."""
_PATIENCE_S = 20.0
_SHOWN = 16
"""Ranks whose state goes into the file, beside rank 0 those with a reason for a lowered clock."""


def busy_states(world: World, run: Run, when: str) -> list[dict[str, Any]]:
    """The state of every rank's GPU, asked while `run` keeps it busy; empty without GPUs. All ranks call it."""
    if not world.gpu:
        return []
    mine = busy_state(world, run, gpu_uuid())
    return [{"rank": rank, "when": when, **state} for rank, state in enumerate(world.gather_objects(mine)) if state]


def busy_state(world: World, run: Run, uuid: str | None) -> dict[str, str]:
    """The state of one GPU while `run` keeps it busy; empty where the driver's tool is not there or does not answer."""
    for i in range(_BATCH):
        run(i)
    world.synchronize()
    try:
        asked = subprocess.Popen(meta.state_command(uuid), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return {}
    begin = time.perf_counter()
    with asked:
        while asked.poll() is None:
            if time.perf_counter() - begin > _PATIENCE_S:
                asked.kill()
            for i in range(_BATCH):
                run(i)
            world.synchronize()
        assert asked.stdout is not None
        return meta.gpu_state(asked.stdout.read())


def shown(states: list[dict[str, Any]], throttled: list[int]) -> list[dict[str, Any]]:
    """The states that go into the file: rank 0's and those of ranks with a reason."""
    ranks = {0, *throttled[:_SHOWN]}
    return [state for state in states if state["rank"] in ranks]
