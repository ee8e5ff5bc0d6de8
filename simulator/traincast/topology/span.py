"""Spans: what a group of GPUs has in wires when it communicates, alone or while its sibling groups do the
same.

A group passes through its nodes in a ring, in the order in which its ranks first meet them; inside a node it
uses NVLink or PCIe. Between two nodes it has lanes: one for each NIC near its GPUs, on the same rail at both
ends where the fabric has rails (`lanes`). Every lane puts one flow on each link of its path, in the direction
it goes. The static share of a flow is the least, over its links, of capacity / flows: for synchronous groups
with equal sizes the last of them ends then under any work-conserving sharing, so this is exact for the phase.
A group moves its lanes in step, so its rate out of a node is lanes times the smallest share, at its worst
node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.topology.cluster import TIERS, Cluster
from traincast.topology.degrade import ranges_text
from traincast.topology.inside import inner_figures
from traincast.topology.lanes import Flows, Visits, flows_of, visits_of

Floats = npt.NDArray[np.float64]
Pattern = Literal["ring", "chain"]


@dataclass(frozen=True)
class Span:
    """Wires of one group; bandwidths raw, per direction.

    A node is an NVLink domain here: a rack of NVL72 counts as one. `tier` is the highest one crossed.
    `intra_bytes_per_s` is per GPU, of the slowest link inside a node, shared with sibling groups where it is PCIe
    (for one rank per node: what its GPU has). `inter_bytes_per_s` is what the group may use out of each node after
    sharing with its siblings (0.0 on one node), `inter_latency_s` one way along its longest path between neighbours,
    `nic_bytes_per_s` one NIC. `sharing` counts groups on its most shared link: how many times less than a NIC's rate
    one lane gets.
    """

    ranks: int
    nodes: int
    ranks_per_node: int
    tier: str
    intra_bytes_per_s: float
    intra_latency_s: float
    inter_bytes_per_s: float
    inter_latency_s: float
    nic_bytes_per_s: float
    sharing: float


@dataclass(frozen=True)
class _Outer:
    """Figures between nodes, one for each group."""

    tier: npt.NDArray[np.int64]
    bytes_per_s: Floats
    latency_s: Floats
    nic_bytes_per_s: Floats
    sharing: Floats


def span(cluster: Cluster, gpus: Sequence[int]) -> Span:
    """The span of one group of GPUs (numbers in physical order) that communicates alone."""
    return family_spans(cluster, np.asarray([list(gpus)], dtype=np.int64))[0]


def family_spans(cluster: Cluster, groups: npt.ArrayLike, *, pattern: Pattern = "ring") -> tuple[Span, ...]:
    """Spans of groups that all communicate at once, shape (count, size); equal ones are one object.

    `ring`: every node of a group sends to the next and the last to the first; a pair exchanges both ways.
    `chain`: the last does not send on; a pair is one message from its first GPU to its second, so that the
    boundaries of a pipeline can be priced together without counting the way back. Raises TopologyError for
    GPUs that are not there or stand twice in a group, and for nodes without a network.
    """
    table = _checked(cluster, groups)
    if not len(table):
        return ()
    visits = visits_of(cluster.fabric, table)
    inner = inner_figures(cluster, visits, ring=pattern == "ring")
    outer = _outer(cluster, visits, pattern)
    single = np.full(len(table), 1 if table.shape[1] > 1 else 0)
    tier = np.where(visits.nodes > 1, outer.tier, np.where(single > 0, inner.tier, 0))
    columns = (
        visits.nodes,
        np.maximum.reduceat(visits.ranks, visits.starts),
        tier,
        *(inner.bytes_per_s, inner.latency_s),
        *(outer.bytes_per_s, outer.latency_s, outer.nic_bytes_per_s, outer.sharing),
    )
    rows = np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)
    kinds, which = np.unique(rows, axis=0, return_inverse=True)
    spans = [_span_of(table.shape[1], row.tolist()) for row in kinds]
    return tuple(spans[kind] for kind in which.reshape(-1).tolist())


def _span_of(ranks: int, row: list[float]) -> Span:
    nodes, per_node, tier, *rest = row
    return Span(ranks, int(nodes), int(per_node), TIERS[int(tier)], *rest)


def _checked(cluster: Cluster, groups: npt.ArrayLike) -> npt.NDArray[np.int64]:
    table = np.asarray(groups)
    if table.ndim != 2 or table.dtype.kind not in "iu" or table.shape[1] == 0:
        raise TopologyError(
            f"groups of shape {table.shape} and type {table.dtype}",
            fix="give whole numbers of shape (count, size)",
        )
    table = table.astype(np.int64, copy=False)
    size = len(cluster.gpus)
    if table.size and not 0 <= table.min() <= table.max() < size:
        worst = int(table.max()) if table.max() >= size else int(table.min())
        raise TopologyError(f"GPU {worst} of a group is not in {cluster.name}, which has {size}", fix="use more nodes")
    ordered = np.sort(table, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        raise TopologyError("a GPU stands twice in a group", fix="name each GPU of a group once")
    return table


def _outer(cluster: Cluster, visits: Visits, pattern: Pattern) -> _Outer:
    fabric = cluster.fabric
    count = len(visits.nodes)
    flows = flows_of(cluster, visits, ring=pattern == "ring")
    tier = np.zeros(count, dtype=np.int64)
    rate, wait, nic, sharing = np.full(count, np.inf), np.zeros(count), np.full(count, np.inf), np.ones(count)
    if not len(flows.group):
        return _Outer(tier, np.zeros(count), wait, np.zeros(count), sharing)
    share, crowding = _shares(cluster, flows)
    np.maximum.at(tier, flows.group, flows.tier)
    np.maximum.at(wait, flows.group, _latency(cluster, flows))
    np.minimum.at(nic, flows.group, fabric.nic_bytes_per_s[flows.out])
    np.maximum.at(sharing, flows.group, crowding)
    edge_rate = np.full(len(flows.edge_group), np.inf)
    np.minimum.at(edge_rate, flows.edge, share)
    edge_rate *= np.bincount(flows.edge, minlength=len(edge_rate))
    edge_rate = np.minimum(edge_rate, _bus_share(cluster, visits, flows))
    np.minimum.at(rate, flows.edge_group, edge_rate)
    apart = visits.nodes > 1
    return _Outer(tier, np.where(apart, rate, 0.0), wait, np.where(apart, nic, 0.0), sharing)


def _shares(cluster: Cluster, flows: Flows) -> tuple[Floats, Floats]:
    """Bytes/s of each flow, the least of capacity / flows over its links, and how often it goes into a NIC's
    rate."""
    fabric = cluster.fabric
    leaf_out, leaf_in = fabric.nic_leaf[flows.out], fabric.nic_leaf[flows.into]
    block_out, block_in = fabric.leaf_block[leaf_out], fabric.leaf_block[leaf_in]
    above_leaf, above_block = flows.tier > TIERS.index("leaf"), flows.tier > TIERS.index("spine")
    everywhere = np.ones(len(flows.out), dtype=np.bool_)
    share = np.full(len(flows.out), np.inf)
    for link, capacity, used in (
        (flows.out, fabric.nic_cap_bytes_per_s, everywhere),
        (flows.into, fabric.nic_cap_bytes_per_s, everywhere),
        (leaf_out, fabric.leaf_up_bytes_per_s, above_leaf),
        (leaf_in, fabric.leaf_up_bytes_per_s, above_leaf),
        (block_out, fabric.block_up_bytes_per_s, above_block),
        (block_in, fabric.block_up_bytes_per_s, above_block),
    ):
        load = np.bincount(link[used], minlength=len(capacity))
        share[used] = np.minimum(share[used], capacity[link[used]] / load[link[used]])
    if not share.min() > 0.0:
        raise _no_way(cluster, flows, int(np.argmin(share)))
    return share, fabric.nic_cap_bytes_per_s[flows.out] / share


def _no_way(cluster: Cluster, flows: Flows, flow: int) -> TopologyError:
    """The error of a flow that would have to pass a leaf without uplinks, or spines that no core joins."""
    fabric = cluster.fabric
    ends = fabric.nic_leaf[[flows.out[flow], flows.into[flow]]]
    leaf = int(ends[int(np.argmin(fabric.leaf_up_bytes_per_s[ends]))])
    what, above = f"{fabric.leaf_keys[leaf]} has no uplink", "spine"
    if fabric.leaf_up_bytes_per_s[leaf] > 0.0:
        blocks = fabric.leaf_block[ends]
        leaf = int(ends[int(np.argmin(fabric.block_up_bytes_per_s[blocks]))])
        what, above = f"the spines above {fabric.leaf_keys[leaf]} have no uplink", "core"
    nodes = ranges_text(fabric.nic_node[fabric.nic_leaf == leaf].tolist())
    cut = (loss.change.where for loss in cluster.losses if loss.change.part == fabric.leaf_keys[leaf])
    return TopologyError(
        f"{cluster.name}: {what}, but groups of nodes {nodes} have ranks elsewhere",
        fix=f"leave a cable to a {above}, or leave out the nodes (absent_nodes: [{nodes}])",
        where=next(cut, "") or None,
    )


def _bus_share(cluster: Cluster, visits: Visits, flows: Flows) -> Floats:
    """Bytes/s that the GPUs at both ends of each edge can move over their own bus, shared by the groups on a
    GPU."""
    found = np.full(len(flows.edge_group), np.inf)
    bus = cluster.fabric.gpu_bus_bytes_per_s
    for ends in (flows.edge_from, flows.edge_to):
        uses = np.bincount(ends, minlength=len(visits.ranks))[visits.of_rank]
        load = np.bincount(visits.gpu, weights=uses, minlength=len(bus))[visits.gpu]
        each = bus[visits.gpu] / np.maximum(load, 1.0)
        at_visit = np.bincount(visits.of_rank, weights=each, minlength=len(visits.ranks))
        found = np.minimum(found, at_visit[ends])
    return found


def _latency(cluster: Cluster, flows: Flows) -> Floats:
    """One way, GPU to GPU: buses, cables and switches [s]."""
    fabric = cluster.fabric
    leaf_out, leaf_in = fabric.nic_leaf[flows.out], fabric.nic_leaf[flows.into]
    block_out, block_in = fabric.leaf_block[leaf_out], fabric.leaf_block[leaf_in]
    wait = flows.detour_s + fabric.nic_latency_s[flows.out] + fabric.nic_latency_s[flows.into]
    wait = wait + fabric.leaf_latency_s[leaf_out]
    to_spine = fabric.leaf_up_latency_s[leaf_out] + fabric.leaf_up_latency_s[leaf_in]
    to_spine = to_spine + fabric.leaf_latency_s[leaf_in] + fabric.block_latency_s[block_out]
    to_core = fabric.block_up_latency_s[block_out] + fabric.block_up_latency_s[block_in]
    to_core = to_core + fabric.block_latency_s[block_in] + fabric.core_latency_s
    wait = wait + np.where(flows.tier > TIERS.index("leaf"), to_spine, 0.0)
    return np.asarray(wait + np.where(flows.tier > TIERS.index("spine"), to_core, 0.0), dtype=np.float64)
