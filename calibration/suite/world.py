"""The processes of a run: backend, groups, clocks, and the control plane on which they agree what to do next.

The control plane is a Gloo group of its own, so that it costs the measured links and GPU streams nothing while
something is timed.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from suite.ending import Watch
from suite.launch import Launch, LaunchError

Run = Callable[[int], object]
"""Runs repetition number i of what is measured, without waiting for the device."""

OUT_OF_MEMORY = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
"""What PyTorch raises where memory does not suffice, in old versions too."""

_TIMEOUT = timedelta(minutes=10)
_MEET = timedelta(minutes=2)
"""How long a rank may need longer than another one for the same step."""

_EVENT_TICK_S = 0.5e-6
"""Resolution of CUDA events (CUDA Runtime API, cudaEventElapsedTime: around 0.5 microseconds)."""


@dataclass(frozen=True)
class World:
    """One process of the run; `hosts`: a label for the host of each rank, `control`: the group of the control plane."""

    launch: Launch
    backend: str
    device: torch.device
    control: Any
    watch: Watch
    hosts: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.launch.rank

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.launch.world

    @property
    def gpu(self) -> bool:
        """Whether kernels run on a GPU."""
        return self.device.type == "cuda"

    def nodes_of(self, ranks: Sequence[int]) -> int:
        """Number of nodes that some ranks are on."""
        return len({self.hosts[rank] for rank in ranks})

    def barrier(self) -> None:
        """Waits for all processes."""
        dist.barrier(group=self.control)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank; all give equally many."""
        mine = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(rows, mine, group=self.control)
        return [row.tolist() for row in rows]

    def agreed(self, *values: float) -> list[float]:
        """Rank 0's numbers; all give equally many."""
        box = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(box, 0, group=self.control)
        return [float(value) for value in box.tolist()]

    def agreed_bytes(self, data: bytes) -> bytes:
        """Rank 0's bytes; all give equally many."""
        box = torch.tensor(list(data), dtype=torch.uint8)
        dist.broadcast(box, 0, group=self.control)
        return bytes(box.tolist())

    def gather_objects(self, mine: Any) -> list[Any]:
        """What every rank has."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine, group=self.control)
        return found

    def meet(self) -> None:
        """Waits for all processes, not for long: where one failed in what the others are still in, the wait fails."""
        dist.monitored_barrier(group=self.control, timeout=_MEET)

    def all_fine(self, fine: bool) -> bool:
        """Whether all ranks say that they are fine."""
        return all(row[0] == 1.0 for row in self.gather([1.0 if fine else 0.0]))

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.gpu:
            torch.cuda.synchronize()

    def timed(self, run: Run, count: int, first: int = 0) -> float:
        """Seconds of `count` repetitions together: CUDA events on a GPU, the process's clock elsewhere."""
        if not self.gpu:
            begin = time.perf_counter()
            for i in range(first, first + count):
                run(i)
            return time.perf_counter() - begin
        begin_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin_event.record()
        for i in range(first, first + count):
            run(i)
        end_event.record()
        end_event.synchronize()
        return float(begin_event.elapsed_time(end_event)) * 1e-3


def join(launch: Launch, backend: str | None) -> World:
    """Starts the process group; raises LaunchError where that fails or the processes do not fit together.

    The group is not bound to the device (`device_id`): groups of a bound one are split off the world's communicator, in
    which all ranks take part for every group, and that is not how training stacks start up.
    """
    gpu = torch.cuda.is_available() and backend != "gloo"
    if gpu:
        torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())  # one GPU may be all that a rank sees
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // launch.local_world))
    chosen = backend or ("nccl" if gpu else "gloo")
    try:
        control = _start(launch, chosen)
    except (RuntimeError, ValueError) as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        fix = "start as many processes as the launcher announces, where they reach each other"
        raise LaunchError(f"the processes cannot join: {words}; {fix}") from error
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    world = World(launch, chosen, device, control, Watch(launch))
    blind = [rank for rank, row in enumerate(world.gather([float(gpu)])) if not row[0]]
    if 0 < len(blind) < world.size:
        raise LaunchError(f"rank {blind[0]} sees no GPU and others do; mend that node, or give --backend gloo")
    world.watch.start()
    return world


def _start(launch: Launch, backend: str) -> Any:
    """Process group and control plane; the latter's group."""
    common: dict[str, Any] = {"backend": backend, "rank": launch.rank, "world_size": launch.world, "timeout": _TIMEOUT}
    if launch.address is None:
        dist.init_process_group(store=dist.HashStore(), **common)
    else:
        # the launcher may keep a store on this port already (torchrun): env:// knows how to share it
        os.environ |= {"MASTER_ADDR": launch.address, "MASTER_PORT": str(launch.port)}
        os.environ |= {"RANK": str(launch.rank), "WORLD_SIZE": str(launch.world)}
        dist.init_process_group(init_method="env://", **common)
    return dist.new_group(backend="gloo", timeout=_TIMEOUT)


def leave(world: World) -> None:
    """Ends the process group together, so that no process sees another one's connection close."""
    world.synchronize()
    world.watch.leaving.set()
    world.barrier()
    world.watch.stop()
    dist.destroy_process_group()


@cache
def clock_tick_s(gpu: bool) -> float:
    """Resolution of the clock that times [s]: of CUDA events, or the smallest step of the process's clock."""
    if gpu:
        return _EVENT_TICK_S
    times = [time.perf_counter() for _ in range(1000)]
    return min(later - before for before, later in pairwise(times) if later > before)


def l2_bytes(world: World) -> int:
    """Size of the last cache before memory (of a processor its share for this process); 64 MiB where nobody tells."""
    if world.gpu:
        return int(getattr(torch.cuda.get_device_properties(world.device), "L2_cache_size", 0)) or 64 * 2**20
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size", encoding="ascii") as file:
            return int(file.read().strip().removesuffix("K")) * 1024 // world.launch.local_world
    except (OSError, ValueError):
        return 64 * 2**20 // world.launch.local_world


def free_bytes(world: World) -> int:
    """Memory that a measurement may take on this rank."""
    if world.gpu:
        return int(torch.cuda.mem_get_info()[0] * 0.85)
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024 // (2 * world.launch.local_world)
    except (OSError, KeyError, ValueError):
        return 2**30
