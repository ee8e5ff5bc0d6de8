"""Pipeline schedules as pure instruction lists, one file a schedule."""

from traincast.schedule.bubble import bubble_share_of_ideal, bubble_share_of_step, in_flight
from traincast.schedule.links import Links, StageLinks, links
from traincast.schedule.registry import SCHEDULES, build
from traincast.schedule.types import Instruction, Pass, Schedule

__all__ = [
    "SCHEDULES",
    "Instruction",
    "Links",
    "Pass",
    "Schedule",
    "StageLinks",
    "bubble_share_of_ideal",
    "bubble_share_of_step",
    "build",
    "in_flight",
    "links",
]
