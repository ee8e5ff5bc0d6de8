"""What a fit found, as a profile's file states it: value, evidence, which data told it, and how well."""

import numpy as np

from traincast.calibration.fit import Fit, FittedConstant
from traincast.calibration.profile_file import Written, names_text


def fitted_constants(found: Fit, files: str) -> list[Written]:
    """The constants that the data told, and those that are at priors of their own since they did not.

    `files` names where the data are.
    """
    residual = residual_text(found)
    return [
        _told(one, files, residual) if one.told else _prior(one, files)
        for one in found.constants
        if one.told or one.changed
    ]


def residual_text(found: Fit) -> str:
    """Mean absolute error of the points that a fit used."""
    error = 100.0 * float(np.abs(np.expm1(found.log_error)).mean())
    return f"{error:.1f} % mean of {len(found.log_error)} points"


def _told(one: FittedConstant, files: str, residual: str) -> Written:
    return Written(
        name=one.name,
        value=one.value,
        kind="measured",
        source=f"{files}: {one.cases} points of {names_text(one.groups)}",
        residual=residual,
        error=one.error,
    )


def _prior(one: FittedConstant, files: str) -> Written:
    return Written(one.name, one.value, "assumed", f"prior: {files} does not tell it")
