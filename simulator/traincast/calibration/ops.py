"""The collectives of nccl-tests: their names, the factor from algbw to busbw, and what their columns look like.

References
----------
[1] NVIDIA nccl-tests, doc/PERFORMANCE.md, section "Bus bandwidth": factors by collective.
"""

import math
from typing import Final

# the factor of [1] as a function of ranks: 2(n-1)/n, (n-1)/n or 1
_TWICE: Final = frozenset({"all_reduce"})
_ONCE: Final = frozenset({"all_gather", "reduce_scatter", "alltoall", "gather", "scatter", "hypercube"})
_FLAT: Final = frozenset({"broadcast", "reduce", "sendrecv"})

OPS: Final = _TWICE | _ONCE | _FLAT
# what a table without any further evidence may be; the rest must be named
COMMON_OPS: Final = OPS - {"gather", "scatter", "hypercube"}
# the count column holds the elements of one rank, the size column those of all
PER_RANK_COUNT: Final = _ONCE

DTYPE_BYTES: Final = {
    **dict.fromkeys(("int8", "uint8", "char", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "fp8"), 1),
    **dict.fromkeys(("half", "float16", "fp16", "bfloat16", "bf16"), 2),
    **dict.fromkeys(("float", "float32", "fp32", "int", "int32", "uint32"), 4),
    **dict.fromkeys(("double", "float64", "fp64", "int64", "uint64"), 8),
}
REDOPS: Final = frozenset({"sum", "prod", "max", "min", "avg", "mulsum", "none"})

# relative error of a sum that the old `error` column reports as fine, by element type
WRONG_ABOVE: Final = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}

_NAMES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "sendrecv",
    "batchisendirecv": "sendrecv",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
}


def op_name(text: str) -> str | None:
    """The name used here of a collective in any spelling (``AllReduce``, ``all_reduce_perf``), or None."""
    name = text.strip().lower().split("_perf")[0]
    return _NAMES.get(name.replace("_", "").replace("-", "").replace(" ", ""))


def busbw_factor(op: str, ranks: int) -> float:
    """busbw / algbw of a collective over `ranks` ranks [1]; 0 where one rank has nothing to send."""
    if op in _TWICE:
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in _ONCE else 1.0


def ranks_of_factor(op: str, low: float, high: float) -> tuple[float, float] | None:
    """The span of rank counts (real numbers, from 2) whose factor lies in [low, high]; None where there is none.

    Notes
    -----
    f = c (n - 1) / n, so n = c / (c - f) with c = 2 or 1; the factor grows with n and never reaches c. A flat
    factor of 1 says nothing about n.
    """
    if op in _FLAT:
        return (2.0, math.inf) if low <= 1.0 <= high else None
    top = 2.0 if op in _TWICE else 1.0
    if high < top / 2 or low >= top:
        return None
    first = 2.0 if low <= top / 2 else top / (top - low)
    return first, math.inf if high >= top else top / (top - high)
