"""Backward pass of one layer with what is computed again in front of it."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from traincast.lower.chunk import Segment
from traincast.lower.job import Job
from traincast.memory import whole_layers
from traincast.model import operators as op
from traincast.model.flops import Repeated
from traincast.recomputation import Recomputation, recomputation


def layer_backward(block: op.Block, recompute: str, *, early_stop: bool = False) -> tuple[Segment, ...]:
    """Backward of one layer: the forward again (full), parts of it again, or neither.

    A recomputed forward of a checkpointed layer repeats its collectives (SC21 §3.2: 12 b s h in place of 8). With
    `early_stop` recomputation ends once the last tensor that the backward pass reads is there, so that the down
    projection and what follows it do not run again (torch.utils.checkpoint without reentrant autograd, from 2.1).
    """
    what = recomputation(recompute)
    return _backward(block, what, whole=what.full_every == 1, early_stop=early_stop)


def repeated(job: Job) -> Repeated:
    """What a job's stack computes again, for its count of FLOPs."""
    whole, layers = whole_layers(job.model, job.mesh, job.recipe)
    return Repeated(job.recipe.recompute, whole / layers, job.profile.traits.early_stop)


def layers_backward(
    block: op.Block, recompute: str, layers: int, *, before: int = 0, early_stop: bool = False
) -> list[tuple[Segment, ...]]:
    """Backward of each of the layers of a chunk, from the last to the first; their rank has counted `before` others."""
    what = recomputation(recompute)
    every = what.full_every
    whole = [every > 0 and (before + layer + 1) % every == 0 for layer in reversed(range(layers))]
    kinds = {kind: _backward(block, what, whole=kind, early_stop=early_stop) for kind in set(whole)}
    return [kinds[kind] for kind in whole]


@lru_cache(maxsize=256)
def _backward(block: op.Block, what: Recomputation, *, whole: bool, early_stop: bool) -> tuple[Segment, ...]:
    if whole:
        forward = tuple(_forward_again(block, what))
        return Segment(_stopped(forward) if early_stop else forward, "recompute"), _all_of(block)
    if "torchtitan" in what.pieces:
        return Segment(tuple(_every_second_product(block)), "recompute"), _all_of(block)
    mlp, attention = _mlp_again(block, what, early_stop=early_stop), _attention_again(block, what)
    if not mlp and not attention:
        return (_all_of(block),)
    return (
        *([Segment(mlp, "recompute")] if mlp else []),
        Segment(op.mlp_backward(block), autograd=True),
        *([Segment(attention, "recompute")] if attention else []),
        Segment(op.attention_backward(block), mark=True, autograd=True),
    )


def _forward_again(block: op.Block, what: Recomputation) -> Iterator[op.Operator]:
    """A layer's forward; of its attention core only the first queries of a sequence, where the others' output is kept.

    They see the first keys alone, so that a ring passes half of its blocks; ranks must hold a part of both halves.
    Where queries, keys and values are kept, what makes them does not run again.
    """
    core = op.attention_core_forward(block)
    again = core
    if what.kept_queries:
        first = int(block.sequence * (1.0 - what.kept_queries))
        again = op.attention_core_forward(replace(block, sequence=first)) if first else ()
    done = False
    for one in op.block_forward(block):
        if what.kept_qkv and one.name.startswith(_MAKES_QKV):
            continue
        if one not in core:
            yield one
        elif not done:
            yield from again
            done = True


def _all_of(block: op.Block) -> Segment:
    return Segment(op.block_backward(block), mark=True, autograd=True)


def _stopped(operators: tuple[op.Operator, ...]) -> tuple[op.Operator, ...]:
    """Operators in front of the down projection: its output is read by no backward pass.

    Nor is what of it is scattered piece by piece, which is written in front of the product that it runs beside, nor is
    its weight cast.
    """
    end = next(place for place, one in enumerate(operators) if one.name == "mlp.down")
    return tuple(one for one in operators[:end] if one.name not in _WITH_DOWN)


_MAKES_QKV = ("attention.qkv", "attention.all_gather", "rotary")

_WITH_DOWN = ("mlp.pieces.reduce_scatter", "mlp.down.weight.cast")


def _mlp_again(block: op.Block, what: Recomputation, *, early_stop: bool) -> tuple[op.Operator, ...]:
    norm, *inner, _residual = op.mlp_forward(block)
    found: tuple[op.Operator, ...] = (norm,) if "norm" in what.pieces else ()
    if "mlp" in what.pieces:
        return found + (_stopped(tuple(inner)) if early_stop else tuple(inner))
    if "mlp_act" in what.pieces:
        return found + tuple(one for one in inner if one.name == "mlp.activation")
    return found


def _attention_again(block: op.Block, what: Recomputation) -> tuple[op.Operator, ...]:
    norm = op.attention_forward(block)[:1] if "norm" in what.pieces else ()
    return norm + (op.attention_core_forward(block) if "core_attn" in what.pieces else ())


def _every_second_product(block: op.Block) -> Iterator[op.Operator]:
    """A layer's forward less its kept outputs: attention, reduce-scatters, and products 1, 3, ... of the layer.

    In order the products are query, key, value, output, gate, up and down: key, output and up run again.
    """
    tokens, hidden = block.tokens, block.hidden
    again = {
        "attention.qkv": op.Gemm("attention.key", tokens, block.local_kv_heads * block.head_dim, hidden, calls=2),
        "mlp.up": op.Gemm("mlp.up", tokens, block.ffn_width, hidden, calls=2) if block.gated_mlp else None,
    }
    widths = {"attention.qkv": block.qkv_width, "mlp.up": 2 * block.ffn_width}
    kept = {one.name for one in op.attention_core_forward(block)}
    for one in _stopped(op.block_forward(block)):
        layer = one.name.removesuffix(".weight.cast")
        product = again.get(layer)
        if product is not None:
            yield _part(one, product, widths[layer])
        elif layer not in again and one.name not in kept and "reduce_scatter" not in one.name:
            yield one


def _part(one: op.Operator, product: op.Gemm, width: int) -> op.Operator:
    """One product of a projection of `width` columns that stands for several, or the cast of its part of the weight."""
    if isinstance(one, op.MemoryBound):
        return replace(one, bytes_moved=one.bytes_moved * product.n / width)
    return replace(product, fp8=one.fp8, rowwise=one.rowwise) if isinstance(one, op.Gemm) else one
