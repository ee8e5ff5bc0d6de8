"""A hash for arrays: deterministic, seeded, all bits mixed."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]


def mix(keys: Sequence[Ints], seed: int = 0) -> Words:
    """A 64-bit word for each row of equally long columns (the finaliser of SplitMix64, Steele et al. 2014)."""
    mixed = np.full(len(keys[0]), seed % 2**64, dtype=np.uint64)
    for key in keys:
        mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + key.astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = mixed ^ (mixed >> np.uint64(31))
    return mixed
