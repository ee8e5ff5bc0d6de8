"""The use case: files of results in, a profile of one GPU on one fabric out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.calibration.compare import gpu_name, settings_of
from traincast.calibration.conformal import Residual, conformal_interval
from traincast.calibration.fit import Fit
from traincast.calibration.fitted import fitted_constants, residual_text
from traincast.calibration.kernel_fit import fit_kernels, kernel_data
from traincast.calibration.network_fit import fit_network
from traincast.calibration.network_model import Setting, forecast_points, points_of
from traincast.calibration.profile_file import Heading, Written, names_text, profile_text, traits_of
from traincast.calibration.results import Results
from traincast.catalog import load_catalog
from traincast.costs.collectives.versions import minor_of
from traincast.errors import DataError
from traincast.profile import Interval, Profile, find_profile, load_profile

LEAST_FOLDS = 3
"""Curves from which on each can be left out in turn."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a calibration found: the file's text, the fits behind it, what was not used, and what was assumed."""

    text: str
    profile: Profile
    fits: tuple[Fit, ...]
    intervals: tuple[tuple[str, Interval], ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]


def calibrate(results: Results, name: str, base_name: str | None = None, fabric: str | None = None) -> Calibration:
    """Fits everything that results can tell, on top of a base profile (by default the GPU's).

    Raises DataError where the GPU is not known or nothing is told.
    """
    gpu = gpu_name(results)
    if gpu is None:
        raise DataError("the results name no GPU of the catalogue", fix="add --gpu NAME")
    base, note = (load_profile(base_name), None) if base_name else find_profile(gpu, None)
    settings, problems = settings_of(results)
    base = replace(base, traits=replace(base.traits, nccl=_version(settings) or base.traits.nccl))
    fits: list[Fit] = []
    intervals: dict[str, Interval] = {}
    if settings:
        fits.append(fit_network(points_of(settings, base), base))
        intervals = _intervals(settings, base, [one.name for one in fits[0].told])
    data, left_out = kernel_data(results.kernels, load_catalog().gpu(gpu))
    if data is not None:
        fits.append(fit_kernels(data, base))
    written = [one for fit in fits for one in fitted_constants(fit, names_text(results.files))]
    if not any(one.kind == "measured" for one in written):
        raise DataError(
            "these results tell no constant", fix="measure more sizes: 1 KiB to 1 GiB, on one and two nodes"
        )
    head = Heading(
        name=name,
        gpu=gpu,
        fabric=fabric or _fabric(settings, base),
        base=base_name or base.name,
        traits=traits_of(base),
        comments=(f"Fitted by traincast on {names_text(results.files)}.", *_summary(fits)),
    )
    text = profile_text(head, written, intervals)
    notes = (note,) if note else ()
    merged = _merged(base, written, name)
    return Calibration(text, merged, tuple(fits), tuple(intervals.items()), (*problems, *left_out), notes)


def _version(settings: Sequence[Setting]) -> str | None:
    """The version of NCCL that most curves ran under."""
    known = [setting.nccl for setting in settings if setting.nccl]
    return max(known, key=lambda version: (known.count(version), minor_of(version))) if known else None


def _fabric(settings: Sequence[Setting], base: Profile) -> str:
    nets = dict.fromkeys(s.curve.net for s in settings if s.place.span.nodes > 1 and s.curve.net)
    return ", ".join(nets) or base.fabric


def _summary(fits: Sequence[Fit]) -> list[str]:
    return [f"{len(fit.told)} constants from {residual_text(fit)}" for fit in fits]


def _merged(base: Profile, written: Sequence[Written], name: str) -> Profile:
    """The base with the written constants: what the file holds, without reading it back."""
    constants = dict(base.constants)
    for one in written:
        constants[one.name] = replace(constants[one.name], value=one.value, kind=one.kind, source=one.source)
    return replace(base, name=name, constants=constants, intervals={})


def _intervals(settings: Sequence[Setting], base: Profile, names: Sequence[str]) -> dict[str, Interval]:
    """Intervals inside and across nodes, from curves that a fit of these constants on the others forecast."""
    residuals: dict[str, list[Residual]] = {"inside": [], "across": []}
    for kind, found in residuals.items():
        chosen = [s for s in settings if (s.place.span.nodes > 1) == (kind == "across") and s.curve.usable]
        if len(chosen) < LEAST_FOLDS:
            continue
        for left_out in chosen:
            others = [s for s in settings if s is not left_out and s.curve.usable]
            fitted = fit_network(points_of(others, base), base, names, thorough=False).profile
            points = points_of([left_out], fitted)
            ratios = points.time_s / forecast_points(points, fitted)
            sizes = zip(ratios.tolist(), np.asarray(points.size_bytes).tolist(), strict=True)
            found += [Residual(ratio, size, left_out.curve.id) for ratio, size in sizes]
    intervals = {}
    for kind, found in residuals.items():
        logs = len({one.group for one in found})
        one = conformal_interval(found, f"each of {logs} curves {kind} nodes forecast from the others")
        if one is not None:
            intervals[kind] = one
    return intervals
