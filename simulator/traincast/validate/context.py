"""How a published row splits its sequences over context-parallel ranks, and what it keeps in the host's memory."""

import re
from typing import TYPE_CHECKING, Any, Final

from traincast.validate.rows import PublishedRow, RowSkippedError

if TYPE_CHECKING:
    from traincast.mesh import Mesh
    from traincast.model import ModelShape

KINDS: Final = ("ring", "allgather", "ulysses", "usp", "burst")
_USUAL_GPUS_PER_NODE: Final = 8


def context_of_row(row: PublishedRow, model: "ModelShape", mesh: "Mesh", notes: list[str]) -> dict[str, Any]:
    """Fields of the recipe about context parallelism.

    Where a row names no kind it is a ring, as Megatron-Core and NeMo have it by default. USP exchanges heads among as
    many ranks of a node as the heads allow, and passes blocks between nodes (Fang and Zhao 2024, section 4.2), unless a
    row says otherwise. Raises RowSkippedError for an unknown kind.
    """
    if mesh.cp == 1:
        return {}
    kind = row.text("cp_kind")
    if kind not in ("", *KINDS):
        raise RowSkippedError(f"context parallelism {kind!r} is not modelled yet")
    if not kind:
        notes.append("cp_kind not stated: ring, the default of Megatron-Core")
    fields: dict[str, Any] = {"cp_kind": kind or "ring"}
    if kind == "usp":
        inside = max(1, (row.count("gpus_per_node") or _USUAL_GPUS_PER_NODE) // mesh.tp)
        fields["cp_ulysses"] = max(n for n in range(1, inside + 1) if _exchanges(model, mesh, n))
        notes.append(f"usp: heads are exchanged among {fields['cp_ulysses']} ranks of a node")
    return fields


def _exchanges(model: "ModelShape", mesh: "Mesh", ulysses: int) -> bool:
    """Whether so many ranks can exchange heads without holding key/value heads twice."""
    ranks = mesh.tp * ulysses
    return mesh.cp % ulysses == 0 and (ulysses == 1 or (model.heads % ranks == 0 and model.kv_heads % ranks == 0))


def offloading_of_row(row: PublishedRow) -> dict[str, Any]:
    """Fields of the recipe about what waits in the host's memory: the optimiser's states and their update, or a share
    of activations. Raises RowSkippedError where something else is offloaded."""
    text = row.text("offload").lower()
    if text in ("", "none"):
        return {}
    if text == "optimizer":
        return {"offload_states": "optimizer"}
    share = re.fullmatch(r"activations:(0(?:\.\d+)?|1(?:\.0+)?)", text)
    if share is None:
        raise RowSkippedError(f"offloading is not modelled yet: {text}")
    return {"offload_activations": float(share[1])}
