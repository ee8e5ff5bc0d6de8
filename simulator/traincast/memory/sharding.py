"""Who shares what of the states, and when parameters are gathered and gradients reduced.

References
----------
[1] Rajbhandari et al. 2020, "ZeRO", §5 (stages 1 to 3) and §7 (traffic: 2 parameters a step, 3 under stage 3).
[2] Zhao et al. 2023, "PyTorch FSDP" (arXiv:2304.11277), §3.2 (sharding strategies), §3.3 (prefetching, limited gathers,
    gradient accumulation with and without communication).
[3] Llama Team 2024, "The Llama 3 Herd of Models", §3.3.2 (parameters stay gathered in a pipeline).
"""

from dataclasses import dataclass
from typing import Literal

from traincast.errors import ShapeError
from traincast.mesh import Mesh
from traincast.recipe import Recipe
from traincast.schedule import chunks_of_model

Gathers = Literal["never", "update", "step", "pass"]


@dataclass(frozen=True)
class Sharding:
    """How a job's replicas share their states.

    `copies` ranks hold the same weights; groups of `shards` of them share states, and the groups are replicas of each
    other. `gathers` says when parameters are gathered: `never` (nothing is sharded), after the `update` (ZeRO-1 and
    2), once a `step` in front of its first forward pass, or in each `pass` (ZeRO-3); `again` in the backward pass too.
    `reduces_each`: gradients are reduced behind every microbatch, else behind the last. `sums_whole`: they are
    all-reduced over all copies, else reduce-scattered among the ranks that share them and summed over the groups.
    ZeRO-1 in groups does so (InternEvo): a group shards only what the optimiser has.
    """

    copies: int
    shards: int
    gathers: Gathers
    again: bool
    reduces_each: bool
    sums_whole: bool = False

    @property
    def replicas(self) -> int:
        """Groups of ranks that share states among themselves: each holds them all."""
        return self.copies // self.shards


def weight_copies(mesh: Mesh, recipe: Recipe) -> int:
    """Ranks that hold the same weights: dp x cp, and twice as many where the model runs both ways (DualPipe)."""
    return mesh.dp * mesh.cp * (recipe.vpp // chunks_of_model(recipe.schedule, recipe.vpp))


def sharding(mesh: Mesh, recipe: Recipe) -> Sharding:
    """How a job shares its states; what the recipe leaves open as its defaults say (`Recipe`).

    Raises ShapeError for groups that the replicas do not divide into.
    """
    copies, stage = weight_copies(mesh, recipe), recipe.zero_stage
    if recipe.fsdp_shard is not None:
        _check_groups(recipe.fsdp_shard, copies, stage)
    shards = (recipe.fsdp_shard or copies) if stage else 1
    if copies == 1:
        return Sharding(1, 1, "never", again=False, reduces_each=False)
    drops = mesh.pp == 1 if recipe.reshard_after_forward is None else recipe.reshard_after_forward
    gathers: Gathers = "never"
    if shards > 1:
        gathers = "update" if stage < 3 else "pass" if drops or mesh.pp == 1 else "step"
    local = (stage < 2 or mesh.pp > 1) if recipe.no_sync is None else recipe.no_sync
    whole = shards < copies and (stage == 0 or (stage == 1 and local))
    return Sharding(copies, shards, gathers, gathers == "pass" and drops, reduces_each=not local, sums_whole=whole)


def _check_groups(size: int, copies: int, stage: int) -> None:
    if stage == 0:
        raise ShapeError(f"fsdp_shard {size}, but zero_stage 0 shards nothing", fix="zero_stage 1 to 3")
    if copies % size:
        fitting = max(n for n in range(1, min(size, copies) + 1) if copies % n == 0)
        raise ShapeError(f"fsdp_shard {size} does not divide {copies} replicas (dp x cp)", fix=f"fsdp_shard {fitting}")
