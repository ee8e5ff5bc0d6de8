"""A run from start to end: agree on the plan, measure, write, judge."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from suite import meta, rows
from suite.collectives import make_groups
from suite.facts import facts_of, labelled
from suite.groups import Shape, created_families, default_sizes, measured_families, shape_of
from suite.judge import judge
from suite.launch import Launch
from suite.measure import Bench, measure
from suite.options import Options
from suite.plan import Item, Site, build, reference
from suite.sampling import Limits
from suite.startup import Creation, fit
from suite.store import Store, StoreError, open_store
from suite.world import World, join, leave

_RUN, _DONE, _BUDGET, _INTERRUPTED = range(4)
_CREATED = ("create_us", "first_us")
_WHY = {_BUDGET: ("budget", "the time budget was used up"), _INTERRUPTED: ("interrupted", "the run was interrupted")}


@dataclass
class Progress:
    """What rank 0 knows about the run so far."""

    budget_s: float
    begin_s: float = field(default_factory=time.perf_counter)
    interrupted: bool = False
    lately: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Items without their size -> the last size and its time [s]."""

    @property
    def left_s(self) -> float:
        """Seconds of the budget that are left, less what the end of the run needs."""
        return self.budget_s - min(2.0, 0.05 * self.budget_s) - (time.perf_counter() - self.begin_s)

    def verdict(self, item: Item, done: bool) -> int:
        """Whether to run an item; one that would not end in time is left out before it begins."""
        if done:
            return _DONE
        if self.interrupted:
            return _INTERRUPTED
        size, took_s = self.lately.get(item.reduced, (0, 0.0))
        least_s = took_s * max(1.0, item.size_bytes / size) * 7 if size else 0.0
        return _RUN if self.left_s > least_s else _BUDGET


def run(options: Options, launch: Launch, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the suite in this process and returns the exit code: 0, or 1 where a result was wrong, 2 a user's error.

    Raises ShapeError before anything is started, for a mesh that does not fit the number of processes.
    """
    sizes = dict(options.sizes)
    named = any(size is not None for size in sizes.values())
    shape = shape_of(launch.world, sizes if named else default_sizes(launch.world, launch.local_world), options.order)
    world = labelled(join(launch, options.backend))
    facts = facts_of(world, shape)
    store, what = None, ""
    if world.rank == 0:
        try:
            store = open_store(options.output, options.resume, facts)
        except (StoreError, OSError) as error:
            what = str(error)
    if world.agreed(1.0 if what else 0.0):
        if what:
            print(f"run.py: {what}", file=sys.stderr)
        leave(world)
        return 2
    try:
        return _measured(options, world, shape, _Log(store, meta.run_entry(_index(store), facts, command, environment)))
    finally:
        leave(world)


class _Log:
    """Rank 0's file and what went into it; other ranks only keep the records."""

    def __init__(self, store: Store | None, run_entry: rows.Entry) -> None:
        self.store = store
        self.index = _index(store)
        self.entries: list[rows.Entry] = []
        self.pending: list[rows.Entry] = []
        self._write([run_entry])

    def add(self, entries: Sequence[rows.Entry]) -> None:
        """Writes lines of this run; what was left out is written with the next line that is more."""
        self.entries += entries
        self.pending += [rows.finished(entry, self.index) for entry in entries]
        if any(entry["kind"] != "skipped" for entry in entries):
            self._write(self.pending)
            self.pending = []

    def done(self, item: Item) -> bool:
        """Whether an earlier run has measured it."""
        return self.store is not None and item.key in self.store.done

    def creations(self) -> list[Creation]:
        """What earlier runs found for the creation of groups."""
        rows_before = self.store.before if self.store is not None else []
        return [
            Creation(one["params"]["size"], one["params"]["count"], *(one["params"][name] * 1e-6 for name in _CREATED))
            for one in rows_before
            if one.get("op") == "new_group" and "time_us" in one
        ]

    def before(self) -> list[rows.Entry]:
        """Records of earlier runs, without their reference products: each run has its own."""
        found = self.store.before if self.store is not None else []
        return [dict(one) for one in found if one.get("params", {}).get("pass") != "reference"]

    def _write(self, entries: Sequence[rows.Entry]) -> None:
        if self.store is not None:
            self.store.write(entries)


def _index(store: Store | None) -> int:
    return store.index if store is not None else 0


def _measured(options: Options, world: World, shape: Shape, log: _Log) -> int:
    """All items in their order, the reference once more, the judgement."""
    families = measured_families(shape)
    site = Site(world.gpu, families, world.gpu and torch.cuda.get_device_capability() >= (8, 9))
    items = build(options, site)
    bench = Bench(
        world,
        families,
        created_families(shape),
        make_groups(families, world.rank, lambda ranks: dist.new_group(ranks)),
        _limits(options, items, world),
        reference(site),
    )
    progress = Progress(options.budget_s)
    _listen(progress)
    states = [meta.gpu_state(world.launch.local_rank)] if world.gpu and world.rank == 0 else []
    known = log.creations()
    for place, item in enumerate(items):
        if item.op == "mesh_startup" and (model := fit(known)) is not None:
            progress.lately[item.reduced] = (1, model.startup_s(bench.created.values()) / 5)
        code = int(world.agreed(progress.verdict(item, log.done(item) and item != bench.reference)))
        if code == _DONE:
            continue
        if code != _RUN:
            log.add([rows.skipped(item, *_WHY[code])])
            continue
        entries = measure(bench, item, known)
        progress.lately[item.reduced] = (item.size_bytes, entries[-1].get("time_us", 0.0) * 1e-6)
        log.add(entries)
        _tell(world, place, items, entries)
    if items and items[0] == bench.reference and not world.agreed(float(progress.interrupted)):
        again = measure(bench, bench.reference, known)
        log.add([entry | {"repeat": 1, "item": f"{entry['item']}/end"} for entry in again])
    if world.gpu and world.rank == 0:
        states.append(meta.gpu_state(world.launch.local_rank))
    return _end(options, world, log, progress, states)


def _end(options: Options, world: World, log: _Log, progress: Progress, states: list[dict[str, str]]) -> int:
    """The last line of a run, and the same on standard error."""
    every = [*log.before(), *log.entries]
    problems = judge(every, world.hosts, states, options.stability)
    measured = {entry["item"] for entry in every if "time_us" in entry}
    left_out = {entry["item"] for entry in log.entries if entry["kind"] == "skipped"} - measured
    end = {
        "kind": "end",
        "elapsed_s": round(time.perf_counter() - progress.begin_s, 3),
        "measured": len(measured),
        "left_out": len(left_out),
        "complete": not any(entry.get("reason") in ("budget", "interrupted") for entry in log.entries),
        "problems": problems,
        "gpu_states": states,
    }
    log.add([end])
    if world.rank == 0:
        for problem in problems:
            print(f"{problem['kind']}: {problem['what']}", file=sys.stderr)
        words = f"{end['measured']} measured, {end['left_out']} left out, {end['elapsed_s']:.0f} s"
        print(f"{options.output.name}: {words}", file=sys.stderr)
    return int(world.agreed(float(any(problem["kind"] == "wrong" for problem in problems))))


def _limits(options: Options, items: Sequence[Item], world: World) -> Limits:
    """The time of one item, so that half of the budget suffices for what is most telling."""
    first = sum(item.tier <= 1 for item in items)
    seconds = min(2.0, max(0.02, 0.5 * options.budget_s / max(first, 1)))
    sample_s = min(1e-3 if world.gpu else 2e-3, seconds / 10)
    return Limits(stability=options.stability, seconds=seconds, sample_s=sample_s)


def _listen(progress: Progress) -> None:
    """The first interruption ends the run after the item at hand; a second one ends the process."""

    def stop(number: int, frame: Any) -> None:
        progress.interrupted = True
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _tell(world: World, place: int, items: Sequence[Item], entries: Sequence[rows.Entry]) -> None:
    """Progress on standard error: a line an item."""
    if world.rank == 0:
        last = entries[-1]
        shown = f"{last['time_us']:.1f} us" if "time_us" in last else last["why"]
        print(f"[{place + 1}/{len(items)}] {last['item']}: {shown}", file=sys.stderr, flush=True)
