"""ZB-V: the model folded into a V, no bubble where F, I and W take as long, in the memory of 1F1B (Qi et al. 2023)."""

from traincast.schedule.passes import Tape
from traincast.schedule.types import Instruction, Schedule


def zb_v(p: int, m: int, v: int = 2) -> Schedule:
    """Instructions per stage: chunk 0 runs down the stages, chunk 1 back up, so that the loss is on the first stage.

    The first backward begins on the stage that began the first forward, and all stages begin and end at nearly the
    same time. Fewer than 2 p - 1 microbatches run the order of 2 p - 1 with the missing ones left out.

    References: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 6.
    """
    return tuple(_order(p, m, stage) for stage in range(p))


def _order(p: int, m: int, stage: int) -> tuple[Instruction, ...]:
    tape, count, left = Tape(), max(m, 2 * p - 1), p - stage
    # warm-up: forwards of chunk 0 until the first microbatch is back, then both chunks, then chunk 1's backwards
    tape.run(*["F0"] * (2 * left - 1))
    tape.run(*["F1", "F0"] * stage)
    tape.run(*["F1", "I1", "W1"] * left)
    while tape.count("F1") < count:
        if tape.count("F0") < count:
            tape.run("F0")
        tape.run("I0", "W0", "F1", "I1", "W1")
    # cool-down: input gradients at once, because another stage waits for them; weight gradients fill the rest
    tape.run(*["I0", "I1"] * stage)
    tape.run(*["I0", "W0"] * left)
    tape.run(*["W1"] * stage, *["W0"] * stage)
    return tuple(instruction for instruction in tape.order if instruction.microbatch < m)
