"""Intervals of steps and of collectives: residuals of published rows and logs that told no constant.

Run `python calibration/fit_intervals.py` (minutes; `--collectives`: only theirs, seconds) to print them, with `--write`
to write them into `profiles/*.yaml`.

Steps: about half of the scored rows of a profile, picked by a hash of their names, give its interval; the others say
how many of them it holds. A profile with fewer than 8 of either has none. Collectives: the nccl-tests logs that told no
constant, pooled over fabrics, give one interval inside NVLink domains and one across, by bands of size.
"""

import argparse
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincast.calibration.conformal import LEAST, Residual, conformal_interval, one_interval
from traincast.calibration.network_model import setting_of
from traincast.calibration.profile_file import with_intervals
from traincast.profile import Interval, load_profile, profiles_dir, shipped_profiles
from traincast.validate import PublishedRow, published_files, read_published, validate_rows
from traincast.validate.collectives import collective_files, read_collectives, validate_collectives, without_launch
from traincast.validate.report import prepare_row


@dataclass(frozen=True)
class StepInterval:
    """An interval, the share of the other rows that it holds, and how many they are."""

    interval: Interval
    covered: float
    tested: int


def residuals(rows: Iterable[PublishedRow]) -> dict[str, list[Residual]]:
    """Measured over forecast of every scored row, by the profile that prices it; the group is the row's name."""
    wanted = tuple(rows)
    report = validate_rows(wanted)
    scores = {score.id: score for score in report.rows if score.status == "scored"}
    found: dict[str, list[Residual]] = {}
    for row in sorted(wanted, key=lambda one: one.id):
        score = scores.get(row.id)
        if score is None or not score.measured_s or not score.predicted_s:
            continue
        options = prepare_row(row).options
        if options:
            ratio = score.measured_s / score.predicted_s
            found.setdefault(options[0].job.profile.name, []).append(Residual(ratio, group=row.id))
    return found


def tells(row: str) -> bool:
    """Whether a row is one of those that give an interval: half of them, by the first bit of a hash of its name."""
    return hashlib.sha256(row.encode()).digest()[0] < 128


def step_intervals(found: Mapping[str, list[Residual]]) -> dict[str, StepInterval]:
    """The interval of each profile from every second row, and what it holds of the others."""
    intervals = {}
    for name, ratios in found.items():
        told = [one for one in ratios if tells(one.group)]
        others = [one for one in ratios if not tells(one.group)]
        how = f"residuals of {len(told)} of {len(ratios)} published steps that told no constant"
        interval = one_interval(told, how)
        if interval is None or len(others) < LEAST:
            continue
        band = interval.band()
        inside = sum(band.low <= one.ratio <= band.high for one in others)
        intervals[name] = StepInterval(interval, inside / len(others), len(others))
    return intervals


def held_out() -> dict[str, list[Residual]]:
    """Residuals of the nccl-tests curves that no profile was fitted on, on fabrics that have a profile of their own, as
    logs that do not say who launched: `inside` an NVLink domain and `across`."""
    curves = without_launch(read_collectives(collective_files()))
    report = validate_collectives(curves)
    used = {c.curve_id for c in report.curves if c.status == "scored" and c.harness == "nccl-tests" and c.own_fabric}
    across = {c.id: setting_of(c).place.span.nodes > 1 for c in curves if c.id in used}
    found: dict[str, list[Residual]] = {"inside": [], "across": []}
    for row in report.rows:
        if row.status == "scored" and row.curve_id in used and row.predicted_us:
            kind = "across" if across[row.curve_id] else "inside"
            found[kind].append(Residual(row.measured_us / row.predicted_us, row.size_bytes, row.curve_id))
    return found


def collective_intervals() -> dict[str, Interval]:
    """The intervals of the held-out curves."""
    intervals: dict[str, Interval] = {}
    for kind, found in held_out().items():
        logs = len({one.group for one in found})
        one = conformal_interval(found, f"residuals of {logs} public logs {kind} nodes that told no constant")
        if one is not None:
            intervals[kind] = one
    return intervals


def write(profile: str, intervals: Mapping[str, Interval]) -> None:
    """Put intervals into a profile's file, beside those of other kinds."""
    path = profiles_dir() / f"{profile}.yaml"
    kept = {**load_profile(profile).intervals, **intervals}
    path.write_text(with_intervals(path.read_text(encoding="utf-8"), kept), encoding="utf-8")


def main() -> None:
    """Find the intervals, print them, and write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write calibration/profiles/*.yaml")
    parser.add_argument("--collectives", action="store_true", help="only the intervals of collectives")
    chosen = parser.parse_args()
    pooled = collective_intervals()
    for kind, found in pooled.items():
        bands = ", ".join(f"{band.low:.3f} to {band.high:.3f}" for band in found.bands)
        print(f"collectives {kind:28s} {bands} from {found.rows} points")
    if chosen.write:
        for fabric in (one for one in shipped_profiles() if one.fabrics):
            write(fabric.name, pooled)
    if chosen.collectives:
        return
    for name, one in step_intervals(residuals(read_published(published_files()))).items():
        band = one.interval.band()
        print(f"{name:40s} {band.low:.3f} to {band.high:.3f} from {one.interval.rows} rows", end="")
        print(f", holds {100 * one.covered:.0f} % of {one.tested} others")
        if chosen.write:
            write(name, {"step": one.interval})


if __name__ == "__main__":
    main()
