"""What a software stack's logs would call its peak memory, in the unit that they print."""

from typing import Final

from traincast.memory.types import MemoryEstimate
from traincast.profile import Traits

UNITS: Final = {"GB": 1e9, "GiB": 2.0**30}


def reported_peak(found: MemoryEstimate, traits: Traits) -> float:
    """The peak of an estimate as the stack reports it, in its `peak_unit` (`Traits.peak_kind`).

    What the driver shows is more than what the allocator reserved, and that more than tensors took: the same run may
    print figures that differ by a tenth, and GiB are 7 % more than GB.
    """
    stages = found.per_stage[:1] if traits.peak_stage == "first" else found.per_stage
    kinds = {
        "device": [one.total_bytes for one in stages],
        "reserved": [one.reserved_bytes for one in stages],
        "allocated": [one.allocated_bytes for one in stages],
    }
    return max(kinds[traits.peak_kind]) / UNITS[traits.peak_unit]
