"""Floating-point operations of one step, under three named conventions that are never mixed.

- `model`: forward and backward once, the full attention matrix;
- `model_causal`: the same with attention counted at half, as causal masking allows;
- `hardware`: what the GPUs execute, recomputation included: what the papers print (`hardware_flops`), or what a stack
  runs of it (`executed_flops`: fewer whole layers, no down projection where recomputation stops early).

A multiply-add is two operations. Every formula takes any shape: grouped-query attention, gated MLP, any head
width. `batch` counts sequences of the whole step, `sequence` tokens. Embedding lookups, norms and softmax are
left out, as in the papers. The vocabulary is counted unpadded.
"""

from dataclasses import dataclass
from typing import Literal

from traincast.errors import DataError
from traincast.model.shape import ModelShape
from traincast.recomputation import recomputation

Convention = Literal["model", "model_causal", "hardware"]
CONVENTIONS: tuple[Convention, ...] = ("model", "model_causal", "hardware")


@dataclass(frozen=True)
class ForwardFlops:
    """Operations of one forward pass of a whole step, by part [FLOP]."""

    projections: float
    attention_core: float
    logits: float


@dataclass(frozen=True)
class Repeated:
    """What a step computes again, as a stack runs it.

    `whole`: the share of the layers that is recomputed whole, where ranks count them apart (None: as a rank that has
    them all). `early_stop`: recomputation ends before the down projection, whose output no backward pass reads.
    """

    recompute: str = "none"
    whole: float | None = None
    early_stop: bool = False


def forward_flops(shape: ModelShape, batch: float, sequence: int) -> ForwardFlops:
    """Operations of one forward pass.

    Notes
    -----
    Per token and layer 2·h·(a + 2·k)·d for queries, keys and values, 2·a·d·h for the output, 2·h·f for each
    MLP matrix; the core (scores and weighted values) is 4·s·a·d. A plain GPT gives 24·h² + 4·s·h.

    Reference: Narayanan et al. 2021 (SC21), appendix; Korthikanti et al. 2022, appendix A.
    """
    tokens = float(batch) * sequence
    hidden, width = shape.hidden, shape.attention_width
    weights = hidden * (width + 2 * shape.kv_width) + width * hidden + shape.mlp_matrices * hidden * shape.ffn_hidden
    return ForwardFlops(
        projections=2.0 * tokens * shape.layers * weights,
        attention_core=4.0 * tokens * shape.layers * sequence * width,
        logits=2.0 * tokens * hidden * shape.vocab,
    )


def model_flops(shape: ModelShape, batch: float, sequence: int) -> float:
    """Convention `model` [FLOP]: three forward passes' worth, attention in full.

    Notes
    -----
    A plain GPT gives 72·B·s·l·h²·(1 + s/(6·h) + V/(12·l·h)).

    Reference: Korthikanti et al. 2022, appendix A.
    """
    forward = forward_flops(shape, batch, sequence)
    return 3 * (forward.projections + forward.attention_core + forward.logits)


def model_causal_flops(shape: ModelShape, batch: float, sequence: int) -> float:
    """Convention `model_causal` [FLOP]: `model` with the attention core at half."""
    forward = forward_flops(shape, batch, sequence)
    return 3 * (forward.projections + 0.5 * forward.attention_core + forward.logits)


def hardware_flops(shape: ModelShape, batch: float, sequence: int, recompute: str = "none") -> float:
    """Hardware FLOPs as the papers print them [FLOP].

    `recompute` is `none`, `selective` (the attention core again), `full` (every layer forward again, not the logits)
    or any other text that `recomputation` understands.

    Notes
    -----
    Full recomputation of a plain GPT gives 96·B·s·l·h²·(1 + s/(6·h) + V/(16·l·h)), SC21 eq. 3. Selective
    gives 72·B·s·l·h²·(1 + s/(3·h) + V/(12·l·h)): the printed formula counts the whole core, forward and
    backward, a second time. The one extra forward pass that GPUs run is a third of that; see
    `executed_flops`.

    Reference: Narayanan et al. 2021 (SC21), eq. 3; Korthikanti et al. 2022, appendix A.
    """
    again = 3 * forward_flops(shape, batch, sequence).attention_core if recompute == "selective" else None
    if again is None:
        again = recomputed_flops(shape, batch, sequence, recompute)
    return model_flops(shape, batch, sequence) + again


def recomputed_flops(shape: ModelShape, batch: float, sequence: int, recompute: str | Repeated) -> float:
    """Operations that recomputation repeats [FLOP]: whole layers, or of each layer the products in what it repeats."""
    repeated = Repeated(recompute) if isinstance(recompute, str) else recompute
    what, forward = recomputation(repeated.recompute), forward_flops(shape, batch, sequence)
    whole = what.full_layers(shape.layers) / shape.layers if repeated.whole is None else repeated.whole
    down = shape.ffn_hidden if repeated.early_stop else 0
    weights = 0
    if "mlp" in what.pieces:
        weights += shape.mlp_matrices * shape.ffn_hidden - down
    if "torchtitan" in what.pieces:  # key, output and up projection: every second product
        weights += shape.kv_width + shape.attention_width + (shape.ffn_hidden if shape.gated_mlp else 0)
    core = forward.attention_core if "core_attn" in what.pieces else 0.0
    each = 2.0 * float(batch) * sequence * shape.layers * shape.hidden
    kept = down + (shape.attention_width + 2 * shape.kv_width if what.kept_qkv else 0)
    layer = forward.projections - each * kept + what.core_again * forward.attention_core
    return whole * layer + (1 - whole) * (each * weights + core)


def executed_flops(shape: ModelShape, batch: float, sequence: int, recompute: str | Repeated = "none") -> float:
    """Convention `hardware` [FLOP]: what runs.

    As printed, but selective recomputation adds the core's forward once, and of a `Repeated` only what its stack runs
    counts: full recomputation that stops early is 96 - 8 = 88·B·s·l·h² of a plain GPT's products.
    """
    return model_flops(shape, batch, sequence) + recomputed_flops(shape, batch, sequence, recompute)


def step_flops(
    shape: ModelShape, batch: float, sequence: int, convention: Convention, recompute: str | Repeated = "none"
) -> float:
    """Operations of one step under a named convention [FLOP]; `recompute` matters to `hardware` alone.

    `hardware` is what GPUs execute: selective recomputation repeats the core's forward, once (`executed_flops`).
    """
    if convention == "hardware":
        return executed_flops(shape, batch, sequence, recompute)
    by_name = {"model": model_flops, "model_causal": model_causal_flops}
    return by_name[convention](shape, batch, sequence)


def mfu(flops: float, step_time_s: float, gpus: int, peak_flops_per_s: float) -> float:
    """Share of the dense peak that `flops` of one step amount to, between 0 and 1.

    MFU for `model` FLOPs, HFU for `hardware`. Raises DataError above 1: then the peak, the count or the time
    is wrong (a sparse peak, FLOPs of all experts, a time of a part of the step).
    """
    share = flops / (step_time_s * gpus * peak_flops_per_s)
    if share > 1:
        raise DataError(
            f"{100 * share:.1f} % of peak is impossible: {flops:.4g} FLOP in {step_time_s:.4g} s on "
            f"{gpus} GPUs of {peak_flops_per_s:.4g} FLOP/s",
            fix="check the step time, the FLOP convention and that the peak is that of the precision in use",
        )
    return share
