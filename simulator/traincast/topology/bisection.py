"""Effective bisection bandwidth: what a family of groups really carries between two halves of a cluster.

Definition used throughout. The *cut* divides the GPUs into two sides along node boundaries. What counts are the bytes
that flows carry from nodes on one side to nodes on the other, each direction by itself. The *window* is the time in
which the family communicates, not the step: one message of a pipeline, one all-reduce of data parallelism. The
effective bisection bandwidth is bytes over window. Without a measured or forecast window, the window is the static
one: the time that the slowest group needs at its share of the links, so that the figure is what the wires allow.

SC21 §5.9 prints 892 GB/s and 12.9 TB/s without a definition. Read here: halves of the pipeline (stages 0-31 and 32-63)
and of the replicas (0-2 and 3-5), both directions together, since a stage sends and receives at the same time and a
ring passes the cut once each way. In one direction 12.9 TB/s would be more than the 512 NICs that cross the cut carry.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from traincast.errors import TopologyError
from traincast.topology.cluster import Cluster
from traincast.topology.lanes import flows_of, visits_of
from traincast.topology.loads import FamilyTraffic
from traincast.topology.span import family_spans


@dataclass(frozen=True)
class Bisection:
    """Bytes over a cut in a window. `there` is from the side marked false to the one marked true."""

    bytes_there: float
    bytes_back: float
    window_s: float

    @property
    def one_way_bytes_per_s(self) -> float:
        """Bytes/s in the direction that carries more."""
        return max(self.bytes_there, self.bytes_back) / self.window_s

    @property
    def both_ways_bytes_per_s(self) -> float:
        """Bytes/s of both directions together."""
        return (self.bytes_there + self.bytes_back) / self.window_s


def effective_bisection(
    cluster: Cluster, traffic: FamilyTraffic, side: npt.ArrayLike, window_s: float | None = None
) -> Bisection:
    """What `traffic` carries over the cut `side` (GPUs,), true on one side, in a window (None: the static one).

    Raises TopologyError for a cut that is no array of truth values, one for each GPU, for one that goes through a node,
    and for a window that is not above 0.
    """
    sides = np.asarray(side)
    if sides.dtype != np.bool_ or sides.shape != (len(cluster.gpus),):
        raise TopologyError(
            f"a cut of shape {sides.shape} for {len(cluster.gpus)} GPUs", fix="give true or false for each GPU"
        )
    domain = cluster.fabric.gpu_domain
    inside, size = np.bincount(domain, weights=sides), np.bincount(domain)
    if ((inside > 0) & (inside < size)).any():
        raise TopologyError("the cut goes through a node", fix="put all GPUs of a node (NVLink domain) on one side")
    visits = visits_of(cluster.fabric, np.asarray(traffic.groups, dtype=np.int64))
    flows = flows_of(cluster, visits, ring=traffic.ring)
    on = (inside > 0)[visits.domain]
    out, into = on[flows.edge_from], on[flows.edge_to]
    sent = traffic.group_bytes[flows.edge_group]
    if window_s is None:
        spans = family_spans(cluster, traffic.groups, pattern="ring" if traffic.ring else "chain")
        rates = np.array([span.inter_bytes_per_s for span in spans])
        times = np.divide(traffic.group_bytes, rates, out=np.zeros(len(rates)), where=rates > 0.0)
        window_s = float(times.max(initial=0.0))
    if not window_s > 0.0:
        raise TopologyError(f"a window of {window_s:g} s", fix="give the time of one operation")
    return Bisection(float(sent[~out & into].sum()), float(sent[out & ~into].sum()), window_s)
