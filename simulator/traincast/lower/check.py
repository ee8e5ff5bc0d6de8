"""Checks of a program before it runs, and the message when it cannot go on."""

import math
from collections.abc import Mapping, Sequence

from traincast.errors import TraincastError
from traincast.lower.program import Program, RankClass, Sharing
from traincast.schedule.links import Links, links, name_of

Parties = tuple[int, ...]
"""Classes that have to be ready before one of them begins, itself included, in ascending order."""


def check_program(program: Program) -> Links:
    """The links of the program's schedule, once its classes are known to fit them and each other.

    Raises TraincastError: a missing cost, a negative or infinite time, neighbours or meets that do not match.
    """
    found = links(program.schedule_key, program.schedule)
    for index, cls in enumerate(program.classes):
        who = f"class {index} (stage {cls.stage})"
        if not 0 <= cls.stage < len(found):
            raise TraincastError(f"{who} is on none of {len(found)} stages")
        missing = [key for key in found[cls.stage].keys if key not in cls.chunks]
        if missing:
            raise TraincastError(f"{who} has no cost for {missing[0]}")
        if any(bucket.chunk not in (None, *found[cls.stage].last_gradient) for bucket in cls.buckets):
            raise TraincastError(f"{who} reduces a chunk that it never runs backward")
        if not all(0.0 <= second < math.inf for second in _seconds(cls)):
            raise TraincastError(f"{who} has a negative, infinite or undefined time")
    _check_wiring(program, len(found))
    _check_sharing(program)
    return found


def _seconds(cls: RankClass) -> list[float]:
    seconds = [second for cost in cls.chunks.values() for second in (cost.duration_s, cost.send_s)]
    seconds += [second for bucket in cls.buckets for second in (bucket.ready_s, bucket.duration_s)]
    return seconds + [op.duration_s for op in cls.tail]


def _check_wiring(program: Program, p: int) -> None:
    classes = program.classes
    for index, cls in enumerate(classes):
        others = (*cls.meets, *cls.dp_meets, *(other for op in cls.tail for other in op.meets))
        if not all(0 <= other < len(classes) for other in (cls.previous, cls.next, *others)):
            raise TraincastError(f"class {index} refers to a class that does not exist")
        after = classes[cls.next]
        if p > 1 and (after.stage != (cls.stage + 1) % p or after.previous != index):
            raise TraincastError(f"class {index} and its next class {cls.next} are not neighbouring stages")
        if any(classes[other].stage != cls.stage for other in cls.meets):
            raise TraincastError(f"class {index} (stage {cls.stage}) meets a class of another stage")
        if any(len(classes[other].buckets) != len(cls.buckets) for other in cls.dp_meets):
            raise TraincastError(f"class {index} reduces gradients with a class of another number of buckets")
        if len({op.name for op in cls.tail}) != len(cls.tail):
            raise TraincastError(f"class {index} has two tail operations of one name")


def _check_sharing(program: Program) -> None:
    sharing = program.sharing
    if sharing is None:
        return
    for number, flow in enumerate(sharing.flows):
        loads = (flow.size_bytes, flow.bytes_per_s, *flow.weights)
        if not all(0.0 < load < math.inf for load in loads) or len(flow.weights) != len(flow.links):
            raise TraincastError(f"flow {number} has no size, rate or weights above 0")
        if not all(0 <= link < len(sharing.links) for link in flow.links) or len(set(flow.links)) < len(flow.links):
            raise TraincastError(f"flow {number} uses a link twice, or one that does not exist")
    if not all(0.0 < link.bytes_per_s < math.inf for link in sharing.links):
        raise TraincastError("a shared link has no bandwidth")
    for (index, key), number in sharing.messages.items():
        _check_flow(program, sharing, (index, number), [program.classes[index].chunks[key].send_s])
    for (index, position), number in sharing.buckets.items():
        durations = [bucket.duration_s for bucket in program.classes[index].buckets]
        _check_flow(program, sharing, (index, number), durations[position : position + 1])


def _check_flow(program: Program, sharing: Sharing, who: tuple[int, int], seconds: Sequence[float]) -> None:
    """A flow must exist, its owner too, and moving its bytes at full rate must fit into the owner's seconds."""
    index, number = who
    if not seconds or not 0 <= number < len(sharing.flows):
        raise TraincastError(f"class {index} has no such bucket or flow as the sharing says")
    flow = sharing.flows[number]
    if flow.size_bytes / flow.bytes_per_s > seconds[0] * (1.0 + 1e-9):
        raise TraincastError(f"a flow of class {index} takes longer at full rate than the {seconds[0]} s it is part of")


def parties(index: int, meets: Sequence[int]) -> Parties:
    """`index` and the classes that it meets, each once."""
    return tuple(sorted({index, *meets}))


def tail_parties(program: Program, index: int, position: int) -> Mapping[int, int]:
    """Class -> position in its tail, of all that take part in tail operation `position` of class `index`."""
    op = program.classes[index].tail[position]
    found = {}
    for other in parties(index, op.meets):
        names = [candidate.name for candidate in program.classes[other].tail]
        if op.name in names:
            found[other] = names.index(op.name)
    return found


def deadlock(program: Program, reached: Mapping[int, int]) -> TraincastError:
    """The error for a program that cannot go on.

    `reached`: class -> the first instruction that it never begins (or the number of its instructions when it
    has begun all), of the classes that never end.
    """
    where = []
    for index in sorted(reached, key=lambda index: (program.classes[index].stage, index))[:4]:
        stage = program.classes[index].stage
        order = program.schedule[stage]
        at = reached[index]
        what = name_of(order[at]) if at < len(order) else "what comes after its last instruction"
        where.append(f"stage {stage} (class {index}) waits to begin {what}")
    name, p, m, v = program.schedule_key
    return TraincastError(
        f"schedule {name} (p={p}, m={m}, v={v}) deadlocks with {program.p2p} p2p; {len(reached)} of "
        f"{len(program.classes)} classes are blocked: {'; '.join(where)}",
        fix="check the order of the schedule, which instructions are fused, and who meets whom",
    )
