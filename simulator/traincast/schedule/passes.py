"""Runs of instructions that the schedules are put together from."""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain

from traincast.schedule.types import Instruction, Pass


def forwards(m: int, chunk: int, *, fused: bool = False) -> tuple[Instruction, ...]:
    """Forward of microbatches 0..m-1 on one chunk."""
    return _passes("F", m, chunk, fused=fused)


def backwards(m: int, chunk: int) -> tuple[Instruction, ...]:
    """Backward of microbatches 0..m-1 on one chunk."""
    return _passes("B", m, chunk)


def input_gradients(m: int, chunk: int) -> tuple[Instruction, ...]:
    """Input part of the backward of microbatches 0..m-1 on one chunk."""
    return _passes("I", m, chunk)


def weight_gradients(m: int, chunk: int) -> tuple[Instruction, ...]:
    """Weight part of the backward of microbatches 0..m-1 on one chunk."""
    return _passes("W", m, chunk)


def _passes(kind: Pass, m: int, chunk: int, *, fused: bool = False) -> tuple[Instruction, ...]:
    made = _made(kind, chunk, fused)
    made += [Instruction(kind, microbatch, chunk, fused) for microbatch in range(len(made), m)]
    return tuple(made[:m])


@lru_cache(maxsize=1024)
def _made(kind: Pass, chunk: int, fused: bool) -> list[Instruction]:
    """Passes that are made already, which schedules of all numbers of microbatches have in common, to be added to."""
    return []


def alternate(
    forward: tuple[Instruction, ...], backward: tuple[Instruction, ...], warm_up: int
) -> tuple[Instruction, ...]:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left."""
    steady = zip(forward[warm_up:], backward, strict=False)
    return forward[:warm_up] + tuple(chain.from_iterable(steady)) + backward[len(forward) - warm_up :]


def in_groups(chunks: tuple[tuple[Instruction, ...], ...], p: int) -> tuple[Instruction, ...]:
    """Instructions of all chunks in groups of p microbatches; a group passes every chunk before the next."""
    m = len(chunks[0])
    runs = (one[first : first + p] for first in range(0, m, p) for one in chunks)
    return tuple(chain.from_iterable(runs))


def behind(
    alternated: tuple[Instruction, ...], weights: tuple[Instruction, ...], delay: int
) -> tuple[Instruction, ...]:
    """The weight gradients in turn, one after each input gradient but the first `delay`; what is left at the end."""
    order: list[Instruction] = []
    inputs = done = 0
    for instruction in alternated:
        order.append(instruction)
        if instruction.kind == "I":
            inputs += 1
            if inputs > delay:
                order.append(weights[done])
                done += 1
    return (*order, *weights[done:])


class Tape:
    """Writes the order of one stage by name of the pass, such as `F0`, `I1`; each takes its microbatches in turn.

    `W0` is the oldest weight gradient of chunk 0 that is due, `W` the oldest of all chunks. `first` gives the first
    microbatch of a chunk (0 unless said).
    """

    def __init__(self, first: Mapping[int, int] | None = None) -> None:
        self.order: list[Instruction] = []
        self._first = first or {}
        self._count: Counter[tuple[str, int]] = Counter()
        self._due: list[tuple[int, int]] = []

    def run(self, *passes: str, joint: bool = False) -> None:
        """Append passes; with `joint` they run as one."""
        for place, name in enumerate(passes):
            onward = joint and place < len(passes) - 1
            if name[0] == "W":
                self._weight(name[1:])
            elif name[0] == "F":
                self._take("F", "F", int(name[1:]), onward)
            else:
                self._take("I" if name[0] == "I" else "B", "B", int(name[1:]), onward)

    def count(self, name: str) -> int:
        """How many times a pass has run; `B0` counts the split backwards too."""
        return self._count[name[0], int(name[1:])]

    def due(self) -> int:
        """Weight gradients that wait."""
        return len(self._due)

    def _take(self, kind: Pass, counted: str, chunk: int, onward: bool) -> None:
        microbatch = self._first.get(chunk, 0) + self._count[counted, chunk]
        self._count[counted, chunk] += 1
        self.order.append(Instruction(kind, microbatch, chunk, onward, onward))
        if kind == "I":
            self._due.append((microbatch, chunk))

    def _weight(self, chunk: str) -> None:
        at = next(i for i, (_, own) in enumerate(self._due) if chunk in ("", str(own)))
        microbatch, own = self._due.pop(at)
        self.order.append(Instruction("W", microbatch, own))
