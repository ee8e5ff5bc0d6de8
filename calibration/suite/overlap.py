"""Two things at once: a product beside a collective, or collectives of two families; how much each slows the other."""

import math
import threading
import time
from statistics import median

import torch

from suite.stats import slowdowns
from suite.world import Run, World

_ROUNDS = {True: 7, False: 3}
"""Samples on a GPU and without, where each takes far longer."""


def measure(world: World, one: Run, two: Run, seconds: float) -> list[dict[str, float]]:
    """Figures of both: `alone_s` and `both_s` a repetition (the slowest rank's, median of samples), `slowdown`.

    Each runs for about `seconds` by itself; the shares of the time in which only one of them was left do not count
    (`stats.slowdowns`). All ranks call it.
    """
    counts = tuple(_count(world, run, seconds) for run in (one, two))
    alone = [_median(world, ((one, counts[0]), None)), _median(world, (None, (two, counts[1])))]
    both = _median(world, ((one, counts[0]), (two, counts[1])))
    factors = slowdowns((alone[0][0], alone[1][1]), (both[0], both[1]))
    return [
        {
            "alone_s": alone[place][place] / counts[place],
            "both_s": alone[place][place] / counts[place] * factors[place],
            "slowdown": factors[place],
        }
        for place in (0, 1)
    ]


Part = tuple[Run, int] | None


def _count(world: World, run: Run, seconds: float) -> int:
    for i in range(2):
        run(i)
    world.synchronize()
    world.barrier()
    one_s = max(row[0] for row in world.gather([world.timed(run, 2) / 2]))
    return max(2, min(500, math.ceil(seconds / max(one_s, 1e-9))))


def _median(world: World, parts: tuple[Part, Part]) -> tuple[float, float]:
    samples: list[tuple[float, float]] = []
    once = _on_gpu if world.gpu else _on_threads
    for _ in range(_ROUNDS[world.gpu]):
        world.barrier()
        rows = world.gather(once(parts))
        samples.append((max(row[0] for row in rows), max(row[1] for row in rows)))
    return median(one for one, _ in samples), median(two for _, two in samples)


def _on_gpu(parts: tuple[Part, Part]) -> tuple[float, float]:
    """Both on streams of their own, fed in turn so that neither waits for the host to be done with the other."""
    torch.cuda.synchronize()
    begin = torch.cuda.Event(enable_timing=True)
    ends = [torch.cuda.Event(enable_timing=True) for _ in parts]
    streams = [torch.cuda.Stream() for _ in parts]
    begin.record()
    for stream in streams:
        stream.wait_event(begin)
    counts = [part[1] if part else 0 for part in parts]
    steps = sorted((i / count, place, i) for place, count in enumerate(counts) for i in range(count))
    for _, place, i in steps:
        part = parts[place]
        if part is not None:
            with torch.cuda.stream(streams[place]):
                part[0](i)
    for stream, end in zip(streams, ends, strict=True):
        end.record(stream)
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) * 1e-3 for end in ends]
    return times[0], times[1]


def _on_threads(parts: tuple[Part, Part]) -> tuple[float, float]:
    """Both on threads of their own, from a common start."""
    times = [0.0, 0.0]
    start = threading.Barrier(sum(part is not None for part in parts))

    def work(place: int, run: Run, count: int) -> None:
        start.wait()
        begin = time.perf_counter()
        for i in range(count):
            run(i)
        times[place] = time.perf_counter() - begin

    threads = [threading.Thread(target=work, args=(place, *part)) for place, part in enumerate(parts) if part]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times[0], times[1]
