"""Cluster files of the form ``builder: graph``, read and built."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from traincast.catalog import Catalog
from traincast.errors import TopologyError
from traincast.topology.cluster import Cluster, make_cluster
from traincast.topology.clusterchanges import changes_of
from traincast.topology.clusterfile import parse_as
from traincast.topology.degrade import Change, degraded, first_nodes
from traincast.topology.graphfile import PARTS, GraphFile, check_form
from traincast.topology.graphform import GraphForm, expand_graph
from traincast.topology.yamltext import Document


@dataclass(frozen=True, eq=False)
class GraphPlan:
    """A cluster that is written out, with what its file says is wrong with it."""

    name: str
    path: Path
    entry: GraphFile
    form: GraphForm
    changes: tuple[Change, ...]

    @property
    def gpus(self) -> int:
        """GPUs of all nodes, whether they can be used or not."""
        return sum(self._gpus_of_nodes())

    @property
    def gpu(self) -> str:
        """The models of its GPUs."""
        rows = (row.model for one in self.form.types for row in one.parts if row.kind == "gpu")
        return " + ".join(dict.fromkeys(rows))

    @property
    def nics_per_node(self) -> int:
        """The most NICs that a node has."""
        return max(len(self.form.parts_of(one, "nic")) for one in self.form.types)

    @property
    def nic(self) -> str:
        """The rates of its NICs."""
        rates = {row.port_bytes_per_s for one in self.form.types for row in one.parts if row.kind == "nic"}
        return " + ".join(f"{rate * 8 / 1e9:g} Gbit/s" for rate in sorted(rates) if rate)

    def build(self, gpus: int | None) -> Cluster:
        """The cluster, cut to the whole nodes that hold `gpus` GPUs (None: not cut).

        Raises TopologyError for more GPUs than there are and for cables that cannot be.
        """
        if gpus is not None and gpus > self.gpus:
            raise TopologyError(
                f"{self.name} has {self.gpus} GPUs, {gpus} are asked for", fix="use a larger cluster or fewer GPUs"
            )
        notes = tuple(self.entry.assumptions)
        if self.changes:  # they may name any node
            whole = degraded(make_cluster(self.name, expand_graph(self.form), notes), self.changes)
            return whole if gpus is None else first_nodes(whole, gpus)
        nodes = None if gpus is None else self._nodes_for(gpus)
        return make_cluster(self.name, expand_graph(self.form, nodes), notes)

    def _gpus_of_nodes(self) -> list[int]:
        count = {one.name: len(self.form.parts_of(one, "gpu")) for one in self.form.types}
        return [count[one.name] for one in self.form.node_types()]

    def _nodes_for(self, gpus: int) -> int:
        for nodes, count in enumerate(self._gpus_of_nodes(), 1):
            gpus -= count
            if gpus <= 0:
                return nodes
        raise AssertionError("fewer GPUs than were counted")


def plan_graph(path: Path, document: Document, catalog: Catalog) -> GraphPlan:
    """The plan of a file. Raises TopologyError or CatalogError with the place of everything wrong."""
    entry = parse_as(document, GraphFile, PARTS)
    form = check_form(entry, document, catalog)
    names = Counter(form.host_names)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise TopologyError(f"node {twice} stands twice", where=document.where(["hosts"]), fix="name each node once")
    return GraphPlan(path.stem, path, entry, form, changes_of(document, entry))
