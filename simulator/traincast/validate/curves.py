"""Measured collectives: the files that come along, which profile prices a curve, and which curves told a profile."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from traincast.calibration.choice import profile_of
from traincast.calibration.curves import Curve, read_curves
from traincast.calibration.network_model import Setting, setting_of
from traincast.profile import Profile, shipped_profiles

NCCL_TESTS = "nccl-tests"


def collective_files() -> tuple[Path, ...]:
    """The measured collectives that come along."""
    from traincast.catalog import data_dir

    return (data_dir() / "calibration" / "measured" / "collectives.csv",)


def read_collectives(paths: Iterable[Path]) -> tuple[Curve, ...]:
    """The curves of all files. Raises DataError where one cannot be read or is none."""
    return tuple(curve for path in paths for curve in read_curves(path))


def without_launch(curves: Iterable[Curve]) -> tuple[Curve, ...]:
    """The same curves as a log that does not say who launched."""
    return tuple(replace(curve, launch="") for curve in curves)


def priced(curve: Curve) -> tuple[Setting, Profile, str | None]:
    """How a curve is priced, by which profile, and a note where that is not of just its fabric.

    Raises NoPlaceError or DataError where its hardware is not known.
    """
    setting = setting_of(curve)
    return setting, *profile_of(setting.place)


def kind_of(setting: Setting) -> str:
    """Which interval of a profile holds for a curve: `inside` a node (an NVLink domain) or `across` nodes."""
    return "inside" if setting.place.span.nodes == 1 else "across"


def harness_of(curve: Curve) -> str:
    """What timed a curve, as far as the text about NCCL's version tells."""
    text = curve.nccl.lower()
    return "XLA table" if "xla" in text else "kernel trace" if "kineto" in text else NCCL_TESTS


@cache
def fitted_curves() -> dict[str, str]:
    """Curve -> a profile of a fabric that it told something: a curve that one of them has seen is no test of another.

    A profile of a stack, which prices no fabric's logs, may have been told by a log that is held out here.
    """
    return {curve: one.name for one in shipped_profiles() if one.fabrics for curve in one.fitted_curves}


def fitted_by(curve: str, profile: Profile) -> str | None:
    """The profile that a curve told something: the one that prices it, or one of a fabric; None: it is held out."""
    return profile.name if curve in profile.fitted_curves else fitted_curves().get(curve)
