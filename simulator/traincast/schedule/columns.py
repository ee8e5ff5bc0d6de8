"""Instruction lists as columns of numbers, one entry an instruction, for what is worked out for all of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from traincast.schedule.types import Instruction

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Columns:
    """The fields of instructions; `kind` has the code points of the letters."""

    kind: Ints
    microbatch: Ints
    chunk: Ints
    fused: Bools
    joint: Bools

    def part(self, own: slice) -> "Columns":
        """The columns of some instructions in a row."""
        return Columns(self.kind[own], self.microbatch[own], self.chunk[own], self.fused[own], self.joint[own])

    def are(self, kind: str) -> Bools:
        """Which instructions are of a kind."""
        found: Bools = self.kind == ord(kind)
        return found


def columns(order: Sequence[Instruction]) -> Columns:
    """The columns of an instruction list."""
    fields: list[Any] = list(chain.from_iterable(order))
    width, size = len(Instruction._fields), len(order)
    kind, microbatch, chunk, fused, joint = (fields[first::width] for first in range(width))
    return Columns(
        kind=np.frombuffer("".join(kind).encode("ascii"), dtype=np.uint8).astype(np.int64),
        microbatch=np.fromiter(microbatch, np.int64, size),
        chunk=np.fromiter(chunk, np.int64, size),
        fused=np.frombuffer(bytes(fused), dtype=np.bool_),
        joint=np.frombuffer(bytes(joint), dtype=np.bool_),
    )


def last_where(onward: Bools) -> Ints:
    """Last index of the run that each index belongs to, where a run goes `onward` from one index to the next."""
    ends = np.flatnonzero(np.append(~onward[:-1], True)) if len(onward) else np.zeros(0, np.int64)
    return np.repeat(ends, np.diff(ends, prepend=-1))
