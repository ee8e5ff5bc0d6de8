"""What a memory estimate is about, and what the software stack takes beside tensors."""

from dataclasses import dataclass
from typing import Final

from traincast.mesh import Mesh
from traincast.model import ModelShape
from traincast.profile import Profile
from traincast.recipe import Recipe

_MIB: Final = 2.0**20


@dataclass(frozen=True)
class Overheads:
    """What a software stack takes beside tensors. The defaults are assumed (PyTorch with NCCL).

    `context_bytes`: CUDA context, loaded kernels, cuBLAS workspaces. `collective_buffer_bytes` for each
    communicator that runs collectives (by default 16 channels of ring and tree, with 4 MiB Simple, 4.7 MiB
    LL128 and 0.5 MiB LL buffers each), `p2p_buffer_bytes` towards the neighbouring stages. `fragmentation`:
    what the caching allocator holds in excess, as a share of activations and workspace. `reserve_bytes`:
    anything constant, such as a framework's communication buckets. `keeps_half_gradients`: half-precision
    gradients stay beside single-precision ones for the whole step (DeepSpeed's bf16 optimiser).
    """

    context_bytes: float = 1024 * _MIB
    collective_buffer_bytes: float = 16 * 2 * 9.2 * _MIB
    p2p_buffer_bytes: float = 128 * _MIB
    fragmentation: float = 0.05
    reserve_bytes: float = 0.0
    keeps_half_gradients: bool = False


DEFAULT_OVERHEADS: Final = Overheads()


def overheads_of(profile: Profile) -> Overheads:
    """What the software stack of a profile takes, from its `footprint` constants."""
    return Overheads(
        context_bytes=profile["footprint.context"],
        collective_buffer_bytes=profile["footprint.collective"],
        p2p_buffer_bytes=profile["footprint.message"],
        fragmentation=profile["footprint.fragmentation"],
        reserve_bytes=profile["footprint.reserve"],
        keeps_half_gradients=profile.traits.keeps_half_gradients,
    )


@dataclass(frozen=True)
class MemoryJob:
    """A model on a mesh under a recipe and a software stack."""

    model: ModelShape
    mesh: Mesh
    recipe: Recipe
    overheads: Overheads = DEFAULT_OVERHEADS
