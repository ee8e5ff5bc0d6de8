"""Schedules by name."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from traincast.errors import ShapeError
from traincast.schedule.gpipe import gpipe
from traincast.schedule.interleaved import interleaved
from traincast.schedule.none import no_pipeline
from traincast.schedule.one_f_one_b import one_f_one_b
from traincast.schedule.types import Schedule

SCHEDULES: Mapping[str, Callable[[int, int, int], Schedule]] = MappingProxyType(
    {"none": no_pipeline, "gpipe": gpipe, "1f1b": one_f_one_b, "interleaved": interleaved}
)


@lru_cache(maxsize=32)
def build(name: str, p: int, m: int, v: int = 1) -> Schedule:
    """The instruction lists of schedule `name` for p stages, m microbatches and v chunks a stage.

    Raises ShapeError where the schedule cannot be.
    """
    if name not in SCHEDULES:
        raise ShapeError(f"unknown schedule {name!r}", fix=f"use one of {', '.join(SCHEDULES)}")
    for what, value in (("pipeline stages", p), ("microbatches", m), ("chunks a stage", v)):
        if value < 1:
            raise ShapeError(f"schedule {name} has {value} {what}, it needs 1 or more", fix=f"give {what}")
    if name == "none" and p > 1:
        raise ShapeError(f"schedule none has 1 stage, not pp={p}", fix="use pp=1, or schedule 1f1b")
    if name != "interleaved" and v > 1:
        raise ShapeError(f"schedule {name} has 1 chunk a stage, not vpp={v}", fix="use vpp=1, or schedule interleaved")
    if name == "interleaved" and m % p:
        near = " or ".join(str(count) for count in (m // p * p, (m // p + 1) * p) if count)
        raise ShapeError(
            f"interleaving needs microbatches that pp divides: {m} microbatches, pp={p}",
            fix=f"use {near} microbatches, or schedule 1f1b with vpp=1",
        )
    return SCHEDULES[name](p, m, v)
