"""Parameters, gradients and optimiser states of a stage.

References
----------
[1] Rajbhandari et al. 2020, "ZeRO", §5 (shares of parameters, gradients and optimiser states).
[2] Llama Team 2024, "The Llama 3 Herd of Models", §3.3.2 (parameters stay gathered in a pipeline).
"""

from traincast.memory.job import MemoryJob
from traincast.model import StageParameters, head_parameters, layer_parameters
from traincast.recipe import BYTES_PER_ELEMENT, Recipe
from traincast.schedule import chunks_of_model, meets_itself


def parameter_bytes(recipe: Recipe) -> int:
    """Bytes of a parameter as the forward pass reads it; fp8 stacks keep half-precision parameters."""
    return max(2, BYTES_PER_ELEMENT[recipe.precision])


def optimizer_bytes(recipe: Recipe) -> int:
    """Adam's bytes per parameter: two moments, and a single-precision master copy where that differs."""
    return 8 if parameter_bytes(recipe) == 4 else 12


def state_bytes(job: MemoryJob, parameters: int) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and optimiser states, sharded over dp·cp by ZeRO stage ([1] §5).

    In a pipeline gradients stay whole until the last microbatch, whatever the stage (as FSDP runs there).
    """
    mesh, recipe = job.mesh, job.recipe
    shards = weight_copies(job)
    gradient = float(BYTES_PER_ELEMENT[recipe.gradient_dtype])
    if job.overheads.keeps_half_gradients and gradient > parameter_bytes(recipe):
        gradient += parameter_bytes(recipe)
    return (
        parameters * parameter_bytes(recipe) / (shards if recipe.zero_stage >= 3 else 1),
        parameters * gradient / (shards if recipe.zero_stage >= 2 and mesh.pp == 1 else 1),
        parameters * optimizer_bytes(recipe) / (shards if recipe.zero_stage >= 1 else 1),
    )


def weight_copies(job: MemoryJob) -> int:
    """Ranks that hold the same weights: dp x cp, and twice as many where the model runs both ways (DualPipe)."""
    copies = job.recipe.vpp // chunks_of_model(job.recipe.schedule, job.recipe.vpp)
    return job.mesh.dp * job.mesh.cp * copies


def gathered_bytes(job: MemoryJob, held: StageParameters) -> float:
    """ZeRO-3 (FSDP): whole parameters in use, and one layer's whole gradient before it is scattered.

    The layer in use and the one prefetched; in a pipeline the whole stage, because gathering it again for
    every microbatch would cost more ([2]).
    """
    mesh, recipe = job.mesh, job.recipe
    if recipe.zero_stage < 3 or weight_copies(job) == 1:
        return 0.0
    if mesh.pp > 1:
        return float(held.total * parameter_bytes(recipe))
    layer = layer_parameters(job.model, mesh.tp)
    head = head_parameters(job.model, mesh.tp)
    gradient = max(layer, head) * BYTES_PER_ELEMENT[recipe.gradient_dtype]
    return float(max(2 * layer, head + layer) * parameter_bytes(recipe) + gradient)


def step_copy_bytes(job: MemoryJob, parameters: int) -> float:
    """Single-precision copies of half-precision gradients that the optimiser step makes."""
    recipe = job.recipe
    if parameter_bytes(recipe) == 4 or BYTES_PER_ELEMENT[recipe.gradient_dtype] == 4:
        return 0.0
    return 4 * parameters / (weight_copies(job) if recipe.zero_stage >= 1 else 1)


def communicator_bytes(job: MemoryJob) -> float:
    """Buffers of the communicators that carry traffic."""
    mesh = job.mesh
    ends_apart = mesh.pp > 1 and job.model.tied_embeddings and not meets_itself(job.recipe.schedule)
    collective = (mesh.tp > 1, mesh.cp > 1, weight_copies(job) > 1, ends_apart)
    p2p = job.overheads.p2p_buffer_bytes if mesh.pp > 1 else 0.0
    return sum(collective) * job.overheads.collective_buffer_bytes + p2p
