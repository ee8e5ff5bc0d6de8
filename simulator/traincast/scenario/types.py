"""What a scenario file says, parsed and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from traincast.mesh import Mesh
from traincast.model import ModelShape
from traincast.recipe import Recipe
from traincast.scenario.text import Places


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster by the name of its file, or described in the scenario itself (then `gpu` is set).

    `nodes` of a described cluster suffice for the mesh. None and empty text stand for what the usual node of
    the GPU has; `nic_gbit_per_s` is the raw rate of one NIC.
    """

    name: str
    gpu: str | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    nics_per_node: int | None = None
    nic_gbit_per_s: float | None = None
    nic_kind: str = ""

    @property
    def described(self) -> bool:
        """Whether the scenario describes the cluster itself."""
        return self.gpu is not None


@dataclass(frozen=True)
class Scenario:
    """One training step to forecast: a model on a mesh of a cluster under a recipe.

    `published` holds measured figures of the same step (step_time_s, tflops_per_gpu with its convention,
    tokens_per_s_per_gpu, source, row), `assumptions` what the file left open and how it was filled. `stated` are the
    keys of parallelism and training that the file or an option states (`training.p2p`), with their values, `places`
    where all keys were written; None where no file was read.
    """

    name: str
    model: ModelShape
    cluster: ClusterSpec
    mesh: Mesh
    recipe: Recipe
    profile_name: str | None = None
    source: str | None = None
    published: Mapping[str, Any] | None = None
    assumptions: tuple[str, ...] = ()
    description: str | None = None
    stated: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    places: Places | None = field(default=None, repr=False, compare=False)

    @property
    def cluster_name(self) -> str:
        """Name of the cluster file, or a short description."""
        return self.cluster.name
