"""What limits a step: the axis that it waits for most, and the links that this axis loads most."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from traincast.lower import Job
from traincast.lower.program import Label
from traincast.lower.spans import RankSpans
from traincast.plan.loads import AXIS_FAMILIES, LinkGroup, busiest, job_loads
from traincast.units import format_bandwidth, format_time

AXES: Final[tuple[Label, ...]] = ("tp", "cp", "ep", "pp", "dp")
NEGLIGIBLE: Final = 0.005
"""Share of a step below which no axis is said to limit it."""


@dataclass(frozen=True)
class Limit:
    """The axis that a step waits for most (`compute`: for none worth the name), for how long, and on which links."""

    axis: str
    exposed_s: float
    links: LinkGroup | None

    def __str__(self) -> str:
        if self.links is None:
            return self.axis
        alike = f" and {self.links.links - 1} alike" if self.links.links > 1 else ""
        where = f"{self.links.name}{alike} ({self.links.kind}, {format_bandwidth(self.links.bytes_per_s)})"
        return f"{self.axis} waits {format_time(self.exposed_s)}, on {where}"


def limit_of(job: Job, spans: RankSpans, mean_s: Mapping[Label, float], step_time_s: float) -> Limit:
    """The limit of a step whose mean seconds by label are `mean_s`."""
    axis = max(AXES, key=lambda one: mean_s.get(one, 0.0))
    exposed_s = mean_s.get(axis, 0.0)
    if exposed_s < NEGLIGIBLE * step_time_s:
        return Limit("compute", 0.0, None)
    links = busiest(job_loads(job, spans), 1, AXIS_FAMILIES.get(axis, (axis,)))
    return Limit(axis, exposed_s, links[0] if links else None)
