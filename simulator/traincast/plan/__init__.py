"""The use case above forecasts: how far groups reach, what links carry, which order, placement and split to take."""

from traincast.plan.limits import Limit
from traincast.plan.loads import KindLoad, LinkGroup, busiest, by_kind, job_loads
from traincast.plan.placements import placements
from traincast.plan.reach import REACHES, Reach, Wiring, nodes_of, reaches, wiring_of
from traincast.plan.search import Plan, PlanRow, Wish, distinct_orders, plan
from traincast.plan.split import StagePace, balanced_stage_layers, stage_paces

__all__ = [
    "REACHES",
    "KindLoad",
    "Limit",
    "LinkGroup",
    "Plan",
    "PlanRow",
    "Reach",
    "StagePace",
    "Wiring",
    "Wish",
    "balanced_stage_layers",
    "busiest",
    "by_kind",
    "distinct_orders",
    "job_loads",
    "nodes_of",
    "placements",
    "plan",
    "reaches",
    "stage_paces",
    "wiring_of",
]
