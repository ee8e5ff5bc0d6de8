"""Runs the microbenchmark suite on several processes of this machine: PyTorch is imported once, the ranks are forks.

Started with a JSON list of runs on stdin; prints for each the exit codes of its ranks, what they wrote to standard
error and how long it took, as JSON. `interrupt_after` sends an interruption to rank 0 once the file has that many
lines; the other keys spoil something on one rank, as a broken machine, backend or disk would (`spoil`).
"""

import json
import os
import platform
import resource
import signal
import socket
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "calibration"))
import run
from suite import clocks, collectives, facts, measure, plan, runner, world

torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # imports half of PyTorch: once, not in every rank

WORLD = 4


def spoil(spec: dict, rank: int) -> None:
    """Breaks what the run is told to find; `nodes` of two ranks each have names of their own.

    `full`: bytes that the disk of rank 0 takes. `short`: this rank has no memory for collectives of `short_op`.
    `fails`: this rank raises within a measurement; all ranks but it and the last one then hang where no signal and no
    closed connection wakes them, as in a kernel that waits for a process that is gone.
    """
    if spec.get("pretend"):
        pretend_gpu(rank)
    if spec.get("full") is not None and rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (spec["full"], spec["full"]))
    if spec.get("short") == rank:
        make = collectives.build

        def short(world, op, *arguments, **options):
            if op == spec["short_op"]:
                raise RuntimeError("[enforce fail at alloc_cpu.cpp:1] DefaultCPUAllocator: can't allocate memory")
            return make(world, op, *arguments, **options)

        collectives.build = short
    if "fails" in spec:

        def broken(*arguments, **options):
            if rank == spec["fails"]:
                time.sleep(0.2)  # the others are in it by now
                raise IndexError("no such thing")
            if rank < WORLD - 1:
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
                time.sleep(60)
            return real(*arguments, **options)

        real, measure.sample = measure.sample, broken
    if spec.get("nodes"):
        platform.node = lambda: f"secret-node-{rank // 2}"
    if spec.get("wrong") == rank:
        right = dist.all_reduce

        def wrong(tensor, *arguments, **options):
            work = right(tensor, *arguments, **options)
            if tensor.dtype == torch.float32 and tensor.numel() > 7:
                tensor[7] += 1
            return work

        dist.all_reduce = wrong
    if spec.get("slow") == rank:
        product = torch.mm

        def slow(*arguments, **options):
            time.sleep(0.004)
            return product(*arguments, **options)

        torch.mm = slow
    if spec.get("missing"):

        def missing(*arguments, **options):
            raise RuntimeError("ProcessGroupGloo does not support reduce_scatter\nin /some/folder/file.cpp")

        dist.reduce_scatter_tensor = dist.reduce_scatter_single = missing


class PretendEvent:
    """An event of a GPU that is done at once."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at_s = 0.0

    def record(self, stream: object = None) -> None:
        self.at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "PretendEvent") -> float:
        return 1e3 * (end.at_s - self.at_s)


def pretend_gpu(rank: int) -> None:
    """Lets the suite believe that the processor is a GPU: its own branches run, the numbers mean nothing."""
    props = SimpleNamespace(uuid=f"00-{rank}", L2_cache_size=2**20)
    stream = SimpleNamespace(wait_event=lambda event: None)
    fakes = {
        "Event": PretendEvent,
        "Stream": lambda: stream,
        "stream": lambda one: nullcontext(),
        "synchronize": lambda: None,
        "mem_get_info": lambda: (2**30, 2**31),
        "current_device": lambda: 0,
        "get_device_properties": lambda device: props,
        "get_device_capability": lambda: (7, 0) if rank else (9, 0),
        "get_device_name": lambda: "NVIDIA Pretended",
    }
    for name, fake in fakes.items():
        setattr(torch.cuda, name, fake)
    facts.gpu_uuid = clocks.gpu_uuid = lambda: f"GPU-00-{rank}"
    world.World.gpu = property(lambda self: True)
    plan.reference = runner.reference = lambda site: plan.Item(
        0, "gemm", "gemm", dtype=plan._dtypes(site)[0], params=plan._product("reference", 64, 64, 64)
    )


def rank_process(spec: dict, rank: int, port: int) -> None:
    """One rank; does not return."""
    code = 1
    try:
        size = str(spec.get("world", WORLD))
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": size}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **spec.get("environment", {})}
        spoil(spec, rank)
        code = run.main(spec["arguments"])
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_all(spec: dict) -> dict:
    """All ranks of one run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        for rank in range(spec.get("world", WORLD)):
            child = os.fork()
            if child == 0:
                os.dup2(errors.fileno(), 2)
                rank_process(spec, rank, port)
            ranks.append(child)
        if "interrupt_after" in spec:
            wait_for_lines(Path(spec["file"]), spec["interrupt_after"])
            os.kill(ranks[0], signal.SIGINT)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]
        errors.seek(0)
        return {"codes": codes, "errors": errors.read(), "seconds": time.monotonic() - begin}


def wait_for_lines(path: Path, lines: int) -> None:
    """Waits until the file has grown to that many lines."""
    for _ in range(3000):
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    print(json.dumps([run_all(spec) for spec in json.load(sys.stdin)]))
