"""What a memory estimate is about, and what the software stack takes beside tensors."""

from dataclasses import dataclass
from typing import Final, cast

from traincast.mesh import Mesh
from traincast.model import ModelShape, local_kv_heads, padded_vocab
from traincast.model.casts import SCALE, Scaling
from traincast.profile import Profile
from traincast.recipe import BYTES_PER_ELEMENT, Recipe
from traincast.schedule import Schedule

_MIB: Final = 2.0**20

FUSED_LOGIT_BYTES: Final = 2 + 2
"""A logit where the loss is fused (`Traits.fused_loss`): in half precision, as its gradient is."""

EAGER_LOGIT_BYTES: Final = 2 + 4 + 4
"""A logit where it is not: half precision out of the product, a single-precision copy for the loss, its gradient."""


@dataclass(frozen=True)
class Overheads:
    """What a software stack takes beside tensors. The defaults are assumed (PyTorch with NCCL).

    `context_bytes`: CUDA context, loaded kernels, cuBLAS workspaces. `collective_buffer_bytes` for each
    communicator that runs collectives (by default 16 channels of ring and tree, with 4 MiB Simple, 4.7 MiB
    LL128 and 0.5 MiB LL buffers each), `p2p_buffer_bytes` towards the neighbouring stages. `fragmentation`:
    what the caching allocator holds in excess, as a share of activations and workspace. `reserve_bytes`:
    anything constant, such as a framework's communication buckets. `logit_bytes`: what each logit takes around the
    loss. `dropout`: whether the stack trains with it (None: GPT-like models, with biases, do). `fp8_copies`: copies of
    a layer's matrices in fp8 that stand in place of half-precision ones in an fp8 run; 0 where these stay. The others
    are traits of the same name (`profile.Traits`).
    """

    context_bytes: float = 1024 * _MIB
    collective_buffer_bytes: float = 16 * 2 * 9.2 * _MIB
    p2p_buffer_bytes: float = 128 * _MIB
    fragmentation: float = 0.05
    reserve_bytes: float = 0.0
    keeps_half_gradients: bool = False
    logit_bytes: float = EAGER_LOGIT_BYTES
    dropout: bool | None = None
    fp8_copies: int = 0
    shards_master: bool = False
    flat_gradients: bool = False
    cp_by_block: bool = False
    autocast: bool = False
    fp8_scaling: str = "delayed"
    pads_vocabulary: bool = True
    gpt_dropout: bool = False


DEFAULT_OVERHEADS: Final = Overheads()


def overheads_of(profile: Profile) -> Overheads:
    """What the software stack of a profile takes, from its `footprint` constants and its traits.

    Hopper's fp8 products need each matrix transposed as well, Blackwell's take it either way (`model.linear`).
    `footprint.logit` is that of an eager loss: what a fused one passes over (`Block.fused_loss`) is all that it keeps.
    """
    traits = profile.traits
    return Overheads(
        context_bytes=profile["footprint.context"],
        collective_buffer_bytes=profile["footprint.collective"],
        p2p_buffer_bytes=profile["footprint.message"],
        fragmentation=profile["footprint.fragmentation"],
        reserve_bytes=profile["footprint.reserve"],
        keeps_half_gradients=traits.keeps_half_gradients,
        logit_bytes=FUSED_LOGIT_BYTES if traits.fused_loss else profile["footprint.logit"],
        dropout=traits.dropout,
        fp8_copies=(1 if traits.generation == "blackwell" else 2) if traits.fp8_params else 0,
        shards_master=traits.shards_master,
        flat_gradients=traits.flat_gradients,
        cp_by_block=traits.cp_by_block,
        autocast=traits.autocast,
        fp8_scaling=traits.fp8_scaling,
        pads_vocabulary=traits.pads_vocabulary,
        gpt_dropout=traits.gpt_dropout,
    )


def parameter_bytes(recipe: Recipe) -> int:
    """Bytes of a parameter as products read it; fp8 stacks keep half-precision parameters."""
    return max(2, BYTES_PER_ELEMENT[recipe.precision])


@dataclass(frozen=True)
class MemoryJob:
    """A model on a mesh under a recipe and a software stack.

    `order` holds the instruction lists that are run, where they are at hand. Without them an automatic schedule counts
    as the most that its search allows (`flight.moments`).
    """

    model: ModelShape
    mesh: Mesh
    recipe: Recipe
    overheads: Overheads = DEFAULT_OVERHEADS
    order: Schedule | None = None

    @property
    def dropout(self) -> bool:
        """Whether dropout is on: as the stack says, without one as models of this kind are trained."""
        if self.overheads.gpt_dropout and self.model.positions == "learned":
            return True
        return self.model.biases if self.overheads.dropout is None else self.overheads.dropout

    @property
    def autocast(self) -> bool:
        """Whether parameters and the residual stream are single precision and products cast their factors to half."""
        return self.overheads.autocast and parameter_bytes(self.recipe) == 2

    @property
    def pass_bytes(self) -> int:
        """Bytes of a parameter, and of its gradient, as the passes have them."""
        return 4 if self.autocast else parameter_bytes(self.recipe)

    @property
    def scaling(self) -> Scaling:
        """How tensors are scaled on their way to fp8, as `lower` has it: as the recipe says, else as the stack does; in
        mxfp8 by blocks along both axes at once where the stack's own kernels cast, else by axis."""
        own = self.overheads.fp8_scaling
        if self.recipe.precision == "mxfp8":
            return "block" if own == "delayed" else "block_twice"
        return cast("Scaling", self.recipe.fp8_scaling or own)

    @property
    def fp8_bytes(self) -> float:
        """Bytes of an fp8 element with its share of a scale: in mxfp8 one byte for each block of 32."""
        return 1.0 + (SCALE if self.recipe.precision == "mxfp8" else 0.0)

    @property
    def words(self) -> int:
        """Words of the vocabulary on a rank; unpadded, the remainder is left out, as in its logits' time."""
        padded = padded_vocab(self.model.vocab, self.mesh.tp)
        return (padded if self.overheads.pads_vocabulary else self.model.vocab) // self.mesh.tp

    @property
    def kv_repeats(self) -> int:
        """How often keys and values are there in front of attention: for every query head where the stack repeats them
        (`cp_by_block`: repeat_kv), else once. The time of attention has them so too."""
        by_block = self.overheads.cp_by_block and self.mesh.cp > 1 and self.recipe.cp_kind == "allgather"
        return self.model.heads // self.mesh.tp // local_kv_heads(self.model, self.mesh.tp) if by_block else 1
