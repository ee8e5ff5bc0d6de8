"""Measurements as lines of the file: the record format of `traincast.calibration`, built without it."""

from collections.abc import Mapping, Sequence
from typing import Any

from suite.plan import Item
from suite.sampling import Sampled
from suite.stats import Spread, slow_ranks, slowest

Entry = dict[str, Any]
_MOST_LISTED = 16
_IN_PLACE = ("time_us", "algbw_bytes_per_s", "busbw_bytes_per_s", "wrong")


def us(seconds: float) -> float:
    """Microseconds, to a tenth of a nanosecond."""
    return round(seconds * 1e6, 4)


def timed(item: Item, kind: str, sampled: Sampled, hosts: Sequence[str]) -> Entry:
    """The common part of a record: what was measured, median and spread, the slowest rank, what is wrong with it.

    The reference product also lists the median and half width of every rank (`own_us`, `own_half_width`), so that each
    can be compared with itself at the end.
    """
    found = sampled.spread()
    each = sampled.own()
    own = [one.median_s if one is not None else None for one in each]
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
    short = sampled.too_short
    flags = ["too_short"] if short else [] if sampled.stable else ["unstable"]
    lists: Entry = {}
    if params.get("pass") == "reference":
        lists = {"own_us": [us(one or 0.0) for one in own], "own_half_width": [_width(one) for one in each]}
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
        "half_width": _width(found),
        "flags": flags,
        "params": params,
        **lists,
    }


def _width(one: Spread | None) -> float | None:
    return None if one is None or one.half_width is None else round(one.half_width, 6)


def rates(entry: Entry, size: float, factor: float) -> Entry:
    """A collective's record with algbw and busbw [bytes/s] of `size` bytes."""
    rate = size / (entry["time_us"] * 1e-6)
    return entry | {"algbw_bytes_per_s": round(rate, 3), "busbw_bytes_per_s": round(rate * factor, 3)}


def in_place(entry: Entry) -> Entry:
    """The record of a collective whose result stands where its input stood, in the fields that are for that."""
    return {f"in_place_{key}" if key in _IN_PLACE else key: value for key, value in entry.items()}


def skipped(item: Item, reason: str, why: str) -> Entry:
    """The line of something that was left out; `reason` is one word, `why` a sentence."""
    return {"kind": "skipped", "item": item.key, "op": item.op, "reason": reason, "why": why}


def finished(entry: Mapping[str, Any], run: int) -> Entry:
    """A line as it is written: with its run, without what is not stated."""
    return {**{key: value for key, value in entry.items() if value not in (None, [], {})}, "run": run}
