"""What a stage keeps of the forward pass until the backward pass has used it.

References
----------
[1] Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4 and §5.
[2] Narayanan et al. 2021 (SC21), §2.2 (microbatches in flight).
"""

from dataclasses import replace
from typing import Final

from traincast.memory.context import exchange_bytes, kept_kv_bytes, resident_passes
from traincast.memory.flight import chunks_in_flight, holds_ends, losses_in_flight
from traincast.memory.job import MemoryJob
from traincast.memory.states import parameter_bytes
from traincast.mesh import Mesh
from traincast.model import ModelShape, local_kv_heads, padded_vocab
from traincast.recipe import BYTES_PER_ELEMENT, Recipe
from traincast.schedule import parts_of

LOGIT_BYTES: Final = 2 + 4 + 4
"""A logit: half precision out of the product, a single-precision copy for the loss, its gradient."""


def layer_activation_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """Bytes that one layer keeps of one microbatch until its backward pass, under the recipe's recomputation.

    Notes
    -----
    A plain GPT keeps s·b·h·(10 + 24/t + 5·a·s/(h·t)) without sequence parallelism, 34·s·b·h/t + 5·a·s²·b/t
    with it; selective recomputation drops 5·a·s²·b/t; full recomputation keeps 2·s·b·h (a share of it under
    sequence parallelism). Flash attention keeps one single-precision number a row instead of the scores.
    Context parallelism divides the tokens; keys and values that it gathers and keeps come on top.

    Reference: [1] eq. 1, 2, 4, 6 and §5.
    """
    what, split = recipe.recomputed, _sequence_split(mesh, recipe)
    tokens = local_tokens(mesh, recipe) * _width(recipe)
    kept = what.kept_queries
    full = 2 * tokens * model.hidden / split + (kept * attention_output_bytes(model, mesh, recipe) if kept else 0.0)
    if what.full_every == 1:
        return full
    linear = tokens * (_kept_whole(model, recipe) / split + _kept_split(model, mesh.tp, recipe))
    linear += kept_kv_bytes(model, mesh, recipe)
    if recipe.recompute == "selective":
        return linear
    other = linear + scores_bytes(model, mesh, recipe)
    if "torchtitan" in what.pieces:
        other = _every_second_product_bytes(model, mesh, recipe)
    else:
        other -= _dropped_bytes(model, mesh, recipe)
    share = what.full_layers(model.layers) / model.layers
    return share * full + (1 - share) * other


def _dropped_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """What a layer does not keep because it computes it again: scores, outputs of norms, the MLP's inner tensors."""
    pieces, saved = recipe.recomputed.pieces, _input_bytes(recipe)
    tokens = local_tokens(mesh, recipe) * _width(recipe)
    width = model.ffn_hidden / mesh.tp
    found = scores_bytes(model, mesh, recipe) if "core_attn" in pieces else 0.0
    if "norm" in pieces:
        found += tokens * 2 * saved * model.hidden / _sequence_split(mesh, recipe)
    if "mlp" in pieces:
        return found + tokens * (2 * (model.mlp_matrices - 1) + saved) * width
    return found + (tokens * saved * width if "mlp_act" in pieces else 0.0)


def _every_second_product_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """What a layer keeps where attention, reduce-scatters and every second product are kept (`lower.recompute`).

    Its input; query, value and the attention core's output; the first of the MLP's products, and in a gated MLP the
    last, which a rank has whole before its sum is scattered.
    """
    tokens, split = local_tokens(mesh, recipe) * _width(recipe), _sequence_split(mesh, recipe)
    whole = model.hidden if model.gated_mlp else 0
    scattered = 2 * model.hidden / split if mesh.tp > 1 and recipe.sequence_parallel else 0.0
    heads = 2 * model.attention_width / mesh.tp + local_kv_heads(model, mesh.tp) * model.head_dim
    elements = model.hidden / split + heads + model.ffn_hidden / mesh.tp + whole + scattered
    return 2 * tokens * elements + 4 * local_tokens(mesh, recipe) * model.heads / mesh.tp


def attention_output_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """Output of one layer's attention core, with a single-precision number a row, in half precision."""
    rows = local_tokens(mesh, recipe) * model.heads / mesh.tp
    return rows * (_width(recipe) * 2 * model.head_dim + 4)


def local_tokens(mesh: Mesh, recipe: Recipe) -> float:
    """Tokens of one microbatch on one context-parallel rank."""
    return recipe.microbatch * recipe.sequence / mesh.cp


def scores_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """Scores that one layer keeps: softmax output, dropout mask, dropped-out copy (2 + 1 + 2 bytes)."""
    rows = local_tokens(mesh, recipe) * model.heads / mesh.tp
    if recipe.attention == "flash":
        return 4 * rows
    return (5 if has_dropout(model) else 2) * _width(recipe) * rows * recipe.sequence


def has_dropout(model: ModelShape) -> bool:
    """Whether dropout is on: GPT-like models (with biases) train with it, Llama-like ones do not."""
    return model.biases


def _width(recipe: Recipe) -> float:
    """Activations in units of two bytes: twice as wide where nothing is in half precision."""
    return parameter_bytes(recipe) / 2


def _sequence_split(mesh: Mesh, recipe: Recipe) -> int:
    return mesh.tp if recipe.sequence_parallel else 1


def _input_bytes(recipe: Recipe) -> int:
    """A linear layer's saved input: fp8 stacks keep the quantised copy that the weight gradient reads."""
    return 1 if BYTES_PER_ELEMENT[recipe.precision] == 1 else 2


def _kept_whole(model: ModelShape, recipe: Recipe) -> float:
    """Bytes per token outside TP: inputs of two norms and two column-parallel layers, two dropout masks."""
    return (4 + 2 * _input_bytes(recipe) + (2 if has_dropout(model) else 0)) * model.hidden


def _kept_split(model: ModelShape, tp: int, recipe: Recipe) -> float:
    """Bytes per token and TP rank: queries, keys, values, attention output; the MLP's inner tensors."""
    saved = _input_bytes(recipe)
    output = 2 if saved == 2 else 3  # in fp8 the quantised copy stands beside what the attention kernel keeps
    attention = (2 + output) * model.attention_width / tp + 4 * local_kv_heads(model, tp) * model.head_dim
    return attention + (2 * (model.mlp_matrices - 1) + saved) * model.ffn_hidden / tp


def weight_gradient_share(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """What the weight part of a layer's backward needs, by what the layer keeps for its whole backward.

    Notes
    -----
    Inputs and output gradients of the matrix products: 14 + 18 = 32 s·b·h bytes of the 34·s·b·h + 5·a·s²·b of a plain
    GPT. Above 1 where the layer recomputes its forward pass.

    Reference: Qi et al. 2023 (Zero Bubble), Table 1.
    """
    h, t = model.hidden, mesh.tp
    attention = model.attention_width / t
    projections = attention + 2 * local_kv_heads(model, t) * model.head_dim
    mlp = model.mlp_matrices * model.ffn_hidden / t
    elements = (2 * h / _sequence_split(mesh, recipe) + attention) + (projections + 2 * h) + mlp
    weights = 2 * local_tokens(mesh, recipe) * _width(recipe) * elements
    return weights / layer_activation_bytes(model, mesh, recipe)


def stage_activation_bytes(job: MemoryJob, stage: int, chunks: tuple[int, ...]) -> float:
    """Bytes kept on one stage: layers in flight, embedding dropout in front, norm and head inputs behind."""
    model, mesh, recipe = job.model, job.mesh, job.recipe
    in_flight = chunks_in_flight(recipe, mesh, stage, weight_gradient_share(model, mesh, recipe))
    per_layer = layer_activation_bytes(model, mesh, recipe)
    on_gpu = [resident_passes(count, recipe.offload_activations) for count in in_flight]
    kept = per_layer * sum(count * layers for count, layers in zip(on_gpu, chunks, strict=True))
    hidden = _width(recipe) * local_tokens(mesh, recipe) * model.hidden / _sequence_split(mesh, recipe)
    first, last = holds_ends(job, stage)
    if first and has_dropout(model):
        kept += hidden * in_flight[parts_of(recipe.schedule, mesh.pp, recipe.vpp, stage).index(0)]
    if last:
        kept += 4 * hidden * losses_in_flight(job)
    return kept


def logits_bytes(job: MemoryJob) -> float:
    """Logits and loss; microbatches that wait for their backward pass keep the single-precision copy."""
    logits = local_tokens(job.mesh, job.recipe) * padded_vocab(job.model.vocab, job.mesh.tp) / job.mesh.tp
    return logits * (LOGIT_BYTES + 4 * (losses_in_flight(job) - 1))


def recompute_bytes(job: MemoryJob) -> float:
    """What one layer rebuilds for its backward pass."""
    what = job.recipe.recomputed
    if what.full_every or "torchtitan" in what.pieces:
        return layer_activation_bytes(job.model, job.mesh, replace(job.recipe, recompute="none"))
    return _dropped_bytes(job.model, job.mesh, job.recipe)


def workspace_bytes(job: MemoryJob) -> float:
    """Gradients of activations where a layer's backward pass is widest: scores, or inside the MLP."""
    model, mesh, recipe = job.model, job.mesh, job.recipe
    tokens = local_tokens(mesh, recipe) * _width(recipe)
    scores = 4 * recipe.sequence * model.heads / mesh.tp if recipe.attention == "unfused" else 0.0
    mlp = 2 * model.mlp_matrices * model.ffn_hidden / mesh.tp
    return tokens * (4 * model.hidden + max(scores, mlp)) + exchange_bytes(model, mesh, recipe)
