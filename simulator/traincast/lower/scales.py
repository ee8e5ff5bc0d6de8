"""Delayed scaling: the largest magnitudes of fp8 tensors, reduced over all ranks that hold parts of them.

At the end of each pass over a chunk, forward and backward (of a split backward the input part), Transformer Engine
reduces what it found of all tensors of that pass in one all-reduce [1], over the ranks of tensor, context and data
parallelism [2]. Compute waits for it: it is a few hundred bytes, so that all of it is latency, which grows with the job
and recurs with every pass. Two things are left out: that replicas of unlike pace wait for each other there, and these
bytes in the traffic.

References
----------
[1] Transformer Engine, pytorch/fp8.py (`reduce_and_update_fp8_tensors`, called where the outermost autocast ends and in
    the backward pass of its first module).
[2] Megatron-Core, parallel_state.py (`get_amax_reduction_group`; `tp_only_amax_red` leaves data parallelism out).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.costs.collectives import collective_seconds
from traincast.lower.stages import ChunkPart, scaling_of
from traincast.topology import Span

if TYPE_CHECKING:
    from traincast.lower.classes import CostBook

MAGNITUDES_A_LAYER = 12
"""Input, weight and output of four linear layers, one float each."""


def scales_s(book: "CostBook", part: ChunkPart, spans: Mapping[str, Span]) -> float:
    """What a pass over a chunk loses to the reduction of its largest magnitudes [s]; 0 where there is none."""
    recipe, traits = book.job.recipe, book.job.profile.traits
    reduces = traits.reduces_amax and recipe.precision == "fp8" and scaling_of(recipe, traits) == "delayed"
    if not reduces or part.layers == 0:
        return 0.0
    group = joint(spans.get("tp"), spans.get("dp"))
    if group is None:
        return 0.0
    size = 4.0 * MAGNITUDES_A_LAYER * part.layers
    return max(collective_seconds("all_reduce", size, group, network) for network in book.stacks("dp"))


def joint(inner: Span | None, outer: Span | None) -> Span | None:
    """The group of every rank of `inner`, a tensor-parallel group, in each of the places of `outer`; None for one rank.

    Good for latencies: how many ranks there are on how many nodes. What the lanes of its siblings add is left out.
    """
    if inner is None or outer is None:
        return inner or outer
    wide = outer if outer.nodes > 1 else inner
    return replace(
        wide,
        ranks=inner.ranks * outer.ranks,
        nodes=inner.nodes * outer.nodes,
        ranks_per_node=inner.ranks_per_node * outer.ranks_per_node,
        intra_bytes_per_s=inner.intra_bytes_per_s,
        intra_latency_s=inner.intra_latency_s,
    )
