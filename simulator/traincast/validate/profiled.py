"""Steps of rows that state their own profiled pass times: what the schedule makes of them, without a cost model.

The rows of Qi et al. 2023 give F, I, W and message times measured in their first iterations. With these as input the
model, the GPU and the network play no part, so that an error is the schedule's or that of the two figures below.

The profile has no more than passes and messages. What stands around them can be had from the row's shapes
(`completed_program`): what a pass costs its host, and the end of the step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traincast.schedule import SPLIT, PassTimes
from traincast.validate.rows import PublishedRow, RowSkippedError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from traincast.lower import Program
    from traincast.lower.job import Job
    from traincast.recipe import P2PMode


@dataclass(frozen=True)
class RunLoss:
    """What passes take in a running step beyond their profile: a share of their time, and seconds of each pass.

    The profile times kernels alone. In the run the host also launches and synchronises for each pass, and kernels run
    beside transfers. Both figures are identified from measured steps (`identify`), never known beforehand.
    """

    slowdown: float = 0.0
    per_pass_s: float = 0.0


AS_PROFILED = RunLoss()


def profiled_times(row: PublishedRow, loss: RunLoss = AS_PROFILED) -> PassTimes:
    """Pass times of a row [s]; `per_pass_s` counts once for each chunk, and for each of F, I, W (or F, B).

    Raises RowSkippedError where one of the four times is not stated.
    """
    forward_s, input_s, weight_s, send_s = (_seconds(row, column) for column in ("tf", "tb", "tw", "tcomm"))
    per_pass_s = loss.per_pass_s * (row.count("vpp") or 1)
    whole = row.text("schedule") not in SPLIT  # a backward in one piece is one pass, not two
    return PassTimes(
        forward_s * (1 + loss.slowdown) + per_pass_s,
        input_s * (1 + loss.slowdown) + per_pass_s,
        weight_s * (1 + loss.slowdown) + (0.0 if whole else per_pass_s),
        send_s,
    )


def _seconds(row: PublishedRow, column: str) -> float:
    value = row.number(f"profiled_{column}_ms")
    if value is None:
        raise RowSkippedError(f"profiled_{column}_ms is not stated")
    return value * 1e-3


def weight_share(row: PublishedRow) -> float:
    """Share of a layer's activations that its weight gradients need: 32 of 34 + 5 a s / h bytes (of 34 with flash).

    Reference: Qi et al. 2023, Table 1.
    """
    scores = 5.0 * row.essential("heads") * row.essential("seq") / row.essential("hidden")
    return 32.0 / (34.0 + (scores if row.text("attention") == "unfused" else 0.0))


def profiled_program(row: PublishedRow, loss: RunLoss = AS_PROFILED, p2p: "P2PMode" = "async") -> "Program":
    """The step of a row from its own pass times.

    An automatic schedule is searched for the times as profiled, as its authors did, and runs with the loss. Steps of
    schedules that split the backward roll, unless the row says that its optimiser was synchronised.
    """
    from traincast.lower.uniform import passes_program, with_times

    name = row.text("schedule")
    m = row.essential("global_batch") // (row.essential("microbatch") * (row.count("dp") or 1))
    key = (name, row.essential("pp"), m, row.count("vpp") or 1)
    barrier = "sync_optimizer" in (row.text("remark"), row.text("unusual"))
    program = passes_program(
        key, profiled_times(row), p2p, after_input=weight_share(row), rolling=name in SPLIT and not barrier
    )
    return with_times(program, profiled_times(row, loss))


def completed_program(row: PublishedRow, per_pass_s: float | None = None) -> "Program":
    """The step of a row from its own pass times, with what these leave out from its shapes and its stack's profile.

    That is what each pass costs its host (`pass.fixed`, or `per_pass_s`), whether a stage waits for its messages, and
    the end of the step. Every stage takes the times of the profile: the first and the last one have a layer less, to
    make up for embedding and head.
    """
    from traincast.lower import lower

    job = _job(row)
    loss = RunLoss(per_pass_s=job.profile["pass.fixed"] if per_pass_s is None else per_pass_s)
    program = profiled_program(row, loss, job.recipe.p2p)
    # what ends a step does not depend on the order of passes: no schedule has to be searched for it
    plain = replace(job, recipe=replace(job.recipe, schedule="1f1b", vpp=1, p2p="blocking"))
    tails = {cls.stage: cls.tail for cls in lower(plain).program.classes}
    return replace(program, classes=tuple(replace(cls, tail=tails[cls.stage]) for cls in program.classes))


def _job(row: PublishedRow) -> "Job":
    """The first way in which a row may have run."""
    from traincast.lower.job import Job
    from traincast.validate.build import build_case
    from traincast.validate.place import place_of

    place = place_of(row)
    case = build_case(row, place.profile)
    return Job(case.model, case.mesh, case.candidates[0].recipe, place.profile, place.cluster, place.gpu)


def profiled_steps_s(rows: Sequence[PublishedRow], loss: RunLoss = AS_PROFILED) -> list[float]:
    """Step time of each row [s]."""
    from traincast.analytic import evaluate_batch

    return [float(step_s) for step_s in evaluate_batch([profiled_program(row, loss) for row in rows])]


def completed_steps_s(rows: Sequence[PublishedRow], per_pass_s: float | None = None) -> list[float]:
    """Step time of each row [s] with what its profile leaves out (`completed_program`)."""
    from traincast.analytic import evaluate_batch

    return [float(step_s) for step_s in evaluate_batch([completed_program(row, per_pass_s) for row in rows])]


def identify(rows: Sequence[PublishedRow]) -> RunLoss:
    """The loss with which the rows' relative errors are smallest (least squares)."""
    from scipy.optimize import least_squares

    measured_s = [row.number("iter_time_s") or float("nan") for row in rows]

    def errors(loss: "npt.NDArray[np.float64]", /) -> list[float]:
        steps_s = profiled_steps_s(rows, RunLoss(float(loss[0]), float(loss[1])))
        return [step_s / row_s - 1 for step_s, row_s in zip(steps_s, measured_s, strict=True)]

    found = least_squares(errors, (0.05, 5e-4), x_scale=(1e-2, 1e-4), max_nfev=8)
    return RunLoss(float(found.x[0]), float(found.x[1]))
