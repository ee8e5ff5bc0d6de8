"""Constants of products, attention and memory-bound kernels from measured kernels, and what a collective costs a
product that runs beside it.

Unfused attention and empty launches tell no constant: the first is several kernels that products and memory-bound ones
tell already, the second only bounds `host.call` from below (a training step's call has autograd and modules around it).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from traincast.calibration.fit import Data, Fit, Floats, Prior, fit_constants
from traincast.calibration.network_model import HALF_WIDTHS
from traincast.calibration.profile_file import counted
from traincast.calibration.records import Record
from traincast.catalog import Gpu
from traincast.costs.attention import flash_attention_seconds
from traincast.costs.gemm import gemm_seconds
from traincast.costs.machine import Machine
from traincast.costs.memory_bound import memory_bound_seconds
from traincast.model.block import Gemm
from traincast.profile import Profile

PRIORS: Final = {
    "gemm.forward": Prior(0.15, 0.1, 1.1),
    "gemm.dgrad": Prior(0.15, 0.1, 1.1),
    "gemm.wgrad": Prior(0.15, 0.1, 1.1),
    "gemm.fp8": Prior(0.2, 0.2, 1.2),
    "gemm.ramp_k": Prior(100.0, 0.0, 2000.0),
    "gemm.wave_weight": Prior(0.3, 0.0, 1.0),
    "gemm.small_tile": Prior(0.05, 0.5, 1.0),
    "gemm.unaligned": Prior(0.1, 0.005, 1.0),
    "attention.flash_forward": Prior(0.2, 0.05, 1.1),
    "attention.flash_backward": Prior(0.2, 0.05, 1.1),
    "attention.ramp": Prior(150.0, 0.0, 3000.0),
    "attention.head_ramp": Prior(20.0, 0.0, 300.0),
    "attention.diagonal": Prior(150.0, 0.0, 2000.0),
    "memory.efficiency": Prior(0.15, 0.1, 1.1),
    "kernel.fixed": Prior(2e-6, 0.0, 3e-5),
    "overlap.slowdown": Prior(0.2, 0.0, 1.5),
}
"""The constants that kernels can tell."""

_ROLES: Final = {"forward": "fwd", "fwd": "fwd", "reference": "fwd", "dgrad": "dgrad", "wgrad": "wgrad", "": "fwd"}
_MEMORY_OPS: Final = frozenset({"copy", "layer_norm", "gelu", "dropout_add", "softmax"})
_ADAM: Final = "adam"
"""A fused Adam step is a memory-bound kernel of known traffic; what a stack does around it is its profile's."""
_LEAST_BACKWARD_S: Final = 1e-4
"""A backward kernel that is faster than this at the full bandwidth may wait for the host: autograd takes tens of
microseconds a call."""
_HALF: Final = {"fp16": "fp16", "half": "fp16", "float16": "fp16", "bf16": "bf16", "bfloat16": "bf16"}

Forecast = Callable[[Profile], Floats]


@dataclass(frozen=True)
class _Case:
    """One kernel that can be priced: its kind, measured seconds, figures by name, relative standard deviation of the
    time."""

    kind: tuple[str, ...]
    time_s: float
    group: str
    figures: Mapping[str, float]
    noise: float = 0.0


def kernel_data(records: Iterable[Record], gpu: Gpu) -> tuple[Data | None, tuple[str, ...]]:
    """Measured kernels as data of a fit (None without any), and what could not be priced."""
    cases: list[_Case] = []
    lost: Counter[str] = Counter()
    for record in records:
        case = _case(record, gpu)
        if case is None:
            lost[f"{record.op or 'kernel'} {record.dtype or ''}".strip()] += 1
        else:
            cases.append(replace(case, noise=(record.half_width or 0.0) / HALF_WIDTHS))
    listed = ", ".join(f"{count} {name}" for name, count in lost.items())
    left_out = (f"{counted(lost.total(), 'kernel')} without a forecast not used: {listed}",) if lost else ()
    if not cases:
        return None, left_out
    kinds: dict[tuple[str, ...], list[int]] = {}
    for place, case in enumerate(cases):
        kinds.setdefault(case.kind, []).append(place)
    parts = [(np.array(members), _forecast(kind, [cases[k] for k in members], gpu)) for kind, members in kinds.items()]

    def forecast(profile: Profile) -> Floats:
        seconds = np.zeros(len(cases))
        for members, of_kind in parts:
            seconds[members] = of_kind(profile)
        return seconds

    times = np.array([case.time_s for case in cases])
    noise = np.array([case.noise for case in cases])
    return Data(times, tuple(case.group for case in cases), forecast, noise), left_out


def fit_kernels(data: Data, base: Profile) -> Fit:
    """Fits all constants that kernels can tell."""
    return fit_constants(data, base, PRIORS)


def _case(record: Record, gpu: Gpu) -> _Case | None:
    """What prices a record; None for kernels without a forecast of their own."""
    params = {name: value for name, value in record.params if isinstance(value, int | float | str)}
    numbers = {name: float(value) for name, value in params.items() if isinstance(value, int | float)}
    which, dtype = str(params.get("pass", "")), _HALF.get((record.dtype or "bf16").lower(), record.dtype or "")
    if record.kind == "overlap":
        return _beside(record, numbers)
    if record.op == _ADAM:
        return _memory_case(record, f"adam {record.dtype or ''}".strip())
    if dtype not in gpu.peaks_flops_per_s or dtype not in ("fp16", "bf16", "fp8"):
        return None
    group = f"{record.op} {which} {dtype}".replace("  ", " ")
    if record.op == "gemm" and {"m", "n", "k"} <= set(numbers) and which in _ROLES:
        flops = 2.0 * numbers["m"] * numbers["n"] * numbers["k"] * numbers.get("batch", 1.0)
        time = _seconds(record, flops)
        return None if time is None else _Case(("gemm", _ROLES[which], dtype), time, group, numbers)
    if record.op == "flash" and {"b", "heads", "s", "d"} <= set(numbers) and record.time_us and dtype != "fp8":
        causal = 1.0 if params.get("mask") == "causal" else 0.0
        role = "bwd" if which == "backward" else "fwd"
        return _Case(("flash", role, dtype), record.time_us * 1e-6, group, {**numbers, "causal": causal})
    if record.op in _MEMORY_OPS and which in ("forward", "backward"):
        case = _memory_case(record, group)
        least = 0.0 if which == "forward" else _LEAST_BACKWARD_S * gpu.memory_bandwidth_bytes_per_s
        return case if case is not None and case.figures["bytes"] >= least else None
    return None


def _memory_case(record: Record, group: str) -> _Case | None:
    if not record.bandwidth_bytes_per_s or not record.time_us:
        return None
    moved = record.bandwidth_bytes_per_s * record.time_us * 1e-6
    return _Case(("memory", "", ""), record.time_us * 1e-6, group, {"bytes": moved})


def _beside(record: Record, numbers: Mapping[str, float]) -> _Case | None:
    """A product beside a collective of several ranks, which all the time runs too."""
    alone_us, beside = numbers.get("alone_us", 0.0), dict(record.params).get("beside", "a collective")
    if not record.time_us or alone_us <= 0.0 or (record.ranks or 0) < 2:
        return None
    return _Case(("beside", "", ""), record.time_us * 1e-6, f"gemm beside {beside}", {"alone": alone_us * 1e-6})


def _seconds(record: Record, flops: float) -> float | None:
    if record.time_us:
        return record.time_us * 1e-6
    return flops / record.flops_per_s if record.flops_per_s else None


def _forecast(kind: tuple[str, ...], cases: Sequence[_Case], gpu: Gpu) -> Forecast:
    """The forecast of cases of one kind as a function of the profile; arrays are made once."""
    name, role, dtype = kind

    def column(figure: str, otherwise: float = 1.0) -> Floats:
        return np.array([case.figures.get(figure, otherwise) for case in cases])

    if name == "beside":
        alone = column("alone")
        return lambda p: alone * (1.0 + p["overlap.slowdown"])
    if name == "memory":
        moved = column("bytes")
        return lambda p: memory_bound_seconds(moved, 1.0, Machine(gpu, p, "bf16").memory)
    if name == "flash":
        s, d, causal = column("s"), column("d"), column("causal")
        flops = (10.0 if role == "bwd" else 4.0) * column("b") * column("heads") * s * s * d
        return lambda p: flash_attention_seconds(flops, s, d, causal, Machine(gpu, p, dtype).flash(role))
    m, n, k, batch = column("m"), column("n"), column("k"), column("batch")
    op = Gemm("product", 1, 1, 1, role=role, fp8=dtype == "fp8")  # type: ignore[arg-type]
    return lambda p: gemm_seconds(m, n, k, batch, Machine(gpu, p, dtype).gemm(op))
