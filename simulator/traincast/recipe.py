"""How one trains: batch, precision, recomputation, schedule and overlap.

A recipe is what a launch script says beside the model and the parallel shape. It is plain data: the physics that
reads it lives in `lower`, `memory` and `costs`.
"""

from dataclasses import dataclass
from typing import Literal

Recompute = Literal["none", "selective", "full"]
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

BYTES_PER_ELEMENT = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1}


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
    """

    global_batch: int
    microbatch: int
    sequence: int
    precision: str = "fp16"
    recompute: Recompute = "none"
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

    def microbatches(self, dp: int) -> int:
        """Microbatches per replica and step (m)."""
        return self.global_batch // (self.microbatch * dp)
