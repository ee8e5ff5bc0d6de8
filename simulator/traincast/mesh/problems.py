"""What is wrong with a shape, in words a user can act on: two numbers that clash, and a fix."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from traincast.errors import ShapeError, combined


@dataclass(frozen=True)
class Problem:
    """One finding. An `error` refuses the shape; a `warning` lets it pass, but is shown.

    `names` are the settings that clash (as in `wording.NAMES`), the one to look at first in front.
    """

    message: str
    fix: str
    severity: Literal["error", "warning"] = "error"
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.message} (fix: {self.fix})"


def refuse(problems: Sequence[Problem]) -> None:
    """Raises one ShapeError that holds every error among `problems`, a line each; else returns."""
    errors = [ShapeError(found.message, fix=found.fix) for found in problems if found.severity == "error"]
    if errors:
        raise combined(errors)


def near_divisors(number: int, wanted: int) -> tuple[int, ...]:
    """The divisors of `number` next to `wanted`, below and above (one of them where there is no other)."""
    below = next((d for d in range(min(wanted - 1, number), 0, -1) if number % d == 0), None)
    root = math.isqrt(number)
    small = (d for d in range(wanted + 1, root + 1) if number % d == 0)
    large = (number // k for k in range(min(root, number // (wanted + 1)), 0, -1) if number % k == 0)
    above = next(small, None) or next(large, None)
    return tuple(d for d in (below, above) if d is not None)


def near_multiples(number: int, factor: int) -> tuple[int, ...]:
    """The multiples of `factor` next to `number`, below (if above zero) and above."""
    below = number // factor * factor
    return tuple(multiple for multiple in (below, below + factor) if multiple > 0)


def either(values: Sequence[object]) -> str:
    """ "4 or 8" out of (4, 8)."""
    return " or ".join(str(value) for value in values)
