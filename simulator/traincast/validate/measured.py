"""The measured step time of a published row: as printed, or derived from the rate that is printed instead."""

from typing import TYPE_CHECKING

from traincast.validate.rows import PublishedRow

if TYPE_CHECKING:
    from traincast.model import ModelShape
    from traincast.model.flops import Convention

_TERA = 1e12


def printed_time(row: PublishedRow) -> tuple[float | None, str]:
    """Seconds of one step from the printed time or from tokens per second, and how they were derived (empty:
    printed).

    None where neither is stated, or where tokens are but batch or sequence are not. Raises RowSkippedError
    for a figure that cannot be.
    """
    seconds = row.number("iter_time_s")
    if seconds:
        return seconds, ""
    rate = row.number("tokens_per_s_per_gpu")
    batch, sequence, gpus = row.count("global_batch"), row.count("seq"), row.count("gpus")
    if rate and batch and sequence and gpus:
        return batch * sequence / (rate * gpus), "time derived from tokens/s"
    return None, ""


def time_from_rate(row: PublishedRow, model: "ModelShape") -> tuple[float | None, str]:
    """Seconds of one step from TFLOP/s per GPU under its named convention; None where that is not clear."""
    from traincast.model.flops import step_flops

    rate = row.number("tflops_per_gpu")
    convention = named_convention(row.text("flop_convention"))
    batch, sequence, gpus = row.count("global_batch"), row.count("seq"), row.count("gpus")
    if not (rate and convention and batch and sequence and gpus):
        return None, ""
    flops = step_flops(model, batch, sequence, convention, row.text("recompute") or "full")
    return flops / (rate * _TERA * gpus), f"time derived from TFLOP/s ({convention} FLOPs)"


def named_convention(text: str) -> "Convention | None":
    """The convention that `flop_convention` names; None where it names none, or counts less (LoRA)."""
    words = text.lower()
    if "lora" in words:
        return None
    if words.startswith("hardware"):
        return "hardware"
    if "causal" in words and "half" in words and "not halved" not in words:
        return "model_causal"
    return "model" if "model" in words else None
