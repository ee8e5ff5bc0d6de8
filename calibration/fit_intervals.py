"""Intervals of whole steps: residuals of published rows that told no constant, by profile.

Run `python calibration/fit_intervals.py` (minutes) to print them, with `--write` to write them into `profiles/*.yaml`.
About half of the scored rows of a profile, picked by a hash of their names, give the interval; the others say how many
of them it holds. A profile with fewer than 8 of either has none.
"""

import argparse
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincast.calibration.conformal import LEAST, Residual, one_interval
from traincast.calibration.profile_file import with_intervals
from traincast.profile import Interval, load_profile, profiles_dir
from traincast.validate import PublishedRow, published_files, read_published, validate_rows
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


def main() -> None:
    """Find the intervals, print them, and write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write calibration/profiles/*.yaml")
    chosen = parser.parse_args()
    for name, one in step_intervals(residuals(read_published(published_files()))).items():
        band = one.interval.band()
        print(f"{name:40s} {band.low:.3f} to {band.high:.3f} from {one.interval.rows} rows", end="")
        print(f", holds {100 * one.covered:.0f} % of {one.tested} others")
        if chosen.write:
            path = profiles_dir() / f"{name}.yaml"
            intervals = {**load_profile(name).intervals, "step": one.interval}
            path.write_text(with_intervals(path.read_text(encoding="utf-8"), intervals), encoding="utf-8")


if __name__ == "__main__":
    main()
