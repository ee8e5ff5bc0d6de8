"""Flows inside the event loop: they join and leave links at event times, and only who is touched is solved anew.

A link is overloaded while its flows at full rate would exceed its capacity; only such a link can slow anyone. A flow
that crosses none is free: it runs at full rate and its end is one event, scheduled when it starts, like that of a
transfer without a flow. The others form components, joined by overloaded links. When a flow comes or goes, its
component alone gets new max-min fair rates, once an instant, after everything else that happens then. A component has
one wake-up, at which the first of its flows has moved its bytes. Rates are unique, so nothing depends on the order.
"""

from collections.abc import Sequence

import simpy
from simpy.events import EventPriority

from traincast.engine.events import Message, Moment
from traincast.lower.program import Flow, LinkLoss, Sharing
from traincast.topology.sharing import max_min_few, max_min_rates

LAST = EventPriority(2)
"""SimPy priority of an event that comes after all others of its instant (which have 0 or 1)."""
_FEW = 48
"""Flows from which the solver on arrays beats the one on lists (measured)."""
_SLACK = 1.0 + 1e-9
"""Overload below this is rounding: the static shares of siblings add up to just the capacity."""


_OVER = 1e-12
"""Share of its time from which on a free flow counts as having moved its bytes: rounding, not sharing."""


class Wake(Moment):
    """The end of these transfers, unless others came or went in the meantime; then it does nothing."""

    valid = True

    def __init__(self, env: simpy.Environment, transfers: "Sequence[Transfer]") -> None:
        super().__init__(env)
        self.transfers = transfers


class Link:
    """One link: the transfers on it with the load that each is at full rate, and the sum of these.

    While it is `crowded` (overloaded, and known to be) none of them is free, but for those of this instant.
    """

    __slots__ = ("capacity", "crowded", "limit", "load", "transfers")

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.crowded = False
        self.limit = capacity * _SLACK
        self.load = 0.0
        self.transfers: dict[Transfer, float] = {}


Path = Sequence[tuple[Link, float, float]]
"""Links of a flow, its weight on each, and the load that it is there at full rate [bytes/s]."""


class Transfer:
    """One flow under way. `left_bytes` is as of `since_s`, and `rate` its rate from then on.

    `wake` is the event that ends it (while it is free) or the wake-up of its component. `moments` happen when it has
    arrived, `latency_s` after it has moved its bytes; alone, that is `total_s` after its start. `tightest` is the
    most overloaded of its links while it is slowed.
    """

    __slots__ = (
        "flow", "free", "latency_s", "left_bytes", "moments", "path", "rate", "since_s", "tightest", "total_s", "wake",
    )  # fmt: skip

    def __init__(self, flow: Flow, path: Path, start_s: float, total_s: float) -> None:
        self.flow = flow
        self.path = path
        self.free = False
        self.moments: list[Moment] = []
        self.total_s = total_s
        self.latency_s = max(total_s - flow.size_bytes / flow.bytes_per_s, 0.0)
        self.left_bytes = flow.size_bytes
        self.rate = flow.bytes_per_s
        self.since_s = start_s
        self.tightest: Link | None = None
        self.wake: Wake | None = None

    @property
    def remaining_s(self) -> float:
        """Time from `since_s` to its arrival at full rate; exactly `total_s` as long as nothing has moved."""
        if self.left_bytes == self.flow.size_bytes:
            return self.total_s
        return self.left_bytes / self.flow.bytes_per_s + self.latency_s


class FlowNet:
    """The links of a program and the transfers on them.

    `solves` counts how often rates were solved, `solved` over how many flows in all; both measure the work.
    """

    def __init__(self, env: simpy.Environment, sharing: Sharing) -> None:
        self.env = env
        self.sharing = sharing
        self.links = [Link(link.bytes_per_s) for link in sharing.links]
        self.paths: list[Path] = [
            [
                (self.links[i], weight, weight * flow.bytes_per_s)
                for i, weight in zip(flow.links, flow.weights, strict=True)
            ]
            for flow in sharing.flows
        ]
        self.place = {link: index for index, link in enumerate(self.links)}
        self.lost_s = {label: [0.0] * len(self.links) for label in ("pp", "dp")}
        self.latest: dict[int, tuple[float, float, Transfer]] = {}
        self.touched: list[Transfer] = []
        self.solves = 0
        self.solved = 0

    def start(self, moment: Moment, number: int, total_s: float) -> None:
        """Begin the transfer of flow `number` now; `moment` happens `total_s` later, or as late as sharing makes it."""
        now = self.env.now
        flow = self.sharing.flows[number]
        if flow.label == "dp":
            began = self.latest.get(number)
            if began is not None and began[:2] == (now, total_s):
                began[2].moments.append(moment)
                return
        transfer = Transfer(flow, self.paths[number], now, total_s)
        transfer.moments.append(moment)
        if flow.label == "dp":
            self.latest[number] = (now, total_s, transfer)
        crowded = False
        for link, _, load in transfer.path:
            link.transfers[transfer] = load
            link.load += load
            if link.load > link.limit and (link.crowded or self._still_overloaded(link)):
                crowded = True
        if crowded:
            self._touch([transfer])
        else:
            self._release(transfer)

    def losses(self) -> tuple[LinkLoss, ...]:
        """What sharing cost so far, link by link, the costliest first."""
        found = [
            LinkLoss(i, pp, dp) for i, (pp, dp) in enumerate(zip(self.lost_s["pp"], self.lost_s["dp"], strict=True))
        ]
        slowed = [loss for loss in found if loss.pp_s + loss.dp_s > 0.0]
        return tuple(sorted(slowed, key=lambda loss: -(loss.pp_s + loss.dp_s)))

    def _still_overloaded(self, link: Link) -> bool:
        """Whether a link is overloaded once free flows that have moved their bytes, but not arrived, are off it."""
        now = self.env.now
        for other in list(link.transfers):
            if other.free:
                moving_s = other.left_bytes / other.rate
                if other.since_s + moving_s * (1.0 - _OVER) <= now * (1.0 + 1e-15):
                    self._leave(other)
        link.load = sum(link.transfers.values())
        link.crowded = link.load > link.limit
        return link.crowded

    def _leave(self, transfer: Transfer) -> None:
        """Take a transfer off its links; an empty link has load 0, whatever rounding left."""
        for link, _, load in transfer.path:
            del link.transfers[transfer]
            link.load = link.load - load if link.transfers else 0.0
            link.crowded = link.crowded and link.load > link.limit
        transfer.path = ()

    def _touch(self, transfers: Sequence[Transfer]) -> None:
        """Have the components of these transfers solved at the end of this instant."""
        if transfers and not self.touched:
            settle = Moment(self.env)
            settle.callbacks.append(self._settle)
            self.env.schedule(settle, priority=LAST)
        self.touched += transfers

    def _release(self, transfer: Transfer) -> None:
        """Let a transfer run at full rate: that arrives as foreseen, unless a link is overloaded before."""
        transfer.free = True
        transfer.rate = transfer.flow.bytes_per_s
        transfer.tightest = None
        transfer.wake = self._wake(transfer.remaining_s, (transfer,))

    def _wake(self, delay_s: float, transfers: Sequence[Transfer]) -> Wake:
        wake = Wake(self.env, transfers)
        wake.callbacks.append(self._awake)
        self.env.schedule(wake, delay=delay_s)
        return wake

    def _awake(self, wake: simpy.Event) -> None:
        """Either a free transfer arrives, or the first transfers of a component have moved their bytes."""
        assert isinstance(wake, Wake)
        if not wake.valid:
            return
        left: dict[Link, None] = {}
        for transfer in wake.transfers:
            if transfer.free:
                self._leave(transfer)
                self._arrive(transfer)
                continue
            self._advance(transfer)
            left.update((link, None) for link, *_ in transfer.path)
            self._leave(transfer)
            arrival = Wake(self.env, (transfer,))
            arrival.callbacks.append(self._arrived)
            self.env.schedule(arrival, delay=transfer.latency_s)
        self._touch([other for link in left for other in link.transfers if not other.free])

    def _arrived(self, wake: simpy.Event) -> None:
        assert isinstance(wake, Wake)
        for transfer in wake.transfers:
            self._arrive(transfer)

    def _arrive(self, transfer: Transfer) -> None:
        """The moments of a transfer happen now, as if each had been an event of its own."""
        for moment in transfer.moments:
            callbacks, moment.callbacks = moment.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(moment)

    def _advance(self, transfer: Transfer) -> None:
        """Account for the bytes that a transfer has moved since its rate was set, and for the time it lost."""
        elapsed_s = self.env.now - transfer.since_s
        if elapsed_s > 0.0:
            transfer.left_bytes = max(transfer.left_bytes - transfer.rate * elapsed_s, 0.0)
            transfer.since_s = self.env.now
            if transfer.tightest is not None:
                lost_s = elapsed_s * (1.0 - transfer.rate / transfer.flow.bytes_per_s)
                self.lost_s[transfer.flow.label][self.place[transfer.tightest]] += lost_s

    def _settle(self, event: simpy.Event) -> None:
        """Solve the components of all transfers that were touched in this instant."""
        seeds, self.touched = self.touched, []
        seen: set[Transfer] = set()
        for seed in seeds:
            if seed in seen or not seed.path:
                continue
            component = _component(seed)
            seen.update(component)
            self._solve(component)

    def _solve(self, component: Sequence[Transfer]) -> None:
        for transfer in component:
            if transfer.wake is not None:
                transfer.wake.valid = False
            self._advance(transfer)
        if len(component) == 1 and not any(link.crowded for link, *_ in component[0].path):
            self._release(component[0])
            return
        self.solves += 1
        self.solved += len(component)
        rates = _rates(component)
        needed_s = [transfer.left_bytes / rate for transfer, rate in zip(component, rates, strict=True)]
        soonest_s = min(needed_s)
        first = [transfer for transfer, need in zip(component, needed_s, strict=True) if need == soonest_s]
        wake = self._wake(soonest_s, first)
        for transfer, rate in zip(component, rates, strict=True):
            transfer.free = False
            transfer.rate = rate
            transfer.wake = wake
            transfer.tightest = None
            if rate < transfer.flow.bytes_per_s:
                transfer.tightest = max(
                    (link for link, *_ in transfer.path), key=lambda link: link.load / link.capacity
                )


def _component(seed: Transfer) -> list[Transfer]:
    """All transfers that overloaded links connect with `seed`, itself first."""
    found = {seed: None}
    queue = [seed]
    visited: set[Link] = set()
    for transfer in queue:
        for link, *_ in transfer.path:
            if link.crowded and link not in visited:
                visited.add(link)
                fresh = [other for other in link.transfers if other not in found]
                found.update(dict.fromkeys(fresh))
                queue += fresh
    return queue


def _rates(component: Sequence[Transfer]) -> list[float]:
    """Max-min fair rates of a component, over its overloaded links."""
    place: dict[Link, int] = {}
    paths, weights = [], []
    for transfer in component:
        path, row = [], []
        for link, weight, _ in transfer.path:
            if link.crowded:
                path.append(place.setdefault(link, len(place)))
                row.append(weight)
        paths.append(path)
        weights.append(row)
    capacities = [link.capacity for link in place]
    caps = [transfer.flow.bytes_per_s for transfer in component]
    if len(component) < _FEW:
        return max_min_few(paths, capacities, caps, weights)
    rates: list[float] = max_min_rates(paths, capacities, caps, weights).tolist()
    return rates


class SharedMessage(Message):
    """A message whose flow shares links with others."""

    def __init__(self, env: simpy.Environment, send_s: float, net: FlowNet, number: int) -> None:
        super().__init__(env, send_s)
        self.net = net
        self.number = number
        self.callbacks.append(self._ended)

    def _transfer(self) -> None:
        self.net.start(self, self.number, self.send_s)

    def _ended(self, event: simpy.Event) -> None:
        self.end_s = self.env.now
