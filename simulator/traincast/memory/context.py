"""What context parallelism changes about activations."""

from traincast.memory.job import MemoryJob
from traincast.mesh import Mesh
from traincast.model import ModelShape, local_kv_heads
from traincast.recipe import Recipe


def kept_kv_bytes(job: MemoryJob, *, whole: bool = False) -> float:
    """Gathered keys and values that a layer keeps of one microbatch from its forward to its backward pass [bytes].

    In half precision; without `cp_keep_kv` none, because the backward pass gathers them again. With it that pass takes
    what is there, so that the layer keeps what its recomputation does not gather: nothing where the attention core runs
    again; where a layer recomputed `whole` keeps the output of the last queries of each sequence, their part of the
    keys; else all. Its own tokens' keys and values are among what the layer keeps anyway. Where they are repeated for
    every query head before they are gathered, they are kept so.
    """
    model, mesh, recipe = job.model, job.mesh, job.recipe
    if recipe.cp_kind != "allgather" or not recipe.cp_keep_kv:
        return 0.0
    what = recipe.recomputed
    share = what.kept_queries if whole else float("core_attn" not in what.pieces)
    return share * 2.0 * job.kv_repeats * _kv_elements(model, mesh, recipe) * (mesh.cp - 1) / mesh.cp


def exchange_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe, *, by_block: bool = False) -> float:
    """Buffers of the exchange in one layer's backward pass, in half precision.

    Gathered keys, values and their gradients; or the blocks of a ring with their gradients, one coming in and one
    going out, and the gradient of the queries in single precision; or what an exchange of heads sends and receives.
    What is gathered `by_block` has a head for every query head, and gradients as a ring has, in single precision.
    """
    if mesh.cp == 1:
        return 0.0
    kv, ulysses = _kv_elements(model, mesh, recipe), recipe.ulysses(mesh.cp)
    queries = recipe.microbatch * recipe.sequence / mesh.cp * model.attention_width / mesh.tp
    heads = 2 * 2.0 * (queries + kv / mesh.cp) if ulysses > 1 else 0.0
    if ulysses == mesh.cp:
        return heads
    if by_block and recipe.cp_kind == "allgather":
        repeated = kv * model.heads / mesh.tp / local_kv_heads(model, mesh.tp)
        return 2.0 * repeated + 2 * 4.0 * repeated / mesh.cp + 4.0 * queries
    blocks = 2 * 2.0 * kv if recipe.cp_kind == "allgather" else 2 * 4.0 * kv / mesh.cp + 4.0 * queries
    return blocks + heads


def _kv_elements(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """Keys and values of all tokens of a microbatch on one tensor-parallel rank."""
    return 2.0 * recipe.microbatch * recipe.sequence * local_kv_heads(model, mesh.tp) * model.head_dim
