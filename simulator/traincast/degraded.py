"""The use case: a forecast that also says what the defects of its cluster cost."""

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from traincast.forecast import AXES, Engine, Forecast, Prepared, Sharing, forecast_prepared, prepare, prepare_on

if TYPE_CHECKING:
    from traincast.lower.touched import Degradation
    from traincast.scenario import Scenario
    from traincast.topology import Cluster

MOST_ALONE: Final = 8
"""Defects that are also forecast alone: each is a forecast of its own."""


def forecast_with_losses(
    scenario: "Scenario", *, engine: Engine = "des", sharing: Sharing = "static", alone: bool = True
) -> Forecast:
    """Forecasts one step of a scenario; on a degraded cluster a second time, on the clean one, to state the loss.

    With `alone`, where there are several defects, once more with each of them and no other. On a cluster without
    defects this is `forecast`. Raises UserError where the scenario asks for what cannot be.
    """
    prepared = prepare(scenario)
    found = forecast_prepared(prepared, engine=engine, sharing=sharing)
    told = degradation(prepared, found.step_time_s, engine=engine, sharing=sharing)
    if told is None:
        return found
    if alone:
        told = each_alone(prepared, told, engine=engine, sharing=sharing)
    rows, axes = found.breakdown.classes_s, [axis for axis in AXES if axis in found.traffic]
    waits: dict[str, float] = {axis: max(row[axis] for row in rows) for axis in axes}
    notes = (*found.assumptions, *_assumed(found, told))
    return replace(found, degraded=replace(told, most_exposed_s=waits), assumptions=notes)


def degradation(
    prepared: Prepared, step_time_s: float, *, engine: Engine = "des", sharing: Sharing = "static"
) -> "Degradation | None":
    """The defects of a job's cluster, and its step of `step_time_s` beside that on the clean cluster.

    There the ranks are on the same GPUs; those without a placement are on the first ones, the revived included. None
    for a cluster without defects.
    """
    from traincast.lower.touched import Degradation, defects_of
    from traincast.topology import clean

    job = prepared.job
    if job.cluster.whole is None:
        return None
    whole = clean(job.cluster)
    clean_s = _step_s(prepared, whole, engine, sharing)
    return Degradation(defects_of(job, whole), clean_s, step_time_s)


def each_alone(
    prepared: Prepared, told: "Degradation", *, engine: Engine = "des", sharing: Sharing = "static"
) -> "Degradation":
    """The same with the loss of each defect alone: the step on a cluster where nothing else is wrong.

    A single defect costs what all cost. Of more than MOST_ALONE only the first are forecast so.
    """
    from traincast.lower.touched import defects_in
    from traincast.topology import degraded

    cluster, found = prepared.job.cluster, []
    if len(told.defects) == 1 or cluster.whole is None:
        return replace(told, defects=tuple(replace(one, alone_loss_s=told.loss_s) for one in told.defects))
    absent = [loss.change for loss in cluster.losses if loss.change.kind == "absent_node"]
    for number, (loss, defect) in enumerate(zip(defects_in(cluster), told.defects, strict=True)):
        if number < MOST_ALONE:
            only = degraded(degraded(cluster.whole, [loss.change]), absent)
            step_s = _step_s(prepared, only, engine, sharing)
            defect = replace(defect, alone_loss_s=step_s - told.clean_step_time_s)
        found.append(defect)
    return replace(told, defects=tuple(found))


def _step_s(prepared: Prepared, cluster: "Cluster", engine: Engine, sharing: Sharing) -> float:
    """The step of a job on another state of its cluster, its ranks on the same GPUs."""
    from traincast.lower.touched import moved

    job = prepared.job
    scenario = replace(prepared.scenario, mesh=moved(job.mesh, job.cluster, cluster))
    return forecast_prepared(prepare_on(scenario, cluster), engine=engine, sharing=sharing).step_time_s


def _assumed(found: Forecast, told: "Degradation") -> tuple[str, ...]:
    """What a forecast on a degraded cluster rests on."""
    notes = ["the defects are as the cluster says; what they cost is modelled, not measured"]
    if found.interval is not None:
        notes.append("the interval holds what the profile's residuals on sound clusters tell, nothing of the defects")
    left_out = len(told.defects) - MOST_ALONE
    if left_out > 0:
        notes.append(f"the first {MOST_ALONE} defects are also forecast alone, the other {left_out} are not")
    return tuple(notes)
