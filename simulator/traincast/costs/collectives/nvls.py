"""NVLink SHARP (NVLS) inside one NVLink domain, and its tree across domains (NVLSTree).

The switches add up what GPUs send (multimem loads) and copy what they get (multicast stores). NCCL's account of it
ranks; it changed from version to version, so the time takes the rates of its newest tables, which agree with
measurements, and for one domain the traffic on a GPU's links:

An all-reduce of S bytes over n GPUs gives each GPU one share S/n to reduce. Every GPU's port sends its whole buffer
to the switches as the heads load it (S), and the reduced share once as a multicast store (S/n). So S (1 + 1/n) bytes
leave each port, and the algorithm bandwidth is B n/(n+1), the bus bandwidth 2 B (n-1)/(n+1). With B = 315 GB/s on H100
(18 links of 20.6 GB/s at an efficiency of 0.85, NCCL's own figures) that gives 420, 450, 473 and 490 GB/s on 5 to 8
GPUs where 420, 440, 460 and 480 were measured (github.com/NVIDIA/nccl issue 1455).
"""

import math

from traincast.costs.collectives.nccl import NVLS_CAPS, NVLS_HEADS, NvlsCaps
from traincast.costs.collectives.network import NetworkConstants, Wires
from traincast.costs.collectives.option import Choice
from traincast.costs.collectives.versions import has_nvls, minor_of

OPS = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


def nvls_allowed(op: str, w: Wires, c: NetworkConstants) -> bool:
    """Whether NVLS is among NCCL's candidates: a generation, a version and a domain that have it, and more than two
    ranks in the domain. All-gather and reduce-scatter have it inside one domain of at most 32 GPUs; across domains
    only all-reduce has a tree."""
    if not (c.nvls_on and w.nvlink and op in OPS and has_nvls(c.nccl, c.generation)) or w.ranks_per_node <= 2:
        return False
    return op == "all_reduce" or (w.nodes == 1 and w.ranks <= NVLS_HEADS)


def nvls_choice(op: str, w: Wires, c: NetworkConstants) -> Choice:
    """NVLS on one domain, NVLSTree across several."""
    t, table = c.latencies, NVLS_CAPS[c.generation]
    across = 2.0 * math.floor(math.log2(w.nodes))
    latency = t.nvls + across * (t.nvls_network + (w.extra_latency_s if w.nodes > 1 else 0.0))
    wire, cap = nvls_rates(op, w, table)
    return Choice(
        algorithm="nvls" if w.nodes == 1 else "nvlstree",
        protocol="Simple",
        latency_s=latency,
        bytes_per_s=nvls_tuner_bytes_per_s(op, w, c),
        base_s=0.0,
        hops_s=latency,
        network_hops=across,
        wire_bytes_per_s=wire,
        cap_bytes_per_s=cap,
    )


def nvls_tuner_bytes_per_s(op: str, w: Wires, c: NetworkConstants) -> float:
    """Algorithm bandwidth [bytes/s] by NCCL's account, for ranking.

    To 2.27: heads * speed * 5/6, for the tree on more than two nodes with half of the speed between nodes (2.18: the
    tree * 0.7 N/(2(N-1))). From 2.28: heads * min(2 speed * efficiency * (heads-1)/heads, speed across, cap of the
    tree) * n/steps; for all-gather and reduce-scatter (n-1)/n in place of the 2. Source: NCCL tuning.cc, restated;
    266.7 and 272 GB/s on 8 H100, 300 and 150 on 2 and 4 nodes of them are tests.
    """
    table, minor = NVLS_CAPS[c.generation], minor_of(c.nccl)
    heads = min(w.ranks_per_node, NVLS_HEADS)
    inside = head_speed(w, table, w.nodes > 1)
    across = _across_speed(w, table, heads)
    if minor < 28:
        if w.nodes == 1:
            return heads * inside * 5 / 6
        tree = heads * min(inside, across if w.nodes == 2 else across / 2)
        return tree * (0.7 * w.nodes / (2 * (w.nodes - 1)) if minor == 18 else 5 / 6)
    n, ppn = w.ranks, w.ranks_per_node
    times = 2.0 if op == "all_reduce" else (ppn - 1) / ppn
    speed = times * inside * table.efficiency * (heads - 1) / heads
    if w.nodes > 1:
        speed = min(speed, across * (2 if w.nodes == 2 else 1), table.tree[min(w.nodes, 3) - 2])
    return heads * speed * n / ((2 if op == "all_reduce" else 1) * (n - 1))


def nvls_rates(op: str, w: Wires, table: NvlsCaps) -> tuple[float, float]:
    """Algorithm bandwidth [bytes/s] as the network allows (infinite on one domain), and as the links and switches do.

    On one domain B n/(n+1) for all-reduce and B for the others, B the links' rate times multicast's efficiency
    (module docstring). The tree sends each byte out of a node once on two nodes and twice beyond, and its channels
    carry at most the newest tables' rate.
    """
    local = w.ranks_per_node
    links = w.link_bytes_per_s * table.link_fraction * table.efficiency
    inside = links * local / (local + 1) if op == "all_reduce" else links
    if w.nodes == 1:
        return math.inf, inside
    wire = w.out_bytes_per_s * (1.0 if w.nodes == 2 else 0.5)
    n, heads = w.ranks, min(local, NVLS_HEADS)
    tree = heads * table.tree[min(w.nodes, 3) - 2] * n / (2 * (n - 1))
    return wire, min(inside, tree)


def head_speed(w: Wires, table: NvlsCaps, crosses: bool) -> float:
    """Speed that the search finds for one head [bytes/s]: the largest it tries that the GPU's links carry for all."""
    heads = min(w.ranks_per_node, NVLS_HEADS)
    room = w.link_bytes_per_s * table.link_fraction / heads
    return _largest(table.speeds_across if crosses else table.speeds_inside, room)


def _across_speed(w: Wires, table: NvlsCaps, heads: int) -> float:
    if w.nodes == 1:
        return math.inf
    return _largest(table.speeds_across, min(w.out_bytes_per_s / heads, head_speed(w, table, True)))


def _largest(speeds: tuple[float, ...], room: float) -> float:
    fitting = [speed for speed in speeds if speed <= room * 1.001]
    return fitting[0] if fitting else room
