"""How flows that run at the same time share links: max-min fair rates, and what they make of finish times.

A flow puts `weight` times its rate on each of its links (weights above 1 stand for several alike flows, below 1
for one that spreads over parallel links) and never exceeds its cap. The max-min fair allocation is the only one
in which no flow can be faster without making an equally slow or slower one slower still: every flow is at its
cap, or has a bottleneck link that is full and on which nobody is faster (Bertsekas and Gallager, Data Networks,
2nd ed., 6.5.2).

Two solvers give the same rates: `max_min_rates` works on arrays, `max_min_few` on lists, which is faster below
some fifty flows. `fluid` is the reference for finish times: rates are solved anew at each arrival and departure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Paths = Sequence[Sequence[int]]
Weights = Sequence[Sequence[float]]


def max_min_rates(
    flow_links: Paths,
    capacities: npt.ArrayLike,
    caps: npt.ArrayLike | None = None,
    weights: Weights | None = None,
) -> Floats:
    """Max-min fair rate of each flow [units of the capacities], shape (flows,).

    `flow_links[f]` are the links of flow f (indices into `capacities`), `weights[f]` what it puts on each of
    them per unit of rate (1 where nothing is given), `caps[f]` its own upper limit. A flow with neither link
    nor cap has rate infinity.

    Notes
    -----
    Progressive filling in parallel. The level of a link is what its capacity leaves to each flow on it, by
    weight. A link that is the lowest of all its flows' links keeps its level until the end, so all such links
    are frozen in one round; one or two rounds do where filling one link at a time takes one round a link.
    """
    count = len(flow_links)
    flow, link, weight = _entries(flow_links, weights)
    left = np.array(capacities, dtype=np.float64)
    if caps is not None:  # a cap is a link that only this flow uses
        flow = np.append(flow, np.arange(count))
        link = np.append(link, len(left) + np.arange(count))
        weight = np.append(weight, np.ones(count))
        left = np.append(left, np.asarray(caps, dtype=np.float64))
        order = np.argsort(flow, kind="stable")
        flow, link, weight = flow[order], link[order], weight[order]
    rates = np.full(count, np.inf)
    size = len(left)
    while len(flow):
        load = np.bincount(link, weights=weight, minlength=size)
        level = left[link] / load[link]
        begins = np.flatnonzero(np.diff(flow, prepend=-1))
        lowest = np.minimum.reduceat(level, begins)
        of_entry = np.repeat(lowest, np.diff(begins, append=len(flow)))
        held = np.bincount(link, weights=level > of_entry, minlength=size) > 0.0
        frozen = np.logical_or.reduceat(~held[link], begins)
        rates[flow[begins[frozen]]] = lowest[frozen]
        gone = np.repeat(frozen, np.diff(begins, append=len(flow)))
        used = np.bincount(link[gone], weights=weight[gone] * of_entry[gone], minlength=size)
        with np.errstate(invalid="ignore"):  # infinity less infinity: a flow without a limit, alone with its cap
            left = np.maximum(left - used, 0.0)
        flow, link, weight = flow[~gone], link[~gone], weight[~gone]
    return rates


def _entries(flow_links: Paths, weights: Weights | None) -> tuple[Ints, Ints, Floats]:
    """Flow, link and weight of every pair of a flow and a link that it uses, sorted by flow."""
    sizes = np.array([len(path) for path in flow_links], dtype=np.int64)
    flow = np.repeat(np.arange(len(flow_links)), sizes)
    link = np.array([link for path in flow_links for link in path], dtype=np.int64)
    if weights is None:
        return flow, link, np.ones(len(link))
    return flow, link, np.array([weight for row in weights for weight in row], dtype=np.float64)


def max_min_few(flow_links: Paths, capacities: Sequence[float], caps: Sequence[float], weights: Weights) -> list[float]:
    """The same rates as `max_min_rates`, one bottleneck after the other in plain Python, for a few flows."""
    left = list(capacities)
    load = [0.0] * len(left)
    members: list[list[tuple[int, float]]] = [[] for _ in left]
    for flow, (path, row) in enumerate(zip(flow_links, weights, strict=True)):
        for link, weight in zip(path, row, strict=True):
            members[link].append((flow, weight))
            load[link] += weight
    rates = [-1.0] * len(flow_links)
    waiting = sorted(range(len(caps)), key=caps.__getitem__, reverse=True)  # the lowest cap last
    links = [link for link, found in enumerate(members) if found]
    while waiting:
        level, tightest = math.inf, -1
        for link in links:
            if load[link] > 0.0 and left[link] / load[link] < level:
                level, tightest = left[link] / load[link], link
        frozen: list[int] = []
        while waiting and (rates[waiting[-1]] >= 0.0 or caps[waiting[-1]] <= level):
            flow = waiting.pop()
            if rates[flow] < 0.0:
                rates[flow] = caps[flow]
                frozen.append(flow)
        if not frozen and tightest >= 0:
            frozen = [flow for flow, _ in members[tightest] if rates[flow] < 0.0]
            for flow in frozen:
                rates[flow] = level
        for flow in frozen:
            for link, weight in zip(flow_links[flow], weights[flow], strict=True):
                left[link] = max(left[link] - weight * rates[flow], 0.0)
                load[link] -= weight
        links = [link for link in links if any(rates[flow] < 0.0 for flow, _ in members[link])]
    return rates


@dataclass(frozen=True)
class TimedFlow:
    """A flow that starts at `start_s` and has `size_bytes` to move; weights of 1 where none are given."""

    start_s: float
    size_bytes: float
    links: tuple[int, ...]
    cap_bytes_per_s: float = math.inf
    weights: tuple[float, ...] = ()


def fluid(flows: Sequence[TimedFlow], capacities_bytes_per_s: npt.ArrayLike) -> Floats:
    """Finish time of each flow [s], shape (flows,), when all of them share the links max-min fairly at all times.

    The reference for `traincast.engine.flows`, which does the same inside the event loop. Raises TopologyError
    for a flow whose links have no capacity.
    """
    capacities = np.asarray(capacities_bytes_per_s, dtype=np.float64)
    weights = [flow.weights or (1.0,) * len(flow.links) for flow in flows]
    left = np.array([flow.size_bytes for flow in flows], dtype=np.float64)
    finish = np.full(len(flows), np.nan)
    arrivals = sorted(range(len(flows)), key=lambda f: flows[f].start_s, reverse=True)
    active: list[int] = []
    now = 0.0
    while arrivals or active:
        rates = max_min_rates(
            [flows[f].links for f in active],
            capacities,
            [flows[f].cap_bytes_per_s for f in active],
            [weights[f] for f in active],
        )
        if not rates.min(initial=np.inf) > 0.0:
            raise TopologyError("a flow crosses a link without capacity", fix="give every link a bandwidth")
        needed = left[active] / rates
        soonest = now + float(needed.min(initial=np.inf))
        until = min(soonest, flows[arrivals[-1]].start_s if arrivals else math.inf)
        left[active] -= rates * (until - now)
        if soonest <= until:
            ended = needed == needed.min()
            finish[np.array(active)[ended]] = until
            active = [f for f, over in zip(active, ended, strict=True) if not over]
        now = until
        while arrivals and flows[arrivals[-1]].start_s <= now:
            active.append(arrivals.pop())
    return finish
