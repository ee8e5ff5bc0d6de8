"""How many microbatches a stage holds at its fullest moment, by schedule.

References
----------
[1] Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.3.
[2] Narayanan et al. 2021 (SC21), §2.2 (microbatches in flight).
"""

from traincast.errors import ShapeError
from traincast.memory.job import MemoryJob
from traincast.mesh import Mesh
from traincast.recipe import Recipe
from traincast.schedule import SPLIT, ScheduleKey, build, held_chunks, in_flight_bound, model_parts, parts_of


def chunks_in_flight(recipe: Recipe, mesh: Mesh, stage: int, after_input: float = 1.0) -> tuple[float, ...]:
    """Forward passes of each chunk that a stage holds at its fullest moment.

    A microbatch counts `after_input` between the input and the weight part of its backward, where these are split.

    Notes
    -----
    1F1B holds min(p - s, m), GPipe m. Interleaved 1F1B runs 2·(p - s - 1) + (v - 1)·p forward passes ahead,
    in groups of p microbatches a chunk; the first stage's p·v + p - 1 passes of l/(p·v) layers are l·(1 +
    (p-1)/(p·v)) layers. What the other schedules hold is counted in their instruction lists.

    Reference: [1] §4.2.3; [2] §2.2.
    """
    m, p, v = max(1, recipe.microbatches(mesh.dp)), mesh.pp, recipe.vpp
    if p == 1 or recipe.schedule == "none":
        return (1,) * v
    if recipe.schedule == "gpipe":
        return (m,) * v
    if recipe.schedule in SPLIT or recipe.schedule == "looped-bfs":
        return _counted((recipe.schedule, p, m, v), stage, after_input)
    if v == 1:
        return (min(p - stage, m),)
    ahead = min(2 * (p - stage - 1) + (v - 1) * p + 1, m * v)
    counts = [0] * v
    for k in range(ahead):
        counts[k // p % v] += 1
    return tuple(counts)


def _counted(key: ScheduleKey, stage: int, after_input: float) -> tuple[float, ...]:
    """What the instruction list of a stage holds; the schedule's bound for a shape that it cannot have."""
    try:
        return held_chunks(build(*key), after_input)[stage]
    except ShapeError:
        return (in_flight_bound(key)[stage] / key[3],) * key[3]


def holds_ends(job: MemoryJob, stage: int) -> tuple[bool, bool]:
    """Whether a stage holds the first part of the model, with the embedding, and the last, with the head."""
    name, pp, v = job.recipe.schedule, job.mesh.pp, job.recipe.vpp
    held = parts_of(name, pp, v, stage)
    return 0 in held, model_parts(name, pp, v) - 1 in held


def losses_in_flight(job: MemoryJob) -> int:
    """Microbatches between loss and backward pass on the last stage: one, but all of them in GPipe and its kin."""
    if job.recipe.schedule not in ("gpipe", "looped-bfs") or job.mesh.pp == 1:
        return 1
    return int(chunks_in_flight(job.recipe, job.mesh, job.mesh.pp - 1)[-1])
