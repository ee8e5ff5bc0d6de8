"""What a fit found, as a profile's file states it: value, evidence, which data told it, and how well."""

from typing import Final

import numpy as np

from traincast.calibration.fit import Fit, FittedConstant
from traincast.calibration.profile_file import Written, names_text

_WAY: Final = {"lowest": "lower", "highest": "higher"}


def fitted_constants(found: Fit, files: str) -> list[Written]:
    """The constants that the data told, and those that are at priors of their own since they did not.

    `files` names where the data are. Where the fit is poor, nothing of it counts as measured.
    """
    return [
        _told(one, files, found) if one.told else _prior(one, files)
        for one in found.constants
        if one.told or one.changed
    ]


def residual_text(found: Fit) -> str:
    """Mean absolute error of the points that a fit used."""
    error = 100.0 * float(np.abs(np.expm1(found.log_error)).mean())
    return f"{error:.1f} % mean of {len(found.log_error)} points"


def bound_text(one: FittedConstant) -> str:
    """That a constant is at an end of its bounds; 0 is the end of what it can be at all."""
    if one.value == 0.0:
        return "at 0, the lowest that it can be: nothing of it shows in these results"
    return f"at the {one.bound} value that a fit allows: these results ask for a {_WAY[one.bound]} one"


def _told(one: FittedConstant, files: str, found: Fit) -> Written:
    source = f"{files}: {one.cases} points of {names_text(one.groups)}"
    if one.bound:
        source += f"; {bound_text(one)}"
    if found.poor:
        source = f"poor fit, half of the points off by more than {100 * found.median_error:.0f} %: {source}"
    return Written(
        name=one.name,
        value=one.value,
        kind="assumed" if found.poor else "measured",
        source=source,
        residual=residual_text(found),
        error=one.error,
    )


def _prior(one: FittedConstant, files: str) -> Written:
    return Written(one.name, one.value, "assumed", f"prior: {files} does not tell it")
