"""What a sweep finds: rows, counts, the confirmation of the fastest."""

from dataclasses import dataclass
from typing import Any

from traincast.sweep.shapes import Shape


@dataclass(frozen=True)
class SweepRow:
    """What became of one shape: rates in TFLOP/s per GPU, memory in bytes of the fullest stage.

    `sets` is what to lay over the scenario so that `predict` forecasts the same.
    """

    shape: Shape
    schedule: str
    step_time_s: float
    tflops_hardware: float
    tflops_model: float
    mfu: float | None
    hfu: float | None
    memory_bytes: float
    verdict: str
    over_limit: bool
    """Borderline, and above the GPU's memory rather than just below it: ranked behind all shapes that are not."""
    sets: tuple[tuple[str, str], ...] = ()

    @property
    def rank(self) -> tuple[bool, float, Shape]:
        """The order of rows: above the limit last, then the fastest first."""
        return self.over_limit, self.step_time_s, self.shape

    def as_dict(self) -> dict[str, Any]:
        """The row without nesting."""
        left_out = ("shape", "sets", "schedule")
        figures = {key: value for key, value in vars(self).items() if key not in left_out}
        given = [f"{key}={value}" for key, value in self.sets]
        return {**self.shape.sizes, "schedule": self.schedule, **figures, "set": given}


@dataclass(frozen=True)
class Confirmation:
    """The fastest shape in the event engine: its step [s] there, how many events, and the row's own step [s]."""

    step_time_s: float
    events: int
    recurrence_s: float

    @property
    def equal(self) -> bool:
        """Whether both evaluators agree to the last bit, as they must where nothing is contended."""
        return self.step_time_s == self.recurrence_s

    def as_dict(self) -> dict[str, Any]:
        """As JSON shows it."""
        return {"engine": "des", **vars(self), "equal": self.equal}


@dataclass(frozen=True)
class SweepOutcome:
    """All evaluated shapes, the fastest first; how many memory pruned, which were refused and why, and how many have a
    lower bound that is above the fastest asked for."""

    scenario: str
    world: int
    legal: int
    too_big: int
    ranked: tuple[SweepRow, ...]
    refusals: tuple[str, ...]
    screened: int = 0
    resumed: int = 0
    confirmation: Confirmation | None = None

    @property
    def refused(self) -> int:
        """Shapes that pass the arithmetic but that the schedule, the split of the sequence or the forecast refuses."""
        return len(self.refusals)

    @property
    def reasons(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each reason to refuse, with the shapes that it refuses, in the order of the first of them."""
        found: dict[str, list[str]] = {}
        for line in self.refusals:
            shape, _, reason = line.partition(": ")
            found.setdefault(reason, []).append(shape)
        return tuple((reason, tuple(shapes)) for reason, shapes in found.items())

    def as_dict(self, top: int | None = None, *, complete: bool = True) -> dict[str, Any]:
        """The outcome as JSON shows it; `top` keeps that many shapes. Not `complete`: the sweep still runs."""
        return {
            "scenario": self.scenario,
            "world": self.world,
            "complete": complete,
            "legal": self.legal,
            "evaluated": len(self.ranked),
            "too_big": self.too_big,
            "refused": self.refused,
            "screened": self.screened,
            "resumed": self.resumed,
            "refusals": list(self.refusals),
            "confirmed": self.confirmation.as_dict() if self.confirmation else None,
            "shapes": [{"rank": rank, **row.as_dict()} for rank, row in enumerate(self.ranked[:top], start=1)],
        }
