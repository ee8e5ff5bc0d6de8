"""What is forecast: a model on a mesh, trained by a recipe, on a cluster, under a profile."""

from dataclasses import dataclass

from traincast.catalog import Gpu
from traincast.mesh import Mesh
from traincast.model.block import ACTIVATION_BYTES
from traincast.model.shape import ModelShape
from traincast.profile import Profile
from traincast.recipe import BYTES_PER_ELEMENT, Recipe
from traincast.topology import Cluster


@dataclass(frozen=True, eq=False)
class Part:
    """A GPU model under the profile that prices it."""

    gpu: Gpu
    profile: Profile


@dataclass(frozen=True, eq=False)
class Job:
    """One forecast's input. `gpu` is the catalogue part that the ranks run on, and `profile` says what the stack does.

    On a cluster of several GPU models `others` has the further ones, each with its own profile; a model that is not
    among them is priced as `gpu`. `seat` is the place among the cluster's GPUs of the one whose way to the host's
    memory prices copies (`lower.offload`). `first`: the step's first microbatch is one of its own.
    """

    model: ModelShape
    mesh: Mesh
    recipe: Recipe
    profile: Profile
    cluster: Cluster
    gpu: Gpu
    others: tuple[Part, ...] = ()
    seat: int = 0
    first: bool = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """All GPU models with their profiles, that of `gpu` first."""
        return Part(self.gpu, self.profile), *self.others

    @property
    def microbatches(self) -> int:
        """Microbatches per replica and step (m)."""
        return self.recipe.microbatches(self.mesh.dp)

    @property
    def chunks(self) -> int:
        """Chunks (virtual stages) that a rank holds (v)."""
        return self.recipe.vpp

    @property
    def hidden_bytes(self) -> float:
        """Bytes of one microbatch's activations between layers, of the tokens that a context-parallel rank has."""
        tokens = self.recipe.microbatch * (self.recipe.sequence // self.mesh.cp)
        return float(tokens * self.model.hidden * ACTIVATION_BYTES)

    @property
    def bucket_bytes(self) -> float:
        """Size of a gradient bucket: as stated, else Megatron-Core's max(40 M, 1 M x dp) elements, so that a ring over
        many ranks still moves pieces worth its latency (megatron/core/distributed, DistributedDataParallelConfig)."""
        recipe = self.recipe
        if recipe.bucket_bytes != Recipe.bucket_bytes:
            return recipe.bucket_bytes
        width = BYTES_PER_ELEMENT[recipe.gradient_dtype]
        return max(recipe.bucket_bytes, 1e6 * self.mesh.dp * self.mesh.cp * width)

    @property
    def overlaps_gradients(self) -> bool:
        """Gradient buckets reduce while backward runs: asked for, and possible in this stack."""
        possible = self.mesh.pp == 1 or self.profile.traits.overlap_dp_in_pipeline
        return self.recipe.overlap_dp and possible
