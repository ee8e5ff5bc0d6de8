"""The program that all evaluators run, and the result that they return.

One `Program` describes one training step as rank classes. A class stands for all ranks whose programs cannot
be told apart (colour refinement, `fold.py`); with folding off every rank is its own class. The semantics,
which the SimPy engine and the recurrence both implement, to the last bit:

- A class runs its stage's instructions in order on its compute stream. Instruction k of kind F on (stage s,
  chunk c) needs the output of F on the chunk before it in the model (stage s-1, or the last stage with chunk c-1,
  unless the schedule folds the model: `schedule.placement`); B, and I in its place, needs the output of B or I on
  the chunk after it; W nothing. Outputs travel from class to class along `previous` and `next`, which are each
  other's inverse. Between two chunks of one stage nothing is sent: the order alone satisfies the dependencies.
- Duration of an instruction: `chunks[(kind, chunk)].duration_s`. If a class has `meets` (other classes of its
  TP x CP groups), an instruction begins only when all of them are ready to begin it (they run the same
  instruction list). A class is ready for an instruction when the one before has ended and its input has
  arrived (`blocking`: when its exchange is done). It waits for those it names itself; `meets` need not be
  symmetric.
- Instructions that are `joint` run as one: the first begins only when the inputs of all of them have arrived, and
  no output leaves before the last of them ends.
- p2p `async`: the message leaves when the instruction ends and when the sender's earlier message in that
  direction (pp-send to the next and to the previous stage are two streams) has arrived; it arrives `send_s` later; the
  sender computes on.
- p2p `blocking`: after each instruction that is not `fused`, the class posts, together, the sends of all
  outputs made since its last exchange and the receives for the inputs of the instructions up to and including
  the next one that is not fused. (Before the first instruction it posts the receives only; after the last one
  the sends only.) A transfer begins when both ends have posted it, and takes `send_s`; the class goes on when
  all its posted transfers are done. It has ended all instructions when the last exchange is done, too.
- Gradient buckets: bucket i of a class is ready `ready_s` after the start of the last instruction that makes
  weight gradients of its `chunk` (the last W, or the last B that no W follows up); with `chunk` None,
  `ready_s` after the class has ended all instructions. Buckets run in order on the dp stream. A class has
  arrived at bucket i when it is ready and the bucket before has ended; the bucket starts when the class and
  all its `dp_meets` (which have as many buckets) have arrived, and takes `duration_s`.
- Tail operations run in order after the last instruction and the last bucket. Each starts when the class and
  all its `meets` are ready for the tail operation of that name (a class lacking that name does not take
  part), and takes `duration_s`. The step ends when the last class ends. Where steps are `rolling` no barrier holds
  a class back: it begins its next step when it has ended this one, and the step time is the longest time from the
  begin of a class's first instruction to its end. Steps that follow each other at this pace keep all dependencies
  (the cost of a schedule in Qi et al. 2023 is this, too).
- Sharing (`Program.sharing`, optional, engine only): messages and buckets that have a flow share links. A transfer
  whose links carry all their flows at full rate takes `send_s` or `duration_s` as ever. Of that time the first
  `size_bytes / bytes_per_s` moves bytes over the links, the rest (launch, latency, what other wires do) follows and
  cannot be slowed. While bytes move, rates are max-min fair: none above its flow's `bytes_per_s`, on every link the
  sum of weight * rate at most the capacity; they change whenever a flow begins or has moved its bytes. Buckets that
  begin at one instant with one flow and one duration are one transfer: the collective of a group in which several
  classes meet. The recurrence takes every transfer as if it were alone: the same times where no link is
  overloaded, else a lower bound (longest paths are monotone in every duration).
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
    meet_labels: Mapping[int, Label] = field(default_factory=dict)
    """Class of `meets` -> axis of the group in which it is met, where that is not tp."""
    buckets: tuple[ReduceBucket, ...] = ()
    tail: tuple[TailOp, ...] = ()


@dataclass(frozen=True)
class SharedLink:
    """A directed link, or several alike ones that alike flows load alike; `name` is that of the first of them."""

    name: str
    bytes_per_s: float
    links: int = 1


@dataclass(frozen=True)
class Flow:
    """What a message or a bucket puts on links while its bytes move.

    It moves `size_bytes` at no more than `bytes_per_s`, both per lane of its narrowest edge, and loads link
    `links[i]` (an index into `Sharing.links`) with `weights[i]` times its rate. A weight counts all alike flows on
    the link that run at the same times: those of the other ranks of a class, of which only one is simulated.
    """

    label: Literal["pp", "dp"]
    size_bytes: float
    bytes_per_s: float
    links: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Sharing:
    """Links that flows of different kinds have in common; what has no flow runs as if it were alone.

    `messages[class, (pass, chunk)]` and `buckets[class, position]` are indices into `flows`.
    """

    links: tuple[SharedLink, ...]
    flows: tuple[Flow, ...]
    messages: Mapping[tuple[int, ChunkKey], int] = field(default_factory=dict)
    buckets: Mapping[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """One step: a schedule (instructions per stage) and the classes that run it."""

    schedule: Schedule
    schedule_key: tuple[str, int, int, int]
    """(name, p, m, v): equal keys mean equal instruction lists; evaluators cache by it."""
    p2p: Literal["async", "blocking"]
    classes: tuple[RankClass, ...]
    sharing: Sharing | None = None
    rolling: bool = False


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

    @property
    def begin_s(self) -> float:
        """Begin of the first instruction; 0 where there is none."""
        return float(self.start_s[0]) if len(self.start_s) else 0.0


@dataclass(frozen=True)
class LinkLoss:
    """Seconds by which transfers took longer because a link was full, summed over the transfers of a step.

    `link` is an index into `Sharing.links`; a slowed transfer counts for the most overloaded of its links. Alike
    transfers of one class count once.
    """

    link: int
    pp_s: float
    dp_s: float


@dataclass(frozen=True)
class Result:
    """Outcome of one evaluation. `events` counts the discrete events that the engine processed (else 0).

    `losses` are the links on which transfers slowed each other, the costliest first.
    """

    step_time_s: float
    classes: tuple[ClassResult, ...]
    events: int = 0
    notes: tuple[str, ...] = field(default=())
    losses: tuple[LinkLoss, ...] = ()
