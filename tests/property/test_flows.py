"""Laws of max-min fair sharing, and three ways to the same finish times: fluid, event loop, static share."""

import math
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.analytic import evaluate
from traincast.engine import expected_events, simulate
from traincast.engine.events import Moment
from traincast.engine.flows import FlowNet
from traincast.errors import TopologyError
from traincast.lower.compare import differences
from traincast.lower.program import Flow, Program, ReduceBucket, SharedLink, Sharing
from traincast.lower.uniform import uniform_program
from traincast.topology.sharing import TimedFlow, fluid, max_min_few, max_min_rates


@st.composite
def flow_sets(draw: st.DrawFn, *, most: int = 12) -> tuple[list[TimedFlow], list[float]]:
    """Flows over a few links; some times, sizes and capacities are round, so that events coincide."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    links, count = draw(st.integers(1, 6)), draw(st.integers(1, most))
    round_numbers = draw(st.booleans())
    weighted = draw(st.booleans())

    def number(high: float) -> float:
        return float(random.integers(1, 5) if round_numbers else random.uniform(0.1, high))

    capacities = [number(10.0) for _ in range(links)]
    flows = []
    for _ in range(count):
        path = tuple(sorted(random.choice(links, size=random.integers(1, links + 1), replace=False).tolist()))
        weights = tuple(number(4.0) if weighted else 1.0 for _ in path)
        alone = min(capacities[link] / weight for link, weight in zip(path, weights, strict=True))
        cap = alone if random.random() < 0.5 else alone * float(random.uniform(0.1, 1.0))
        start = float(random.integers(0, 4)) if round_numbers else float(random.uniform(0.0, 10.0))
        flows.append(TimedFlow(start, number(20.0), path, cap, weights))
    return flows, capacities


@given(flow_sets())
@settings(max_examples=200)
def test_max_min_laws(case: tuple[list[TimedFlow], list[float]]) -> None:
    """No link over capacity; every flow is at its cap, or on a full link on which nobody is faster."""
    flows, capacities = case
    rates = max_min_rates(
        [flow.links for flow in flows],
        capacities,
        [flow.cap_bytes_per_s for flow in flows],
        [flow.weights for flow in flows],
    )
    load = np.zeros(len(capacities))
    for flow, rate in zip(flows, rates, strict=True):
        load[list(flow.links)] += np.array(flow.weights) * rate
    assert (load <= np.array(capacities) * (1 + 1e-9)).all()
    for flow, rate in zip(flows, rates, strict=True):
        full = [link for link in flow.links if load[link] >= capacities[link] * (1 - 1e-9)]
        fastest = [max(r for f, r in zip(flows, rates, strict=True) if link in f.links) for link in full]
        assert rate >= flow.cap_bytes_per_s * (1 - 1e-9) or any(rate >= most * (1 - 1e-9) for most in fastest)
        assert rate <= flow.cap_bytes_per_s * (1 + 1e-12)


@given(flow_sets(most=40))
@settings(max_examples=200)
def test_both_solvers_give_the_same_rates(case: tuple[list[TimedFlow], list[float]]) -> None:
    flows, capacities = case
    paths, weights = [flow.links for flow in flows], [flow.weights for flow in flows]
    caps = [flow.cap_bytes_per_s for flow in flows]
    np.testing.assert_allclose(
        max_min_few(paths, capacities, caps, weights), max_min_rates(paths, capacities, caps, weights), rtol=1e-12
    )


def test_rates_by_hand() -> None:
    """Bertsekas and Gallager 6.5.2: filling the tightest link first leaves the rest to the others."""
    paths = [(0,), (0,), (0, 1), (1,)]
    assert max_min_rates(paths, [3.0, 4.0]).tolist() == [1.0, 1.0, 1.0, 3.0]
    assert max_min_rates([(0,), (0,)], [100.0], caps=[40.0, math.inf]).tolist() == [40.0, 60.0]
    assert max_min_rates([(0,), (0,)], [12.0], weights=[[2.0], [4.0]]).tolist() == [2.0, 2.0]
    assert max_min_rates([(), (0,)], [5.0], caps=[math.inf, 9.0]).tolist() == [math.inf, 5.0]
    assert max_min_rates([], [5.0]).tolist() == []
    assert fluid([TimedFlow(0.0, 10.0, (0,)), TimedFlow(1.0, 10.0, (0,))], [10.0]).tolist() == [1.0, 2.0]
    assert fluid([TimedFlow(0.0, 20.0, (0,)), TimedFlow(1.0, 5.0, (0,))], [10.0]).tolist() == [2.5, 2.0]
    with pytest.raises(TopologyError, match="without capacity"):
        fluid([TimedFlow(0.0, 1.0, (0,))], [0.0])


def run_net(flows: list[TimedFlow], capacities: list[float]) -> tuple[list[float], FlowNet]:
    """Finish times of flows that start in an event loop of their own."""
    env = simpy.Environment()
    sharing = Sharing(
        links=tuple(SharedLink(f"link {i}", capacity) for i, capacity in enumerate(capacities)),
        flows=tuple(
            Flow("pp", flow.size_bytes, flow.cap_bytes_per_s, flow.links, flow.weights or (1.0,) * len(flow.links))
            for flow in flows
        ),
    )
    net = FlowNet(env, sharing)
    finish = [math.nan] * len(flows)

    def note(number: int) -> None:
        finish[number] = env.now

    def begin(number: int) -> None:
        end = Moment(env)
        end.callbacks.append(lambda event: note(number))
        net.start(end, number, flows[number].size_bytes / flows[number].cap_bytes_per_s)

    for number, flow in enumerate(flows):
        start = Moment(env)
        start.callbacks.append(lambda event, number=number: begin(number))
        env.schedule(start, delay=flow.start_s)
    env.run()
    assert not any(link.transfers for link in net.links)
    return finish, net


@given(flow_sets())
@settings(max_examples=300)
def test_event_loop_equals_fluid(case: tuple[list[TimedFlow], list[float]]) -> None:
    flows, capacities = case
    finish, net = run_net(flows, capacities)
    np.testing.assert_allclose(finish, fluid(flows, capacities), rtol=1e-12)
    alone = np.array([flow.start_s + flow.size_bytes / flow.cap_bytes_per_s for flow in flows])
    lost = sum(loss.pp_s for loss in net.losses())
    assert lost == pytest.approx(float(np.sum(finish - alone)), rel=1e-9, abs=1e-9)


def test_many_flows_use_the_solver_on_arrays() -> None:
    """Ninety flows on three links are one component, above the limit of the solver on lists."""
    random = np.random.default_rng(5)
    flows = [
        TimedFlow(
            float(random.uniform(0, 0.1)), float(random.uniform(1, 9)), (int(random.integers(0, 2)), 2), 3.0, (1.0, 1.0)
        )
        for _ in range(90)
    ]
    finish, net = run_net(flows, [5.0, 7.0, 9.0])
    np.testing.assert_allclose(finish, fluid(flows, [5.0, 7.0, 9.0]), rtol=1e-12)
    assert net.solved / net.solves > 40


@given(flow_sets(), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_order_does_not_matter(case: tuple[list[TimedFlow], list[float]], random: object) -> None:
    """Rates are unique, so flows that start together may be named in any order."""
    flows, capacities = case
    order = random.sample(range(len(flows)), len(flows))  # type: ignore[attr-defined]
    finish, _ = run_net(flows, capacities)
    shuffled, _ = run_net([flows[place] for place in order], capacities)
    np.testing.assert_allclose(shuffled, [finish[place] for place in order], rtol=1e-12)


@given(flow_sets(most=30), st.floats(0.5, 20.0))
@settings(max_examples=100)
def test_static_share_is_exact_for_synchronous_equal_flows(
    case: tuple[list[TimedFlow], list[float]], size: float
) -> None:
    """The last flow on the tightest link needs n S / capacity under any sharing that wastes nothing, and max-min
    gives no flow less than the smallest capacity / n: the static share of `topology.span`."""
    flows, capacities = case
    equal = [TimedFlow(0.0, size, flow.links) for flow in flows]
    load = np.zeros(len(capacities))
    for flow in equal:
        load[list(flow.links)] += 1
    used = load > 0
    share = float(np.min(np.array(capacities)[used] / load[used]))
    assert float(np.max(fluid(equal, capacities))) == pytest.approx(size / share, rel=1e-12)


@st.composite
def programs(draw: st.DrawFn) -> tuple[Program, float]:
    """A uniform pipeline whose messages and buckets cross two links; and how much room the links have."""
    name = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    p, v = draw(st.integers(2, 4)), 2 if name == "interleaved" else 1
    key = (name, p, p * draw(st.integers(1, 2)), v)
    program = uniform_program(key, 1.0, 2.0, draw(st.sampled_from([0.3, 1.0, 2.5])))
    program = replace(
        program,
        p2p=draw(st.sampled_from(["async", "blocking"])),
        classes=tuple(
            replace(cls, buckets=(ReduceBucket(0, 0.5, 3.0), ReduceBucket(None, 0.0, 2.0))) for cls in program.classes
        ),
    )
    room = draw(st.sampled_from([0.5, 1.0, 1.7, 100.0]))
    flows, messages, buckets = [], {}, {}
    for index, cls in enumerate(program.classes):
        for chunk_key, cost in cls.chunks.items():
            messages[index, chunk_key] = len(flows)
            flows.append(Flow("pp", 0.8 * cost.send_s * 10.0, 10.0, (index % 2,), (1.0,)))
        for position, bucket in enumerate(cls.buckets):
            buckets[index, position] = len(flows)
            flows.append(Flow("dp", 0.9 * bucket.duration_s * 10.0, 10.0, (0, 1), (0.5, 1.0)))
    links = (SharedLink("a", 10.0 * room), SharedLink("b", 20.0 * room))
    return replace(program, sharing=Sharing(links, tuple(flows), messages, buckets)), room


@given(programs())
@settings(max_examples=80)
def test_recurrence_is_a_lower_bound_and_exact_without_overload(case: tuple[Program, float]) -> None:
    """Longest paths are monotone in every duration, and sharing only ever lengthens transfers."""
    program, room = case
    shared, alone = simulate(program), evaluate(program)
    assert not differences(shared, simulate(program))
    assert alone.notes
    assert not differences(alone, simulate(replace(program, sharing=None)))
    if room == 100.0:
        assert not differences(shared, alone)
        assert shared.events == expected_events(program)
        assert not shared.losses
    for slow, fast in zip(shared.classes, alone.classes, strict=True):
        for name in ("end_s", "output_end_s", "bucket_end_s"):
            late, early = getattr(slow, name), getattr(fast, name)
            assert (np.nan_to_num(late) >= np.nan_to_num(early) * (1 - 1e-12)).all()
