"""The program that all evaluators run, and the result that they return.

One `Program` describes one training step as rank classes. A class stands for all ranks whose programs cannot
be told apart (colour refinement, `fold.py`); with folding off every rank is its own class. The semantics,
which the SimPy engine and the recurrence both implement, to the last bit:

- A class runs its stage's instructions in order on its compute stream. Instruction k of kind F on (stage s,
  chunk c) needs the output of F on the chunk before it (stage s-1, or the last stage with chunk c-1); B needs
  the output of B on the chunk after it. Outputs travel from class to class along `previous` and `next`, which
  are each other's inverse. With a single stage nothing is sent: the order alone satisfies the dependencies.
- Duration of an instruction: `chunks[(kind, chunk)].duration_s`. If a class has `meets` (other classes of its
  TP x CP groups), an instruction begins only when all of them are ready to begin it (they run the same
  instruction list). A class is ready for an instruction when the one before has ended and its input has
  arrived (`blocking`: when its exchange is done). It waits for those it names itself; `meets` need not be
  symmetric.
- p2p `async`: the message leaves when the instruction ends and when the sender's earlier message in that
  direction (pp-send forward, pp-send backward are two streams) has arrived; it arrives `send_s` later; the
  sender computes on.
- p2p `blocking`: after each instruction that is not `fused`, the class posts, together, the sends of all
  outputs made since its last exchange and the receives for the inputs of the instructions up to and including
  the next one that is not fused. (Before the first instruction it posts the receives only; after the last one
  the sends only.) A transfer begins when both ends have posted it, and takes `send_s`; the class goes on when
  all its posted transfers are done. It has ended all instructions when the last exchange is done, too.
- Gradient buckets: bucket i of a class is ready `ready_s` after the start of the last instruction that makes
  weight gradients of its `chunk` (the last W where the schedule has W, else the last B); with `chunk` None,
  `ready_s` after the class has ended all instructions. Buckets run in order on the dp stream. A class has
  arrived at bucket i when it is ready and the bucket before has ended; the bucket starts when the class and
  all its `dp_meets` (which have as many buckets) have arrived, and takes `duration_s`.
- Tail operations run in order after the last instruction and the last bucket. Each starts when the class and
  all its `meets` are ready for the tail operation of that name (a class lacking that name does not take
  part), and takes `duration_s`. The step ends when the last class ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from traincast.schedule.types import Pass, Schedule

Label = Literal["compute", "recompute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "host"]
LABELS: tuple[Label, ...] = (
    "compute",
    "recompute",
    "bubble",
    "tp",
    "cp",
    "ep",
    "pp",
    "dp",
    "optimizer",
    "host",
)

ChunkKey = tuple[Pass, int]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ChunkCost:
    """Seconds of one chunk of one microbatch; the inner recurrence over its operators has already run.

    `labels_s` splits the duration by what the compute stream did (its values sum to `duration_s`).
    `send_s` is the transfer of the chunk's output to the neighbouring stage, zero where nothing is sent.
    """

    duration_s: float
    labels_s: Mapping[Label, float]
    send_s: float = 0.0


@dataclass(frozen=True)
class ReduceBucket:
    """One gradient bucket, ready `ready_s` after the start of the last backward of `chunk`.

    With `chunk` None it is ready `ready_s` after the class has ended all instructions.
    """

    chunk: int | None
    ready_s: float
    duration_s: float
    bytes_per_rank: float = 0.0


@dataclass(frozen=True)
class TailOp:
    """One operation after the gradients: embedding all-reduce, norm, optimiser, parameter all-gather."""

    name: str
    label: Label
    duration_s: float
    meets: tuple[int, ...] = ()


@dataclass(frozen=True)
class RankClass:
    """All ranks that run the same program at the same times."""

    stage: int
    ranks: int
    example_rank: int
    chunks: Mapping[ChunkKey, ChunkCost]
    previous: int
    next: int
    meets: tuple[int, ...] = ()
    dp_meets: tuple[int, ...] = ()
    buckets: tuple[ReduceBucket, ...] = ()
    tail: tuple[TailOp, ...] = ()


@dataclass(frozen=True)
class Program:
    """One step: a schedule (instructions per stage) and the classes that run it."""

    schedule: Schedule
    schedule_key: tuple[str, int, int, int]
    """(name, p, m, v): equal keys mean equal instruction lists; evaluators cache by it."""
    p2p: Literal["async", "blocking"]
    classes: tuple[RankClass, ...]


@dataclass(frozen=True)
class ClassResult:
    """When one class did what; arrays are indexed by instruction, NaN where there is no such message."""

    start_s: Floats
    end_s: Floats
    input_start_s: Floats
    input_end_s: Floats
    output_start_s: Floats
    output_end_s: Floats
    bucket_start_s: Floats
    bucket_end_s: Floats
    tail_start_s: Floats
    tail_end_s: Floats
    finish_s: float


@dataclass(frozen=True)
class Result:
    """Outcome of one evaluation. `events` counts the discrete events that the engine processed (else 0)."""

    step_time_s: float
    classes: tuple[ClassResult, ...]
    events: int = 0
    notes: tuple[str, ...] = field(default=())
