"""What a stage keeps of the forward pass until the backward pass has used it.

References
----------
[1] Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4 and §5.
[2] Narayanan et al. 2021 (SC21), §2.2 (microbatches in flight).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from traincast.memory.context import exchange_bytes, kept_kv_bytes
from traincast.memory.job import MemoryJob, Overheads, parameter_bytes
from traincast.mesh import Mesh
from traincast.model import ModelShape, local_kv_heads
from traincast.model.casts import Scaling
from traincast.recipe import Recipe
from traincast.schedule import chunks_of_model, parts_of, stages_of

READS_HALF_AGAIN: Final[frozenset[Scaling]] = frozenset({"rowwise", "block_twice"})
"""Scalings to fp8 whose weight gradients cast a layer's input once more, from half precision (`model.casts`)."""


def layer_activation_bytes(
    model: ModelShape, mesh: Mesh, recipe: Recipe, *, dropout: bool | None = None, whole: float | None = None
) -> float:
    """What `layer_bytes` says of a stack of which only `dropout` is known."""
    return layer_bytes(MemoryJob(model, mesh, recipe, Overheads(dropout=dropout)), whole)


def layer_bytes(job: MemoryJob, whole: float | None = None) -> float:
    """Bytes that one layer keeps of one microbatch until its backward pass, under the recipe's recomputation.

    `whole`: the share of the layers that is recomputed whole, where every n-th is (None: as a rank that has all layers
    counts).

    Notes
    -----
    A plain GPT keeps s·b·h·(10 + 24/t + 5·a·s/(h·t)) without sequence parallelism, 34·s·b·h/t + 5·a·s²·b/t
    with it; selective recomputation drops 5·a·s²·b/t; full recomputation keeps 2·s·b·h (a share of it under
    sequence parallelism). Flash attention keeps one single-precision number a row instead of the scores.
    Context parallelism divides the tokens; keys and values that it gathers and keeps come on top.
    Under torch.autocast the inputs of norms are single precision, and products keep the half-precision copies of their
    weights as well.

    Reference: [1] eq. 1, 2, 4, 6 and §5.
    """
    model, mesh, recipe = job.model, job.mesh, job.recipe
    what, split = recipe.recomputed, _sequence_split(mesh, recipe)
    tokens = local_tokens(mesh, recipe) * _width(recipe)
    kept = what.kept_queries
    full = stream_bytes(job) + (kept * attention_output_bytes(model, mesh, recipe) if kept else 0.0)
    full += kept_kv_bytes(job, whole=True)
    if what.kept_qkv:
        full += 2 * tokens * (model.attention_width + 2 * model.kv_width) / mesh.tp
    if what.full_every == 1:
        return full
    outside = _kept_whole(job) + (2 * model.hidden if job.dropout else 0)
    gathered = kept_kv_bytes(job)
    linear = tokens * (outside / split + _kept_split(job)) + _weight_copies_bytes(job) + gathered
    if recipe.recompute == "selective":
        return linear
    if "torchtitan" in what.pieces:
        other = _every_second_product_bytes(job) + gathered
    else:
        other = linear + scores_bytes(model, mesh, recipe, dropout=job.dropout) - _dropped_bytes(job)
    share = what.full_layers(model.layers) / model.layers if whole is None else whole
    return share * full + (1 - share) * other


def layers_activation_bytes(job: MemoryJob, layers: int, before: int = 0) -> float:
    """The same of some layers in a row, behind the `before` that their rank has counted (`layers_before`)."""
    if layers == 0:
        return 0.0
    whole = job.recipe.recomputed.full_layers(layers, before) / layers
    return layers * layer_bytes(job, whole)


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


def _dropped_bytes(job: MemoryJob) -> float:
    """What a layer does not keep because it computes it again: scores, outputs of norms, the MLP's inner tensors."""
    model, mesh, recipe = job.model, job.mesh, job.recipe
    pieces, saved = recipe.recomputed.pieces, _input_bytes(job)
    tokens = local_tokens(mesh, recipe) * _width(recipe)
    width = model.ffn_hidden / mesh.tp
    found = scores_bytes(model, mesh, recipe, dropout=job.dropout) if "core_attn" in pieces else 0.0
    if "norm" in pieces:
        found += tokens * 2 * saved * model.hidden / _sequence_split(mesh, recipe)
    if "mlp" in pieces:
        return found + tokens * (2 * (model.mlp_matrices - 1) + saved) * width
    return found + (tokens * saved * width if "mlp_act" in pieces else 0.0)


def _every_second_product_bytes(job: MemoryJob) -> float:
    """What a layer keeps where attention, reduce-scatters and every second product are kept (`lower.recompute`).

    Its input; query, value and the attention core's output; the first of the MLP's products, and in a gated MLP the
    last, which a rank has whole before its sum is scattered.
    """
    model, mesh, recipe = job.model, job.mesh, job.recipe
    tokens, split = local_tokens(mesh, recipe) * _width(recipe), _sequence_split(mesh, recipe)
    whole = model.hidden if model.gated_mlp else 0
    scattered = 2 * model.hidden / split if mesh.tp > 1 and recipe.sequence_parallel else 0.0
    heads = 2 * model.attention_width / mesh.tp + local_kv_heads(model, mesh.tp) * model.head_dim
    elements = heads + model.ffn_hidden / mesh.tp + whole + scattered
    return stream_bytes(job) + 2 * tokens * elements + 4 * local_tokens(mesh, recipe) * model.heads / mesh.tp


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


def _input_bytes(job: MemoryJob) -> float:
    """A linear layer's saved input: fp8 stacks keep the quantised copy that the weight gradient reads, if it does not
    quantise the input once more, along the other axis."""
    return job.fp8_bytes if job.recipe.in_fp8 and job.scaling not in READS_HALF_AGAIN else 2.0


def _kept_whole(job: MemoryJob) -> float:
    """Bytes per token outside TP: inputs of two norms and two column-parallel layers, without dropout masks."""
    return 2 * (_stream_width(job) + _input_bytes(job)) * job.model.hidden


def _kept_split(job: MemoryJob) -> float:
    """Bytes per token and TP rank: queries, keys, values, attention output; the MLP's inner tensors."""
    model, tp, saved = job.model, job.mesh.tp, _input_bytes(job)
    # in fp8 the quantised copy stands beside what the attention kernel keeps
    output = 2 if saved == 2 else 2 + saved
    kv = job.kv_repeats * local_kv_heads(model, tp) * model.head_dim
    attention = (2 + output) * model.attention_width / tp + 4 * kv
    return attention + (2 * (model.mlp_matrices - 1) + saved) * model.ffn_hidden / tp


def _stream_width(job: MemoryJob) -> float:
    """Bytes of the residual stream's elements, the inputs of norms, in the units of `_width`."""
    return 4.0 if job.autocast else 2.0


def _weight_copies_bytes(job: MemoryJob) -> float:
    """Half-precision copies of a layer's matrices, which under torch.autocast each product makes and its backward pass
    reads. Other stacks have them among the parameters."""
    if not job.autocast:
        return 0.0
    model, tp = job.model, job.mesh.tp
    columns = 2 * model.attention_width + 2 * local_kv_heads(model, tp) * tp * model.head_dim
    return 2 * model.hidden * columns / tp + _mlp_copies_bytes(job)


def _mlp_copies_bytes(job: MemoryJob) -> float:
    """Those of its MLP."""
    model = job.model
    return 2 * model.mlp_matrices * model.hidden * model.ffn_hidden / job.mesh.tp if job.autocast else 0.0


def weight_gradient_share(model: ModelShape, mesh: Mesh, recipe: Recipe, *, dropout: bool | None = None) -> float:
    """What `weight_share` says of a stack of which only `dropout` is known."""
    return weight_share(MemoryJob(model, mesh, recipe, Overheads(dropout=dropout)))


def weight_share(job: MemoryJob) -> float:
    """What the weight part of a layer's backward needs, by what the layer keeps for its whole backward.

    Notes
    -----
    Inputs and output gradients of the matrix products: 14 + 18 = 32 s·b·h bytes of the 34·s·b·h + 5·a·s²·b of a plain
    GPT. Above 1 where the layer recomputes its forward pass.

    Reference: Qi et al. 2023 (Zero Bubble), Table 1.
    """
    model, mesh, recipe = job.model, job.mesh, job.recipe
    h, t = model.hidden, mesh.tp
    attention = model.attention_width / t
    projections = attention + 2 * local_kv_heads(model, t) * model.head_dim
    mlp = model.mlp_matrices * model.ffn_hidden / t
    elements = (2 * h / _sequence_split(mesh, recipe) + attention) + (projections + 2 * h) + mlp
    weights = 2 * local_tokens(mesh, recipe) * _width(recipe) * elements
    return weights / layer_bytes(job)


def hidden_bytes(job: MemoryJob) -> float:
    """One tensor of the width between layers, of one microbatch, as products read it and a rank keeps it."""
    tokens = local_tokens(job.mesh, job.recipe) * _width(job.recipe)
    return 2 * tokens * job.model.hidden / _sequence_split(job.mesh, job.recipe)


def stream_bytes(job: MemoryJob) -> float:
    """The residual stream of one microbatch between two layers, or the gradient of it, as a rank keeps it."""
    return hidden_bytes(job) * _stream_width(job) / 2


def logits_bytes(job: MemoryJob, waiting: float = 1.0, due: float = 0.0) -> float:
    """Logits and loss of the microbatches that a stage with the head has in flight.

    Of those `waiting` for their backward pass one is at its loss, the others keep the single-precision copy, or the
    half-precision logits where the loss reads these (`Overheads.logit_bytes`). Those whose weight part is `due` keep
    the gradient of the logits in half precision: with the head's input, which counts among the activations, that is
    what the product for its weight gradient multiplies. Until its backward pass, which begins at the loss, the head
    keeps the half-precision copy of its matrix that torch.autocast makes.
    """
    each = job.overheads.logit_bytes
    logits = local_tokens(job.mesh, job.recipe) * job.words
    at_loss = min(waiting, 1.0)
    copies = 2.0 * job.words * job.model.hidden * waiting if job.autocast else 0.0
    kept = each * at_loss + min(4.0, each / 2) * (waiting - at_loss)
    return logits * (kept + 2 * _width(job.recipe) * due) + copies


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
    at_scores = late + tokens * scores - _mlp_kept_bytes(job)
    again = early if at_mlp >= at_scores else late
    widest = max(at_mlp, at_scores)
    gradients = max(0.0, widest - again)
    around = 2 * _stream_width(job) * tokens * model.hidden
    around += exchange_bytes(model, mesh, recipe, by_block=job.overheads.cp_by_block)
    return widest - gradients, gradients + around


def _rebuilt_bytes(job: MemoryJob) -> tuple[float, float]:
    """What of a layer is computed again by the time that its MLP's backward pass runs, and attention's."""
    what = job.recipe.recomputed
    if what.full_every or "torchtitan" in what.pieces:
        all_of_it = layer_bytes(replace(job, recipe=replace(job.recipe, recompute="none")))
        return all_of_it, all_of_it
    dropped = _dropped_bytes(job)
    if "core_attn" not in what.pieces:
        return dropped, dropped
    return dropped - scores_bytes(job.model, job.mesh, job.recipe, dropout=job.dropout), dropped


def _mlp_kept_bytes(job: MemoryJob) -> float:
    """Bytes that one layer's MLP has kept: its input, what is between its matrices, a dropout mask, copies of these
    matrices."""
    model, recipe, saved = job.model, job.recipe, _input_bytes(job)
    tokens = local_tokens(job.mesh, recipe) * _width(recipe)
    inner = (2 * (model.mlp_matrices - 1) + saved) * model.ffn_hidden / job.mesh.tp
    around = (saved + (1 if job.dropout else 0)) * model.hidden / _sequence_split(job.mesh, recipe)
    return tokens * (inner + around) + _mlp_copies_bytes(job)
