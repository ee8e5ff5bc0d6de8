"""Which passes' activations wait in the host's memory, and what of them is on the GPU.

Each forward pass copies its share out beside the pass that follows, each backward pass finds its own copied in beside
the pass before it (Yuan et al. 2024, Megatron-Kwai). So two passes of a stage are whole on the GPU however much is
copied, and what runs sooner again than these two copies take is never away.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.errors import ShapeError
from traincast.schedule import Instruction, ScheduleKey, build, in_flight_bound, passes_held

Floats = npt.NDArray[np.float64]

PASSES_BESIDE_COPIES: Final = 2
"""Passes of a stage whose activations are whole on the GPU: one on its way out, one on its way in."""


@lru_cache(maxsize=64)
def leaving(key: ScheduleKey) -> tuple[tuple[bool, ...], ...]:
    """Which chunks of each stage have passes whose activations leave the GPU, as bools of [stage][chunk].

    Those of a chunk do if more than two passes run between a forward and (the input part of) its backward; but none of
    a stage do that would not have fewer passes on the GPU at its fullest for it, as with two in flight. An automatic
    schedule is taken as it is for F = I = W: its order depends on the seconds of its passes, and these on what is
    copied. Of a shape that a schedule cannot have the bound decides.
    """
    name, p, m, v = key
    try:
        schedule = build(name, p, m, v)
    except ShapeError:
        return tuple((most > PASSES_BESIDE_COPIES,) * v for most in in_flight_bound(key))
    return tuple(_leaving(order, v) for order in schedule)


def _leaving(order: Sequence[Instruction], chunks: int) -> tuple[bool, ...]:
    begun: dict[tuple[int, int], int] = {}
    between, place, joined = [0] * chunks, 0, False
    for i in order:
        place += not joined
        joined = i.joint
        if i.kind == "F":
            begun[i.microbatch, i.chunk] = place
        elif i.kind != "W":
            between[i.chunk] = max(between[i.chunk], place - begun[i.microbatch, i.chunk] - 1)
    away = tuple(found > PASSES_BESIDE_COPIES for found in between)
    states = [waiting for waiting, _ in passes_held(order)]
    left = (sum(count for count, gone in zip(waiting, away, strict=True) if gone) for waiting in states)
    saved = (sum(waiting) - max(0, out - PASSES_BESIDE_COPIES) for waiting, out in zip(states, left, strict=True))
    return away if max(saved) < max(map(sum, states)) else (False,) * chunks


def resident_bytes(waiting: Floats, pass_bytes: Sequence[float], away: Sequence[bool], offloaded: float) -> Floats:
    """What of the passes that wait for their backward is on the GPU [bytes]: an array of shape (states,).

    `waiting` counts them by state and chunk, `pass_bytes` is what one of each chunk keeps, and the share `offloaded` of
    it is in the host's memory for chunks that are `away`, but for the two largest of their passes.
    """
    whole: Floats = waiting @ np.array(pass_bytes)
    if offloaded == 0.0 or not any(away):
        return whole
    left = np.full(len(waiting), float(PASSES_BESIDE_COPIES))
    saved = np.zeros(len(waiting))
    for chunk in sorted((c for c, is_away in enumerate(away) if is_away), key=lambda c: -pass_bytes[c]):
        beside = np.minimum(waiting[:, chunk], left)
        saved += (waiting[:, chunk] - beside) * pass_bytes[chunk]
        left -= beside
    whole -= offloaded * saved
    return whole
