"""Casts of linear layers to fp8: what each recipe moves through memory, and what travels in fp8.

Each of the three products of a linear layer wants both factors with the summed dimension contiguous, so that input,
weight and output gradient are needed along both of their axes. How often a tensor passes through memory for that is the
recipe's, given here in bytes for each element, beyond what half precision moves:

- `delayed` (Transformer Engine [1]): scales are of former steps, so that one kernel reads a tensor (2) and writes it
  and its transpose (1 + 1); a norm writes fp8 itself (one byte less) and its output is transposed behind it (2).
  Blackwell's products take either order, and nothing is transposed. Weights are cast once a step. What tensor
  parallelism gathers is cast before.
- XLA (`fused`): the same, but casts are part of the kernels in front of them, which leaves the transposes.
- `tensorwise` (torchao [2]): the largest magnitude of a tensor is found first (2), then it is cast (2 + 1). The
  transpose is one more kernel on fp8 (1 + 1), whatever the GPU: PyTorch's product takes one order only. A gradient is
  cast and transposed in one kernel (2 + 1 + 1), in which the compiler reads the first result again (1, [3]). What is
  gathered is cast before.
- `rowwise` (torchao [2]): rows have scales of their own, which differ along the two axes. Along rows one kernel reads
  and writes (2 + 1). Along columns the largest magnitudes are found first (2); the cast (2 + 1) then reads against the
  grain, which compiled kernels do at a fraction of the bandwidth (`memory.columns`). What is gathered is cast behind
  the gather, in half precision.
- `block` (Transformer Engine, mxfp8 [4]): blocks of 32 along either axis share a scale of one byte; one kernel reads a
  tensor and writes it with blocks along both axes. A norm writes both. Gathered in fp8, weights cast once a step.
- `block_twice` (torchao, mxfp8 [2]): the same by a kernel for each axis, behind the gather.

torchao casts weights as well in each pass of each microbatch, unless they were gathered in fp8 (FSDP2): then only the
transpose for the backward pass is left.

References
----------
[1] Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; Transformer Engine, module/layernorm_linear.py and
    module/linear.py (cast_transpose, fp8_transpose).
[2] torchao, float8/float8_linear.py, float8/float8_tensor_parallel.py, prototype/mx_formats/mx_linear.py and
    testing/training/roofline_utils.py (kernels and their traffic by recipe).
[3] github.com/pytorch/pytorch issue 133242 ("extra load" of the kernel that writes a tensor and its transpose).
[4] Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification" 1.0, section 5.2.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

Scaling = Literal["delayed", "tensorwise", "rowwise", "block", "block_twice"]

CAST_TRANSPOSED, CAST, TRANSPOSE, MAGNITUDE = 4.0, 3.0, 2.0, 2.0
"""Bytes an element: cast to fp8 and its transpose in one kernel, cast alone, transpose of fp8, search for a maximum."""

READ_AGAIN, SCALE = 1.0, 1.0 / 32
"""A further read of an fp8 tensor; the scale of a block of 32, for each of its elements."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes an element that kernels move along rows, and along columns."""

    rows: float = 0.0
    columns: float = 0.0


NOTHING = Traffic()


@dataclass(frozen=True, slots=True)
class Casts:
    """What the casts of a recipe move.

    `norm`: bytes an element of a norm in front of a column-parallel layer, whole. `entry`: its output once more, this
    rank's share in front of the gather (the whole behind it where `gathers_half`); `entry_again`: the whole, for the
    weight gradient. `inner` and `inner_again`: the same of a row-parallel layer's input. `gradient`: an output gradient
    that is there whole; `shard` and `shard_again`: one that is gathered, before and behind that. `weight` and
    `weight_again`: a weight in each forward and backward pass; `fp8_weight_again`: where it was gathered in fp8, which
    needs no cast forward.
    """

    norm: float = 4.0
    entry: Traffic = NOTHING
    entry_again: Traffic = NOTHING
    inner: Traffic = NOTHING
    inner_again: Traffic = NOTHING
    gradient: Traffic = NOTHING
    shard: Traffic = NOTHING
    shard_again: Traffic = NOTHING
    weight: Traffic = NOTHING
    weight_again: Traffic = NOTHING
    fp8_weight_again: Traffic = NOTHING
    gathers_half: bool = False


HALF_PRECISION = Casts(gathers_half=True)


def _delayed(*, transposes: bool, fused: bool) -> Casts:
    again = Traffic(TRANSPOSE) if transposes else NOTHING
    whole, shard = (again, NOTHING) if fused else (Traffic(CAST_TRANSPOSED if transposes else CAST), Traffic(CAST))
    return Casts(norm=3.0, entry_again=again, inner=whole, gradient=whole, shard=shard, shard_again=again)


def _tensorwise() -> Casts:
    found, transpose = Traffic(MAGNITUDE + CAST), Traffic(TRANSPOSE)
    return Casts(
        entry=found,
        entry_again=transpose,
        inner=found,
        inner_again=transpose,
        gradient=Traffic(MAGNITUDE + CAST_TRANSPOSED + READ_AGAIN),
        shard=found,
        shard_again=transpose,
        weight=found,
        weight_again=Traffic(CAST),
        fp8_weight_again=transpose,
    )


def _by_axis(along_rows: Traffic, along_columns: Traffic) -> Casts:
    both = Traffic(along_rows.rows + along_columns.rows, along_columns.columns)
    return Casts(
        entry=along_rows,
        entry_again=along_columns,
        inner=along_rows,
        inner_again=along_columns,
        gradient=both,
        weight=along_rows,
        weight_again=along_columns,
        gathers_half=True,
    )


def _block() -> Casts:
    both = Traffic(CAST_TRANSPOSED + 2 * SCALE)
    return Casts(norm=4.0 + 2 * SCALE, inner=both, gradient=both, shard=both)


@cache
def casts_of(scaling: Scaling, *, transposes: bool, fused: bool) -> Casts:
    """What a recipe's casts move; `transposes` and `fused` say how GPU and compiler go about delayed scaling."""
    if scaling == "delayed":
        return _delayed(transposes=transposes, fused=fused)
    if scaling == "tensorwise":
        return _tensorwise()
    if scaling == "rowwise":
        return _by_axis(Traffic(CAST), Traffic(MAGNITUDE, CAST))
    return _block() if scaling == "block" else _by_axis(Traffic(CAST + SCALE), Traffic(CAST + SCALE))
