"""How one trains: batch, precision, recomputation, schedule and overlap.

A recipe is what a launch script says beside the model and the parallel shape. It is plain data: the physics that
reads it lives in `lower`, `memory` and `costs`.
"""

from dataclasses import dataclass
from typing import Literal

from traincast.recomputation import Recomputation, recomputation

ScheduleName = Literal[
    "none",
    "gpipe",
    "1f1b",
    "interleaved",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-1p",
    "zb-2p",
    "zb-v",
    "dualpipe",
    "dualpipev",
]
AttentionKernel = Literal["unfused", "flash"]
P2PMode = Literal["async", "blocking"]
TpOverlap = Literal["none", "bulk", "split", "async"]
ContextKind = Literal["ring", "allgather", "ulysses", "usp", "burst"]

Fp8Scaling = Literal["delayed", "tensorwise", "rowwise"]

OffloadedStates = Literal["none", "optimizer", "parameters"]

BYTES_PER_ELEMENT = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "mxfp8": 1}
"""Bytes of an element. In mxfp8 32 of them share a scale of one byte more."""


@dataclass(frozen=True)
class Recipe:
    """Training settings of one step.

    `global_batch` and `microbatch` count sequences; `sequence` counts tokens. `vpp` is the number of chunks (virtual
    stages) a rank holds. `overlap_dp` lets gradient buckets reduce while backward still runs (PyTorch DDP); without it
    they run after the last backward (Megatron's "local" DDP). `p2p` is the semantics of pipeline messages: a
    `blocking` stack waits for its fused send and receive before it computes on, an `async` one does not.
    `scatter_gather` splits a pipeline message over the tensor-parallel ranks and gathers it on arrival (SC21 §4.1).
    `stage_layers` gives transformer layers per chunk in pipeline order when stages are uneven (length pp*vpp).
    `post_validation` lets a stage update its parameters without waiting for the gradient norm of the others: partial
    norms travel down the pipeline with the next step's first messages, and the rare update that had to be clipped or
    skipped is taken back (Qi et al. 2023, section 4). No operation of the tail then meets other stages, and steps
    roll: a stage begins the next one when it has ended its own.

    `recompute` is a text that `recomputation` understands. Of sharded data parallelism: `fsdp_shard` ranks share
    parameters, gradients and optimiser states as `zero_stage` says (None: all replicas), and the groups are replicas of
    each other (HSDP). Under ZeRO-3 `prefetch` layers are gathered ahead of the one that computes (0: none, gathers are
    exposed; None: one where `overlap_dp` is on). With `prefetch_bytes` it is matrices, no more of each than that
    (DeepSpeed, which also reduces gradients matrix by matrix; None: whole layers, as FSDP). With
    `reshard_after_forward` layers are dropped after the forward pass and gathered again for the backward one. None:
    dropped without a pipeline; in a pipeline kept for the whole step, gathered once (Llama 3, §3.3.2). `no_sync`:
    gradients are summed locally and reduced behind the last microbatch only, else behind each. None: each where they
    are sharded (ZeRO-2 and 3) and there is no pipeline.
    `reduce_dtype` is the type of gradients on the wire (None: `gradient_dtype`).

    `overlap_tp`: tensor-parallel collectives are exposed (`none`), run beside the backward products of column-parallel
    layers (`bulk`), or are also split into pieces beside pieces of the other products (`split`, sequence parallelism
    only; `model.linear`). `async` (PyTorch's symmetric memory): pieces that need no copies along the sequence
    (`Block.copies_sequence`); what they hide, smaller products and their streams cost again. None: as the profile's
    stack does. `overlap_params`: parameters that a sharded optimiser updated are gathered beside the next step's first
    forward passes, not behind the update.

    Of context parallelism (`model.context`): `cp_kind` says how ranks see the rest of a sequence. `ring` passes blocks
    of keys and values on, `allgather` gathers them, `ulysses` exchanges heads for tokens, `usp` does so among
    `cp_ulysses` ranks and passes blocks between these, `burst` passes on what is smaller, over rings by node.
    `cp_inner` says which of the two has neighbouring ranks where there are both. `cp_balance` gives each rank an early
    and a late part of the sequence; `cp_keep_kv` keeps gathered keys and values for the backward pass.
    `offload_activations` is the share of what a layer keeps that waits in the host's memory. `offload_states`: the
    optimiser's states and their update are on the host (`optimizer`), or the sharded parameters too (`parameters`,
    ZeRO-3).

    `fp8_scaling` is how an fp8 run scales tensors (`model.casts`; None: as the profile's stack does). `fp8_gather`:
    ZeRO-3 gathers the weights of its linear layers in fp8.
    """

    global_batch: int
    microbatch: int
    sequence: int
    precision: str = "fp16"
    recompute: str = "none"
    schedule: ScheduleName = "1f1b"
    vpp: int = 1
    sequence_parallel: bool = False
    attention: AttentionKernel = "unfused"
    zero_stage: int = 0
    overlap_dp: bool = False
    gradient_dtype: str = "fp32"
    bucket_bytes: float = 40e6 * 4
    p2p: P2PMode = "blocking"
    scatter_gather: bool = True
    stage_layers: tuple[int, ...] | None = None
    post_validation: bool = False
    reshard_after_forward: bool | None = None
    prefetch: int | None = None
    prefetch_bytes: float | None = None
    fsdp_shard: int | None = None
    reduce_dtype: str | None = None
    no_sync: bool | None = None
    cp_kind: ContextKind = "ring"
    cp_ulysses: int = 1
    cp_inner: Literal["ulysses", "ring"] = "ulysses"
    cp_balance: bool = True
    cp_keep_kv: bool = False
    offload_activations: float = 0.0
    offload_states: OffloadedStates = "none"
    overlap_tp: TpOverlap | None = None
    overlap_params: bool = False
    fp8_scaling: Fp8Scaling | None = None
    fp8_gather: bool = False

    @property
    def recomputed(self) -> Recomputation:
        """What `recompute` says, in parts of a layer."""
        return recomputation(self.recompute)

    @property
    def in_fp8(self) -> bool:
        """Whether linear layers multiply in fp8, whatever the scales."""
        return BYTES_PER_ELEMENT[self.precision] == 1

    @property
    def gathers_ahead(self) -> int:
        """Units of parameters that are gathered ahead of the one that computes."""
        return int(self.overlap_dp) if self.prefetch is None else self.prefetch

    @property
    def reduce_bytes(self) -> int:
        """Bytes of one gradient element on the wire."""
        return BYTES_PER_ELEMENT[self.reduce_dtype or self.gradient_dtype]

    def ulysses(self, cp: int) -> int:
        """How many of `cp` context-parallel ranks exchange heads; the others form rings."""
        return cp if self.cp_kind == "ulysses" else self.cp_ulysses

    def microbatches(self, dp: int) -> int:
        """Microbatches per replica and step (m), a last small one included."""
        return -(-self.global_batch // (self.microbatch * dp))

    def last_microbatch(self, dp: int) -> int:
        """Sequences of the last microbatch, on the replica with most: fewer where the others leave no whole one."""
        return -(-self.global_batch // dp) - (self.microbatches(dp) - 1) * self.microbatch
