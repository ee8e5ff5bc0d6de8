"""The use case: a forecast that also says what the defects of its cluster cost."""

from dataclasses import replace
from typing import TYPE_CHECKING

from traincast.forecast import Engine, Forecast, Prepared, Sharing, forecast_prepared, prepare, prepare_on

if TYPE_CHECKING:
    from traincast.lower.touched import Degradation
    from traincast.scenario import Scenario


def forecast_with_losses(scenario: "Scenario", *, engine: Engine = "des", sharing: Sharing = "static") -> Forecast:
    """Forecasts one step of a scenario; on a degraded cluster a second time, on the clean one, to state the loss.

    On a cluster without defects this is `forecast`. Raises UserError where the scenario asks for what cannot be.
    """
    prepared = prepare(scenario)
    found = forecast_prepared(prepared, engine=engine, sharing=sharing)
    return replace(found, degraded=degradation(prepared, found.step_time_s, engine=engine, sharing=sharing))


def degradation(
    prepared: Prepared, step_time_s: float, *, engine: Engine = "des", sharing: Sharing = "static"
) -> "Degradation | None":
    """The defects of a job's cluster, and its step of `step_time_s` beside that on the clean cluster.

    There the ranks are on the same GPUs; those without a placement are on the first ones, the revived included. None
    for a cluster without defects.
    """
    from traincast.lower.touched import Degradation, defects_of, moved
    from traincast.topology import clean

    job = prepared.job
    if job.cluster.whole is None:
        return None
    whole = clean(job.cluster)
    scenario = replace(prepared.scenario, mesh=moved(job.mesh, job.cluster, whole))
    before = forecast_prepared(prepare_on(scenario, whole), engine=engine, sharing=sharing)
    return Degradation(defects_of(job, whole), before.step_time_s, step_time_s)
