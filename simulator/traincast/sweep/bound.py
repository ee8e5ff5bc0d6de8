"""The closed-form screen: a lower bound of a program's step time, without its order in time."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traincast.lower.program import Program

_ROUNDING = 1e-9
"""Share by which the bound stands back, so that sums in another order never lift it above the step."""


def lower_bound_s(program: "Program") -> float:
    """Seconds that a step takes at least.

    Notes
    -----
    A class runs its instructions one after the other, so its step lasts no less than their sum, sum over chunks of
    count x duration, and its tail follows them. Where steps have a barrier, the first forward pass of a stage s also
    waits for those of the s stages before it (closed form: (p - 1) t of the bubble, of which this is the half that
    every order has): T >= sum_{s' < s} min F_s' + sum_k count_k t_k + sum tail. Orders that feed a stage from both
    ends, or fold the model, have no such chain, and get none.
    """
    from traincast.schedule import links

    of_stage = [dict(zip(one.keys, one.counts, strict=True)) for one in links(program.schedule_key, program.schedule)]
    ahead = _ahead(program) if _in_line(program) else [0.0] * len(of_stage)
    most = 0.0
    for cls in program.classes:
        work_s = sum(count * cls.chunks[key].duration_s for key, count in of_stage[cls.stage].items())
        most = max(most, ahead[cls.stage] + work_s + sum(op.duration_s for op in cls.tail))
    return most * (1.0 - _ROUNDING)


def _in_line(program: "Program") -> bool:
    """Whether every stage begins with a forward pass of chunk 0, which comes from the stage before."""
    name = program.schedule_key[0]
    return not program.rolling and name in ("gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1")


def _ahead(program: "Program") -> list[float]:
    """Stage -> forward passes of one microbatch on the stages before it [s], of the fastest class of each."""
    stages = len(program.schedule)
    fastest = [
        min((cls.chunks["F", 0].duration_s for cls in program.classes if cls.stage == stage), default=0.0)
        for stage in range(stages)
    ]
    return [sum(fastest[:stage]) for stage in range(stages)]
