"""What a row's software stack does where the row is silent: the defaults of the row's profile."""

from typing import TYPE_CHECKING, Any, Final

from traincast.validate.rows import PublishedRow

if TYPE_CHECKING:
    from traincast.profile import Profile
    from traincast.recipe import Recipe

_COLUMNS: Final = {
    "zero_stage": "zero_stage",
    "sequence_parallel": "sequence_parallel",
    "overlap_dp": "overlap_dp",
    "recompute": "recompute",
    "offload_states": "offload",
}
"""Fields of the recipe that a column of the row states."""

_FP8: Final[dict[str, dict[str, Any]]] = {
    "fp8_rowwise": {"fp8_scaling": "rowwise"},
    "fp8_allgather": {"fp8_scaling": "tensorwise", "fp8_gather": True},
}
"""What a remark says of an fp8 recipe: torchao's names."""


def overlap_of_row(row: PublishedRow, profile: "Profile | None", tp: int) -> dict[str, Any]:
    """How the row's tensor-parallel communication overlaps: not at all where it says so, else as the stack does."""
    if tp > 1 and row.flag("overlap_tp") is False:
        return {"overlap_tp": "none"}
    stack = {} if profile is None else profile.stack_defaults(tp, 1)
    return {"overlap_tp": stack["overlap_tp"]} if "overlap_tp" in stack else {}


def fp8_of_row(row: PublishedRow) -> dict[str, Any]:
    """How the row's fp8 run scales tensors and gathers weights, where its remark says so."""
    return dict(_FP8.get(row.text("remark"), {}))


def silent_fields(row: PublishedRow, base: "Recipe", profile: "Profile | None", tp: int) -> dict[str, Any]:
    """Fields of the recipe that the row leaves to its stack, with their values there.

    Gradients of fp16 runs stay fp16. Parameters are gathered beside the next step where a sharded optimiser
    overlaps.
    """
    stack = {} if profile is None else profile.stack_defaults(tp, 1)
    found = {name: stack[name] for name, column in _COLUMNS.items() if name in stack and not row.text(column)}
    stage = found.get("zero_stage", base.zero_stage)
    if "gradient_dtype" in stack and stage < 3 and base.precision != "fp16":
        found["gradient_dtype"] = stack["gradient_dtype"]
    if "bucket" in stack and stage in (1, 2):
        found["bucket_bytes"] = stack["bucket"]
    if "overlap_params" in stack and stage in (1, 2):
        found["overlap_params"] = stack["overlap_params"] and found.get("overlap_dp", base.overlap_dp)
    return found


def messages_of_row(row: PublishedRow, profile: "Profile | None", vpp: int) -> dict[str, Any]:
    """Semantics of pipeline messages where the row is silent and chunks interleave."""
    stack = {} if profile is None else profile.stack_defaults(1, vpp)
    return {"p2p": stack["p2p"]} if "p2p" in stack and not row.text("p2p_overlap") else {}


def said(profile: "Profile", fields: dict[str, Any]) -> str:
    """A note of what was taken from the stack."""
    shown = ", ".join(f"{name} {_shown(name, value)}" for name, value in fields.items())
    return f"not stated, so as the stack of {profile.name} does: {shown}"


def _shown(name: str, value: object) -> str:
    if name == "bucket_bytes" and isinstance(value, float):
        return f"{value / 1e6:.0f} MB"
    return str(value).lower()
