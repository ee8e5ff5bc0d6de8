"""Two things at once: a product beside a collective, or collectives of two families; how much each slows the other."""

import math
import threading
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from suite.stats import slowdowns
from suite.world import Run, World

_ROUNDS = {True: 7, False: 3}
"""Samples on a GPU and without, where each takes far longer."""

Part = tuple[Run, int] | None
"""What to run and how often; None: nothing."""
Once = Callable[[tuple[Part, Part]], tuple[float, float]]


def measure(world: World, one: Run | None, two: Run | None, seconds: float) -> list[dict[str, float]]:
    """Figures of both: `alone_s` and `both_s` a repetition (the slowest rank's, median of samples), `slowdown`.

    Each runs for about `seconds` by itself; the shares of the time in which only one of them was left do not count
    (`stats.slowdowns`). All ranks call it; a rank that has no part in one of them, or in both, gives None.
    """
    once: Once = partial(_on_gpu, (torch.cuda.Stream(), torch.cuda.Stream())) if world.gpu else _on_threads
    counts = tuple(_count(world, run, seconds) for run in (one, two))
    first = (one, counts[0]) if one is not None else None
    second = (two, counts[1]) if two is not None else None
    once((first and (first[0], 2), second and (second[0], 2)))  # libraries take memory at their first use of a stream
    alone = [_median(world, once, (first, None)), _median(world, once, (None, second))]
    both = _median(world, once, (first, second))
    factors = slowdowns((alone[0][0], alone[1][1]), both)
    return [
        {
            "alone_s": alone[place][place] / counts[place],
            "both_s": alone[place][place] / counts[place] * factors[place],
            "slowdown": factors[place],
        }
        for place in (0, 1)
    ]


def _count(world: World, run: Run | None, seconds: float) -> int:
    """Repetitions of about `seconds` on the slowest rank; all ranks take as many."""
    took_s = 0.0
    for i in range(2 if run is not None else 0):
        assert run is not None
        run(i)
    world.synchronize()
    world.barrier()
    if run is not None:
        took_s = world.timed(run, 2) / 2
    one_s = max(row[0] for row in world.gather([took_s]))
    return max(2, min(500, math.ceil(seconds / max(one_s, 1e-9))))


def _median(world: World, once: Once, parts: tuple[Part, Part]) -> tuple[float, float]:
    samples: list[tuple[float, float]] = []
    for _ in range(_ROUNDS[world.gpu]):
        world.barrier()
        rows = world.gather(once(parts))
        samples.append((max(row[0] for row in rows), max(row[1] for row in rows)))
    return median(one for one, _ in samples), median(two for _, two in samples)


def _on_gpu(streams: tuple[torch.cuda.Stream, torch.cuda.Stream], parts: tuple[Part, Part]) -> tuple[float, float]:
    """Both on streams of their own, fed in turn so that neither waits for the host to be done with the other.

    All ranks feed them in the same order, so that two communicators cannot wait for each other crosswise.
    """
    torch.cuda.synchronize()
    begin = torch.cuda.Event(enable_timing=True)
    ends = [torch.cuda.Event(enable_timing=True) for _ in parts]
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
    times = [begin.elapsed_time(end) * 1e-3 if part else 0.0 for end, part in zip(ends, parts, strict=True)]
    return times[0], times[1]


def _on_threads(parts: tuple[Part, Part]) -> tuple[float, float]:
    """Both on threads of their own, from a common start. Raises what one of them raised."""
    times = [0.0, 0.0]
    errors: list[Exception] = []
    there = [(place, part) for place, part in enumerate(parts) if part is not None]
    if not there:
        return 0.0, 0.0
    start = threading.Barrier(len(there))

    def work(place: int, run: Run, count: int) -> None:
        start.wait()
        begin = time.perf_counter()
        try:
            for i in range(count):
                run(i)
        except Exception as error:
            errors.append(error)
        times[place] = time.perf_counter() - begin

    threads = [threading.Thread(target=work, args=(place, *part), daemon=True) for place, part in there]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return times[0], times[1]
