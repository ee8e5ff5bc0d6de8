"""The cluster graph that a scenario's cluster stands for."""

from typing import TYPE_CHECKING

from traincast.catalog import Catalog
from traincast.scenario.types import ClusterSpec

if TYPE_CHECKING:
    from traincast.topology import Cluster


def open_cluster(spec: ClusterSpec, gpus: int | None, catalog: Catalog | None = None) -> "Cluster":
    """Builds the cluster: a file's, trimmed to whole nodes that hold `gpus` (None: all), or the nodes described.

    Raises CatalogError or TopologyError.
    """
    from traincast.topology import NodeRequest, load_cluster, node_cluster, usual_node

    if spec.gpu is None:
        return load_cluster(spec.name, gpus=gpus, catalog=catalog)
    request = NodeRequest(
        gpu=spec.gpu,
        gpus=spec.gpus_per_node,
        nics=spec.nics_per_node,
        nic_gbit_per_s=spec.nic_gbit_per_s,
        nic_kind=spec.nic_kind,
    )
    design = usual_node(request, catalog)
    return node_cluster(design, spec.nodes or -(-(gpus or 1) // design.gpus), catalog)
