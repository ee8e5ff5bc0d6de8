"""The running state of one rank class inside the engine."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import simpy

from traincast.engine.events import Gate, Message, Moment, SendStream
from traincast.engine.flows import FlowNet, SharedMessage
from traincast.lower.check import parties, tail_parties
from traincast.lower.program import Program, RankClass
from traincast.schedule.links import NONE, Links, StageLinks


@dataclass
class Meeting:
    """Whom a class tells that it is ready, and what it waits for, per instruction, bucket or tail operation.

    Classes that meet nobody have no gates; `tells` may still name gates of classes that wait for this one.
    """

    gates: list[Gate | None]
    tells: list[list[Gate]]


@dataclass
class Station:
    """One class: its moments (what happens when), and the times that its processes write down.

    `bucket_flow` gives the flow of the buckets that share links on `net`.
    """

    cls: RankClass
    links: StageLinks
    durations: list[float]
    outputs: list[Message | None]
    inputs: list[Message | None]
    ready: list[Moment]
    reduced: list[Moment]
    streams: Mapping[int, SendStream] = field(default_factory=dict)
    net: FlowNet | None = None
    bucket_flow: Mapping[int, int] = field(default_factory=dict)
    meeting: Meeting | None = None
    dp_meeting: Meeting | None = None
    tail_meeting: Meeting | None = None
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)
    bucket_start_s: list[float] = field(default_factory=list)
    bucket_end_s: list[float] = field(default_factory=list)
    tail_start_s: list[float] = field(default_factory=list)
    tail_end_s: list[float] = field(default_factory=list)
    finish_s: float | None = None

    def arrivals(self) -> Iterator[Sequence[Message]]:
        """Messages that an asynchronous class waits for before each instruction, and none after the last one."""
        for k, (end, first) in enumerate(zip(self.links.leave.tolist(), self.inputs, strict=True)):
            if end == k:
                yield (first,) if first is not None else ()
            else:
                yield [message for message in self.inputs[k : end + 1] if message is not None]
        yield ()

    def exchanges(self) -> Iterator[Sequence[Message]]:
        """Transfers that a blocking class posts together, before each instruction and after the last one."""
        first, size = 0, len(self.durations)
        inputs, outputs, block_end = self.inputs, self.outputs, self.links.block_end.tolist()
        sent: list[Message] = []
        while first < size:
            end = block_end[first] + 1
            posted = sent
            for message in inputs[first:end]:
                if message is not None:
                    posted.append(message)
            yield posted
            if end - first > 1:
                yield from repeat((), end - first - 1)
            sent = [message for message in outputs[first:end] if message is not None]
            first = end
        yield sent

    def releases(self) -> dict[int, list[int]]:
        """Instruction -> buckets whose gradients it makes; past the last one, those that wait for all."""
        found: dict[int, list[int]] = {}
        for index, bucket in enumerate(self.cls.buckets):
            last = len(self.durations) if bucket.chunk is None else self.links.last_gradient[bucket.chunk]
            found.setdefault(last, []).append(index)
        return found


def build_stations(env: simpy.Environment, program: Program, links: Links, net: FlowNet | None) -> list[Station]:
    """All stations, with their moments created and wired to each other; `net` has the links that flows share."""
    stations = [_station(env, index, cls, links[cls.stage], net) for index, cls in enumerate(program.classes)]
    for station in stations:
        station.streams = {1: SendStream(), -1: SendStream()} if program.p2p == "async" else {}
        senders = {-1: stations[station.cls.previous], 1: stations[station.cls.next]}
        sources = zip(station.links.source.tolist(), station.links.source_way.tolist(), strict=True)
        for index, (source, way) in enumerate(sources):
            if source != NONE:
                station.inputs[index] = senders[way].outputs[source]
    _wire_meetings(env, program, stations)
    return stations


def _station(env: simpy.Environment, index: int, cls: RankClass, links: StageLinks, net: FlowNet | None) -> Station:
    costs = [cls.chunks[key] for key in links.keys]
    size = len(links.instructions)
    flows: list[int | None] = [None] * len(costs)
    bucket_flow: dict[int, int] = {}
    if net is not None:
        flows = [net.sharing.messages.get((index, key)) for key in links.keys]
        found = [net.sharing.buckets.get((index, position)) for position in range(len(cls.buckets))]
        bucket_flow = {position: flow for position, flow in enumerate(found) if flow is not None}

    def message(key: int) -> Message:
        flow, send_s = flows[key], costs[key].send_s
        return Message(env, send_s) if net is None or flow is None else SharedMessage(env, send_s, net, flow)

    return Station(
        cls=cls,
        links=links,
        durations=[costs[key].duration_s for key in links.key.tolist()],
        outputs=[message(key) if sent else None for sent, key in zip(links.target != NONE, links.key, strict=True)],
        inputs=[None] * size,
        ready=[Moment(env) for _ in cls.buckets],
        reduced=[Moment(env) for _ in cls.buckets],
        net=net,
        bucket_flow=bucket_flow,
    )


def _wire_meetings(env: simpy.Environment, program: Program, stations: Sequence[Station]) -> None:
    for index, cls in enumerate(program.classes):
        if cls.meets:
            for k in range(len(stations[index].durations)):
                _gate(env, stations, "meeting", index, dict.fromkeys(parties(index, cls.meets), k))
        if cls.dp_meets:
            for k in range(len(cls.buckets)):
                _gate(env, stations, "dp_meeting", index, dict.fromkeys(parties(index, cls.dp_meets), k))
        for k in range(len(cls.tail)):
            _gate(env, stations, "tail_meeting", index, tail_parties(program, index, k))


def _gate(env: simpy.Environment, stations: Sequence[Station], name: str, own: int, steps: Mapping[int, int]) -> None:
    """A gate for class `own`, which opens when all classes of `steps` (class -> step) have arrived."""
    if len(steps) == 1:
        return
    gate = Gate(env, len(steps))
    _meeting(stations[own], name).gates[steps[own]] = gate
    for other, step in steps.items():
        _meeting(stations[other], name).tells[step].append(gate)


def _meeting(station: Station, name: str) -> Meeting:
    """The station's meeting of that name, created when first asked for."""
    found: Meeting | None = getattr(station, name)
    if found is None:
        sizes = {"meeting": len(station.durations), "dp_meeting": len(station.ready)}
        size = sizes.get(name, len(station.cls.tail))
        found = Meeting([None] * size, [[] for _ in range(size)])
        setattr(station, name, found)
    return found
