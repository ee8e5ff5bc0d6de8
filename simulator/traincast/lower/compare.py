"""Comparison of two results to the last bit."""

from dataclasses import fields

import numpy as np

from traincast.lower.program import ClassResult, Result


def differences(first: Result, second: Result) -> tuple[str, ...]:
    """What differs between two results, events and notes aside; empty when they are equal to the last bit.

    Two NaN are equal (there is no such message in either).
    """
    found = [] if first.step_time_s == second.step_time_s else ["step_time_s"]
    if len(first.classes) != len(second.classes):
        return (*found, "number of classes")
    names = [entry.name for entry in fields(ClassResult)]
    for index, (one, other) in enumerate(zip(first.classes, second.classes, strict=True)):
        found += [
            f"classes[{index}].{name}"
            for name in names
            if not np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        ]
    return tuple(found)
