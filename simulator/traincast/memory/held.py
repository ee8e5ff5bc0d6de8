"""What a stage holds at its fullest moment, by what its passes keep and how many of them are in flight.

References
----------
[1] Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.3.
[2] Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §2 and Table 1 (what W needs).
"""

from dataclasses import dataclass

import numpy as np

from traincast.memory.activations import (
    chunks_before,
    hidden_bytes,
    layer_bytes,
    layers_activation_bytes,
    logits_bytes,
    stream_bytes,
    weight_share,
)
from traincast.memory.flight import Floats, Moments, holds_ends, moments
from traincast.memory.job import MemoryJob
from traincast.memory.offload import leaving, resident_bytes
from traincast.schedule import model_parts, parts_of


@dataclass(frozen=True)
class Held:
    """Activations and logits [bytes] at one moment; `loss_bytes` of the logits are gone before the layers' backward
    pass runs: those of the microbatch at its loss, but for the gradient that a W still needs."""

    activations_bytes: float
    logits_bytes: float
    loss_bytes: float


def stage_held(job: MemoryJob, stage: int, chunks: tuple[int, ...], backward: float = 0.0) -> Held:
    """What a stage with `chunks` layers holds at its fullest moment, with the `backward` bytes that a layer's backward
    pass adds once the loss is done."""
    mesh, recipe = job.mesh, job.recipe
    share = weight_share(job)
    found = moments(recipe, mesh, stage, share, job.order)
    layer = layer_bytes(job)
    before = chunks_before(recipe, chunks)
    pass_bytes = [layers_activation_bytes(job, *one) for one in zip(chunks, before, strict=True)]
    away = (False,) * len(chunks)
    if recipe.offload_activations:
        away = leaving((recipe.schedule, mesh.pp, max(1, recipe.microbatches(mesh.dp)), recipe.vpp))[stage]
    layers = resident_bytes(found.waiting, pass_bytes, away, recipe.offload_activations)
    # what is due came back for its input part, and stays
    kept = layers + share * layer * (found.due @ np.array(chunks, dtype=np.float64)) + _ends(job, stage, found)
    waiting, due = _at_head(job, stage, found)
    at_loss, gradient = np.minimum(waiting, 1.0), logits_bytes(job, 0.0, 1.0)
    logits = logits_bytes(job) * at_loss + gradient * due
    logits += (logits_bytes(job, 2.0) - logits_bytes(job)) * (waiting - at_loss)
    loss = (logits_bytes(job) - (gradient if found.due.any() else 0.0)) * at_loss
    fullest = int((kept + logits + np.maximum(0.0, backward - loss)).argmax())
    return Held(float(kept[fullest]), float(logits[fullest]), float(loss[fullest]))


def _ends(job: MemoryJob, stage: int, found: Moments) -> Floats:
    """What embedding and head keep beside the layers, by moment.

    A pass keeps the mask of the embedding's dropout, and the inputs of the final norm and of the head ([1]). One whose
    W is due keeps the gradient of the embedding's output as well, because all of the embedding's backward is in W
    (`lower.split`), and of the head the input alone: the gradient of its output is among the logits.
    """
    name, pp, v = job.recipe.schedule, job.mesh.pp, job.recipe.vpp
    hidden, stream, parts = hidden_bytes(job), stream_bytes(job), parts_of(name, pp, v, stage)
    first, last = holds_ends(job, stage)
    kept = np.zeros(len(found.due))
    if first:
        at, mask = parts.index(0), hidden / 2 if job.dropout else 0.0
        kept += mask * found.waiting[:, at] + (mask + stream) * found.due[:, at]
    if last:
        at = parts.index(model_parts(name, pp, v) - 1)
        kept += (stream + hidden) * found.waiting[:, at] + hidden * found.due[:, at]
    return kept


def _at_head(job: MemoryJob, stage: int, found: Moments) -> tuple[Floats, Floats]:
    """Microbatches by moment that wait behind the head, and whose W is due there; none on a stage without it."""
    name, pp, v = job.recipe.schedule, job.mesh.pp, job.recipe.vpp
    if not holds_ends(job, stage)[1]:
        return np.zeros(len(found.due)), np.zeros(len(found.due))
    at = parts_of(name, pp, v, stage).index(model_parts(name, pp, v) - 1)
    return found.waiting[:, at], found.due[:, at]
