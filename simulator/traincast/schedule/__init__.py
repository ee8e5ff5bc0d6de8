"""Pipeline schedules as pure instruction lists, one file a schedule."""

from traincast.schedule.bubble import (
    bubble_s,
    bubble_share_of_ideal,
    bubble_share_of_step,
    held,
    held_chunks,
    in_flight,
    in_flight_bound,
)
from traincast.schedule.links import Links, StageLinks, links
from traincast.schedule.placement import model_part, model_parts, neighbours, stages_of
from traincast.schedule.registry import AUTOMATIC, SCHEDULES, SPLIT, build, build_timed
from traincast.schedule.times import EQUAL, PassTimes
from traincast.schedule.types import Instruction, Pass, Schedule, ScheduleKey

__all__ = [
    "AUTOMATIC",
    "EQUAL",
    "SCHEDULES",
    "SPLIT",
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
    "held",
    "held_chunks",
    "in_flight",
    "in_flight_bound",
    "links",
    "model_part",
    "model_parts",
    "neighbours",
    "stages_of",
]
