"""Programs of a bare schedule: nothing but the pipeline runs, for as long as somebody measured or supposes."""

from collections.abc import Sequence
from dataclasses import replace

from traincast.lower.program import ChunkCost, ChunkKey, Program, RankClass
from traincast.recipe import P2PMode
from traincast.schedule import PassTimes, ScheduleKey, build, build_timed, model_parts
from traincast.schedule.times import of_stages


def uniform_program(
    key: ScheduleKey,
    forward_s: float,
    backward_s: float,
    send_s: float = 0.0,
    p2p: P2PMode = "async",
) -> Program:
    """One class per stage for the schedule `key` = (name, p, m, v).

    `forward_s` and `backward_s` are the seconds of one microbatch on one stage (all its chunks), `send_s`
    those of one message. With it the closed forms of the schedules can be checked, or a schedule studied
    without a model. Schedules that split the backward need `passes_program`.
    """
    name, p, m, v = key
    chunks: dict[ChunkKey, ChunkCost] = {}
    for chunk in range(v):
        chunks["F", chunk] = ChunkCost(forward_s / v, {"compute": forward_s / v}, send_s)
        chunks["B", chunk] = ChunkCost(backward_s / v, {"compute": backward_s / v}, send_s)
    classes = tuple(
        RankClass(stage=s, ranks=1, example_rank=s, chunks=chunks, previous=(s - 1) % p, next=(s + 1) % p)
        for s in range(p)
    )
    return Program(build(name, p, m, v), key, p2p, classes)


def passes_program(
    key: ScheduleKey,
    times: PassTimes | Sequence[PassTimes],
    p2p: P2PMode = "async",
    *,
    after_input: float = 1.0,
    rolling: bool = False,
) -> Program:
    """One class per stage for the schedule `key`, with passes that take `times` (one entry, or one a stage).

    A microbatch spends the times of a stage in equal parts on the chunks that it passes there: all of them, or the
    one of its direction in DualPipe. Automatic schedules are searched for these times; `after_input` is their share
    of activations that is held from I to W. `rolling` as in `Program`.
    """
    p = key[1]
    stages = of_stages(times, p)
    key, schedule = build_timed(key, stages, after_input)
    classes = tuple(
        RankClass(stage=s, ranks=1, example_rank=s, chunks={}, previous=(s - 1) % p, next=(s + 1) % p) for s in range(p)
    )
    return with_times(Program(schedule, key, p2p, classes, rolling=rolling), stages)


def with_times(program: Program, times: PassTimes | Sequence[PassTimes]) -> Program:
    """The same order of instructions with passes that take other times (one entry, or one a stage)."""
    name, p, _, v = program.schedule_key
    stages, chunks_passed = of_stages(times, p), model_parts(name, p, v) // p
    costs = [dict(one for chunk in range(v) for one in _costs(own, chunk, chunks_passed)) for own in stages]
    return replace(program, classes=tuple(replace(cls, chunks=costs[cls.stage]) for cls in program.classes))


def _costs(times: PassTimes, chunk: int, chunks_passed: int) -> list[tuple[ChunkKey, ChunkCost]]:
    seconds = {"F": times.forward_s, "B": times.backward_s, "I": times.input_s, "W": times.weight_s}
    found: list[tuple[ChunkKey, ChunkCost]] = []
    for kind in ("F", "B", "I", "W"):
        part_s = seconds[kind] / chunks_passed
        found.append(((kind, chunk), ChunkCost(part_s, {"compute": part_s}, 0.0 if kind == "W" else times.send_s)))
    return found
