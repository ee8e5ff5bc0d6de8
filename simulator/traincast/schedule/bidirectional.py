"""The order that DualPipe and DualPipeV share: two streams of microbatches that cross on every stage."""

from collections.abc import Mapping

from traincast.schedule.passes import Tape
from traincast.schedule.types import Instruction


def crossing(depth: int, m: int, rank: int, near: int, first: Mapping[int, int]) -> tuple[Instruction, ...]:
    """Instructions of the stage that `rank` stages lie before; `depth` stages lie between an end and the turn.

    `near` is the chunk whose stream comes from that end, the other one comes back from the turn. m >= 2 depth
    microbatches a stream, the first one of each chunk as in `first`.

    Eight phases: forwards of the near chunk; of both; the far chunk's first backwards, split, between its forwards;
    the steady state, in which a forward of one chunk and a backward of the other run as one (joint); two phases that
    empty the far chunk and then the near one, their later half split; weight gradients.
    """
    tape, before, after = Tape(first), depth - rank - 1, rank + 1
    f, i, b = ((f"{kind}{near}", f"{kind}{1 - near}") for kind in "FIB")
    tape.run(*[f[0]] * (2 * before))
    tape.run(*[f[0], f[1]] * after)
    tape.run(*[i[1], "W", f[1]] * before)
    for step in range(m - 2 * depth + after):
        at_turn = step == 0 and before == 0  # the turn has nothing to overlap with yet
        tape.run(f[0], b[1], joint=not at_turn)
        tape.run(f[1], b[0], joint=True)
    for _ in range(before):
        tape.run(b[1])
        tape.run(f[1], b[0], joint=True)
    backwards = [b[1], b[0]] * after
    split = [i[1], i[0]] * after
    tape.run(*backwards[:after], *split[after:])
    tape.run(*["W", i[0]] * before)
    tape.run(*["W"] * tape.due())
    return tuple(tape.order)
