"""What a run says against itself: wrong results, unstable or short samples, a throttled device, a slow rank or node."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from suite.stats import SLOW

DRIFT = 0.03
"""A product that takes this much longer at the end than at the start was throttled."""
_LISTED = 2 / 3
"""A rank is named where it was slow in this share of what was compared."""
_LEAST = 3
_NOISY = 0.1
"""Pairs are compared twice only: above this half width they tell noise, not ranks."""
_COOL = ("0x0000000000000000", "0x0000000000000001", "Not Active", "")
"""Reasons for a lowered clock that are none: nothing, or an idle GPU."""

Entry = Mapping[str, Any]
Problem = dict[str, str]


def judge(entries: Sequence[Entry], hosts: Sequence[str], states: Sequence[Entry], stability: float) -> list[Problem]:
    """Problems of a run, the gravest first; `states` are those of the GPU at the start and at the end."""
    records = [entry for entry in entries if "time_us" in entry]
    return [
        *_wrong(records),
        *_slow(records, hosts),
        *throttled(records, states),
        *_flagged(records, stability),
    ]


def _wrong(records: Iterable[Entry]) -> Iterable[Problem]:
    for record in records:
        if record.get("wrong"):
            yield {
                "kind": "wrong",
                "what": f"{record['op']} gave {record['wrong']:g} wrong elements ({record['item']})",
            }


def throttled(records: Sequence[Entry], states: Sequence[Entry]) -> list[Problem]:
    """A drift of the reference product, or what the GPU says about its clock at the end."""
    found: list[Problem] = []
    reference = [record for record in records if record.get("params", {}).get("pass") == "reference"]
    if len(reference) > 1:
        first, last = reference[0]["time_us"], reference[-1]["time_us"]
        if last > first * (1 + DRIFT):
            more = f"{last / first - 1:.0%}"
            what = f"the same product took {more} longer at the end than at the start: throttled, or not alone"
            found.append({"kind": "throttled", "what": what})
    state = states[-1] if states else {}
    if state.get("throttle", "") not in _COOL:
        words = f"{state['throttle']} at {state.get('clock_mhz')} of {state.get('most_clock_mhz')} MHz"
        what = f"the GPU reports a reason for a lowered clock: {words}, {state.get('temperature_c')} C"
        found.append({"kind": "throttled", "what": what})
    return found


def _flagged(records: Sequence[Entry], stability: float) -> Iterable[Problem]:
    for flag, words in (
        ("unstable", f"did not reach a half width of {stability:.0%}"),
        ("too_short", "are near the resolution of the clock, or too few samples"),
    ):
        rows = [record for record in records if flag in record.get("flags", ())]
        if rows:
            worst = max(rows, key=lambda record: record.get("half_width") or 0.0)
            width = worst.get("half_width")
            shown = f", half width {width:.0%}" if width is not None else ""
            what = f"{len(rows)} of {len(records)} measurements {words}; worst {worst['item']}{shown}"
            yield {"kind": flag, "what": what}


def _slow(records: Sequence[Entry], hosts: Sequence[str]) -> list[Problem]:
    """Ranks that are slow again and again: at computing, and at exchanging with both of their neighbours."""
    kernels = [record for record in records if record["kind"] == "kernel"]
    pairs = [record for record in records if record.get("params", {}).get("pattern") == "pair"]
    pairs = pairs if all((pair.get("half_width") or 1.0) < _NOISY for pair in pairs) else []
    found: list[Problem] = []
    for rows, least, share, words in (
        (kernels, _LEAST, _LISTED, "computes"),
        (pairs, 1, 1.0, "exchanges messages"),
    ):
        ranks = slow_again(rows, least, share)
        found += [{"kind": "slow", "what": f"{who} {words} {how}"} for who, how in named(ranks, hosts)]
    return found


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


def named(ranks: Mapping[int, float], hosts: Sequence[str]) -> list[tuple[str, str]]:
    """Who is slow and how much: a node where all of its (two or more) ranks are slow, else each rank."""
    found: list[tuple[str, str]] = []
    left = dict(ranks)
    for host in dict.fromkeys(hosts):
        members = [rank for rank, one in enumerate(hosts) if one == host]
        if len(members) > 1 and len(set(hosts)) > 1 and all(rank in left for rank in members):
            factor = max(left.pop(rank) for rank in members)
            found.append((f"node {host} (ranks {members[0]} to {members[-1]})", f"{factor:.2f} times slower"))
    found += [(f"rank {rank} on {hosts[rank]}", f"{factor:.2f} times slower") for rank, factor in left.items()]
    return found
