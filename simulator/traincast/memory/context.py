"""What context parallelism and copies to the host change about activations."""

from typing import Final

from traincast.mesh import Mesh
from traincast.model import ModelShape, local_kv_heads
from traincast.recipe import Recipe

PASSES_BESIDE_COPIES: Final = 2.0
"""Passes whose activations are whole on the GPU however much is offloaded: one on its way out, one on its way in."""


def resident_passes(in_flight: float, offloaded: float) -> float:
    """Forward passes in flight, counted as what of them is on the GPU when a share of each is in the host's memory."""
    return (1.0 - offloaded) * in_flight + offloaded * min(in_flight, PASSES_BESIDE_COPIES)


def kept_kv_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """Keys and values of other ranks that a layer keeps of one microbatch for its backward pass, in half precision."""
    if recipe.cp_kind != "allgather" or not recipe.cp_keep_kv or recipe.recompute != "none":
        return 0.0
    return 2.0 * _kv_elements(model, mesh, recipe) * (mesh.cp - 1) / mesh.cp


def exchange_bytes(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """Buffers of the exchange in one layer's backward pass, in half precision.

    Gathered keys, values and their gradients; or the blocks of a ring with their gradients, one coming in and one
    going out, and the gradient of the queries in single precision; or what an exchange of heads sends and receives.
    """
    if mesh.cp == 1:
        return 0.0
    kv, ulysses = _kv_elements(model, mesh, recipe), recipe.ulysses(mesh.cp)
    queries = recipe.microbatch * recipe.sequence / mesh.cp * model.attention_width / mesh.tp
    heads = 2 * 2.0 * (queries + kv / mesh.cp) if ulysses > 1 else 0.0
    if ulysses == mesh.cp:
        return heads
    blocks = 2 * 2.0 * kv if recipe.cp_kind == "allgather" else 2 * 4.0 * kv / mesh.cp + 4.0 * queries
    return blocks + heads


def _kv_elements(model: ModelShape, mesh: Mesh, recipe: Recipe) -> float:
    """Keys and values of all tokens of a microbatch on one tensor-parallel rank."""
    return 2.0 * recipe.microbatch * recipe.sequence * local_kv_heads(model, mesh.tp) * model.head_dim
