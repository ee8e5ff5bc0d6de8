"""Shape, schedule and model of `traincast mesh`: refusals in the options of the command."""

from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.mesh import ShapeRequest
    from traincast.mesh.problems import Problem


def scheduled(request: "ShapeRequest", schedule: str, *, vpp_stated: bool) -> "ShapeRequest":
    """The shape under a schedule: its chunks where none are stated, and what one copy of the model puts on a stage.

    Raises UsageError for an unknown schedule, ShapeError for stages, chunks or microbatches that it cannot have.
    """
    from traincast.errors import nearest_names
    from traincast.mesh.problems import refuse
    from traincast.schedule import SCHEDULES, TWO_CHUNKS, chunks_of_model, in_groups
    from traincast.schedule.limits import ScheduleRequest, schedule_problems

    if schedule not in SCHEDULES:
        near = nearest_names(schedule, SCHEDULES, 1)
        fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(SCHEDULES)}"
        raise UsageError(f"no schedule {schedule!r}", where="--schedule", fix=fix)
    vpp = 2 if schedule in TWO_CHUNKS and request.pp > 1 and not vpp_stated else request.vpp
    dp, batch = request.dp_or_left, request.global_batch
    step = request.microbatch * dp if dp else 0
    microbatches = -(-batch // step) if batch and step > 0 else None
    refuse(
        [in_options(one) for one in schedule_problems(ScheduleRequest(schedule, request.pp, vpp, microbatches, step))]
    )
    chunks, groups = chunks_of_model(schedule, vpp), in_groups(schedule, vpp)
    return replace(request, vpp=vpp, model_chunks=chunks, in_groups=groups)


def in_options(found: "Problem") -> "Problem":
    """A finding with its fix in options of the command."""
    from traincast.mesh.wording import as_option, worded

    fix = found.fix.replace("uneven stages if you ask for them", "--uneven for uneven stages")
    return replace(found, fix=worded(fix.replace("give stage_layers", "give --stage-layers"), as_option))


def checked(request: "ShapeRequest") -> tuple[str, ...]:
    """The warnings about a shape; raises ShapeError with every refusal, a line each."""
    from traincast.mesh import check_shape
    from traincast.mesh.problems import refuse
    from traincast.scenario.fixes import Trials

    trials, problems = Trials(request), check_shape(request)
    found = [
        in_options(one if one.severity == "warning" else replace(one, fix=trials.offered(one.fix))) for one in problems
    ]
    refuse(found)
    return tuple(str(one) for one in found)


def layers_of_chunks(request: "ShapeRequest") -> tuple[int, ...] | None:
    """Layers of each chunk: as given, or even, or balanced where that was asked for."""
    from traincast.mesh import balanced_layers, even_layers

    chunks = request.parts // request.pp
    if request.layers is None or request.stage_layers is not None:
        return request.stage_layers
    if request.uneven and request.layers % request.parts:
        return balanced_layers(request.layers, request.pp, chunks, embedding_as_layer=True)
    return even_layers(request.layers, request.pp, chunks)


def parts_of_stages(schedule: str, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """The parts of the model that each stage holds, by chunk."""
    from traincast.schedule import parts_of

    return tuple(parts_of(schedule, pp, vpp, stage) for stage in range(pp))
