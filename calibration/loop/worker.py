"""One rank of the loop: collectives, messages, products and pipelines as a plan on stdin says; rank 0 prints figures.

Needs PyTorch and the standard library. Started by loop.py in a namespace of its own.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

_START_S = 0.01


class Rank:
    """This process, the control plane and the groups of the first n ranks."""

    def __init__(self, rank: int, world: int, address: str) -> None:
        self.rank = rank
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://{address}:29517", rank=rank, world_size=world)
        self.control = dist.new_group(backend="gloo")
        self.groups = {n: dist.new_group(list(range(n))) for n in range(2, world + 1)}

    def together(self, run: Callable[[], None] | None) -> float:
        """Seconds from a common start to the last rank's end; the clock is the machine's, so all ranks share it."""
        start = torch.tensor([time.perf_counter() + _START_S], dtype=torch.float64)
        dist.broadcast(start, 0, group=self.control)
        begin = float(start.item())
        time.sleep(max(0.0, begin - time.perf_counter()))
        if run is not None:
            run()
        end = torch.tensor([time.perf_counter() if run is not None else 0.0], dtype=torch.float64)
        dist.all_reduce(end, dist.ReduceOp.MAX, group=self.control)
        return float(end.item()) - begin

    def samples(self, run: Callable[[], None] | None, count: int) -> list[float]:
        """Times of `count` repetitions after one that does not count [s]."""
        return [self.together(run) for _ in range(count + 1)][1:]


def collective(rank: Rank, item: dict[str, Any]) -> list[float]:
    """A collective of `size` bytes (nccl-tests counting) over the first `ranks` ranks."""
    n, op, group = item["ranks"], item["op"], rank.groups[item["ranks"]]
    count = item["size"] // 4 // n * n
    whole, share = torch.ones(count), torch.ones(count // n)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    runs: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole.zero_(), group=group),
        "all_gather": lambda: gather(whole, share, group=group),
        "reduce_scatter": lambda: scatter(share, whole, group=group),
        "alltoall": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=group),
    }
    return rank.samples(runs[op] if rank.rank < n else None, item["count"])


def message(rank: Rank, item: dict[str, Any]) -> list[float]:
    """One way of a message of `size` bytes between ranks 0 and 1: half of there and back."""
    data, back = torch.ones(item["size"] // 4), torch.empty(item["size"] // 4)
    repeats = item["repeats"]

    def first() -> None:
        for _ in range(repeats):
            answer = dist.irecv(back, 1)
            dist.send(data, 1)
            answer.wait()

    def second() -> None:
        for _ in range(repeats):
            dist.recv(back, 0)
            dist.send(back, 0)

    run = (first, second, None)[min(rank.rank, 2)]
    return [seconds / repeats / 2 for seconds in rank.samples(run, item["count"])]


class Stage:
    """One pipeline stage: a square weight, real products forward and backward."""

    def __init__(self, rank: int, tokens: int, width: int, layers: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self.layers = layers
        self.weight = torch.randn(width, width, generator=generator) / width**0.5
        self.slope = torch.zeros(width, width)
        self.inputs: dict[int, torch.Tensor] = {}

    def forward(self, microbatch: int, x: torch.Tensor) -> torch.Tensor:
        """Y = X W, `layers` times."""
        self.inputs[microbatch] = x
        for _ in range(self.layers):
            x = x @ self.weight
        return x

    def backward(self, microbatch: int, dy: torch.Tensor) -> torch.Tensor:
        """dW += X^T dY and dX = dY W^T, `layers` times."""
        x = self.inputs.pop(microbatch)
        for _ in range(self.layers):
            self.slope += x.t() @ dy
            dy = dy @ self.weight.t()
        return dy


def product(rank: Rank, item: dict[str, Any]) -> list[float]:
    """Forward and backward of one microbatch on rank 0 alone, one after the other: [forward, backward] [s]."""
    stage = Stage(0, item["tokens"], item["width"], item["layers"])
    x = torch.randn(item["tokens"], item["width"])
    times: list[list[float]] = [[], []]
    for _ in range(item["count"] + 1):
        rank.together(None)
        if rank.rank >= item["ranks"]:
            continue
        marks = [time.perf_counter()]
        for microbatch in range(item["repeats"]):
            stage.forward(microbatch, x)
        marks.append(time.perf_counter())
        for microbatch in range(item["repeats"]):
            stage.backward(microbatch, x)
        marks.append(time.perf_counter())
        for place in (0, 1):
            times[place].append((marks[place + 1] - marks[place]) / item["repeats"])
    return [sorted(one[1:])[len(one) // 2] for one in times] if rank.rank == 0 else []


class Pipe:
    """One step of a pipeline over the first ranks, in the order of a schedule that the plan holds."""

    def __init__(self, rank: Rank, item: dict[str, Any]) -> None:
        self.rank, self.stages = rank.rank, item["ranks"]
        self.order = item["schedule"][rank.rank]
        self.stage = Stage(rank.rank, item["tokens"], item["width"], item["layers"])
        shape = (item["tokens"], item["width"])
        self.inputs = [torch.ones(shape) * (i + 1) / 8 for i in range(item["microbatches"])]
        self.into = {key: torch.empty(shape) for kind, i in self.order if (key := (kind, i))}
        self.outputs: dict[tuple[str, int], torch.Tensor] = {}
        self.pace_s = item.get("pace_s")

    def source(self, kind: str) -> int | None:
        """The rank that a pass's input comes from; None at the ends of the pipeline."""
        other = self.rank + (-1 if kind == "F" else 1)
        return other if 0 <= other < self.stages else None

    def target(self, kind: str) -> int | None:
        """The rank that needs a pass's output."""
        other = self.rank + (1 if kind == "F" else -1)
        return other if 0 <= other < self.stages else None

    def receive(self, kind: str, microbatch: int) -> Any:
        """Posts the receive of a pass's input."""
        return dist.irecv(self.into[kind, microbatch], self.source(kind), tag=_tag(kind, microbatch))

    def send(self, kind: str, microbatch: int) -> Any:
        """Posts the send of a pass's output."""
        return dist.isend(self.outputs[kind, microbatch], self.target(kind), tag=_tag(kind, microbatch))

    def compute(self, kind: str, microbatch: int) -> None:
        """The products of a pass; the last stage's backward begins with what its forward gave.

        A paced pass ends no earlier than its time, as on a device of that speed.
        """
        begin = time.perf_counter()
        if kind == "F":
            x = self.inputs[microbatch] if self.rank == 0 else self.into[kind, microbatch]
            self.outputs[kind, microbatch] = self.stage.forward(microbatch, x)
        else:
            last = self.rank == self.stages - 1
            dy = self.outputs["F", microbatch] if last else self.into[kind, microbatch]
            self.outputs[kind, microbatch] = self.stage.backward(microbatch, dy)
        if self.pace_s is not None:
            left = begin + self.pace_s[kind == "B"] - time.perf_counter()
            time.sleep(max(0.0, left))

    def run_async(self) -> None:
        """All receives are posted before the step; outputs leave as they come, nobody waits for a send."""
        waits = {(kind, i): self.receive(kind, i) for kind, i in self.order if self.source(kind) is not None}
        sent = []
        for kind, i in self.order:
            if (kind, i) in waits:
                waits[kind, i].wait()
            self.compute(kind, i)
            if self.target(kind) is not None:
                sent.append(self.send(kind, i))
        for work in sent:
            work.wait()

    def run_blocking(self) -> None:
        """After each pass: the receive that the next pass needs, the send of what this one made, and wait for both.

        Receives are posted before sends: Gloo's notice of a receive would else queue behind the data.
        """
        self._exchange(None, self.order[0])
        for place, (kind, i) in enumerate(self.order):
            self.compute(kind, i)
            self._exchange((kind, i), self.order[place + 1] if place + 1 < len(self.order) else None)

    def _exchange(self, made: Sequence[Any] | None, needed: Sequence[Any] | None) -> None:
        works = []
        if needed is not None and self.source(needed[0]) is not None:
            works.append(self.receive(*needed))
        if made is not None and self.target(made[0]) is not None:
            works.append(self.send(*made))
        for work in works:
            work.wait()

    def right(self) -> bool:
        """Whether the last stage has what one process computes from the first stage's inputs."""
        if self.rank != self.stages - 1:
            return True
        x = self.inputs[0]
        for rank in range(self.stages):
            x = Stage(rank, x.shape[0], x.shape[1], self.stage.layers).forward(0, x)
        return bool(torch.allclose(x, self.outputs["F", 0], rtol=1e-3, atol=1e-4))


def _tag(kind: str, microbatch: int) -> int:
    return 2 * microbatch + (kind == "B")


def pipeline(rank: Rank, item: dict[str, Any]) -> list[float]:
    """Seconds of whole steps."""
    if rank.rank >= item["ranks"]:
        found = rank.samples(None, item["count"])
        right = True
    else:
        pipe = Pipe(rank, item)
        found = rank.samples(pipe.run_async if item["p2p"] == "async" else pipe.run_blocking, item["count"])
        right = pipe.right()
    fine = torch.tensor([1.0 if right else 0.0])
    dist.all_reduce(fine, dist.ReduceOp.MIN, group=rank.control)
    if not fine.item():
        raise SystemExit("the pipeline's result is wrong")
    return found


def main() -> None:
    """Reads the plan, runs it in order, prints the figures of rank 0 as one line of JSON."""
    plan = json.loads(sys.stdin.readline())
    rank = Rank(plan["rank"], plan["world"], plan["address"])
    kinds = {"collective": collective, "message": message, "product": product, "pipeline": pipeline}
    figures = [kinds[item["kind"]](rank, item) for item in plan["items"]]
    dist.barrier(group=rank.control)
    if rank.rank == 0:
        print(json.dumps(figures), flush=True)
    dist.barrier(group=rank.control)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
