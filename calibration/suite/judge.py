"""What a run says against itself: wrong results, unstable or short samples, a throttled device, a slow rank or node."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from suite.stats import SLOW, slow_ranks
from suite.store import best_widths, measured_us

DRIFT = 0.03
"""A product that takes this much longer at the end than at the start was throttled."""
_LISTED = 2 / 3
"""A rank is named where it was slow in this share of what was compared."""
_LEAST = 3
_NOISY = 0.1
"""Pairs, and a rank's own product, are compared twice only: above this half width they tell noise, not ranks."""
_SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Reasons of the driver for a lowered clock that are a fault (NVML, nvmlClocksEventReasons): hardware slowdown, heat by
software and by hardware, the power brake. The power cap is none: a large product reaches it on a healthy GPU."""
_MOST_NAMED = 8

Entry = Mapping[str, Any]
Problem = dict[str, str]


@dataclass(frozen=True)
class OneRun:
    """Lines of one run, the host of each of its ranks (empty: not known), and states of its GPUs while they worked."""

    entries: Sequence[Entry]
    hosts: Sequence[str] = ()
    states: Sequence[Entry] = ()
    index: int = 0

    def host(self, rank: int) -> str:
        """Label of a rank's host."""
        return self.hosts[rank] if rank < len(self.hosts) else "an unnamed host"


def judge(runs: Sequence[OneRun], stability: float, before: Sequence[Entry] = ()) -> list[Problem]:
    """Problems of the runs of a file, the gravest first; the last run is the one that judges.

    Ranks and clocks are judged within each run: a resumed one may have other hosts under the same ranks. `before`:
    lines of runs that have judged themselves; of them only what was measured counts.
    """
    records = [entry for run in runs for entry in run.entries if measured_us(entry) is not None]
    records = [*(entry for entry in before if measured_us(entry) is not None), *records]
    found = list(_wrong(records))
    for run in runs:
        words = "" if run is runs[-1] else f" (run {run.index})"
        problems = [*_slow(run), *throttled(run)]
        found += [{**problem, "what": problem["what"] + words} for problem in problems]
    return [*found, *_flagged(records, stability)]


def _wrong(records: Iterable[Entry]) -> Iterable[Problem]:
    for record in records:
        count = record.get("wrong") or record.get("in_place_wrong")
        if count:
            what = f"{record['op']} gave {count:g} wrong elements ({record['item']})"
            yield {"kind": "wrong", "what": what}


def references(run: OneRun) -> list[Entry]:
    """The reference product of a run by itself, at its start and at its end."""
    found = [one for one in run.entries if one.get("kind") == "kernel" and measured_us(one) is not None]
    return [one for one in found if one.get("params", {}).get("pass") == "reference"]


def throttled(run: OneRun) -> list[Problem]:
    """Ranks whose reference product drifted, beyond what is unknown of it, and what their GPUs say about their clocks.

    Each rank is compared with itself: a median over ranks would hide one of them.
    """
    found: list[Problem] = []
    drifts = _drifts(run)
    for rank, drift in _worst_first(drifts):
        words = f"took {drift:.0%} longer at the end than at the start: throttled, or not alone"
        found.append({"kind": "throttled", "what": f"the same product on rank {rank} ({run.host(rank)}) {words}"})
    said: set[int] = set()
    for state in reversed(run.states):
        rank = int(state["rank"])
        if slowed(state) and rank not in said and len(said) < _MOST_NAMED:
            said.add(rank)
            words = f"{state['throttle']} at {state.get('clock_mhz')} of {state.get('most_clock_mhz')} MHz"
            who = f"the GPU of rank {rank} ({run.host(rank)})"
            what = f"{who} reports a reason for a lowered clock: {words}, {state.get('temperature_c')} C"
            found.append({"kind": "throttled", "what": what})
    return found


def slowed(state: Entry) -> bool:
    """Whether a GPU gives a reason for a lowered clock that is a fault."""
    try:
        return bool(int(str(state.get("throttle", "0")), 16) & _SLOWED)
    except ValueError:  # not supported by this GPU
        return False


def _drifts(run: OneRun) -> dict[int, float]:
    found = references(run)
    if len(found) < 2:
        return {}
    first, last = found[0], found[-1]
    drifts = {}
    for rank, (before, after) in enumerate(zip(_own(first), _own(last), strict=True)):
        drift = after[0] / before[0] - 1
        if drift > max(DRIFT, before[1] + after[1]):
            drifts[rank] = drift
    return drifts


def _own(reference: Entry) -> list[tuple[float, float]]:
    """Median and half width of each rank; a record without them is one of a single rank."""
    times = reference.get("own_us") or [measured_us(reference)]
    widths = reference.get("own_half_width") or [reference.get("half_width")]
    return [(time, 1.0 if width is None else width) for time, width in zip(times, widths, strict=True)]


def _worst_first(ranks: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(ranks.items(), key=lambda one: -one[1])[:_MOST_NAMED]


def _flagged(records: Sequence[Entry], stability: float) -> Iterable[Problem]:
    """How many items are not known well enough by the best of their measurements."""
    widths = best_widths(records)
    short = [item for item, width in widths.items() if width == float("inf")]
    loose = {item: width for item, width in widths.items() if stability < width < float("inf")}
    if loose:
        worst = max(loose, key=lambda item: loose[item])
        words = f"are known to no better than {stability:.0%} (half width of the median)"
        what = f"{len(loose)} of {len(widths)} measurements {words}; worst {worst}, {loose[worst]:.0%}"
        yield {"kind": "unstable", "what": f"{what}; --resume measures them again, --stability asks for less"}
    if short:
        words = "are near the resolution of the clock, or too few samples"
        yield {"kind": "too_short", "what": f"{len(short)} of {len(widths)} measurements {words}; first {short[0]}"}


def _slow(run: OneRun) -> list[Problem]:
    """Ranks that are slow again and again: at computing, and at exchanging with both of their neighbours."""
    kernels = [record for record in run.entries if record.get("kind") == "kernel" and "params" in record]
    pairs = [record for record in run.entries if record.get("params", {}).get("pattern") == "pair"]
    pairs = pairs if all((pair.get("half_width") or 1.0) < _NOISY for pair in pairs) else []
    slow = slow_again(kernels, _LEAST, _LISTED)
    found = []
    for ranks, words in (
        (slow, "computes"),
        ({rank: factor for rank, factor in _slow_reference(run).items() if rank not in slow}, "computes"),
        (slow_again(pairs, 1, 1.0), "exchanges messages"),
    ):
        found += [{"kind": "slow", "what": f"{who} {words} {how}"} for who, how in named(ranks, run)]
    return found


def _slow_reference(run: OneRun) -> dict[int, float]:
    """Rank -> how many times slower it is, for those whose reference product is slow at the start and at the end."""
    factors: dict[int, list[float]] = defaultdict(list)
    found = references(run)
    for reference in found:
        own = _own(reference)
        known = [time if width < _NOISY else None for time, width in own]
        usual = sorted(time for time, _ in own)[(len(own) - 1) // 2]
        for rank in slow_ranks(known):
            factors[rank].append(own[rank][0] / usual)
    return {rank: min(values) for rank, values in factors.items() if len(values) == len(found) > 1}


def slow_again(records: Sequence[Entry], least: int, share: float) -> dict[int, float]:
    """Rank -> how many times slower it is, for those listed as slow in `share` of the comparisons they took part in.

    Sizes and kinds weigh alike; fewer than `least` comparisons say nothing.
    """
    compared = [record for record in records if record["params"].get("compared", 0) > 1]
    if len(compared) < least:
        return {}
    listed: Counter[int] = Counter()
    factors: dict[int, list[float]] = defaultdict(list)
    for record in compared:
        params = record["params"]
        usual = params["own_median_us"]
        for rank in map(int, str(params.get("slow_ranks", "")).split()):
            listed[rank] += 1
            known = params["slowest_us"] if rank == params["slowest_rank"] else SLOW * usual
            factors[rank].append(known / usual)
    return {
        rank: sorted(factors[rank])[len(factors[rank]) // 2]
        for rank, times in sorted(listed.items())
        if times >= share * len(compared)
    }


def named(ranks: Mapping[int, float], run: OneRun) -> list[tuple[str, str]]:
    """Who is slow and how much: a node where all of its (two or more) ranks are slow, else each rank."""
    found: list[tuple[str, str]] = []
    left = dict(ranks)
    for host in dict.fromkeys(run.hosts):
        members = [rank for rank, one in enumerate(run.hosts) if one == host]
        if len(members) > 1 and len(set(run.hosts)) > 1 and all(rank in left for rank in members):
            factor = max(left.pop(rank) for rank in members)
            found.append((f"node {host} (ranks {members[0]} to {members[-1]})", f"{factor:.2f} times slower"))
    found += [(f"rank {rank} on {run.host(rank)}", f"{factor:.2f} times slower") for rank, factor in left.items()]
    return found
