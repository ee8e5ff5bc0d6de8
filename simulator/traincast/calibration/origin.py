"""On which hardware results were measured, and whether that is one GPU on one fabric, or that of a profile."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from traincast.calibration.hardware import gpu_of
from traincast.calibration.nets import Net, net_of
from traincast.calibration.network_model import Setting
from traincast.calibration.profile_file import counted
from traincast.calibration.results import Results
from traincast.calibration.stated import ONE_GPU
from traincast.errors import DataError
from traincast.profile import Profile, shipped_profiles

_FIELDS: Final = ("kind", "nics", "gbit_per_s", "site")
"""What tells two networks apart, where both texts say it."""


@dataclass
class _Count:
    """How much was measured on one GPU or fabric."""

    points: int = 0
    curves: int = 0
    kernels: int = 0

    def text(self) -> str:
        words = [f"{counted(self.points, 'point')} of {counted(self.curves, 'curve')}"] if self.curves else []
        return " and ".join(words + ([counted(self.kernels, "kernel")] if self.kernels else []))


def gpu_name(results: Results) -> str | None:
    """The catalogue GPU that all results are from; None where they name none. Raises DataError for several."""
    found: dict[str, _Count] = {}
    for curve in results.curves:
        named = gpu_of(curve.gpu, curve.net)
        if named is not None:
            count = found.setdefault(named.name, _Count())
            count.points += len(curve.usable)
            count.curves += 1
    for kernel in results.kernels:
        named = gpu_of(kernel.run.gpu or "")
        if named is not None:
            found.setdefault(named.name, _Count()).kernels += 1
    if len(found) > 1:
        shown = ", ".join(f"{name} ({count.text()})" for name, count in sorted(found.items()))
        raise DataError(f"results of several GPUs: {shown}", fix=ONE_GPU)
    return next(iter(found), None)


def check_known(results: Results) -> None:
    """Raises DataError where results name a GPU that is not one of the catalogue: a profile is of one GPU."""
    unknown = [name for name in results.gpus if gpu_of(name) is None]
    if unknown:
        shown = ", ".join(map(repr, unknown))
        raise DataError(
            f"{shown} {'is not one GPU' if len(unknown) == 1 else 'are not GPUs'} of the catalogue",
            fix="say with --gpu NAME which one it is; `traincast topology list` names them",
        )


@lru_cache
def generation_of(gpu: str) -> str | None:
    """The generation (`traits.generation`) of a GPU of the catalogue; None where no shipped profile is of it."""
    for one in shipped_profiles():
        if gpu in (one.gpu, *one.default_for, *one.collective_gpus, *one.also_for):
            return one.traits.generation
    return None


def check_base(gpu: str, base: Profile) -> None:
    """Raises DataError for a base profile of another generation of GPUs: what a fit does not tell would be its."""
    own = generation_of(gpu)
    if own is not None and own != base.traits.generation:
        raise DataError(
            f"these results are of {gpu} ({own}), base profile {base.name} is of {base.gpu} ({base.traits.generation})",
            fix="leave --base out, or name a profile of this GPU's generation",
        )


def check_fabric(settings: Sequence[Setting]) -> None:
    """Raises DataError where curves across nodes are of several networks: a profile is of one fabric.

    Two texts are of one network unless both say how many adapters, of which rate or kind, or whose site, and differ.
    """
    groups: list[tuple[Net, str, _Count]] = []
    for setting in settings:
        if setting.place.span.nodes < 2:
            continue
        net = net_of(setting.curve.net)
        place = next((k for k, (other, _, _) in enumerate(groups) if not differs(net, other)), None)
        if place is None:
            groups.append((net, setting.curve.net, _Count()))
            place = len(groups) - 1
        known, text, count = groups[place]
        groups[place] = (_joined(known, net), text or setting.curve.net, count)
        count.points += len(setting.curve.usable)
        count.curves += 1
    if len(groups) > 1:
        shown = "; ".join(f"{text}: {count.text()}" for _, text, count in groups)
        raise DataError(
            f"results of several fabrics: {shown}",
            fix='fit one profile a fabric, each from its own files; --net "TEXT" says that all are of one',
        )


def check_same_hardware(results: Results, settings: Sequence[Setting], profile: Profile) -> None:
    """Raises DataError where results are of another GPU or another fabric than a profile: no change would show."""
    gpu = gpu_name(results)
    own = (profile.gpu, *profile.default_for, *profile.collective_gpus, *profile.also_for)
    if gpu is not None and gpu not in own:
        raise DataError(
            f"these results are of {gpu}, profile {profile.name} is of {', '.join(dict.fromkeys(own))}",
            fix="name a profile of this GPU, or --gpu NAME where the files name it wrongly",
        )
    known = generation_of(gpu or profile.gpu)
    if known is not None and known != profile.traits.generation:
        raise DataError(
            f"profile {profile.name} is of {gpu or profile.gpu} ({known}) on a base of {profile.traits.generation}",
            fix="fit it again without --base",
        )
    for setting in settings:
        if setting.place.span.nodes > 1 and _other_fabric(setting, profile):
            raise DataError(
                f"{setting.curve.id} ran over {setting.curve.net!r}, profile {profile.name} is of {profile.fabric!r}",
                fix='name a profile of this fabric, or --net "TEXT" where the files name it wrongly',
            )


def with_gpu_of(results: Results, profile: Profile) -> tuple[Results, str | None]:
    """Results that do not name their GPU, as measured on the profile's, and a note that says so."""
    curves = tuple(one if one.gpu.strip() else replace(one, gpu=profile.gpu) for one in results.curves)
    lost = sum(not one.gpu.strip() for one in results.curves)
    if not lost:
        return results, None
    note = f"{lost} curve{'s name' if lost > 1 else ' names'} no GPU: taken as {profile.gpu}, that of the profile"
    return replace(results, curves=curves), note


def differs(one: Net, other: Net) -> bool:
    """Whether two networks cannot be the same."""
    return any(
        getattr(one, name) and getattr(other, name) and getattr(one, name) != getattr(other, name) for name in _FIELDS
    )


def _joined(one: Net, other: Net) -> Net:
    return replace(one, **{name: getattr(one, name) or getattr(other, name) for name in _FIELDS})


def _other_fabric(setting: Setting, profile: Profile) -> bool:
    net = net_of(setting.curve.net)
    if profile.fabrics:
        told = any(getattr(net, name) for name in _FIELDS)
        return told and not set(setting.place.tags) & set(profile.fabrics)
    return " or " not in profile.fabric and differs(net, net_of(profile.fabric))
