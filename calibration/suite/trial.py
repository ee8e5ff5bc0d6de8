"""Steps of a measurement that may fail on some ranks: all ranks find out, and leave the item out together.

A step either only allocates or talks to other ranks, never both. A rank that fails alone in a step that talks to nobody
says so, and all go on. One that fails while it talks leaves the others waiting: they are given a short time to fail as
well, and if they do not, the run ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from suite import kernels
from suite.collectives import Member
from suite.groups import Groups
from suite.plan import Item
from suite.rows import Entry, skipped
from suite.sampling import Limits
from suite.world import OUT_OF_MEMORY, World, free_bytes

_FAULTS = (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError, kernels.UnsupportedError)
"""What PyTorch raises for an operation that a backend, device or version lacks, or for memory that is not there."""
_BROKEN = (
    *("illegal memory access", "device-side assert", "unspecified launch failure", "misaligned address", "ECC error"),
    *("unhandled system error", "remote process", "Connection closed", "Connection reset", "imed out"),
)
"""Words of errors after which a GPU's context or a connection is of no more use."""

T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """What every measurement needs."""

    world: World
    families: dict[str, Groups]
    created: dict[str, Groups]
    members: dict[str, Member]
    limits: Limits
    reference: Item


@dataclass(frozen=True)
class Left:
    """An item that is left out, by the line that says why."""

    line: Entry


def attempt(bench: Bench, item: Item, step: Callable[[], T], talks: bool = False) -> T | Left:
    """What `step` gives on this rank, or why the item is left out where it fails on any rank. All ranks call it.

    Raises what broke this rank for good.
    """
    made: T | None = None
    fault: tuple[str, str] | None = None
    try:
        made = step()
        bench.world.synchronize()
    except _FAULTS as error:
        fault = _fault(error)
    if talks:
        bench.world.meet()
    if bench.world.all_fine(fault is None):
        return made  # type: ignore[return-value]
    faults = bench.world.gather_objects(fault)
    rank = next(rank for rank, one in enumerate(faults) if one is not None)
    reason, words = faults[rank]
    if reason == "memory":
        return Left(skipped(item, reason, f"rank {rank}: {words}"))
    where = f"backend {bench.world.backend}, PyTorch {torch.__version__}"
    return Left(skipped(item, reason, f"not supported by {where}: {words}"))


def room_for(bench: Bench, item: Item, needed_bytes: int) -> Left | None:
    """Why an item is left out whose buffers do not fit on some rank. All ranks call it; one that looks on needs 0."""
    if bench.world.all_fine(needed_bytes == 0 or needed_bytes < free_bytes(bench.world)):
        return None
    return Left(skipped(item, "memory", "the buffers do not fit in memory"))


def _fault(error: Exception) -> tuple[str, str]:
    """Reason and words of a fault, without paths. Raises the error where the rank is of no more use."""
    lines = str(error).strip().splitlines()
    words = " ".join(word for word in (lines[0] if lines else type(error).__name__).split() if "/" not in word)[:160]
    if isinstance(error, (OUT_OF_MEMORY, MemoryError)) or "allocate memory" in words or "out of memory" in words:
        return "memory", words
    if any(sign in words for sign in _BROKEN):
        raise error
    return "unsupported", words
