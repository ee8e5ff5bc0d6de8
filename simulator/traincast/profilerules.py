"""What a profile's file may say: its keys, the kinds of evidence, and the range of each constant.

A range is what the constant can mean at all, not what is usual: it keeps out slips of a unit, a sign or a per cent. All
that a fit may find lies within.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

KINDS: Final = ("measured", "derived", "assumed")
"""What stands behind a value: a benchmark of that very thing, whole steps or layers, nothing public."""

KEYS: Final = (
    "name",
    "inherits",
    "gpu",
    "fabric",
    "stacks",
    "also_for",
    "default_for",
    "collectives",
    "traits",
    "defaults",
    "fitted_on",
    "fitted_rows",
    "fitted_curves",
    "correlations",
    "intervals",
    "constants",
)
"""The keys of a profile's file."""

CONSTANT_KEYS: Final = ("value", "unit", "kind", "source", "residual", "error", "curves")
COLLECTIVES_KEYS: Final = ("gpus", "fabrics", "launch")


@dataclass(frozen=True)
class Range:
    """What a constant may be in SI: from `low` (`above`: more than it) to `high`; `form` says it with an example."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False
    form: str = "a number from 0 on"

    def holds(self, value: float) -> bool:
        """Whether a value lies in it."""
        return (value > self.low if self.above else value >= self.low) and value <= self.high


_SHARE: Final = Range(0.0, 1.5, True, "write a share of the whole, above 0 and at most 1.5: 0.9 for 90 %")
_PART: Final = Range(0.0, 1.0, False, "write a part from 0 to 1: 0.9 for 90 %")
_FACTOR: Final = Range(0.0, 10.0, True, "write a factor, above 0 and at most 10: 1 changes nothing")
_EXTRA: Final = Range(0.0, 10.0, False, "write a ratio from 0 (nothing) to 10: 0.1 for 10 %")
_ANY: Final = Range(form="write a number from 0 on")

_RATIOS: Final[Mapping[Range, tuple[str, ...]]] = {
    _SHARE: (
        "gemm.forward",
        "gemm.dgrad",
        "gemm.wgrad",
        "gemm.fp8",
        "gemm.rowwise",
        "gemm.small_tile",
        "gemm.unaligned",
        "attention.flash_forward",
        "attention.flash_backward",
        "memory.efficiency",
        "memory.columns",
        "network.one_efficiency",
        "network.some_efficiency",
        "network.wire_efficiency",
        "sharded.efficiency",
        "message.efficiency",
    ),
    _PART: ("gemm.wave_weight",),
    _FACTOR: (
        "network.intra_efficiency",
        "network.inter_efficiency",
        "network.nvls_efficiency",
        "exchange.efficiency",
        "exchange.inter_efficiency",
    ),
    _EXTRA: (
        "host.backward",
        "attention.dropout",
        "overlap.slowdown",
        "network.intra_latency",
        "network.inter_latency",
        "network.nvls_latency",
        "network.base_latency",
        "network.intra_mixing",
        "network.inter_mixing",
        "network.nvls_mixing",
        "network.nvls_growth",
        "network.ring_overlap",
        "exchange.mixing",
        "exchange.own_share",
        "footprint.fragmentation",
    ),
}
RANGES: Final[Mapping[str, Range]] = {name: one for one, names in _RATIOS.items() for name in names}
"""The range of each ratio; times, counts and sizes are 0 or more."""


def range_of(name: str) -> Range:
    """What a constant may be, in SI."""
    return RANGES.get(name, _ANY)
