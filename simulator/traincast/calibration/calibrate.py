"""The use case: files of results in, a profile of one GPU on one fabric out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.calibration.compare import settings_of
from traincast.calibration.conformal import Residual, conformal_interval
from traincast.calibration.fit import POOR, Fit
from traincast.calibration.fitted import bound_text, fitted_constants, residual_text
from traincast.calibration.kernel_fit import fit_kernels, kernel_data
from traincast.calibration.network_fit import fit_network
from traincast.calibration.network_model import Setting, forecast_points, points_of
from traincast.calibration.origin import check_base, check_fabric, check_known, gpu_name
from traincast.calibration.profile_file import Heading, Written, counted, names_text, profile_text, traits_of
from traincast.calibration.results import Results
from traincast.catalog import load_catalog
from traincast.costs.collectives.versions import minor_of
from traincast.errors import DataError
from traincast.profile import Interval, Profile, find_profile, load_profile

FAR = 0.4
"""Mean error of a fit from which on it says that something may be wrong; see `fit.POOR` for the end of it."""

NOT_MEASURED = "network between nodes not measured"
"""What a profile says of its fabric where its results are of one node alone."""

LEAST_FOLDS = 3
"""Curves from which on each can be left out in turn."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """What a calibration found: the file's text, the fits behind it, what was not used, and what was assumed.

    `poor`: why the model does not describe the results, whatever its constants are; empty where it does.
    """

    text: str
    profile: Profile
    fits: tuple[Fit, ...]
    intervals: tuple[tuple[str, Interval], ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    poor: tuple[str, ...] = ()


def calibrate(
    results: Results, name: str, base_name: str | None = None, fabric: str | None = None, inherits: str | None = None
) -> Calibration:
    """Fits everything that results can tell, on top of a base profile (by default the GPU's).

    `inherits` names the base as the profile's file will find it. Raises DataError where the GPU is not known or not of
    the base's generation, where results are of several GPUs or fabrics, or where nothing is told.
    """
    check_known(results)
    gpu = gpu_name(results)
    if gpu is None:
        raise DataError("the results name no GPU of the catalogue", fix="add --gpu NAME")
    base, note = (load_profile(base_name), None) if base_name else find_profile(gpu, None)
    check_base(gpu, base)
    placed, problems = settings_of(results)
    settings = tuple(setting for setting in placed if setting.curve.usable)
    check_fabric(settings)
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
    if not any(fit.told for fit in fits):
        had = _used(fits, settings) or "no time can be used"
        raise DataError(
            f"these results tell no constant: {'; '.join((had, *problems, *left_out, *_far(fits)))}",
            fix="measure more sizes: 1 KiB to 1 GiB, on one and two nodes",
        )
    unknown = _unknown_network(settings, base)
    head = Heading(
        name=name,
        gpu=gpu,
        fabric=_fabric(settings, base, fabric),
        base=inherits or base_name or base.name,
        traits=traits_of(base),
        fitted_curves=tuple(dict.fromkeys(setting.curve.id for setting in settings)),
        fitted_on=_fitted_on(results),
        correlations=tuple(pair for fit in fits for pair in fit.correlated),
        comments=(f"Fitted by traincast on {names_text(results.files)}.", *_summary(fits), *unknown, *_poor(fits)),
    )
    text = profile_text(head, written, intervals)
    told = counted(sum(len(fit.told) for fit in fits), "constant")
    notes = (
        f"{name}: {told} told by {_used(fits, settings)}",
        *((note,) if note else ()),
        *unknown,
        *_versions(settings),
        *_bounds(fits),
        *_far([fit for fit in fits if not fit.poor]),
    )
    merged = _merged(base, written, name)
    return Calibration(text, merged, tuple(fits), tuple(intervals.items()), (*problems, *left_out), notes, _poor(fits))


def _version(settings: Sequence[Setting]) -> str | None:
    """The version of NCCL that most curves ran under."""
    known = [setting.nccl for setting in settings if setting.nccl]
    return max(known, key=lambda version: (known.count(version), minor_of(version))) if known else None


def _versions(settings: Sequence[Setting]) -> tuple[str, ...]:
    """A note where curves ran under several minor versions of NCCL: a profile is of one stack."""
    counts = Counter(setting.nccl for setting in settings if setting.nccl)
    if len({minor_of(version) for version in counts}) < 2:
        return ()
    shown = ", ".join(f"{version} ({count})" for version, count in counts.most_common())
    return (f"curves ran under several versions of NCCL: {shown}; the profile states {_version(settings)}",)


def _used(fits: Sequence[Fit], settings: Sequence[Setting]) -> str:
    """What a fit had: points of curves, and kernels; empty where it had nothing."""
    points = sum(len(setting.curve.usable) for setting in settings)
    kernels = sum(len(fit.data.time_s) for fit in fits) - points
    words = [f"{counted(points, 'point')} of {counted(len(settings), 'curve')}"] if points else []
    return " and ".join(words + ([counted(kernels, "kernel")] if kernels else []))


def _fitted_on(results: Results) -> dict[str, object]:
    stated = {name: value for name, value in vars(results.stated).items() if value}
    return {"files": list(results.files), **stated} if results.files else {}


def _fabric(settings: Sequence[Setting], base: Profile, stated: str | None) -> str:
    """The network between nodes as the results name it; where none ran across nodes, that nobody measured it."""
    unknown = _unknown_network(settings, base)
    if stated is not None:
        return f"{stated} ({NOT_MEASURED})" if unknown else stated
    if unknown:
        return f"{NOT_MEASURED}; as profile {base.name} has it: {base.fabric.removeprefix(f'{NOT_MEASURED}; ')}"
    nets = dict.fromkeys(s.curve.net for s in settings if s.place.span.nodes > 1 and s.curve.net)
    return ", ".join(nets) or base.fabric


def _summary(fits: Sequence[Fit]) -> list[str]:
    return [f"{counted(len(fit.told), 'constant')} from {residual_text(fit)}" for fit in fits]


def _poor(fits: Sequence[Fit]) -> tuple[str, ...]:
    """Why fits are none: what the model is off by, and the constants that reached their bounds for it."""
    return tuple(
        f"the model does not describe these results: half of {counted(len(fit.log_error), 'point')} are off by more "
        f"than {100 * fit.median_error:.0f} % whatever the constants are"
        + (f" ({ends} at the end of what a fit allows)" if ends else "")
        for fit in fits
        if fit.poor
        for ends in [names_text(one.name for one in fit.told if one.bound)]
    )


def _bounds(fits: Sequence[Fit]) -> tuple[str, ...]:
    """Notes on constants that are at an end of their bounds, and on each curve that no constants describe."""
    at_end = [one for fit in fits for one in fit.told if one.bound]
    zeros = [one.name for one in at_end if one.value == 0.0]
    ends = [f"{one.name} is {bound_text(one)}" for one in at_end if one.value != 0.0]
    if zeros:
        ends.append(f"at 0, the lowest that it can be, since nothing of it shows: {', '.join(zeros)}")
    medians = [pair for fit in fits if not fit.poor for pair in fit.medians_by_group().items()]
    return (
        *ends,
        *(f"{name}: half of it is off by more than {100 * error:.0f} %" for name, error in medians if error > POOR),
    )


def _unknown_network(settings: Sequence[Setting], base: Profile) -> tuple[str, ...]:
    """That nothing ran across nodes (nor inside one), so that what a profile says of it is its base's."""
    if any(setting.place.span.nodes > 1 for setting in settings):
        return ()
    seen = "one node alone" if settings else "no collective"
    what = "the network between nodes" if settings else "NVLink and the network between nodes"
    return (f"{seen} was measured: nothing is known about {what}; constants of it are those of {base.name}",)


def _far(fits: Sequence[Fit]) -> tuple[str, ...]:
    """A note for each fit that is far from what was measured whatever its constants are."""
    return tuple(
        f"no constants come near these results: {residual_text(fit)}; are GPU, network and collective the right ones?"
        for fit in fits
        if np.abs(np.expm1(fit.log_error)).mean() > FAR
    )


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
        chosen = [s for s in settings if (s.place.span.nodes > 1) == (kind == "across")]
        if len(chosen) < LEAST_FOLDS:
            continue
        for left_out in chosen:
            others = [s for s in settings if s is not left_out]
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
