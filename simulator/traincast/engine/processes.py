"""The SimPy processes of a rank class: its compute stream and its gradient stream.

The two pp-send streams need no process: `SendStream` is driven by the arrivals of its own messages.
"""

from collections.abc import Generator

import simpy

from traincast.engine.events import Message
from traincast.engine.station import Meeting, Station

Process = Generator[simpy.Event, None, None]


def compute(env: simpy.Environment, station: Station) -> Process:
    """Run the instructions in order, then the tail."""
    start_s, end_s, streams, meeting = station.start_s, station.end_s, station.streams, station.meeting
    ways, leave = station.links.target_way.tolist(), station.links.leave.tolist()
    released = station.releases()
    waits = station.arrivals() if streams else station.exchanges()
    held: list[tuple[int, Message]] = []
    timeout, started, ended = env.timeout, start_s.append, end_s.append
    for k, (duration_s, awaited, output) in enumerate(zip(station.durations, waits, station.outputs, strict=False)):
        if not streams:
            for message in awaited:
                message.post()
        for message in awaited:
            if message.callbacks is not None:
                yield message
        if meeting:
            yield from meet(meeting, k)
        started(env.now)
        if released and k in released:
            release(env, station, released[k])
        yield timeout(duration_s)
        ended(env.now)
        if streams:
            if output is not None:
                held.append((ways[k], output))
            if held and leave[k] == k:
                for way, message in held:
                    streams[way].push(message)
                held.clear()
    for message in (last := next(waits)):
        message.post()
    for message in last:
        if message.callbacks is not None:
            yield message
    release(env, station, released.get(len(station.durations), []))
    yield from finish(env, station)


def finish(env: simpy.Environment, station: Station) -> Process:
    """After the last bucket, run the tail operations in order."""
    if station.reduced and station.reduced[-1].callbacks is not None:
        yield station.reduced[-1]
    for k, op in enumerate(station.cls.tail):
        if station.tail_meeting:
            yield from meet(station.tail_meeting, k)
        station.tail_start_s.append(env.now)
        yield env.timeout(op.duration_s)
        station.tail_end_s.append(env.now)
    station.finish_s = env.now


def meet(meeting: Meeting, step: int) -> Process:
    """Tell those who wait for this class that it is ready for the step, and wait until its own gate opens."""
    for gate in meeting.tells[step]:
        gate.arrive()
    own = meeting.gates[step]
    if own is not None:
        yield own


def release(env: simpy.Environment, station: Station, buckets: list[int]) -> None:
    """Let the buckets become ready, each `ready_s` from now."""
    for index in buckets:
        env.schedule(station.ready[index], delay=station.cls.buckets[index].ready_s)


def reduce(env: simpy.Environment, station: Station) -> Process:
    """Reduce the gradient buckets in order, each once it is ready here and on all that take part."""
    for k, (ready, reduced) in enumerate(zip(station.ready, station.reduced, strict=True)):
        if ready.callbacks is not None:
            yield ready
        if station.dp_meeting:
            yield from meet(station.dp_meeting, k)
        station.bucket_start_s.append(env.now)
        duration_s = station.cls.buckets[k].duration_s
        if station.net is not None and k in station.bucket_flow:
            station.net.start(reduced, station.bucket_flow[k], duration_s)
        else:
            env.schedule(reduced, delay=duration_s)
        yield reduced
        station.bucket_end_s.append(env.now)
