"""What the user adds to an import, and what is collected while a cluster is put together."""

from collections.abc import Callable
from dataclasses import dataclass, field

from traincast.catalog import Catalog
from traincast.topology.clusters import switch_for
from traincast.topology.graphform import PartRow, WireRow
from traincast.topology.importers.pci import nearest_nic
from traincast.topology.importers.text import Problem


@dataclass(frozen=True)
class Options:
    """What the user adds: the GPU, and how many nodes like the described one there are."""

    gpu: str = ""
    nodes: int | None = None
    name: str = "imported"


@dataclass
class Draft:
    """Rows of the form and remarks, collected on the way."""

    catalog: Catalog
    options: Options
    switches: list[PartRow] = field(default_factory=list)
    cables: list[WireRow] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def switch_latency(self, kind: str) -> Callable[[float], float]:
        """The latency [s] of a switch with ports of a rate [bytes/s], from the catalogue; each choice is said."""

        def latency(bytes_per_s: float) -> float:
            switch = switch_for(nearest_nic(self.catalog, kind, bytes_per_s), self.catalog)
            note = f"latencies of switches are not in the files: {switch.latency_s * 1e9:g} ns ({switch.name})"
            self.assumed += [note] if note not in self.assumed else []
            return switch.latency_s

        return latency
