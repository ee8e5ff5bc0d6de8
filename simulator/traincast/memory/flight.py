"""How many microbatches a stage has in flight, moment by moment, by schedule.

References
----------
[1] Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.3.
[2] Narayanan et al. 2021 (SC21), §2.2 (microbatches in flight).
[3] Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §3 and Table 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from traincast.errors import ShapeError
from traincast.memory.job import MemoryJob
from traincast.mesh import Mesh
from traincast.recipe import Recipe
from traincast.schedule import (
    AUTOMATIC,
    Instruction,
    Schedule,
    ScheduleKey,
    build,
    in_flight_bound,
    model_parts,
    parts_of,
    passes_held,
)

Floats = npt.NDArray[np.float64]
Rows = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class Moments:
    """The distinct states that a stage passes through in one step, in arrays of shape (states, chunks).

    `waiting` counts microbatches between their forward and (the input part of) their backward, `due` those between the
    input part and the weight part, where these are split.
    """

    waiting: Floats
    due: Floats

    def passes(self, after_input: float = 1.0) -> Floats:
        """Microbatches of each chunk, those that are due counted as `after_input` each."""
        return self.waiting + after_input * self.due


def moments(recipe: Recipe, mesh: Mesh, stage: int, after_input: float = 1.0, order: Schedule | None = None) -> Moments:
    """The moments of a stage: those of the `order` that is run, where it is at hand, else of the recipe's schedule.

    An automatic schedule without an order is searched for times that are not known yet. It then has the most that the
    search allows, so that no order that it finds holds more: p or 2 p microbatches, one that is due counting as
    `after_input`, but no more than one. (W of a layer that recomputes needs more than the layer keeps, up to 16 times
    as much. If it counted so, a limit of p would leave no order at all for small p: a search has to keep to what it
    can influence, the number of microbatches. What these hold is then counted in full by whoever asks here.)

    Notes
    -----
    1F1B holds min(p - s, m), GPipe m. What the others hold is counted in their instruction lists: interleaved 1F1B
    2·(p - s - 1) + (v - 1)·p + 1 passes of a chunk, the first stage p·v + p - 1 of l/(p·v) layers, which are
    l·(1 + (p-1)/(p·v)) layers.

    Reference: [1] §4.2.3; [2] §2.2; [3] §3.
    """
    name, p, v = recipe.schedule, mesh.pp, recipe.vpp
    m = max(1, recipe.microbatches(mesh.dp))
    if order is not None:
        return _of_order(order[stage])
    if name == "none":
        return _moments([[1.0] * v])
    if name == "gpipe":
        return _moments([[float(m)] * v])
    if name == "1f1b" and v == 1:
        return _moments([[float(min(p - stage, m))]])
    if name in AUTOMATIC:
        return _most_searched(float(AUTOMATIC[name] * p), m, min(1.0, after_input), last=stage == p - 1)
    if name not in ("1f1b", "interleaved"):
        return _of_schedule((name, p, m, v))[stage]
    # it repeats itself from group to group of p microbatches: two groups pass through all of its states
    return _of_schedule(("interleaved", p, min(m, 2 * p), v))[stage]


def chunks_in_flight(
    recipe: Recipe, mesh: Mesh, stage: int, after_input: float = 1.0, order: Schedule | None = None
) -> tuple[float, ...]:
    """Microbatches of each chunk that a stage holds at its fullest moment (the first, if there are several).

    One counts `after_input` between the input and the weight part of its backward, where these are split; above 1
    where W needs more than the layer kept, because I computed it again. `order` as `moments` has it.
    """
    passes = moments(recipe, mesh, stage, after_input, order).passes(after_input)
    return tuple(passes[int(passes.sum(axis=1).argmax())].tolist())


@lru_cache(maxsize=128)
def _of_schedule(key: ScheduleKey) -> tuple[Moments, ...]:
    """Of each stage, by its instruction list; the schedule's bound for a shape that it cannot have."""
    try:
        schedule = build(*key)
    except ShapeError:
        v = key[-1]
        return tuple(_moments([[most / v] * v]) for most in in_flight_bound(key))
    return tuple(_of_order(order) for order in schedule)


def _of_order(order: Sequence[Instruction]) -> Moments:
    states = passes_held(order)
    return _moments([waiting for waiting, _ in states], [due for _, due in states])


def _most_searched(limit: float, m: int, share: float, *, last: bool) -> Moments:
    """The corners of what a search may do: waiting + share·due within its limit, and no more than m of both.

    On the last stage I follows its F at once, because nothing has to arrive for it (and F takes time): one waits, the
    others are due.
    """
    if last:
        alone = min(m, int(limit / share + 1e-6))
        beside = min(m - 1, int((limit - 1.0) / share + 1e-6))
        return _moments([[1.0], [0.0]], [[beside], [alone]])
    corners = [(min(limit, m), 0.0), (0.0, min(m, limit / share))]
    if limit < m < limit / share:
        due = (m - limit) / (1.0 - share)
        corners.append((m - due, due))
    return _moments([[waiting] for waiting, _ in corners], [[due] for _, due in corners])


def _moments(waiting: Rows, due: Rows | None = None) -> Moments:
    found = np.array(waiting, dtype=np.float64)
    return Moments(found, np.zeros_like(found) if due is None else np.array(due, dtype=np.float64))


def holds_ends(job: MemoryJob, stage: int) -> tuple[bool, bool]:
    """Whether a stage holds the first part of the model, with the embedding, and the last, with the head."""
    name, pp, v = job.recipe.schedule, job.mesh.pp, job.recipe.vpp
    held = parts_of(name, pp, v, stage)
    return 0 in held, model_parts(name, pp, v) - 1 in held
