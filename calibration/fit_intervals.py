"""Intervals of steps and of collectives: residuals of published rows and logs that told no constant.

Run `python calibration/fit_intervals.py` (minutes; `--collectives`: only theirs, seconds) to print them, with `--write`
to write them into `profiles/*.yaml`.

An interval is made for the next source, which nobody has seen: each study and each repository counts as one draw,
however many rows or points it has (`traincast.calibration.conformal`). Each is then left out in turn, and what the
others say is held against it; those shares are printed.

Steps: the scored rows of all studies, pooled over profiles, give one interval; where a profile's own rows are wider
(half of them, picked by a hash of their names; the others say how many of them the whole holds), the wider ends. A
profile without a scored row has none. Collectives: the nccl-tests logs that told no constant, pooled over fabrics, give
one interval inside NVLink domains and one across, by bands of size.
"""

import argparse
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from traincast.calibration.conformal import (
    LEAST,
    Coverage,
    Residual,
    conformal_interval,
    coverage,
    left_out,
    one_interval,
)
from traincast.calibration.profile_file import with_intervals
from traincast.profile import Band, Interval, load_profile, profiles_dir, shipped_profiles
from traincast.validate import PublishedRow, published_files, read_published, validate_rows
from traincast.validate.coverage import held_out
from traincast.validate.report import prepare_row


@dataclass(frozen=True)
class StepInterval:
    """An interval, and the share of a profile's other rows that it holds (None: it has too few of its own)."""

    interval: Interval
    covered: Coverage | None


def residuals(rows: Iterable[PublishedRow]) -> dict[str, list[Residual]]:
    """Measured over forecast of every scored row, by the profile that prices it; the source is the row's family."""
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
            one = Residual(score.measured_s / score.predicted_s, group=row.id, source=row.family)
            found.setdefault(options[0].job.profile.name, []).append(one)
    return found


def tells(row: str) -> bool:
    """Whether a row is one of those that give a profile's own interval: half of them, by a hash of its name."""
    return hashlib.sha256(row.encode()).digest()[0] < 128


def pooled(found: Iterable[Residual]) -> Interval | None:
    """The interval of all studies together, each counted once."""
    every = list(found)
    studies = len({one.source for one in every})
    return one_interval(every, f"residuals of {len(every)} published steps of {studies} studies that told no constant")


def unseen_studies(found: Iterable[Residual]) -> Coverage | None:
    """How much of each study the interval of all others holds."""
    every = list(found)
    others = left_out(every, pooled)
    return coverage(every, lambda one: others.get(one.source))


def step_intervals(found: Mapping[str, Sequence[Residual]]) -> dict[str, StepInterval]:
    """The interval of each profile: that of all studies, wider where the profile's own rows are."""
    whole = pooled(one for own in found.values() for one in own)
    return {} if whole is None else {name: _step_interval(whole, own) for name, own in found.items()}


def _step_interval(whole: Interval, own: Sequence[Residual]) -> StepInterval:
    """`own` rows are draws of their own here: of this profile there is one study, or few."""
    told = [replace(one, source="") for one in own if tells(one.group)]
    others = [one for one in own if not tells(one.group)]
    narrow = one_interval(told, "")
    if narrow is None or len(others) < LEAST:
        return StepInterval(whole, None)
    band, mine = whole.band(), narrow.band()
    wider = Band(band.up_to_bytes, min(band.low, mine.low), max(band.high, mine.high))
    how = f"{whole.how}; its own {len(told)} of {len(own)} where they are wider"
    interval = whole if wider == band else replace(whole, bands=(wider,), how=how)
    return StepInterval(interval, coverage(others, lambda one: interval))


def collective_intervals() -> dict[str, Interval]:
    """The intervals of the held-out curves."""
    intervals: dict[str, Interval] = {}
    for kind, found in held_out().items():
        logs, sources = len({one.group for one in found}), len({one.source for one in found})
        how = f"residuals of {logs} public logs of {sources} sources {kind} nodes that told no constant"
        one = conformal_interval(found, how)
        if one is not None:
            intervals[kind] = one
    return intervals


def unseen_sources(kind: str) -> Coverage | None:
    """How much of the logs of each source the interval of all others holds."""
    found = held_out()[kind]
    others = left_out(found, lambda rest: conformal_interval(rest, "others"))
    return coverage(found, lambda one: others.get(one.source))


def transferred(found: Iterable[Residual]) -> Coverage | None:
    """How much the interval of all other studies holds of those studies that told no profile a constant."""
    told = {row for profile in shipped_profiles() for row in profile.fitted_rows}
    families = {row.family for row in read_published(published_files()) if row.id in told}
    every = list(found)
    others = left_out(every, pooled)
    return coverage((one for one in every if one.source not in families), lambda one: others.get(one.source))


def write(profile: str, intervals: Mapping[str, Interval]) -> None:
    """Put intervals into a profile's file, beside those of other kinds."""
    path = profiles_dir() / f"{profile}.yaml"
    kept = {**load_profile(profile).intervals, **intervals}
    path.write_text(with_intervals(path.read_text(encoding="utf-8"), kept), encoding="utf-8")


def say(what: str, found: Coverage | None) -> None:
    """Print how much of what is left out is held."""
    if found is not None:
        print(f"{what}: {100 * found.cases_share:.1f} % of {found.cases} cases", end="")
        print(f", {100 * found.sources_share:.1f} % as the mean of {found.sources} sources")
        print("    " + ", ".join(f"{name} {100 * share:.0f}" for name, share in found.by_source))


def main() -> None:
    """Find the intervals, print them, and write them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write calibration/profiles/*.yaml")
    parser.add_argument("--collectives", action="store_true", help="only the intervals of collectives")
    chosen = parser.parse_args()
    together = collective_intervals()
    for kind, found in together.items():
        bands = ", ".join(f"{band.low:.3f} to {band.high:.3f}" for band in found.bands)
        print(f"collectives {kind:28s} {bands} from {found.rows} points")
        say(f"  sources left out, {kind}", unseen_sources(kind))
    if chosen.write:
        for fabric in (one for one in shipped_profiles() if one.fabrics):
            write(fabric.name, together)
    if not chosen.collectives:
        _steps(chosen.write)


def _steps(writes: bool) -> None:
    by_profile = residuals(read_published(published_files()))
    every = [one for own in by_profile.values() for one in own]
    say("steps, studies left out", unseen_studies(every))
    say("  of these, studies that told no profile anything", transferred(every))
    for name, one in step_intervals(by_profile).items():
        band = one.interval.band()
        print(f"{name:40s} {band.low:.3f} to {band.high:.3f}", end="")
        held = one.covered
        print(f", holds {100 * held.cases_share:.0f} % of {held.cases} others of its own" if held else "")
        if writes:
            write(name, {"step": one.interval})


if __name__ == "__main__":
    main()
