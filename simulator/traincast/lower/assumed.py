"""What a forecast takes for granted about shared links, in words."""

from typing import Final, Literal

from traincast.lower.flows import Contention

STATIC_ASSUMED: Final = (
    "each kind of traffic has its links to itself; groups of one kind share them statically (--sharing adaptive)"
)
SHARED_ASSUMED: Final = {
    "adaptive": "messages and gradient buckets share links max-min, spread evenly over parallel ones",
    "ecmp": "messages and gradient buckets share links max-min, put on parallel ones by hash:"
    " {flows} flows from NIC to NIC (--ecmp-flows), seed {seed} (--ecmp-seed)",
}
PACE_ASSUMED: Final = (
    "ranks that only the hash tells apart are one class and go at the pace of the slowest: an upper bound"
)


def sharing_assumed(contention: Contention | Literal[False], paced: bool) -> tuple[str, ...]:
    """What is assumed of links; `paced` as `Lowered` has it."""
    if not contention:
        return (STATIC_ASSUMED,)
    spread = contention.spread
    said = SHARED_ASSUMED[spread.kind].format(flows=spread.flows, seed=spread.seed)
    return (said, PACE_ASSUMED) if paced else (said,)
