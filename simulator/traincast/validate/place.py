"""Where a published row ran: its cluster from the columns about the node, its profile from GPU and stack."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final

from traincast.validate.revisions import revision_of
from traincast.validate.rows import PublishedRow, RowSkippedError

if TYPE_CHECKING:
    from traincast.catalog import Gpu
    from traincast.profile import Profile
    from traincast.topology import Cluster, NodeRequest


_JAX: Final = "jax_xla"


@dataclass(frozen=True)
class Place:
    """Cluster, GPU and profile of a row, and what was assumed to find them."""

    cluster: "Cluster"
    gpu: "Gpu"
    profile: "Profile"
    notes: tuple[str, ...]


def place_of(row: PublishedRow) -> Place:
    """Raises RowSkippedError without a GPU, CatalogError or DataError for unknown parts or profiles."""
    from traincast.catalog import load_catalog
    from traincast.profile import find_profile
    from traincast.topology import NodeRequest, usual_node

    name = row.text("gpu")
    if not name:
        raise RowSkippedError("gpu is not stated")
    gpu = load_catalog().gpu(name)
    request = NodeRequest(
        gpu=gpu.name,
        gpus=row.count("gpus_per_node"),
        nics=row.count("nics_per_node"),
        nic_gbit_per_s=row.number("nic_gbit_per_s"),
        nic_kind=row.text("nic_kind"),
    )
    nodes = -(-row.essential("gpus") // (request.gpus or gpu.gpus_per_node))
    cluster = cluster_of(request, nodes)
    # what is not known about the network does not matter inside a node
    notes = usual_node(request).assumptions if nodes > 1 else ()
    revision = revision_of(row)
    told = (f"stack by its source: {revision.stack}",) if revision else ()
    profile, note = find_profile(gpu.name, revision.stack if revision else _stack(row))
    return Place(cluster, gpu, profile, (*notes, *told, *((note,) if note else ())))


def _stack(row: PublishedRow) -> str | None:
    """The stack of a row; a benchmark suite's rows that ran in JAX are none of its PyTorch ones."""
    stack = row.text("stack")
    return f"{stack} ({_JAX})" if stack and row.text("remark") == _JAX else stack or None


@lru_cache(maxsize=128)
def cluster_of(request: "NodeRequest", nodes: int) -> "Cluster":
    """A cluster of such nodes: one of the known designs where they are theirs, else a plain fabric."""
    from traincast.topology import hdr4_a100, node_cluster, selene, usual_node

    sxm = request.gpu in ("A100-40GB-SXM", "A100-80GB-SXM")
    hdr_a100 = sxm and (request.gpus, request.nic_gbit_per_s) == (8, 200.0)
    if hdr_a100 and request.nic_kind == "ib" and request.nics == 8:
        return selene(nodes)
    if hdr_a100 and request.nic_kind == "ib" and request.nics == 4:
        return hdr4_a100(nodes)
    return node_cluster(usual_node(request), nodes)


@cache
def fitted_profiles() -> "dict[str, str]":
    """Row -> the profile that was fitted on it. A row that any profile has seen is no test of another."""
    from traincast.profile import shipped_profiles

    return {row: profile.name for profile in shipped_profiles() for row in profile.fitted_rows}
