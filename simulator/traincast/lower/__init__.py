"""Lowering: (model, mesh, recipe, profile, cluster) -> programs of operations per rank class."""

from traincast.lower.build import Lowered, lower
from traincast.lower.job import Job, Part
from traincast.lower.program import LABELS, ChunkCost, Program, RankClass, Result
from traincast.lower.traffic import AxisTraffic

__all__ = [
    "LABELS",
    "AxisTraffic",
    "ChunkCost",
    "Job",
    "Lowered",
    "Part",
    "Program",
    "RankClass",
    "Result",
    "lower",
]
