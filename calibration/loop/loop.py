"""A real loop without a GPU: Gloo between network namespaces, calibrated on two ranks, forecast for three and four.

    python calibration/loop/loop.py

Needs root, iproute2, PyTorch and traincast. What is measured: collectives; and pipelines (1F1B) of real matrix
products and real messages under two transport disciplines, `async` (all receives posted before the step, sends that
nobody waits for) and `blocking` (after each pass one exchange, receives before sends, waited for, as Megatron-LM's
1F1B does). Forecast: two constants from the all-reduce of two ranks; the time of one message between two ranks; the
simulator's engine. Exit code 0 when all that is judged is within its tolerance, 1 when not, 3 where it cannot run.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from netns import Host, LoopUnavailable, burst_bytes, hosts

COLLECTIVES_WITHIN, PIPELINE_WITHIN = 0.06, 0.08
UNSTEADY = 0.06
"""Above this distance of the quartiles (as a share of the median) a measurement is shown, not judged."""
WORLD, LEAST_BYTES = 4, 4 * 2**20
SHOWN_ONLY = {
    "reduce_scatter": "PyTorch makes it of an all-reduce and two copies: 1 to 7 % that the model does not have",
    "all_gather": "Gloo copies each step's share before it sends it: 1 to 6 % that the model does not have",
    "alltoall": "all ranks send to all at once; TCP shares a full port unevenly",
}
PACE_S = (0.02, 0.04)
"""A pass lasts this long, forward and backward: four ranks on few cores would slow each other's products."""
TOKENS, WIDTH, MICROBATCHES = 1024, 256, 6
"""A message of 1 MiB takes about a pass's time: the two disciplines then differ by some 9 %."""


@dataclass(frozen=True)
class Row:
    """One measurement beside its forecast [s]; `shown_only` says why it is not judged, where it is not."""

    what: str
    ranks: int
    size_bytes: int
    measured_s: float
    forecast_s: float
    within: float
    shown_only: str | None = None

    @property
    def error(self) -> float:
        """Forecast / measured - 1."""
        return self.forecast_s / self.measured_s - 1

    @property
    def fine(self) -> bool:
        """Whether it is within its tolerance, or not judged."""
        return self.shown_only is not None or abs(self.error) <= self.within


def main(arguments: Sequence[str]) -> int:
    """Builds the hosts, measures, forecasts and compares; returns the exit code."""
    parser = argparse.ArgumentParser(prog="loop.py", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rate", type=float, default=400.0, metavar="MBIT", help="of every port (%(default)s Mbit/s)")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="samples of each figure (%(default)s)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    given = parser.parse_args(arguments)
    try:
        rows = measured(given.rate * 1e6, given.repeats)
    except LoopUnavailable as error:
        print(f"loop.py: left out: {error}", file=sys.stderr)
        return 3
    if given.format == "json":
        print(json.dumps([{**asdict(row), "error": row.error, "fine": row.fine} for row in rows]))
    else:
        print_rows(rows, given.rate)
    return 0 if all(row.fine for row in rows) else 1


def measured(bits_per_s: float, repeats: int) -> list[Row]:
    """All rows of one run. Raises LoopUnavailable where namespaces or PyTorch cannot be had."""
    plan = list(items(repeats))
    with hosts(WORLD, bits_per_s) as made:
        figures = run_workers(made, plan)
    pairs = list(zip(plan, figures, strict=True))
    return [*_collectives(pairs), *_pipelines(pairs, burst_bytes(bits_per_s))]


def items(repeats: int) -> Iterator[dict[str, Any]]:
    """What the workers run, in order: calibration on two ranks first."""
    from traincast.schedule import build

    shape = {"tokens": TOKENS, "width": WIDTH, "layers": 1}
    for ranks in range(2, WORLD + 1):
        for op in ("all_reduce", *SHOWN_ONLY):
            for size in (LEAST_BYTES, 2 * LEAST_BYTES, 4 * LEAST_BYTES) if op == "all_reduce" else (4 * LEAST_BYTES,):
                if op == "all_reduce" or ranks > 2:
                    # a step's time is forecast for up to three times as many steps as two ranks take
                    count = repeats if ranks > 2 else 3 * repeats
                    yield {"kind": "collective", "op": op, "ranks": ranks, "size": size, "count": count}
    yield {"kind": "message", "size": 4 * TOKENS * WIDTH, "repeats": 4, "count": repeats}
    yield {"kind": "product", **shape, "ranks": 2, "repeats": 20, "count": repeats}
    for stages, pace in ((2, None), (3, PACE_S), (4, PACE_S)):
        schedule = build("1f1b", stages, MICROBATCHES)
        orders = [[(i.kind, i.microbatch) for i in order] for order in schedule]
        for p2p in ("async", "blocking"):
            more = {"ranks": stages, "microbatches": MICROBATCHES, "schedule": orders, "p2p": p2p, "pace_s": pace}
            yield {"kind": "pipeline", **shape, **more, "count": repeats}


def run_workers(made: Sequence[Host], plan: Sequence[dict[str, Any]]) -> list[list[float]]:
    """One worker on each host; the figures of the plan's items as rank 0 prints them."""
    script = str(Path(__file__).with_name("worker.py"))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    workers = []
    for rank, host in enumerate(made):
        order = json.dumps({"rank": rank, "world": len(made), "address": made[0].address, "items": list(plan)})
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        worker = subprocess.Popen(host.command(sys.executable, script), **pipes, text=True, env=environment)
        assert worker.stdin is not None
        worker.stdin.write(f"{order}\n")
        worker.stdin.flush()
        workers.append(worker)
    try:
        answers = [worker.communicate(timeout=600) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    for worker, (_, errors) in zip(workers, answers, strict=True):
        if worker.returncode:
            if "No module named 'torch'" in errors:
                raise LoopUnavailable("PyTorch is not installed")
            raise SystemExit(f"loop.py: a worker failed: {errors.strip().splitlines()[-1]}")
    found: list[list[float]] = json.loads(answers[0][0].splitlines()[-1])
    return found


def _collectives(pairs: Sequence[tuple[dict[str, Any], list[float]]]) -> Iterator[Row]:
    """Three and four ranks against the two constants of two ranks' all-reduce."""
    from traincast.calibration.gloo import GlooPoint, fit_gloo

    found = [(item, samples) for item, samples in pairs if item["kind"] == "collective"]
    two = [GlooPoint(i["op"], 2, i["size"], median(samples)) for i, samples in found if i["ranks"] == 2]
    model = fit_gloo(two)
    for item, samples in found:
        if item["ranks"] > 2:
            forecast = model.seconds(item["op"], item["size"], item["ranks"])
            shown = SHOWN_ONLY.get(item["op"]) or unsteady(samples)
            what, within = item["op"], COLLECTIVES_WITHIN
            yield Row(what, item["ranks"], item["size"], median(samples), forecast, within, shown)


def _pipelines(pairs: Sequence[tuple[dict[str, Any], list[float]]], burst: int) -> Iterator[Row]:
    """Pipelines against the engine with the measured message, and the pace or the measured products."""
    from traincast.calibration.gloo import PipelineTimes, pipeline_seconds

    by_kind = {item["kind"]: (item, samples) for item, samples in pairs}
    message, samples = by_kind["message"]
    send_s, products = median(samples), by_kind["product"][1]
    assert message["size"] >= 4 * burst, "a message that fits in the bucket runs faster than the rate"
    for item, samples in pairs:
        if item["kind"] == "pipeline":
            forward, backward = item["pace_s"] or products
            times = PipelineTimes(forward, backward, send_s)
            shape = (item["ranks"], item["microbatches"], times)
            forecast = pipeline_seconds(*shape, item["p2p"])
            shown = unsteady(samples) or (None if item["pace_s"] else free_cores(item["ranks"]))
            what = f"1F1B {item['p2p']}, {'paced products' if item['pace_s'] else 'products'}"
            size, within = message["size"], PIPELINE_WITHIN
            yield Row(what, item["ranks"], size, median(samples), forecast, within, shown)


def unsteady(samples: Sequence[float]) -> str | None:
    """Why samples are not judged: their quartiles lie too far apart."""
    low, _, high = quantiles(samples, n=4, method="inclusive")
    apart = (high - low) / median(samples)
    return f"unsteady: quartiles {apart:.0%} apart" if apart > UNSTEADY else None


def free_cores(stages: int) -> str | None:
    """Why products without a pace are not judged: the machine has no two free cores for each of them."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2 * stages:
        return f"{stages} ranks on {cores} cores slow each other's products and transfers"
    return None


def print_rows(rows: Sequence[Row], rate: float) -> None:
    """A table for people."""
    print(f"{WORLD} hosts, {rate:g} Mbit/s a port, calibrated on two of them")
    for row in rows:
        size = f"{row.size_bytes / 2**20:g} MiB"
        times = f"{row.measured_s * 1e3:8.1f} ms measured {row.forecast_s * 1e3:8.1f} ms forecast {row.error:+7.1%}"
        verdict = row.shown_only or ("within" if row.fine else "BEYOND") + f" {row.within:.0%}"
        print(f"{row.what:29} {row.ranks} ranks {size:>8}: {times}  {verdict}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
