"""Runs of instructions that the schedules are put together from."""

from traincast.schedule.types import Instruction


def forwards(m: int, chunk: int) -> tuple[Instruction, ...]:
    """Forward of microbatches 0..m-1 on one chunk."""
    return tuple(Instruction("F", microbatch, chunk) for microbatch in range(m))


def backwards(m: int, chunk: int) -> tuple[Instruction, ...]:
    """Backward of microbatches 0..m-1 on one chunk."""
    return tuple(Instruction("B", microbatch, chunk) for microbatch in range(m))


def alternate(
    forward: tuple[Instruction, ...], backward: tuple[Instruction, ...], warm_up: int
) -> tuple[Instruction, ...]:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left."""
    steady = zip(forward[warm_up:], backward, strict=False)
    pairs = tuple(instruction for pair in steady for instruction in pair)
    return forward[:warm_up] + pairs + backward[len(forward) - warm_up :]
