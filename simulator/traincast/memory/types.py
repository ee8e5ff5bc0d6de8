"""The itemised result: bytes of every stage, and the verdict."""

from dataclasses import dataclass, fields
from typing import Final, Literal

Verdict = Literal["fits", "borderline", "does not fit"]


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one GPU of one pipeline stage.

    `recompute_bytes` is what one layer's recomputation rebuilds at a time; `gathered_bytes` the unsharded
    parameters and gradients in use under ZeRO-3 (FSDP); `workspace_bytes` gradients of activations, and fp32
    copies of half-precision gradients at the optimiser step as far as they exceed the activations gone by
    then; `fragmentation_bytes` what the allocator holds in excess. The backward pass of layers comes when the
    logits of its microbatch are gone, so recomputation and workspace count as far as they exceed these.
    """

    stage: int
    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    recompute_bytes: float
    logits_bytes: float
    gathered_bytes: float
    communicators_bytes: float
    context_bytes: float
    workspace_bytes: float
    fragmentation_bytes: float

    @property
    def items(self) -> dict[str, float]:
        """Bytes by item."""
        return {name: getattr(self, field) for name, field in _ITEMS.items()}

    @property
    def states_bytes(self) -> float:
        """Parameters, gradients and optimiser states."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> float:
        """All items together: what the driver shows (nvidia-smi)."""
        return float(sum(getattr(self, field) for field in _ITEMS.values()))

    @property
    def reserved_bytes(self) -> float:
        """What PyTorch's allocator has of it (max_memory_reserved): not the CUDA context, nor NCCL's buffers."""
        return self.total_bytes - self.context_bytes - self.communicators_bytes

    @property
    def allocated_bytes(self) -> float:
        """What tensors take (max_memory_allocated)."""
        return self.reserved_bytes - self.fragmentation_bytes

    @property
    def largest_item(self) -> str:
        """The item that takes most."""
        items = self.items
        return max(items, key=items.__getitem__)


_ITEMS: Final = {
    field.name.removesuffix("_bytes"): field.name for field in fields(StageMemory) if field.name != "stage"
}


@dataclass(frozen=True)
class MemoryEstimate:
    """All stages and the verdict on the fullest one; `reason` names that stage and its largest item.

    Where the stages' GPUs differ, the fullest is the one that needs most of what it has, and `limit_bytes` is that.
    """

    per_stage: tuple[StageMemory, ...]
    verdict: Verdict
    limit_bytes: float
    reason: str
    fullest: int

    @property
    def worst(self) -> StageMemory:
        """The fullest stage."""
        return self.per_stage[self.fullest]

    def as_dict(self) -> dict[str, object]:
        """Plain data for reports: per stage every item and the total, in bytes."""
        stages = [
            {
                "stage": one.stage,
                **{f"{k}_bytes": v for k, v in one.items.items()},
                "total_bytes": one.total_bytes,
            }
            for one in self.per_stage
        ]
        return {
            "per_stage": stages,
            "verdict": self.verdict,
            "limit_bytes": self.limit_bytes,
            "worst_stage": self.worst.stage,
            "worst_item": self.worst.largest_item,
            "reason": self.reason,
        }
