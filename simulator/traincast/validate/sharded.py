"""How the replicas of a published row share their states, and what their stack puts on the wire."""

from typing import TYPE_CHECKING, Any, Final

from traincast.validate.rows import PublishedRow

if TYPE_CHECKING:
    from traincast.recipe import Recipe

_REDUCED: Final = (
    ("llm-foundry", "bf16", "the benchmark's recipes set FSDP's mixed precision to PURE"),
    ("torchtitan", "fp32", "mixed_precision_reduce of its configurations"),
    ("Llama3-herd", "fp32", "The Llama 3 Herd of Models, §3.3.3"),
    ("InternEvo", "bf16", "its optimiser reduces gradients in the type of the parameters"),
)
"""Stack -> the type in which it reduces gradients of a bf16 run, and where it says so."""

_KEEPS_GATHERED: Final = ("FSDP", "Llama3-herd")
"""Stacks whose stage 2 shards parameters too, but does not drop them after the forward pass (SHARD_GRAD_OP)."""


DEEPSPEED_AHEAD: Final = 0.9
"""Parameters gathered ahead, in h^2: stage3_prefetch_bucket_size of DeepSpeed's ZeRO-3 example for Megatron-LM (6.04e7
for h 8192), which leaves overlap_comm at its default of 2021, off (DeepSpeedExamples, ds_zero_stage_3_config.json)."""


def sharding_of_row(row: PublishedRow, notes: list[str]) -> dict[str, Any]:
    """Fields of the recipe about sharded data parallelism, as far as row and stack tell them.

    What overlaps where a row does not say: FSDP and DeepSpeed ZeRO-3 prefetch and reduce beside the passes as they
    come; anything else does not. Raises RowSkippedError for a figure that cannot be.
    """
    stage, stack = int(row.number("zero_stage") or 0), row.text("stack")
    overlap = row.flag("overlap_dp")
    found: dict[str, Any] = {
        "zero_stage": stage,
        "fsdp_shard": row.count("fsdp_shard") if stage else None,
        "overlap_dp": stage == 3 if overlap is None else overlap,
    }
    if stage == 2 and any(name in stack for name in _KEEPS_GATHERED):
        found |= {"zero_stage": 3, "reshard_after_forward": False}
        notes.append("stage 2 of this stack: parameters are sharded, and kept from the forward to the backward pass")
    if row.text("remark") == "deepspeed_zero3":
        ahead = DEEPSPEED_AHEAD * row.essential("hidden") ** 2
        found |= {"overlap_dp": bool(overlap), "prefetch": 1, "prefetch_bytes": 2.0 * ahead}
        notes.append("DeepSpeed's released Megatron recipe: 0.9 h^2 parameters gathered ahead, reductions exposed")
    reduced = next((kind for name, kind, _ in _REDUCED if name in stack), None)
    if reduced is not None and row.text("precision") not in ("fp16", "fp32"):
        found["reduce_dtype"] = reduced
    return found


def understood(text: str) -> bool:
    """Whether a recomputation is one that traincast knows."""
    from traincast.recomputation import recomputation

    try:
        recomputation(text or "none")
    except ValueError:
        return False
    return True


def default_bucket(recipe: "Recipe") -> float:
    """PyTorch DDP's bucket_cap_mb of 25 where it overlaps; a sharded optimiser goes by Megatron's own buckets."""
    ddp = recipe.overlap_dp and not recipe.zero_stage
    return 25 * 2.0**20 if ddp else recipe.bucket_bytes
