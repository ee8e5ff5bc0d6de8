"""Runs the microbenchmark suite on several processes of this machine: PyTorch is imported once, the ranks are forks.

Started by test_suite_gloo.py with a JSON list of runs on stdin; prints the exit codes of the ranks of each as JSON.
`interrupt_after` sends an interruption to rank 0 once the file has that many lines; `wrong`, `slow` and `missing`
spoil an operation of PyTorch on one rank, as a broken machine or backend would.
"""

import json
import os
import platform
import signal
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "calibration"))
import run

torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # imports half of PyTorch: once, not in every rank

WORLD = 4


def spoil(spec: dict, rank: int) -> None:
    """Breaks what the run is told to find; `nodes` of two ranks each have names of their own."""
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


def rank_process(spec: dict, rank: int, port: int) -> None:
    """One rank; does not return."""
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
        os.environ |= {"LOCAL_WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        spoil(spec, rank)
        code = run.main(spec["arguments"])
    finally:
        sys.stderr.flush()
        os._exit(code)


def run_all(spec: dict) -> list[int]:
    """All ranks of one run; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            rank_process(spec, rank, port)
        ranks.append(child)
    if "interrupt_after" in spec:
        wait_for_lines(Path(spec["file"]), spec["interrupt_after"])
        os.kill(ranks[0], signal.SIGINT)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in ranks]


def wait_for_lines(path: Path, lines: int) -> None:
    """Waits until the file has grown to that many lines."""
    for _ in range(3000):
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)


if __name__ == "__main__":
    print(json.dumps([run_all(spec) for spec in json.load(sys.stdin)]))
