"""How many events a program takes, without running it."""

import numpy as np

from traincast.lower.check import parties, tail_parties
from traincast.lower.program import Program
from traincast.schedule.links import NONE, links


def expected_events(program: Program) -> int:
    """Number of events that the engine processes for `program`, its sharing aside, the same for both p2p semantics.

    One per compute chunk, message and tail operation; two per gradient bucket (ready, reduced); one more per
    instruction, bucket and tail operation at which the class has to meet another one; two per process (its
    start and its end), of which a class has one, or two if it has buckets. Sharing adds events where links are
    overloaded: two for each instant at which rates change, one for each transfer that was slowed.
    """
    found = links(program.schedule_key, program.schedule)
    events = 0
    for index, cls in enumerate(program.classes):
        stage = found[cls.stage]
        messages = int(np.count_nonzero(stage.target != NONE))
        processes = 1 + bool(cls.buckets)
        met = len(stage.instructions) * (len(parties(index, cls.meets)) > 1)
        met += len(cls.buckets) * (len(parties(index, cls.dp_meets)) > 1)
        met += sum(len(tail_parties(program, index, k)) > 1 for k in range(len(cls.tail)))
        work = len(stage.instructions) + messages + 2 * len(cls.buckets) + len(cls.tail)
        events += work + met + 2 * processes
    return events
