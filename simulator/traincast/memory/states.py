"""Parameters, gradients and optimiser states of a stage.

References
----------
[1] Rajbhandari et al. 2020, "ZeRO", §5 (shares of parameters, gradients and optimiser states).
[2] Llama Team 2024, "The Llama 3 Herd of Models", §3.3.2 (parameters stay gathered in a pipeline).
"""

from dataclasses import replace

from traincast.memory.job import MemoryJob, parameter_bytes
from traincast.memory.sharding import sharding
from traincast.model import StageParameters, layer_parameters, local_kv_heads, padded_vocab, stage_parameters
from traincast.recipe import BYTES_PER_ELEMENT, Recipe
from traincast.schedule import meets_itself


def held_parameters(job: MemoryJob, layers: int, *, first: bool, last: bool) -> StageParameters:
    """Parameters of one rank of a stage, with as many words in its embedding and head as its logits have."""
    held = stage_parameters(job.model, job.mesh.tp, layers, first=first, last=last)
    spare = (padded_vocab(job.model.vocab, job.mesh.tp) // job.mesh.tp - job.words) * job.model.hidden
    return replace(held, embedding=held.embedding - spare * first, head=held.head - spare * (held.head > 0))


def optimizer_bytes(recipe: Recipe) -> int:
    """Adam's bytes per parameter: two moments, and a single-precision master copy where that differs."""
    return 8 if parameter_bytes(recipe) == 4 else 12


def weight_bytes(job: MemoryJob, held: StageParameters) -> float:
    """Bytes of a stage's parameters as the passes read them: where an fp8 run has its layers' matrices in fp8, that
    many copies of a byte each, in mxfp8 one for each axis, with its scales; embedding, head and norms stay in half
    precision."""
    copies = job.overheads.fp8_copies if job.recipe.in_fp8 else 0
    copies = 2 if copies and job.recipe.precision == "mxfp8" else copies
    each = copies * job.fp8_bytes if copies else job.pass_bytes
    return float(held.layers * each + (held.total - held.layers) * job.pass_bytes)


def gathered_weight_bytes(job: MemoryJob, held: StageParameters) -> float:
    """The same of parameters that ZeRO-3 has gathered: those of layers may come in fp8 (`fp8_gather`)."""
    if not job.recipe.in_fp8 or not job.recipe.fp8_gather or job.autocast or job.overheads.fp8_copies:
        return weight_bytes(job, held)
    return held.layers * job.fp8_bytes + float((held.total - held.layers) * job.pass_bytes)


def state_bytes(job: MemoryJob, held: StageParameters) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and optimiser states, sharded by ZeRO stage ([1] §5).

    Gradients that are not reduced behind each microbatch stay whole until the last one, whatever the stage (as FSDP
    runs in a pipeline, and under no_sync). Where ZeRO-3 shards the master copy, or the passes read single precision
    (torch.autocast), the optimiser has no other.
    """
    recipe, how, parameters = job.recipe, sharding(job.mesh, job.recipe), held.total
    shards = how.shards
    one_copy = job.autocast or (recipe.zero_stage >= 3 and job.overheads.shards_master)
    gradient = float(BYTES_PER_ELEMENT[recipe.gradient_dtype])
    if job.overheads.keeps_half_gradients and gradient > job.pass_bytes:
        gradient += job.pass_bytes
    found = (
        (4.0 * parameters if one_copy else weight_bytes(job, held)) / (shards if recipe.zero_stage >= 3 else 1),
        parameters * gradient / (shards if recipe.zero_stage >= 2 and how.reduces_each else 1),
        parameters * (8 if one_copy else optimizer_bytes(recipe)) / (shards if recipe.zero_stage >= 1 else 1),
    )
    if recipe.offload_states == "none":
        return found
    # on the host are the optimiser's states, gradients that arrive microbatch by microbatch, and sharded parameters
    return 0.0 if recipe.offload_states == "parameters" else found[0], 0.0 if how.reduces_each else found[1], 0.0


def gathered_bytes(job: MemoryJob, held: StageParameters) -> tuple[float, float]:
    """Whole parameters in use under ZeRO-3 (FSDP), and whole gradients of one unit before they are scattered.

    ZeRO-2 has such gradients as well where it reduces them behind each microbatch.

    The root (embedding, head and final norm) from the forward pass on, the layer in use and those prefetched; all
    layers where they are not dropped after the forward pass, as in a pipeline, where gathering them again for every
    microbatch would cost more ([2]). When layers begin their backward pass, gradients are there of the head, which
    waits for the rest of the root, and of one layer, as computed and in the buffer that is reduced (in a pipeline only
    as computed: then they are added to the others).
    Where matrices are fetched one by one (DeepSpeed), it is the largest one, what is fetched ahead, and its gradient,
    which is reduced where it is. Ahead it counts elements, and `prefetch_bytes` those of half precision.
    """
    recipe, how = job.recipe, sharding(job.mesh, job.recipe)
    if how.gathers not in ("step", "pass"):
        scatters = recipe.zero_stage == 2 and how.reduces_each and how.shards > 1
        return 0.0, _unscattered_bytes(job, held) if scatters else 0.0
    if recipe.prefetch_bytes is not None and how.again:
        width = gathered_weight_bytes(job, StageParameters(1, 0, 0, 0))
        layers, vocabulary = largest_matrix(job), job.words * job.model.hidden
        ahead = recipe.prefetch_bytes * width / 2 * min(recipe.gathers_ahead, 1)
        gradient = float(max(layers, vocabulary) * job.pass_bytes)
        return max(layers * width, vocabulary * job.pass_bytes) + ahead, gradient
    layer = layer_parameters(job.model, job.mesh.tp)
    layers = min(held.layers, layer * (1 + recipe.gathers_ahead)) if how.again else held.layers
    gathered = gathered_weight_bytes(job, replace(held, layers=layers))
    if not how.reduces_each:
        return gathered, float(layer * job.pass_bytes)
    return gathered, _unscattered_bytes(job, held)


def _unscattered_bytes(job: MemoryJob, held: StageParameters) -> float:
    """Gradients of the head and of one layer, these as computed and in the buffer that is reduced."""
    recipe, root = job.recipe, held.total - held.layers
    layer = min(held.layers, layer_parameters(job.model, job.mesh.tp))
    head = held.head or min(root, job.words * job.model.hidden)
    return float(head * job.pass_bytes + layer * (job.pass_bytes + recipe.reduce_bytes))


def largest_matrix(job: MemoryJob) -> int:
    """Elements of a layer's largest weight on a rank: query, key and value together, or one of the MLP."""
    model, tp = job.model, job.mesh.tp
    projections = model.attention_width // tp + 2 * local_kv_heads(model, tp) * model.head_dim
    return model.hidden * max(projections, model.ffn_hidden // tp)


def step_copy_bytes(job: MemoryJob, parameters: int) -> tuple[float, float]:
    """Single-precision copies of half-precision gradients that the optimiser step makes: one by one, and flat.

    Those of single parameters find room where the activations were; a flat one of all of them is larger than any block
    that these have left, and comes on top.
    """
    recipe, shards = job.recipe, sharding(job.mesh, job.recipe).shards
    if job.pass_bytes == 4 or BYTES_PER_ELEMENT[recipe.gradient_dtype] == 4:
        return 0.0, 0.0
    each = 4 * parameters / shards
    return each, each if job.overheads.flat_gradients and recipe.zero_stage == 0 else 0.0


def communicator_bytes(job: MemoryJob) -> float:
    """Buffers of the communicators that carry traffic."""
    mesh = job.mesh
    ends_apart = mesh.pp > 1 and job.model.tied_embeddings and not meets_itself(job.recipe.schedule)
    how = sharding(mesh, job.recipe)
    groups_apart = how.replicas > 1 < how.shards
    collective = (mesh.tp > 1, mesh.cp > 1, how.copies > 1, groups_apart, ends_apart)
    p2p = job.overheads.p2p_buffer_bytes if mesh.pp > 1 else 0.0
    return sum(collective) * job.overheads.collective_buffer_bytes + p2p
