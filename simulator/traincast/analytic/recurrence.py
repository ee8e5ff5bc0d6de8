"""Evaluate programs by longest path."""

from collections.abc import Sequence

import numpy as np

from traincast.analytic.graph import START
from traincast.analytic.plan import ClassIndex, Plan, plan_of, values_of, wiring
from traincast.lower.check import check_program
from traincast.lower.program import ClassResult, Floats, Program, Result

UNSHARED = "the recurrence lets no transfers slow each other: where links are overloaded its times are a lower bound"

_WIDE = 20
"""Mean nodes per level from which NumPy, a level at a time, beats a plain loop over the nodes (measured)."""
_SEVERAL = 4
"""Programs of one plan from which it is worth to find its levels, which takes as long as a plain loop (measured)."""
_BLOCK = 1 << 22
"""Nodes times programs that a batch holds in memory at once."""


def evaluate(program: Program) -> Result:
    """Times of everything in one step, by longest path over the operations.

    Equal to `traincast.engine.simulate` to the last bit, except that `events` is 0. Where the program shares links,
    every transfer is taken as if it were alone: a lower bound, and a note says so. The order of the
    operations is cached by the program's wiring. Raises TraincastError for a program that is inconsistent or
    deadlocks.
    """
    check_program(program)
    plan = plan_of(program)
    ends = _ends(plan, values_of(program)[:, None])[:, 0]
    starts = np.maximum(ends[plan.left], ends[plan.right])
    finish_s = ends[plan.ends].max(axis=1)
    starts, ends = np.append(starts, np.nan), np.append(ends, np.nan)
    classes = tuple(
        _collect(index, starts, ends, finish) for index, finish in zip(plan.classes, finish_s.tolist(), strict=True)
    )
    notes = (UNSHARED,) if program.sharing is not None and program.sharing.flows else ()
    step_time_s = max((one.finish_s - one.begin_s * program.rolling for one in classes), default=0.0)
    return Result(step_time_s, classes, notes=notes)


def evaluate_batch(programs: Sequence[Program]) -> Floats:
    """Step time of each program [s], shape (programs,); those that share a plan are evaluated together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, program in enumerate(programs):
        check_program(program)
        groups.setdefault(wiring(program), []).append(index)
    step_time_s = np.zeros(len(programs))
    for members in groups.values():
        plan = plan_of(programs[members[0]], many=True)
        size = max(1, _BLOCK // plan.nodes)
        for first in range(0, len(members), size):
            block = members[first : first + size]
            table = np.stack([values_of(programs[index]) for index in block], axis=1)
            ends = _ends(plan, table)
            taken_s = ends[plan.ends].max(axis=1)
            if programs[members[0]].rolling:
                taken_s -= _begins(plan, ends)
            step_time_s[block] = taken_s.max(axis=0, initial=0.0)
    return step_time_s


def _begins(plan: Plan, ends: Floats) -> Floats:
    """Begin of the first instruction of every class, shape (classes, programs); 0 where there is none."""
    first = np.array([own.instructions[0] if len(own.instructions) else START for own in plan.classes])
    begins: Floats = np.maximum(ends[plan.left[first]], ends[plan.right[first]])
    return begins


def _ends(plan: Plan, table: Floats) -> Floats:
    """End of every node, shape (nodes, programs); `table` has the durations, shape (values, programs)."""
    programs = table.shape[1]
    if programs >= _SEVERAL and plan.nodes * programs > _WIDE * len(plan.levels):
        return _by_level(plan, table)
    return _by_node(plan, table)


def _by_node(plan: Plan, table: Floats) -> Floats:
    """End of every node, one after the other."""
    found = []
    lefts, rights, values = (column[START + 1 :] for column in (plan.left, plan.right, plan.value))
    before = lefts.tolist(), rights.tolist()
    for seconds in table.T:
        ends = [0.0]
        append = ends.append
        for left, right, duration_s in zip(*before, seconds[values].tolist(), strict=True):
            one, other = ends[left], ends[right]
            append((one if one >= other else other) + duration_s)
        found.append(ends)
    return np.array(found).T


def _by_level(plan: Plan, table: Floats) -> Floats:
    """The same, a level at a time."""
    durations = table[plan.value]
    ends = np.zeros_like(durations)
    left, right = plan.left, plan.right
    for level in plan.levels:
        ends[level] = np.maximum(ends[left[level]], ends[right[level]]) + durations[level]
    return ends


def _collect(index: ClassIndex, starts: Floats, ends: Floats, finish_s: float) -> ClassResult:
    return ClassResult(
        start_s=starts[index.instructions],
        end_s=ends[index.instructions],
        input_start_s=starts[index.inputs],
        input_end_s=ends[index.inputs],
        output_start_s=starts[index.outputs],
        output_end_s=ends[index.outputs],
        bucket_start_s=starts[index.buckets],
        bucket_end_s=ends[index.buckets],
        tail_start_s=starts[index.tail],
        tail_end_s=ends[index.tail],
        finish_s=finish_s,
    )
