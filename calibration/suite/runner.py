"""A run from start to end: agree on the plan, measure, write, judge."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from suite import clocks, kernels, meta, rows
from suite.collectives import connect, make_groups
from suite.ending import abort
from suite.facts import capability, facts_of, labelled
from suite.groups import Groups, Shape, created_families, default_sizes, measured_families, shape_of
from suite.judge import OneRun, judge, slowed
from suite.launch import Launch, LaunchError
from suite.log import AGAIN, DONE, NEW, Log
from suite.measure import measure
from suite.options import Options
from suite.plan import Item, Site, build, reference
from suite.progress import BUDGET, FAILED, INTERRUPTED, RUN, Progress
from suite.sampling import Limits
from suite.store import StoreError, best_widths, measured_us, open_store
from suite.trial import Bench
from suite.world import World, clock_tick_s, join, leave

_WHY = {BUDGET: ("budget", "the time budget was used up"), INTERRUPTED: ("interrupted", "the run was interrupted")}
_AGAIN_LONGER = 4
"""What was not stable gets this many times as long when it is measured again."""


def run(options: Options, launch: Launch, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs the suite in this process and returns the exit code: 0, or 1 where a result was wrong, 2 a user's error.

    Raises ShapeError before anything is started, for a mesh that does not fit the number of processes, and LaunchError
    where the processes do not fit together. Any other failure ends all processes of the run.
    """
    progress = Progress(options.budget_s)
    sizes = dict(options.sizes)
    named = any(size is not None for size in sizes.values())
    shape = shape_of(launch.world, sizes if named else default_sizes(launch.world, launch.local_world), options.order)
    world = join(launch, options.backend)
    try:
        world = labelled(world)
        code = _run(options, world, shape, progress, (command, environment))
        leave(world)
    except LaunchError:  # all ranks found it
        leave(world)
        raise
    except BaseException as error:
        abort(launch, error)
    return code


def _run(
    options: Options, world: World, shape: Shape, progress: Progress, said: tuple[Sequence[str], Mapping[str, str]]
) -> int:
    command, environment = said
    facts = facts_of(world, shape, environment)
    store, what = None, ""
    if world.rank == 0:
        try:
            store = open_store(options.output, options.resume, facts)
        except (StoreError, OSError) as error:
            what = str(error)
    if world.agreed(1.0 if what else 0.0)[0]:
        if what:
            print(f"run.py: {what}", file=sys.stderr, flush=True)
        return 2
    log = Log(store, meta.run_entry(store.index if store else 0, facts, command, environment))
    progress.failed = log.error is not None
    _listen(progress)
    return _Run(options, world, progress, log, facts["differ"]).all(shape)


class _Run:
    """The measurements of a run, one after the other. What the disk refuses ends it at the next item, on all ranks."""

    def __init__(self, options: Options, world: World, progress: Progress, log: Log, differ: Sequence[str]) -> None:
        self.options, self.world, self.progress, self.log, self.differ = options, world, progress, log, differ
        self.within = options.within(world.gpu)
        self.states: list[dict[str, Any]] = []

    def all(self, shape: Shape) -> int:
        """All items in their order, the reference once more, the judgement; the exit code."""
        families = measured_families(shape)
        power = capability(self.world)
        site = Site(self.world.gpu, families, power >= (8, 9), not self.world.gpu or power >= (8, 0))
        items = build(self.options, site)
        states = self.log.states([item.key for item in items], self.within)
        known = [int(one) for one in self.world.agreed(*states)]
        bench = self._bench(shape, site, items, known)
        self.progress.creations = self.log.creations()
        self.progress.remember(items, self.log.before)
        begin_s = self.progress.elapsed_s
        refers = bool(items) and items[0] == bench.reference
        if refers:
            if not self._item(bench, items[0], f"[1/{len(items)}]"):
                return 2
            self._look(bench, "start")
            self.progress.end_s = self.progress.elapsed_s - begin_s
        for wanted in (NEW, AGAIN):
            for place, item in enumerate(items):
                if known[place] == wanted and item != bench.reference:
                    longer = _AGAIN_LONGER if wanted == AGAIN else 1
                    if not self._item(bench, item, f"[{place + 1}/{len(items)}]", longer):
                        return 2
        self.progress.end_s = 0.0
        if refers and not self.world.agreed(float(self.progress.interrupted))[0]:
            again = measure(bench, bench.reference, self.progress.creations)
            self.log.add([entry | {"item": f"{entry['item']}/end"} for entry in again])
            self._look(bench, "end")
        return self._end()

    def _bench(self, shape: Shape, site: Site, items: Sequence[Item], known: Sequence[int]) -> Bench:
        """Groups of the families that are measured, used once, and how long an item may take."""
        world = self.world
        wanted = {name for item in items for name in item.family.split("+")}
        families = {name: groups for name, groups in site.families.items() if name in wanted}

        def create(ranks: list[int]) -> Any:
            return dist.group.WORLD if len(ranks) == world.size else dist.new_group(ranks)

        members = make_groups(families, world.rank, create)
        connect(world, members)
        created: dict[str, Groups] = created_families(shape)
        self.progress.families = tuple(created.values())
        fresh = [item for item, state in zip(items, known, strict=True) if state != DONE]
        return Bench(world, site.families, created, members, self._limits(fresh), reference(site))

    def _limits(self, items: Sequence[Item]) -> Limits:
        """The time of one item, so that half of the budget suffices for what is most telling."""
        first = sum(item.tier <= 1 for item in items)
        seconds = min(2.0, max(0.02, 0.5 * self.options.budget_s / max(first, 1)))
        # processes that share cores are put aside for milliseconds: longer samples hold some of that each
        sample_s = min(1e-3, seconds / 10) if self.world.gpu else min(2e-2, seconds / 24)
        tick_s = self.world.agreed(clock_tick_s(self.world.gpu))[0]
        return Limits(stability=self.within, seconds=seconds, sample_s=sample_s, tick_s=tick_s)

    def _item(self, bench: Bench, item: Item, place: str, longer: int = 1) -> bool:
        """Measures one item, or writes why not; whether the run goes on."""
        code, seconds = self.world.agreed(*self.progress.verdict(item, longer * bench.limits.seconds))
        if code == FAILED:
            return False
        if code != RUN:
            if longer == 1:  # what is there but not stable is not missing
                self.log.add([rows.skipped(item, *_WHY[int(code)])])
            return True
        begin = time.perf_counter()
        entries = measure(replace(bench, limits=replace(bench.limits, seconds=seconds)), item, self.progress.creations)
        took = {"took_s": round(time.perf_counter() - begin, 4), "repeat": self.log.times(item.key) or None}
        entries = [entry | took if entry["kind"] != "skipped" else entry for entry in entries]
        self.progress.learn(item, entries)
        self.log.add(entries)
        self.progress.failed = self.log.error is not None
        self._tell(place, entries)
        return True

    def _look(self, bench: Bench, when: str) -> None:
        """The states of the GPUs while the reference product keeps them busy."""
        if self.world.gpu:
            kernel = kernels.build(self.world, bench.reference)
            self.states += clocks.busy_states(self.world, kernel.run, when)

    def _end(self) -> int:
        """The last line of a run, and the same on standard error, by rank 0; the exit code."""
        wrong = False
        if self.world.rank == 0:
            problems = [{"kind": "ranks", "what": what} for what in self.differ]
            this = OneRun(self.log.entries, self.world.hosts, self.states, self.log.index)
            open_runs, judged = self.log.runs()
            problems += judge([*open_runs, this], self.within, judged)
            end = self._summary(problems)
            self.log.add([end])
            for problem in problems:
                print(f"{problem['kind']}: {problem['what']}", file=sys.stderr)
            words = f"{end['measured']} measured, {end['left_out']} left out, {end['elapsed_s']:.0f} s"
            print(f"{self.options.output.name}: {words}", file=sys.stderr, flush=True)
            wrong = any(problem["kind"] == "wrong" for problem in problems)
        return int(self.world.agreed(2.0 if self.log.error is not None else float(wrong))[0])

    def _summary(self, problems: Sequence[dict[str, str]]) -> rows.Entry:
        entries = self.log.entries
        every = [*self.log.before, *entries]
        measured = {entry["item"] for entry in every if "item" in entry and measured_us(entry) is not None}
        left_out = {entry["item"] for entry in entries if entry["kind"] == "skipped"} - measured
        return {
            "kind": "end",
            "elapsed_s": round(self.progress.elapsed_s, 3),
            "measured": len(measured),
            "left_out": len(left_out),
            "unstable": sum(width > self.within for width in best_widths(every).values()),
            "complete": not any(entry.get("reason") in ("budget", "interrupted") for entry in entries),
            "stability": self.within,
            "problems": problems,
            "gpu_states": clocks.shown(self.states, [int(one["rank"]) for one in self.states if slowed(one)]),
        }

    def _tell(self, place: str, entries: Sequence[rows.Entry]) -> None:
        """Progress on standard error: a line an item."""
        if self.world.rank == 0:
            last = entries[-1]
            time_us = measured_us(last)
            print(
                f"{place} {last['item']}: {last['why'] if time_us is None else _shown(last, time_us)}", file=sys.stderr
            )
            sys.stderr.flush()


def _shown(entry: rows.Entry, time_us: float) -> str:
    """A time as progress shows it: with its half width, or beside what was predicted."""
    width, params = entry.get("half_width"), entry.get("params", {})
    if width is not None:
        return f"{time_us:.1f} us +-{width:.0%}"
    if "predicted_us" in params:
        return f"{time_us:.1f} us, {params['predicted_us']:.1f} us predicted ({params['error']:+.0%})"
    return f"{time_us:.1f} us"


def _listen(progress: Progress) -> None:
    """The first interruption ends the run after the item at hand; a second one ends the process."""

    def stop(number: int, frame: Any) -> None:
        progress.interrupted = True
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
