"""What simultaneous families of groups put on each link of a cluster in one step, and the busiest links.

Static: bytes, not times. A family says how many bytes each member of a group sends to its next neighbour in a step (a
ring all-reduce of S bytes over n ranks sends 2 (n-1)/n S); every boundary between two nodes that a ring passes then
carries that much once, spread evenly over its lanes. Bytes over capacity is the least time in which a link can do its
part; the largest of them bounds the step from below, whatever the order of events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.topology.cluster import Cluster
from traincast.topology.insideloads import inside_bytes
from traincast.topology.links import LinkTable, group_links, link_table

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

KINDS: Final = {
    **{"nvlink out": "GPU to NVLink", "nvlink in": "NVLink to GPU", "bus out": "GPU to PCIe", "bus in": "PCIe to GPU"},
    **{"inside": "inside a node", "nic out": "NIC to leaf", "nic in": "leaf to NIC"},
    **{"leaf up": "leaf to spines", "leaf down": "spines to leaf"},
    **{"block up": "spines to cores", "block down": "cores to spines"},
}
"""Sections of links in words, from the GPU upwards."""


@dataclass(frozen=True, eq=False)
class FamilyTraffic:
    """What one family of groups sends in a step.

    `groups` (count, size) are GPU numbers in physical order, `bytes_per_gpu` what each member sends to the next one:
    one figure, or one for each group. Without `ring` the last member sends nothing (a pair is a message).
    """

    name: str
    groups: Ints
    bytes_per_gpu: float | Floats
    ring: bool = True

    @property
    def group_bytes(self) -> Floats:
        """Bytes of each group, shape (count,)."""
        return np.broadcast_to(np.asarray(self.bytes_per_gpu, dtype=np.float64), (len(self.groups),))


@dataclass(frozen=True)
class BusyLink:
    """One directed link: its name, what it joins, bytes a step in all and by family, and the least time for them."""

    name: str
    kind: str
    bytes: float
    by_family: dict[str, float]
    bytes_per_s: float
    seconds: float


@dataclass(frozen=True, eq=False)
class LinkLoads:
    """Loads of all directed links: `bytes` (families, links), `bytes_per_s` (links,).

    Links are numbered as `table` does it, then NVLinks of each GPU out and in, then the `inside` links of nodes without
    an NVSwitch that are no GPU's own.
    """

    families: tuple[str, ...]
    bytes: Floats
    bytes_per_s: Floats
    table: LinkTable
    inside: tuple[tuple[str, str], ...]

    @property
    def seconds(self) -> Floats:
        """Least time of each link for its bytes; 0 where nothing passes."""
        total = self.bytes.sum(axis=0)
        return np.asarray(np.divide(total, self.bytes_per_s, out=np.zeros_like(total), where=total > 0))

    def first(self, kind: str) -> int:
        """The number at which a section of links begins; within it links have the numbers of their NICs, leaves,
        blocks or GPUs."""
        if kind in self.table.first:
            return self.table.first[kind]
        return len(self.table.bytes_per_s) + list(KINDS)[:2].index(kind) * len(self.table.cluster.gpus)

    def kind(self, link: int) -> str:
        """The section of a link, a key of KINDS."""
        first = self.table.first
        plain, gpus = len(self.table.bytes_per_s), len(self.table.cluster.gpus)
        if link < plain:
            return max((name for name in first if first[name] <= link), key=first.__getitem__)
        beyond = link - plain
        return "nvlink out" if beyond < gpus else "nvlink in" if beyond < 2 * gpus else "inside"

    def name(self, link: int) -> str:
        """A link in words, such as `n0/nic3 out`."""
        kind, gpus = self.kind(link), self.table.cluster.gpus
        beyond = link - len(self.table.bytes_per_s)
        if kind == "inside":
            return " to ".join(self.inside[beyond - 2 * len(gpus)])
        if kind.startswith("nvlink"):
            return f"{gpus[beyond % len(gpus)]} {kind}"
        return self.table.name(link)

    def busiest(self, count: int = 10, kind: str = "") -> tuple[BusyLink, ...]:
        """The links that need longest, of one section if `kind` names it; equal ones by number."""
        seconds = self.seconds
        order = np.argsort(-seconds, kind="stable")
        found: list[BusyLink] = []
        for link in order.tolist():
            if len(found) == count or seconds[link] <= 0.0:
                break
            if not kind or self.kind(link) == kind:
                found.append(self._busy(link, float(seconds[link])))
        return tuple(found)

    def busiest_by_kind(self) -> tuple[BusyLink, ...]:
        """The busiest link of each section that carries anything, from the GPU upwards."""
        seconds = self.seconds
        kinds = self.kinds()
        found = []
        for number in range(len(KINDS)):
            links = np.flatnonzero(kinds == number)
            if len(links) and seconds[links].max() > 0.0:
                link = int(links[seconds[links].argmax()])
                found.append(self._busy(link, float(seconds[link])))
        return tuple(found)

    def kinds(self) -> Ints:
        """Section of each link as a place in KINDS, shape (links,)."""
        order = list(KINDS)
        found = np.full(self.bytes.shape[1], order.index("inside"))
        begins = sorted((begin, name) for name, begin in self.table.first.items())
        for begin, name in begins:
            found[begin : len(self.table.bytes_per_s)] = order.index(name)
        plain, gpus = len(self.table.bytes_per_s), len(self.table.cluster.gpus)
        found[plain : plain + gpus] = order.index("nvlink out")
        found[plain + gpus : plain + 2 * gpus] = order.index("nvlink in")
        return found

    def _busy(self, link: int, seconds: float) -> BusyLink:
        loads = self.bytes[:, link].tolist()
        by_family = {name: load for name, load in zip(self.families, loads, strict=True) if load > 0.0}
        kind = KINDS[self.kind(link)]
        return BusyLink(self.name(link), kind, sum(loads), by_family, float(self.bytes_per_s[link]), seconds)


def link_loads(cluster: Cluster, families: Sequence[FamilyTraffic]) -> LinkLoads:
    """Bytes that the families put on each link in a step.

    Raises TopologyError for groups that reach beyond the cluster and for nodes without a network between them.
    """
    table = link_table(cluster)
    plain, gpus = len(table.bytes_per_s), len(cluster.gpus)
    first = table.first
    rows, beyond = [], []
    for family in families:
        members, sent = _checked(cluster, family), family.group_bytes
        used = group_links(table, members, ring=family.ring)
        per_lane = sent / np.maximum(used.lanes, 1)
        row = np.zeros(plain + 2 * gpus)
        row[:plain] = np.bincount(used.link, weights=used.weight * per_lane[used.group], minlength=plain)
        within = inside_bytes(cluster, members, sent, family.ring)
        row[first["bus out"] : first["bus out"] + gpus] += within.bus_out
        row[first["bus in"] : first["bus in"] + gpus] += within.bus_in
        row[plain:] = np.concatenate([within.nvlink_out, within.nvlink_in])
        rows.append(row)
        beyond.append(within.edges)
    edges = sorted({edge for found in beyond for edge in found})
    loads = np.zeros((len(rows), plain + 2 * gpus + len(edges)))
    for number, (row, found) in enumerate(zip(rows, beyond, strict=True)):
        loads[number, : len(row)] = row
        loads[number, len(row) :] = [found.get(edge, 0.0) for edge in edges]
    nvlink = cluster.fabric.gpu_nvlink_bytes_per_s
    own = [cluster.graph.edges[edge]["bandwidth_bytes_per_s"] for edge in edges]
    rates = np.concatenate([table.bytes_per_s, nvlink, nvlink, np.array(own, dtype=np.float64)])
    return LinkLoads(tuple(family.name for family in families), loads, rates, table, tuple(edges))


def _checked(cluster: Cluster, family: FamilyTraffic) -> Ints:
    members = np.asarray(family.groups, dtype=np.int64)
    if members.ndim != 2 or (members.size and not 0 <= members.min() <= members.max() < len(cluster.gpus)):
        raise TopologyError(
            f"the groups of {family.name} do not fit the {len(cluster.gpus)} GPUs of {cluster.name}",
            fix="give GPU numbers of shape (count, size)",
        )
    return members
