"""Measurements as lines of the file: the record format of `traincast.calibration`, built without it."""

from collections.abc import Mapping, Sequence
from typing import Any

from suite.plan import Item
from suite.sampling import Sampled
from suite.stats import slow_ranks, slowest

Entry = dict[str, Any]
_MOST_LISTED = 16


def us(seconds: float) -> float:
    """Microseconds, to a tenth of a nanosecond."""
    return round(seconds * 1e6, 4)


def timed(item: Item, kind: str, sampled: Sampled, hosts: Sequence[str]) -> Entry:
    """The common part of a record: what was measured, median and spread, the slowest rank, what is wrong with it."""
    found = sampled.spread()
    own = sampled.own_medians()
    place, value = slowest(own)
    known = sorted(one for one in own if one is not None)
    listed = slow_ranks(own)
    params: dict[str, Any] = dict(item.params)
    params |= {name: text for name, text in (("family", item.family), ("mode", item.mode)) if text}
    params |= {
        "inner": sampled.inner,
        "own_median_us": us(known[(len(known) - 1) // 2]),
        "own_fastest_us": us(known[0]),
    }
    params |= {"slowest_us": us(value), "slowest_rank": place, "slowest_host": hosts[place], "compared": len(known)}
    if listed:
        params["slow_ranks"] = " ".join(map(str, listed[:_MOST_LISTED]))
    flags = [*([] if sampled.stable else ["unstable"]), *(["too_short"] if sampled.too_short else [])]
    return {
        "kind": kind,
        "item": item.key,
        "op": item.op,
        "dtype": item.dtype or None,
        "time_us": us(found.median_s),
        "samples": found.count,
        "quartile_1_us": us(found.quartile_1_s),
        "quartile_3_us": us(found.quartile_3_s),
        "min_us": us(found.min_s),
        "max_us": us(found.max_s),
        "half_width": None if found.half_width is None else round(found.half_width, 6),
        "flags": flags,
        "params": params,
    }


def rates(entry: Entry, size: float, factor: float) -> Entry:
    """A collective's record with algbw and busbw [bytes/s] of `size` bytes."""
    rate = size / (entry["time_us"] * 1e-6)
    return entry | {"algbw_bytes_per_s": round(rate, 3), "busbw_bytes_per_s": round(rate * factor, 3)}


def skipped(item: Item, reason: str, why: str) -> Entry:
    """The line of something that was left out; `reason` is one word, `why` a sentence."""
    return {"kind": "skipped", "item": item.key, "op": item.op, "reason": reason, "why": why}


def finished(entry: Mapping[str, Any], run: int) -> Entry:
    """A line as it is written: with its run, without what is not stated."""
    return {**{key: value for key, value in entry.items() if value not in (None, [], {})}, "run": run}
