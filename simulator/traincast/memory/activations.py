"""What a stage keeps of the forward pass until the backward pass has used it.

References
----------
[1] Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4 and §5.
[2] Narayanan et al. 2021 (SC21), §2.2 (microbatches in flight).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from traincast.memory.context import exchange_bytes, kept_kv_bytes
from traincast.memory.job import MemoryJob
from traincast.memory.states import parameter_bytes
from traincast.mesh import Mesh
from traincast.model import ModelShape, local_kv_heads, padded_vocab
from traincast.recipe import BYTES_PER_ELEMENT, Recipe
from traincast.schedule import chunks_of_model, parts_of, stages_of


def layer_activation_bytes(
    model: ModelShape, mesh: Mesh, recipe: Recipe, *, dropout: bool | None = None, whole: float | None = None
) -> float:
    """Bytes that one layer keeps of one microbatch until its backward pass, under the recipe's recomputation.

    `dropout`: whether masks are among them (None: where the model has biases, `MemoryJob.dropout`). `whole`: the share
    of the layers that is recomputed whole, where every n-th is (None: as a rank that has all layers counts).

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
    full += kept_kv_bytes(model, mesh, recipe, whole=True)
    if what.kept_qkv:
        full += 2 * tokens * (model.attention_width + 2 * model.kv_width) / mesh.tp
    if what.full_every == 1:
        return full
    masked = model.biases if dropout is None else dropout
    outside = _kept_whole(model, recipe) + (2 * model.hidden if masked else 0)
    linear = tokens * (outside / split + _kept_split(model, mesh.tp, recipe))
    gathered = kept_kv_bytes(model, mesh, recipe)
    linear += gathered
    if recipe.recompute == "selective":
        return linear
    other = linear + scores_bytes(model, mesh, recipe, dropout=masked)
    if "torchtitan" in what.pieces:
        other = _every_second_product_bytes(model, mesh, recipe) + gathered
    else:
        other -= _dropped_bytes(model, mesh, recipe, dropout=masked)
    share = what.full_layers(model.layers) / model.layers if whole is None else whole
    return share * full + (1 - share) * other


def layers_activation_bytes(job: MemoryJob, layers: int, before: int = 0) -> float:
    """The same of some layers in a row, behind the `before` that their rank has counted (`layers_before`)."""
    if layers == 0:
        return 0.0
    whole = job.recipe.recomputed.full_layers(layers, before) / layers
    return layers * layer_activation_bytes(job.model, job.mesh, job.recipe, dropout=job.dropout, whole=whole)


def layers_before(mesh: Mesh, recipe: Recipe, parts: Sequence[int]) -> tuple[int, ...]:
    """How many layers the rank of each part of the model counts before it, in the order of its chunks, less multiples
    of n where every n-th is recomputed: 0 for all other recomputation.

    `parts` counts the layers of each. Where two copies of the model run, each counts its own.
    """
    name, p, v = recipe.schedule, mesh.pp, recipe.vpp
    if recipe.recomputed.full_every < 2 or chunks_of_model(name, v) == 1:
        return (0,) * len(parts)
    places = (stages_of(name, p, v, part)[0] for part in range(len(parts)))
    held = ((parts[i] for i in parts_of(name, p, v, stage)[:chunk]) for stage, chunk in places)
    return tuple(sum(layers) % recipe.recomputed.full_every for layers in held)


def chunks_before(recipe: Recipe, chunks: Sequence[int]) -> tuple[int, ...]:
    """The same for the chunks of a stage, by their layers."""
    every = recipe.recomputed.full_every
    if every < 2 or chunks_of_model(recipe.schedule, recipe.vpp) == 1:
        return (0,) * len(chunks)
    return tuple(so_far % every for so_far in accumulate(chunks[:-1], initial=0))


def _dropped_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe, *, dropout: bool) -> float:
    """What a layer does not keep because it computes it again: scores, outputs of norms, the MLP's inner tensors."""
    pieces, saved = recipe.recomputed.pieces, _input_bytes(recipe)
    tokens = local_tokens(mesh, recipe) * _width(recipe)
    width = model.ffn_hidden / mesh.tp
    found = scores_bytes(model, mesh, recipe, dropout=dropout) if "core_attn" in pieces else 0.0
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


def scores_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe, *, dropout: bool = True) -> float:
    """Scores that one layer keeps: softmax output, and with dropout its mask and a dropped-out copy (2 + 1 + 2)."""
    rows = local_tokens(mesh, recipe) * model.heads / mesh.tp
    if recipe.attention == "flash":
        return 4 * rows
    return (5 if dropout else 2) * _width(recipe) * rows * recipe.sequence


def _width(recipe: Recipe) -> float:
    """Activations in units of two bytes: twice as wide where nothing is in half precision."""
    return parameter_bytes(recipe) / 2


def _sequence_split(mesh: Mesh, recipe: Recipe) -> int:
    return mesh.tp if recipe.sequence_parallel else 1


def _input_bytes(recipe: Recipe) -> int:
    """A linear layer's saved input: fp8 stacks keep the quantised copy that the weight gradient reads."""
    return 1 if BYTES_PER_ELEMENT[recipe.precision] == 1 else 2


def _kept_whole(model: ModelShape, recipe: Recipe) -> float:
    """Bytes per token outside TP: inputs of two norms and two column-parallel layers, without dropout masks."""
    return (4 + 2 * _input_bytes(recipe)) * model.hidden


def _kept_split(model: ModelShape, tp: int, recipe: Recipe) -> float:
    """Bytes per token and TP rank: queries, keys, values, attention output; the MLP's inner tensors."""
    saved = _input_bytes(recipe)
    output = 2 if saved == 2 else 3  # in fp8 the quantised copy stands beside what the attention kernel keeps
    attention = (2 + output) * model.attention_width / tp + 4 * local_kv_heads(model, tp) * model.head_dim
    return attention + (2 * (model.mlp_matrices - 1) + saved) * model.ffn_hidden / tp


def weight_gradient_share(model: ModelShape, mesh: Mesh, recipe: Recipe, *, dropout: bool | None = None) -> float:
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
    return weights / layer_activation_bytes(model, mesh, recipe, dropout=dropout)


def hidden_bytes(job: MemoryJob) -> float:
    """One tensor of the width between layers, of one microbatch, as a rank keeps it."""
    tokens = local_tokens(job.mesh, job.recipe) * _width(job.recipe)
    return 2 * tokens * job.model.hidden / _sequence_split(job.mesh, job.recipe)


def logits_bytes(job: MemoryJob, waiting: float = 1.0, due: float = 0.0) -> float:
    """Logits and loss of the microbatches that a stage with the head has in flight.

    Of those `waiting` for their backward pass one is at its loss, the others keep the single-precision copy, or the
    half-precision logits where the loss reads these (`Overheads.logit_bytes`). Those whose weight part is `due` keep
    the gradient of the logits in half precision: with the head's input, which counts among the activations, that is
    what the product for its weight gradient multiplies.
    """
    each = job.overheads.logit_bytes
    logits = local_tokens(job.mesh, job.recipe) * padded_vocab(job.model.vocab, job.mesh.tp) / job.mesh.tp
    at_loss = min(waiting, 1.0)
    return logits * (each * at_loss + min(4.0, each / 2) * (waiting - at_loss) + 2 * _width(job.recipe) * due)


def backward_bytes(job: MemoryJob) -> tuple[float, float]:
    """What one layer's backward pass adds at its widest: what is computed again for it, and gradients of activations.

    Inside the MLP these are the gradients of its tensors, beside all that the layer has. When attention's scores have
    theirs, the MLP is done, and what it kept is gone: a layer with wide scores is widest then, others before.
    """
    model, mesh, recipe = job.model, job.mesh, job.recipe
    tokens = local_tokens(mesh, recipe) * _width(recipe)
    scores = 4 * recipe.sequence * model.heads / mesh.tp if recipe.attention == "unfused" else 0.0
    mlp = 2 * model.mlp_matrices * model.ffn_hidden / mesh.tp
    early, late = _rebuilt_bytes(job)
    at_mlp = early + tokens * mlp
    at_scores = late + tokens * (scores - _mlp_kept(job))
    again = early if at_mlp >= at_scores else late
    widest = max(at_mlp, at_scores)
    gradients = max(0.0, widest - again)
    around = 4 * tokens * model.hidden + exchange_bytes(model, mesh, recipe, by_block=job.overheads.cp_by_block)
    return widest - gradients, gradients + around


def _rebuilt_bytes(job: MemoryJob) -> tuple[float, float]:
    """What of a layer is computed again by the time that its MLP's backward pass runs, and attention's."""
    what = job.recipe.recomputed
    if what.full_every or "torchtitan" in what.pieces:
        plain = replace(job.recipe, recompute="none")
        all_of_it = layer_activation_bytes(job.model, job.mesh, plain, dropout=job.dropout)
        return all_of_it, all_of_it
    dropped = _dropped_bytes(job.model, job.mesh, job.recipe, dropout=job.dropout)
    if "core_attn" not in what.pieces:
        return dropped, dropped
    return dropped - scores_bytes(job.model, job.mesh, job.recipe, dropout=job.dropout), dropped


def _mlp_kept(job: MemoryJob) -> float:
    """Bytes per token that one layer's MLP has kept: its input, what is between its matrices, a dropout mask."""
    model, recipe = job.model, job.recipe
    saved = _input_bytes(recipe)
    inner = (2 * (model.mlp_matrices - 1) + saved) * model.ffn_hidden / job.mesh.tp
    return inner + (saved + (1 if job.dropout else 0)) * model.hidden / _sequence_split(job.mesh, recipe)
