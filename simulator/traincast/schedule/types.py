"""The vocabulary of pipeline schedules: one instruction is one chunk of one microbatch."""

from typing import Literal, NamedTuple

Pass = Literal["F", "B", "I", "W"]


class Instruction(NamedTuple):
    """One compute chunk on one stage.

    `kind`: F forward; B backward; where a schedule splits the backward of a microbatch, I its input gradients (which
    the stage before needs) and W its weight gradients (which only the optimiser needs). A W makes the B or I before it
    the input part. `chunk` is the virtual stage held by the rank, 0..v-1; `placement.py` says which part of the model
    it holds, `chunk * p + stage` unless the schedule folds the model. `fused` tells a blocking stack that it exchanges
    nothing between this instruction and the next one: Megatron's interleaved steady state runs a forward and a backward
    and then sends both outputs in one batch. `joint` (never without `fused`) is for any stack: the two run as one, as
    DualPipe's forward and backward do; they begin with the inputs of both, and both outputs leave at the end.
    """

    kind: Pass
    microbatch: int
    chunk: int
    fused: bool = False
    joint: bool = False


Schedule = tuple[tuple[Instruction, ...], ...]
"""Instructions per stage, in program order."""

ScheduleKey = tuple[str, int, int, int]
"""(name, p, m, v): equal keys mean equal instruction lists."""
