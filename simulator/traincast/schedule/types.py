"""The vocabulary of pipeline schedules: one instruction is one chunk of one microbatch."""

from dataclasses import dataclass
from typing import Literal

Pass = Literal["F", "B", "W"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One compute chunk on one stage.

    `kind`: F forward, B backward (input and weight gradients unless a schedule splits them), W weight
    gradients alone. `chunk` is the virtual stage held by the rank, 0..v-1; the model chunk is `chunk * p +
    stage`. `fused` tells a blocking stack that it exchanges nothing between this instruction and the next
    one: Megatron's interleaved steady state runs a forward and a backward and then sends both outputs in one
    batch.
    """

    kind: Pass
    microbatch: int
    chunk: int
    fused: bool = False


Schedule = tuple[tuple[Instruction, ...], ...]
"""Instructions per stage, in program order."""
