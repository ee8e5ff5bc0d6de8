"""What a pipeline schedule asks of stages, chunks and microbatches, as findings with the numbers that clash and a fix.

`registry.build` refuses the same shapes; these are told before, in the words of who asked for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from traincast.mesh.problems import Problem, either
from traincast.schedule.registry import ANY_CHUNKS, TWO_CHUNKS

BOTH_ENDS = ("dualpipe", "dualpipev")
"""Schedules that feed microbatches from both ends of the model and need 2 p of them (DeepSeek-AI's DualPipe repository:
num_chunks >= 2 * num_ranks)."""


@dataclass(frozen=True)
class ScheduleRequest:
    """A schedule by name on `pp` stages of `vpp` chunks.

    `microbatches` of a replica and step are unchecked where they are None; `step` sequences make one of them on all
    replicas (microbatch * dp).
    """

    name: str
    pp: int
    vpp: int = 1
    microbatches: int | None = None
    step: int = 1


def schedule_problems(ask: ScheduleRequest) -> Iterator[Problem]:
    """What stages, chunks and microbatches a schedule cannot have. Whether pp divides the microbatches of interleaving
    is the shape's own check (`mesh.shapechecks`)."""
    yield from _stage_problems(ask)
    if ask.name in BOTH_ENDS and ask.pp > 1 and ask.microbatches is not None:
        yield from _microbatch_problems(ask, ask.microbatches)


def _stage_problems(ask: ScheduleRequest) -> Iterator[Problem]:
    name, pp, vpp = ask.name, ask.pp, ask.vpp
    if name == "none" and pp > 1:
        groups = ask.microbatches is not None and ask.microbatches % pp
        chunked = "schedule looped-bfs" if groups else "schedule interleaved"
        fix = "schedule 1f1b, or pp 1" if vpp == 1 else f"{chunked}, or schedule 1f1b with vpp 1"
        yield Problem(f"schedule none has 1 stage, but pp is {pp}", fix, names=("schedule", "pp"))
    elif name == "interleaved" and vpp == 1:
        yield Problem("schedule interleaved, but vpp is 1", "vpp 2, or schedule 1f1b", names=("schedule", "vpp"))
    elif name in TWO_CHUNKS:
        yield from _two_chunk_problems(name, pp, vpp)
    elif name not in ANY_CHUNKS and vpp > 1:
        message = f"schedule {name} has 1 chunk a stage, but vpp is {vpp}"
        yield Problem(message, "schedule interleaved, or vpp 1", names=("schedule", "vpp"))


def _two_chunk_problems(name: str, pp: int, vpp: int) -> Iterator[Problem]:
    if pp == 1:
        message = f"schedule {name} needs a pipeline, but pp is 1"
        yield Problem(message, "pp 2 or more, or schedule none", names=("schedule", "pp"))
        return
    if vpp != 2:
        message = f"schedule {name} has 2 chunks a stage, but vpp is {vpp}"
        yield Problem(message, "vpp 2, or no vpp", names=("schedule", "vpp"))
    if name == "dualpipe" and pp % 2:
        message = f"schedule dualpipe pairs stages from both ends, so needs an even number of them, but pp is {pp}"
        near = either([even for even in (pp - 1, pp + 1) if even > 1])
        yield Problem(message, f"pp {near}, or schedule dualpipev", names=("pp", "schedule"))


def _microbatch_problems(ask: ScheduleRequest, m: int) -> Iterator[Problem]:
    """At least two for each stage; as many from either end of DualPipe."""
    name, pp, step = ask.name, ask.pp, ask.step
    even = 2 if name == "dualpipe" else 1
    names = ("global batch", "pp", "microbatch", "dp")
    if m < 2 * pp:
        fewer = m // 2 // even * even
        depth = f", or pp {fewer}" if fewer > 1 else ""
        yield Problem(
            f"schedule {name} needs 2 microbatches a stage, 2 * pp {pp} = {2 * pp}, but a step has {m}",
            f"global batch {2 * pp * step} or more{depth}, or schedule zb-v",
            names=names,
        )
    elif m % even:
        message = f"schedule dualpipe needs as many microbatches from either end, an even number, but a step has {m}"
        near = either([(m - 1) * step, (m + 1) * step])
        yield Problem(message, f"global batch {near}, or schedule dualpipev", names=names)
