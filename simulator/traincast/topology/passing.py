"""Which groups of GPUs use a part of the cluster: a NIC, the uplinks of a switch, a link inside a node.

Traffic is spread over all uplinks of a leaf and over those of all spines of a block, so who uses one of them uses all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.topology.cluster import Cluster
from traincast.topology.insideloads import inside_bytes
from traincast.topology.links import GroupLinks, LinkTable, group_links, link_table

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Passing:
    """Groups (count, size) of GPU numbers of a cluster, and the links between nodes that each of them uses."""

    cluster: Cluster
    groups: Ints
    ring: bool
    table: LinkTable
    links: GroupLinks

    def part(self, *ends: str) -> Bools:
        """Groups that use a part, shape (count,): keys of the graph, one (a NIC, leaf or spine) or both ends of a link.

        A switch stands for its uplinks, a NIC for all that it sends and receives.
        """
        fabric, data = self.cluster.fabric, self.cluster.graph.nodes
        by_kind = {data[key]["kind"]: key for key in ends}
        if "nic" in by_kind:
            return self._link("nic", fabric.nic_keys.index(by_kind["nic"]))
        if "leaf" in by_kind:
            return self._link("leaf", fabric.leaf_keys.index(by_kind["leaf"]))
        if "spine" in by_kind:
            below = next(key for key in self.cluster.graph[by_kind["spine"]] if data[key]["kind"] == "leaf")
            return self._link("block", int(fabric.leaf_block[fabric.leaf_keys.index(below)]))
        return self._inside(*ends)

    def links_of(self, chosen: Bools) -> frozenset[str]:
        """Names of the directed links between nodes that some groups, a mask (count,), use."""
        used = np.unique(self.links.link[chosen[self.links.group]])
        return frozenset(self.table.name(link) for link in used.tolist())

    def users(self, names: frozenset[str]) -> Bools:
        """Groups that use any of these links."""
        used = np.unique(self.links.link)
        wanted = [link for link in used.tolist() if self.table.name(link) in names] if names else []
        return self._of_links(wanted)

    def _link(self, what: str, number: int) -> Bools:
        """Groups that use a link of the table in either direction."""
        begins = [begin for section, begin in self.table.first.items() if section.split()[0] == what]
        return self._of_links([begin + number for begin in begins])

    def _of_links(self, numbers: Sequence[int]) -> Bools:
        found = np.zeros(len(self.groups), dtype=np.bool_)
        found[self.links.group[np.isin(self.links.link, numbers)]] = True
        return found

    def _inside(self, a: str, b: str) -> Bools:
        """Groups that use a link inside a node; over their own bus also those that leave the node by it."""
        cluster, found = self.cluster, np.zeros(len(self.groups), dtype=np.bool_)
        data = cluster.graph.nodes
        gpus = [key for key in (a, b) if data[key]["kind"] == "gpu"]
        numbers = [cluster.gpus.index(key) for key in gpus if key in cluster.gpus]
        if len(numbers) < len(gpus):  # one that is dead
            return found
        bus = len(numbers) == 1 and cluster.graph.edges[a, b]["kind"] != "nvlink"
        near = _near(cluster, a, b)
        for place in np.flatnonzero(np.isin(self.groups, near).sum(axis=1) > 1).tolist():
            used = inside_bytes(cluster, self.groups[place : place + 1], np.ones(1), self.ring)
            if not numbers:
                found[place] = bool({(a, b), (b, a)} & used.edges.keys())
            else:
                out, into = (used.bus_out, used.bus_in) if bus else (used.nvlink_out, used.nvlink_in)
                found[place] = bool((out + into)[numbers].all())
        return found | self._link("bus", numbers[0]) if bus else found


def passing(cluster: Cluster, groups: Ints, *, ring: bool = True) -> Passing:
    """Lay groups, shape (count, size), of GPU numbers over the links of a cluster.

    With `ring` the last member sends to the first; without, a pair is one message. Raises TopologyError for nodes
    without a network between them.
    """
    table = link_table(cluster)
    return Passing(cluster, groups, ring, table, group_links(table, groups, ring=ring))


def _near(cluster: Cluster, a: str, b: str) -> Ints:
    """GPUs that could use a link inside a node: those of the NVLink domain, or of the node, at its ends."""
    data, fabric = cluster.graph.nodes, cluster.fabric
    gpu = next((key for key in (a, b) if data[key]["kind"] == "gpu"), None)
    if gpu is not None:
        return np.flatnonzero(fabric.gpu_domain == fabric.gpu_domain[cluster.gpus.index(gpu)])
    nodes = [data[key]["node"] for key in (a, b) if "node" in data[key]]
    return np.flatnonzero(np.isin(cluster.node_index, nodes))
