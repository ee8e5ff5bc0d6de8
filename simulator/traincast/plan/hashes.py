"""One step under several seeds of the hash that puts flows on parallel links: best, median and worst."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traincast.degraded import forecast_with_losses
from traincast.forecast import Engine, Forecast
from traincast.topology.links import Spread

if TYPE_CHECKING:
    from traincast.scenario import Scenario


@dataclass(frozen=True)
class HashSpread:
    """Forecasts of one step by seed, at least one, all with `flows` flows from NIC to NIC."""

    flows: int
    seeds: tuple[int, ...]
    forecasts: tuple[Forecast, ...] = field(repr=False)

    def chosen(self) -> dict[str, tuple[int, Forecast]]:
        """Seed and forecast of the best, the median (the lower of two) and the worst; of equal ones the lower seed.

        Where all seeds give the same step, none is the best or the worst: the median stands for all.
        """
        rows = sorted(zip(self.seeds, self.forecasts, strict=True), key=lambda row: (row[1].step_time_s, row[0]))
        if rows[0][1].step_time_s == rows[-1][1].step_time_s:
            return {"median": rows[0]}
        return {"best": rows[0], "median": rows[(len(rows) - 1) // 2], "worst": rows[-1]}

    def as_dict(self) -> dict[str, Any]:
        """The spread as JSON shows it."""
        chosen = self.chosen().items()
        return {
            "flows": self.flows,
            "seeds": list(self.seeds),
            "step_times_s": [row.step_time_s for row in self.forecasts],
            "step_time_s": {name: row.step_time_s for name, (_, row) in chosen},
            "seed": {name: seed for name, (seed, _) in chosen},
        }


def over_seeds(scenario: "Scenario", flows: int, seeds: Sequence[int], engine: Engine = "des") -> HashSpread:
    """Forecasts a step under each seed. Raises UserError where the scenario asks for what cannot be."""
    spreads = [Spread("ecmp", seed, flows) for seed in seeds]
    alone = len(spreads) == 1  # what each defect costs alone is told of one seed, not of a range
    forecasts = tuple(forecast_with_losses(scenario, engine=engine, sharing=one, alone=alone) for one in spreads)
    return HashSpread(flows, tuple(seeds), forecasts)
