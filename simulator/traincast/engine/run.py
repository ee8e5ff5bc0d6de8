"""Run a program event by event."""

import numpy as np
import simpy
from simpy.core import EmptySchedule

from traincast.engine.flows import FlowNet
from traincast.engine.processes import compute, reduce
from traincast.engine.station import Station, build_stations
from traincast.lower.check import check_program, deadlock
from traincast.lower.program import ClassResult, Program, Result


def simulate(program: Program) -> Result:
    """Times of everything in one step, from a SimPy run of the program.

    Semantics: `traincast.lower.program`. Deterministic; `Result.events` is the number of events processed,
    which `expected_events` foretells for a program without sharing. Raises TraincastError for a program that is
    inconsistent or deadlocks.
    """
    links = check_program(program)
    env = simpy.Environment(initial_time=0.0)
    net = FlowNet(env, program.sharing) if program.sharing is not None else None
    stations = build_stations(env, program, links, net)
    for station in stations:
        env.process(compute(env, station))
        if station.ready:
            env.process(reduce(env, station))
    events = _run(env)
    results = tuple(_collect(station) for station in stations if station.finish_s is not None)
    if len(results) < len(stations):
        raise deadlock(program, {i: len(s.start_s) for i, s in enumerate(stations) if s.finish_s is None})
    step_time_s = max((one.finish_s - one.begin_s * program.rolling for one in results), default=0.0)
    return Result(step_time_s, results, events, losses=net.losses() if net else ())


def _run(env: simpy.Environment) -> int:
    """Process all events; returns their number (`Environment.run` does the same without counting)."""
    events, step = 0, env.step
    try:
        while True:
            step()
            events += 1
    except EmptySchedule:
        return events


def _collect(station: Station) -> ClassResult:
    assert station.finish_s is not None
    received, sent = station.inputs, station.outputs
    return ClassResult(
        start_s=np.array(station.start_s),
        end_s=np.array(station.end_s),
        input_start_s=np.array([message.start_s if message else np.nan for message in received]),
        input_end_s=np.array([message.end_s if message else np.nan for message in received]),
        output_start_s=np.array([message.start_s if message else np.nan for message in sent]),
        output_end_s=np.array([message.end_s if message else np.nan for message in sent]),
        bucket_start_s=np.array(station.bucket_start_s),
        bucket_end_s=np.array(station.bucket_end_s),
        tail_start_s=np.array(station.tail_start_s),
        tail_end_s=np.array(station.tail_end_s),
        finish_s=station.finish_s,
    )
