"""A sweep as a table."""

from typing import TYPE_CHECKING

from traincast.report.tables import Table

if TYPE_CHECKING:
    from traincast.sweep import SweepOutcome

_GIB = 2.0**30
COLUMNS = (
    "rank",
    "tp",
    "cp",
    "pp",
    "dp",
    "vpp",
    "microbatch",
    "schedule",
    "step_time_s",
    "tflops_hardware",
    "tflops_model",
    "mfu",
    "hfu",
    "memory_gib",
    "verdict",
)
ABOVE = "borderline, above"
"""Verdict of a shape that needs more than the GPU's memory, but by no more than what a forecast is sure of."""


def sweep_table(outcome: "SweepOutcome", top: int | None = None) -> Table:
    """The `top` fastest shapes (all of them for None), one a row."""
    rows = []
    for rank, row in enumerate(outcome.ranked[:top], start=1):
        figures = (
            row.schedule,
            row.step_time_s,
            row.tflops_hardware,
            row.tflops_model,
            row.mfu,
            row.hfu,
            row.memory_bytes / _GIB,
        )
        rows.append((rank, *row.shape.sizes.values(), *figures, ABOVE if row.over_limit else row.verdict))
    shown = (
        f"{len(rows)} of {len(outcome.ranked)} evaluated shapes" if len(rows) < len(outcome.ranked) else "all shapes"
    )
    return Table(
        f"Sweep of {outcome.scenario} on {outcome.world} GPUs: {shown}, fastest first, above-memory last",
        COLUMNS,
        tuple(rows),
    )
