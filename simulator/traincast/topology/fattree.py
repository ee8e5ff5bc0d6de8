"""Two- and three-level fat trees: from radix and oversubscription to counts, and from counts to a graph.

Every leaf has `down` ports to nodes and `up` to spines; every spine of a block connects to every leaf of the
block with the same number of parallel links, and the number of spines is the smallest that keeps it so. In a
three-level tree a block is one rail of a pod (or the pod, without rails), and core switches come in groups: a
spine connects to all switches of one group, and spines are dealt over the groups in turn, so that any two
blocks share a group. These rules give the switch counts that NVIDIA prints for its SuperPODs
(tests/unit/test_topology_fattree.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from traincast.catalog import Link, Switch
from traincast.errors import TopologyError


@dataclass(frozen=True)
class FatTree:
    """What a fabric is asked to be. None: chosen to fit.

    `rails` is NICs per node. Rail-optimised, NIC r of every node of a scalable unit meets on leaf r of that
    unit; otherwise all NICs of a node are on one leaf. `oversubscription` is capacity down over capacity up
    at leaf and spine. Spines and cores are switches of the leaves' type unless they are named.
    """

    switch: Switch
    cable: Link
    rails: int
    rail_optimised: bool = True
    levels: int | None = None
    nodes_per_unit: int | None = None
    units_per_pod: int | None = None
    oversubscription: tuple[float, float] = (1.0, 1.0)
    spine_switch: Switch | None = None
    core_switch: Switch | None = None

    @property
    def spine(self) -> Switch:
        """The switch of the second level."""
        return self.spine_switch or self.switch

    @property
    def core(self) -> Switch:
        """The switch of the third level."""
        return self.core_switch or self.spine


@dataclass(frozen=True)
class FatTreePlan:
    """Counts of a fat tree. Links are counted per pair of switches; `*_up`, `*_down` are ports in use of one
    switch."""

    levels: int
    units: int
    leaves_per_unit: int
    nodes_per_unit: int
    leaf_down: int
    leaf_up: int
    pods: int
    units_per_pod: int
    blocks_per_pod: int
    spines_per_block: int
    leaf_spine_links: int
    spine_up: int
    core_groups: int
    cores_per_group: int
    spine_core_links: int

    @property
    def leaves(self) -> int:
        """All leaf switches."""
        return self.units * self.leaves_per_unit

    @property
    def spines(self) -> int:
        """All spine switches."""
        return self.pods * self.blocks_per_pod * self.spines_per_block

    @property
    def cores(self) -> int:
        """All core switches."""
        return self.core_groups * self.cores_per_group


@dataclass(frozen=True)
class _Leaf:
    """The leaf level of a plan."""

    units: int
    per_unit: int
    nodes_per_unit: int
    down: int
    up: int


def plan_fat_tree(tree: FatTree, nodes: int) -> FatTreePlan:
    """Counts of the smallest tree of this kind that carries `nodes` nodes.

    Raises TopologyError, with the two numbers that clash, where ports do not suffice.
    """
    leaf = _plan_leaves(tree, nodes)
    if tree.levels == 2:
        return _plan_two(tree, leaf)
    if tree.levels == 3:
        return _plan_three(tree, leaf)
    if tree.levels is not None:
        raise TopologyError(f"a fat tree of {tree.levels} levels", fix="use 2 or 3 levels")
    try:
        return _plan_two(tree, leaf)
    except TopologyError:
        return _plan_three(tree, leaf)


def add_fat_tree(graph: "nx.Graph[str]", tree: FatTree, nodes: int, hosts: Sequence[Link] | None = None) -> FatTreePlan:
    """Adds switches, and wires the NICs ``n<node>/nic<rail>`` of nodes 0..nodes-1, which the graph already has.

    `hosts` gives the cable of each node's NICs where they differ; a node may have fewer NICs than the tree has rails.
    """
    plan = plan_fat_tree(tree, nodes)
    _add_leaves(graph, tree, plan)
    leaf_port = tree.switch.port_bytes_per_s
    for node in range(nodes):
        wire = _wire(tree.cable if hosts is None else hosts[node], leaf_port)
        unit = node // plan.nodes_per_unit
        for rail in range(tree.rails):
            nic = f"n{node}/nic{rail}"
            if hosts is None or nic in graph:
                graph.add_edge(nic, _leaf(unit, rail if tree.rail_optimised else 0), **wire)
    for core in range(plan.cores):
        graph.add_node(f"core{core}", kind="core", latency_s=tree.core.latency_s)
    down = _wire(tree.cable, min(leaf_port, tree.spine.port_bytes_per_s), plan.leaf_spine_links)
    up = _wire(tree.cable, min(tree.spine.port_bytes_per_s, tree.core.port_bytes_per_s), plan.spine_core_links)
    for spine in range(plan.spines):
        block = spine // plan.spines_per_block
        pod = block // plan.blocks_per_pod
        graph.add_node(f"spine{spine}", kind="spine", latency_s=tree.spine.latency_s, block=block, pod=pod)
        units = range(pod * plan.units_per_pod, min((pod + 1) * plan.units_per_pod, plan.units))
        own = [block % plan.blocks_per_pod] if plan.blocks_per_pod > 1 else range(plan.leaves_per_unit)
        graph.add_edges_from((_leaf(unit, rail), f"spine{spine}", down) for unit in units for rail in own)
        if plan.cores:
            first = spine % plan.core_groups * plan.cores_per_group
            cores = range(first, first + plan.cores_per_group)
            graph.add_edges_from((f"spine{spine}", f"core{core}", up) for core in cores)
    return plan


def _add_leaves(graph: "nx.Graph[str]", tree: FatTree, plan: FatTreePlan) -> None:
    for unit in range(plan.units):
        for rail in range(plan.leaves_per_unit):
            tag = rail if tree.rail_optimised else -1
            graph.add_node(_leaf(unit, rail), kind="leaf", latency_s=tree.switch.latency_s, unit=unit, rail=tag)


def _leaf(unit: int, rail: int) -> str:
    return f"su{unit}/leaf{rail}"


def _wire(cable: Link, port_bytes_per_s: float, links: int = 1) -> dict[str, Any]:
    """A bundle of cables, each as fast as cable and switch port allow."""
    rate = min(cable.bandwidth_bytes_per_s, port_bytes_per_s)
    return {
        "kind": cable.kind,
        "bandwidth_bytes_per_s": links * rate,
        "latency_s": cable.latency_s,
        "links": links,
    }


def _plan_leaves(tree: FatTree, nodes: int) -> _Leaf:
    if nodes < 1 or tree.rails < 1:
        raise TopologyError(f"a fabric of {nodes} nodes with {tree.rails} NICs each", fix="give at least 1 of each")
    ratio = tree.oversubscription[0]
    if ratio <= 0 or tree.oversubscription[1] <= 0:
        raise TopologyError(f"oversubscription {tree.oversubscription}", fix="give ratios above 0; 1 is non-blocking")
    ports_per_node = 1 if tree.rail_optimised else tree.rails
    most = int(tree.switch.radix * ratio / (1 + ratio) + 1e-9) // ports_per_node
    per_unit = most if tree.nodes_per_unit is None else tree.nodes_per_unit
    down = per_unit * ports_per_node
    up = max(1, math.ceil(down / ratio - 1e-9))
    if per_unit < 1 or down + up > tree.switch.radix:
        need = f"{max(down, ports_per_node)} ports down and {up} up"
        message = f"a leaf needs {need}, but {tree.switch.name} has {tree.switch.radix} ports"
        raise TopologyError(message, fix=f"use at most {max(most, 0)} nodes per unit, or more oversubscription")
    units = -(-nodes // per_unit)
    return _Leaf(units, tree.rails if tree.rail_optimised else 1, per_unit, down, up)


def _spines(leaves: int, up: int, ports: int) -> int:
    """Fewest spines that take `up` links of each of `leaves` leaves evenly on `ports` ports; 0 where none
    can."""
    return next((s for s in range(1, up + 1) if up % s == 0 and leaves * (up // s) <= ports), 0)


def _plan_two(tree: FatTree, leaf: _Leaf) -> FatTreePlan:
    leaves = leaf.units * leaf.per_unit
    spines = _spines(leaves, leaf.up, tree.spine.radix)
    if not spines:
        message = f"two levels of {tree.spine.name} carry {tree.spine.radix} leaves, but {leaves} are needed"
        raise TopologyError(message, fix="use three levels or fewer nodes")
    return FatTreePlan(
        levels=2,
        units=leaf.units,
        leaves_per_unit=leaf.per_unit,
        nodes_per_unit=leaf.nodes_per_unit,
        leaf_down=leaf.down,
        leaf_up=leaf.up,
        pods=1,
        units_per_pod=leaf.units,
        blocks_per_pod=1,
        spines_per_block=spines,
        leaf_spine_links=leaf.up // spines,
        spine_up=0,
        core_groups=0,
        cores_per_group=0,
        spine_core_links=0,
    )


def _plan_three(tree: FatTree, leaf: _Leaf) -> FatTreePlan:
    radix, ratio = tree.spine.radix, tree.oversubscription[1]
    ports = tree.core.radix
    blocks = leaf.per_unit
    most = int(radix * ratio / (1 + ratio) + 1e-9)
    pods = -(-leaf.units // (tree.units_per_pod or most))
    units_per_pod = tree.units_per_pod or -(-leaf.units // pods)
    spines = _spines(units_per_pod, leaf.up, most)
    if not spines:
        message = f"a pod of {units_per_pod} units needs as many spine ports, but {most} of {radix} face down"
        raise TopologyError(message, fix=f"use at most {most} units per pod")
    links = leaf.up // spines
    up = max(1, round(units_per_pod * links / ratio))
    total = pods * blocks * spines
    per_group = next(g for g in range(up, 0, -1) if up % g == 0 and g <= -(-total * up // ports))
    room = ports // (up // per_group)
    groups = -(-total // room) if room else total
    if not room or (groups > spines and pods * blocks > 1):
        wanted = leaf.units * leaf.per_unit * leaf.down
        message = f"three levels of {tree.core.name} ({ports} ports) cannot join {wanted} NIC ports"
        raise TopologyError(message, fix="use a switch with more ports or fewer nodes")
    return FatTreePlan(
        levels=3,
        units=leaf.units,
        leaves_per_unit=leaf.per_unit,
        nodes_per_unit=leaf.nodes_per_unit,
        leaf_down=leaf.down,
        leaf_up=leaf.up,
        pods=pods,
        units_per_pod=units_per_pod,
        blocks_per_pod=blocks,
        spines_per_block=spines,
        leaf_spine_links=links,
        spine_up=up,
        core_groups=groups,
        cores_per_group=per_group,
        spine_core_links=up // per_group,
    )
