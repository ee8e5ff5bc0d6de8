"""How much work flows cost: events, solves and flows touched are asserted; flows per second are only reported.

Run with `-s` to see the rates of this machine.
"""

import time
from dataclasses import replace

import simpy

from traincast.engine import expected_events, simulate
from traincast.engine.events import Moment
from traincast.engine.flows import FlowNet
from traincast.lower.program import Flow, Program, SharedLink, Sharing
from traincast.lower.uniform import uniform_program


def pipeline(p: int, m: int, room: float) -> Program:
    """Every message of a pipeline is a flow; those of two stages leave by one NIC of `room` times their rate."""
    program = uniform_program(("1f1b", p, m, 1), 1.0, 2.0, 0.7, "async")
    flows, messages = [], {}
    for index, cls in enumerate(program.classes):
        for key, cost in cls.chunks.items():
            messages[index, key] = len(flows)
            flows.append(Flow("pp", 0.9 * cost.send_s, 1.0, (index // 2,), (1.0,)))
    links = tuple(SharedLink(f"nic {index}", room) for index in range(p // 2))
    return replace(program, sharing=Sharing(links, tuple(flows), messages, {}))


def report(what: str, flows: int, seconds: float) -> None:
    print(f"{what}: {flows} flows, {flows / seconds:,.0f} flows/s, {1e6 * seconds / flows:.1f} us a flow")


def test_free_flows_cost_one_event_each() -> None:
    """As many events as without flows: the rate of a free flow is never solved."""
    program = pipeline(16, 128, room=4.0)
    begin = time.perf_counter()
    result = simulate(program)
    seconds = time.perf_counter() - begin
    assert result.events == expected_events(program) == simulate(replace(program, sharing=None)).events
    report("free", 2 * 15 * 128, seconds)


def test_flows_in_small_components_cost_a_few_events() -> None:
    """Four streams on a NIC at most: a slowed flow adds its wake-up and arrival, and a settling when it comes and goes;
    and one event that came to nothing, where it was free before."""
    program = pipeline(16, 128, room=1.0)
    begin = time.perf_counter()
    result = simulate(program)
    seconds = time.perf_counter() - begin
    flows = 2 * 15 * 128
    extra = result.events - expected_events(program)
    assert 0 < extra <= 5 * flows
    report(f"pairs ({extra / flows:.2f} extra events a flow)", flows, seconds)


def staggered(links: int, flows_a_link: int, gap_s: float) -> tuple[FlowNet, int]:
    """Flows of 1 s begin on each link, one every `gap_s`; returns the net and the events processed."""
    env = simpy.Environment()
    sharing = Sharing(
        tuple(SharedLink(str(link), 1.0) for link in range(links)),
        tuple(Flow("pp", 1.0, 1.0, (link,), (1.0,)) for link in range(links)),
    )
    net = FlowNet(env, sharing)
    for link in range(links):
        for number in range(flows_a_link):
            start = Moment(env)
            start.callbacks.append(lambda _, link=link: net.start(Moment(env), link, 1.0))
            env.schedule(start, delay=gap_s * number + 1e-3 * link)
    events = 0
    while env.peek() < float("inf"):
        env.step()
        events += 1
    return net, events


def test_work_grows_with_the_component_not_with_the_net() -> None:
    """Ten times the links take ten times the solves, each over as many flows as before."""
    begin = time.perf_counter()
    few, few_events = staggered(10, 20, 0.6)
    many, many_events = staggered(100, 20, 0.6)
    report("staggered", 110 * 20, time.perf_counter() - begin)
    assert many.solves == 10 * few.solves
    assert many.solved == 10 * few.solved
    assert many_events == 10 * few_events
    assert few.solves <= 2 * 10 * 20


def test_flows_that_start_together_are_solved_once() -> None:
    """A phase of a thousand equal flows on one link: one solve when they begin, none until they end together."""
    begin = time.perf_counter()
    net, events = staggered(1, 1000, 0.0)
    report("synchronous", 1000, time.perf_counter() - begin)
    assert (net.solves, net.solved) == (1, 1000)
    assert events == 1000 + 1 + 1 + 1 + 1000  # starts, the first one's end as a free flow, settling, wake-up, arrivals
