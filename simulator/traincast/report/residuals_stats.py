"""Whether an error depends on something: rank correlation by permutation, share of its variance between groups."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from traincast.validate.score import ranks, spearman

Floats = npt.NDArray[np.float64]
DRAWS: Final = 1999
LEAST_ROWS: Final = 5
"""Fewer rows than this can be in order by chance too often to say anything."""


@dataclass(frozen=True)
class Dependence:
    """Rank correlation of the error with an axis over `rows` rows.

    `p` is the chance that a permutation of the errors correlates as much, `p_corrected` the same for as many axes
    as were looked at (Bonferroni).
    """

    axis: str
    rows: int
    rho: float
    p: float
    p_corrected: float

    @property
    def beyond_chance(self) -> bool:
        """Whether it would be seen on one of the axes less than once in twenty times by chance."""
        return self.p_corrected <= 0.05


def permutation_p(axis: Floats, errors: Floats, draws: int = DRAWS) -> float:
    """Chance that shuffled errors have a rank correlation with the axis of this size or more, two-sided.

    The observed order counts as one draw (Phipson and Smyth 2010, https://doi.org/10.2202/1544-6115.1585), so the
    smallest value is 1 / (draws + 1). Always the same draws: the stream of `RandomState` is frozen in NumPy.
    """
    x, y = (ranks(values) - (len(values) + 1) / 2.0 for values in (axis, errors))
    found = np.abs(y[_shuffles(draws, len(y))] @ x)
    observed = abs(float(y @ x))
    return float(1 + np.count_nonzero(found >= observed * (1.0 - 1e-9))) / (draws + 1)


@lru_cache(maxsize=1)
def _shuffles(draws: int, size: int) -> npt.NDArray[np.intp]:
    """The same orders for every axis of a family."""
    return np.random.RandomState(0).random_sample((draws, size)).argsort(axis=1, kind="stable")


def dependences(axes: Sequence[tuple[str, Sequence[float | None]]], errors: Sequence[float]) -> tuple[Dependence, ...]:
    """The error's dependence on each axis over the rows that state it, the most certain first, then the strongest.

    Axes with fewer than five rows or with one value say nothing and are left out.
    """
    found: list[tuple[str, int, float, float]] = []
    for name, values in axes:
        pairs = [(value, error) for value, error in zip(values, errors, strict=True) if value is not None]
        if len(pairs) < LEAST_ROWS:
            continue
        x, y = np.array(pairs, dtype=np.float64).T
        rho = spearman(x, y)
        if rho is not None:
            found.append((name, len(pairs), rho, permutation_p(x, y)))
    corrected = [Dependence(*one, p_corrected=min(1.0, one[3] * len(found))) for one in found]
    return tuple(sorted(corrected, key=lambda one: (one.p, -abs(one.rho))))


def share_between(groups: Sequence[str], errors: Sequence[float]) -> float:
    """Share of the error's variance that lies between groups, adjusted for their number; below 0 for none.

    1 - (1 - eta²) (n - 1) / (n - k): a group of each row by itself explains nothing (k = n gives 0).
    """
    y = np.array(errors, dtype=np.float64)
    names, index = np.unique(np.array(groups), return_inverse=True)
    total, n, k = float(((y - y.mean()) ** 2).sum()), len(y), len(names)
    if k >= n or total == 0.0:
        return 0.0
    means = np.bincount(index, weights=y) / np.bincount(index)
    return 1.0 - float(((y - means[index]) ** 2).sum()) / total * (n - 1) / (n - k)
