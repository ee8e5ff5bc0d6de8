"""Pipeline schedules as pure instruction lists, one file a schedule."""

from traincast.schedule.bubble import (
    bubble_s,
    bubble_share_of_ideal,
    bubble_share_of_step,
    held,
    held_chunks,
    in_flight,
    in_flight_bound,
    passes_held,
)
from traincast.schedule.links import Links, StageLinks, links
from traincast.schedule.placement import (
    chunks_of_model,
    meets_itself,
    model_part,
    model_parts,
    neighbours,
    parts_of,
    stages_of,
)
from traincast.schedule.registry import (
    ANY_CHUNKS,
    AUTOMATIC,
    SCHEDULES,
    SPLIT,
    TWO_CHUNKS,
    build,
    build_timed,
    in_groups,
)
from traincast.schedule.times import EQUAL, PassTimes
from traincast.schedule.types import Instruction, Pass, Schedule, ScheduleKey

__all__ = [
    "ANY_CHUNKS",
    "AUTOMATIC",
    "EQUAL",
    "SCHEDULES",
    "SPLIT",
    "TWO_CHUNKS",
    "Instruction",
    "Links",
    "Pass",
    "PassTimes",
    "Schedule",
    "ScheduleKey",
    "StageLinks",
    "bubble_s",
    "bubble_share_of_ideal",
    "bubble_share_of_step",
    "build",
    "build_timed",
    "chunks_of_model",
    "held",
    "held_chunks",
    "in_flight",
    "in_flight_bound",
    "in_groups",
    "links",
    "meets_itself",
    "model_part",
    "model_parts",
    "neighbours",
    "parts_of",
    "passes_held",
    "stages_of",
]
