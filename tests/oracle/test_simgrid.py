"""Sharing against SimGrid's fluid network model, where Debian's python3-simgrid is installed.

`apt-get install python3-simgrid` serves the system's Python only, so that SimGrid runs in a process of its own. Its
model must be told to do without what ours does without: CM02 has no correction factors, gamma 0 no TCP window, and
crosstraffic 0 no acknowledgements on the way back.
"""

import json
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from traincast.catalog import load_catalog
from traincast.topology import Cluster, NodeRequest, family_spans, usual_node
from traincast.topology.clusters import fat_tree_for, tree_cluster
from traincast.topology.links import Spread, group_links, link_table
from traincast.topology.sharing import TimedFlow, fluid

pytestmark = pytest.mark.oracle

SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin")
WITHIN = 0.01
SCRIPT = """
import json, sys
from simgrid import Actor, Engine, LinkInRoute, Mailbox, NetZone, this_actor

spec = json.load(sys.stdin)
flags = ["network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "maxmin/precision:1e-9"]
engine = Engine(["oracle", "--log=root.thresh:error", *("--cfg=" + flag for flag in flags)])
zone = NetZone.create_full_zone("zone")
links = [zone.create_link(f"link{i}", rate).set_latency(0).seal() for i, rate in enumerate(spec["links"])]
finish = {}


def host(name):
    return zone.create_host(name, 1e9).seal()


def join(a, b, path, wait):
    route = [LinkInRoute(links[i]) for i in path]
    if wait:
        own = zone.create_link(f"wait {a.name} {b.name}", 1e18).set_latency(wait).seal()
        route.append(LinkInRoute(own))
    zone.add_route(a.netpoint, b.netpoint, None, None, route, False)


def send(name, start, size, cap):
    this_actor.sleep_for(start)
    put = Mailbox.by_name(name).put_init("bytes", size)
    if cap:
        put.set_rate(cap)
    put.wait()
    finish[name] = Engine.clock


def receive(name):
    Mailbox.by_name(name).get()


def member(ring, place, spec):
    size = len(spec["paths"])
    for step in range(2 * (size - 1)):
        put = Mailbox.by_name(f"{ring} {place} {step}").put_async("bytes", spec["chunk"])
        Mailbox.by_name(f"{ring} {(place - 1) % size} {step}").get()
        put.wait()
    finish[ring] = max(finish.get(ring, 0.0), Engine.clock)


jobs = []
for i, flow in enumerate(spec.get("flows", [])):
    a, b = host(f"from{i}"), host(f"to{i}")
    join(a, b, flow["path"], 0)
    jobs += [(a, send, f"flow{i}", flow["start"], flow["size"], flow["cap"]), (b, receive, f"flow{i}")]
for ring, one in enumerate(spec.get("rings", [])):
    hosts = [host(f"ring{ring} {place}") for place in range(len(one["paths"]))]
    for place, path in enumerate(one["paths"]):
        join(hosts[place], hosts[(place + 1) % len(hosts)], path, one["wait"])
        jobs.append((hosts[place], member, f"ring{ring}", place, one))
zone.seal()
for i, (where, what, *arguments) in enumerate(jobs):
    Actor.create(f"actor{i}", where, what, *arguments)
engine.run()
names = [f"{kind}{i}" for kind in ("flow", "ring") for i in range(len(spec.get(kind + "s", [])))]
print(json.dumps([finish[name] for name in names]))
"""


def simgrid(spec: dict[str, Any]) -> list[float]:
    """Finish times of flows and rings by SimGrid; skips the test where it is not to be had."""
    if SYSTEM_PYTHON is None:
        pytest.skip("the system has no Python of its own")
    probe = subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip("python3-simgrid is not installed (apt-get install python3-simgrid)")
    run = subprocess.run(
        [SYSTEM_PYTHON, "-c", SCRIPT], input=json.dumps(spec), capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found: list[float] = json.loads(run.stdout.strip().splitlines()[-1])
    return found


def flow_spec(flows: list[TimedFlow], shift: int) -> list[dict[str, Any]]:
    return [
        {
            "path": [link + shift for link in flow.links],
            "start": flow.start_s,
            "size": int(flow.size_bytes),
            "cap": flow.cap_bytes_per_s if np.isfinite(flow.cap_bytes_per_s) else 0,
        }
        for flow in flows
    ]


@cache
def cluster(nics: int = 8, leaf: float = 3.0) -> Cluster:
    """Twelve nodes in units of three on a two-level fat tree that is tapered at the leaves."""
    parts = load_catalog()
    design = usual_node(NodeRequest("A100-80GB-SXM", 8, nics, nic="HDR200-IB"), parts)
    tree = replace(fat_tree_for(design.nic, nics, parts), levels=2, nodes_per_unit=3, oversubscription=(leaf, 1.0))
    return tree_cluster("small", design, 12, tree)


def test_two_flows_by_hand() -> None:
    """A flow capped at 40 MB/s leaves 60 of 100 to the other: 100 MB each take 2.5 s and 1.667 s."""
    flows = [TimedFlow(0.0, 100e6, (0,), 40e6), TimedFlow(0.0, 100e6, (0,))]
    found = simgrid({"links": [100e6], "flows": flow_spec(flows, 0)})
    assert found == pytest.approx([2.5, 100 / 60], rel=1e-6)
    assert fluid(flows, [100e6]).tolist() == pytest.approx(found, rel=1e-6)


def test_twenty_random_flow_sets() -> None:
    """Staggered flows of many sizes, some of them capped, over random links, set by set on links of their own."""
    random = np.random.default_rng(11)
    links: list[float] = []
    spec, ours = [], []
    for count in np.linspace(2, 40, 20).astype(int).tolist():
        width = int(random.integers(2, 2 + count // 2 + 1))
        capacities = random.uniform(50e6, 500e6, width)
        flows = [
            TimedFlow(
                start_s=float(random.uniform(0.0, 3.0)),
                size_bytes=float(random.integers(10**6, 2 * 10**8)),
                links=tuple(random.choice(width, size=random.integers(1, min(width, 4) + 1), replace=False).tolist()),
                cap_bytes_per_s=float(random.uniform(20e6, 200e6)) if random.random() < 0.3 else np.inf,
            )
            for _ in range(count)
        ]
        spec += flow_spec(flows, len(links))
        links += capacities.tolist()
        ours += fluid(flows, capacities).tolist()
    theirs = simgrid({"links": links, "flows": spec})
    assert len(theirs) > 400
    np.testing.assert_allclose(ours, theirs, rtol=WITHIN)


def test_flows_hashed_onto_the_cables_of_a_fat_tree() -> None:
    """ECMP: messages between random GPUs, some of which meet on a cable."""
    table = link_table(cluster(), Spread("ecmp", seed=2, flows=1))
    random = np.random.default_rng(3)
    pairs = np.array([random.choice(12, 2, replace=False) * 8 + random.integers(0, 8, 2) for _ in range(150)])
    found = group_links(table, pairs, ring=False)
    flows = [
        TimedFlow(
            start_s=float(random.uniform(0.0, 0.01)),
            size_bytes=float(random.integers(10**6, 10**8)),
            links=tuple(found.link[found.group == pair].tolist()),
        )
        for pair in range(len(pairs))
    ]
    theirs = simgrid({"links": table.bytes_per_s.tolist(), "flows": flow_spec(flows, 0)})
    np.testing.assert_allclose(fluid(flows, table.bytes_per_s), theirs, rtol=WITHIN)


@pytest.mark.parametrize("nics", [8, 4])
@pytest.mark.parametrize("order", ["by unit", "across units"])
def test_ring_all_reduce_over_a_fat_tree(nics: int, order: str) -> None:
    """Eight rings through twelve nodes at once: 2 (n-1)/n S / share + 2 (n-1) latency, with the span's static share.

    In order of the units a leaf's uplink carries one flow a ring, across them three, which its taper cannot hold;
    with four NICs two rings share each.
    """
    world = cluster(nics)
    table = link_table(world)
    nodes = np.arange(12) if order == "by unit" else np.arange(12).reshape(4, 3).T.reshape(-1)
    rings = nodes[None, :] * 8 + np.arange(8)[:, None]
    spans = family_spans(world, rings)
    chunk, n = 5_000_000, 12
    spec = []
    for ring, span in zip(rings, spans, strict=True):
        edges = np.stack([ring, np.roll(ring, -1)], axis=1)
        found = group_links(table, edges, ring=False)
        paths = [found.link[found.group == edge].tolist() for edge in range(n)]
        spec.append({"paths": paths, "chunk": chunk, "wait": span.inter_latency_s})
    theirs = simgrid({"links": table.bytes_per_s.tolist(), "rings": spec})
    ours = [2 * (n - 1) * (chunk / span.inter_bytes_per_s + span.inter_latency_s) for span in spans]
    np.testing.assert_allclose(ours, theirs, rtol=WITHIN)
    shares = {
        ("by unit", 8): 25e9,
        ("by unit", 4): 25e9 / 2,
        ("across units", 8): 25e9 / 3,
        ("across units", 4): 25e9 / 6,
    }
    assert spans[0].inter_bytes_per_s == pytest.approx(shares[order, nics], rel=1e-12)
