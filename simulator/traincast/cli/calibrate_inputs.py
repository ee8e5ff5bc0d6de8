"""What `calibrate fit`, `show` and `check` are given: profiles by name or file, and files of results."""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.cli.output import remark
from traincast.errors import DataError, TraincastError, UsageError

if TYPE_CHECKING:
    from traincast.calibration.results import Results, Stated
    from traincast.profile import Profile

YAML = (".yaml", ".yml")
Words = tuple[str | None, str | None, str | None]
"""--gpu, --net and --op."""


@dataclass(frozen=True)
class Asked:
    """What is shown: results beside a profile. `own`: the profile itself was named. `fix`: what to add where there is
    nothing to compare."""

    profile: "Profile"
    results: "Results"
    notes: tuple[str, ...] = ()
    own: bool = False
    fix: str = "name results that this profile has a forecast for"


@contextmanager
def said_on_failure(notes: Iterable[str]) -> Iterator[None]:
    """Says what would have been said after the result, where there will be none: it tells why."""
    try:
        yield
    except TraincastError:
        for line in notes:
            remark(line)
        raise


def results_of(files: Sequence[Path], gpu: str | None, net: str | None, op: str | None) -> "Results":
    """The results of files. Raises a user's error where a file cannot be read or the GPU is not in the catalogue."""
    from traincast.calibration.results import Stated, read_results

    profiles = [file for file in files if file.suffix.lower() in YAML]
    if profiles:
        where = f"{profiles[0]} is a profile, not results"
        raise UsageError(where, fix=f"give results first, the profile last: RESULTS... {profiles[0]}")
    return read_results(files, _known(Stated(gpu, net, op)))


def profile_named(name: str, results: Sequence[Path] = ()) -> "Profile":
    """A profile by its name or file. Raises DataError with a fix where there is none or it cannot be read."""
    from traincast.profile import load_profile

    path = Path(name)
    if path.suffix.lower() not in YAML and path.exists():
        given = next((str(file) for file in results if file.suffix.lower() in YAML), None)
        fix = f"fit one of it first: traincast calibrate fit {shlex.quote(name)} -o {shlex.quote(path.stem)}.yaml"
        if given:
            fix = f"the profile comes last: {name} {given}"
        raise DataError(f"{name} is no profile, which ends in .yaml", fix=fix)
    try:
        return load_profile(name)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise DataError(f"cannot read: {reason}", where=name, fix="name a profile that can be read") from error
    except RecursionError as error:
        raise DataError("inherits itself", where=name, fix="name another profile after 'inherits'") from error
    except DataError as error:
        if error.fix:
            raise
        fix = "mend it, or fit it again; calibration/README.md says what a profile holds"
        raise DataError(error.message, where=error.where, fix=fix) from error


def inherited(base: str | None, output: Path) -> str | None:
    """How a profile's file names its base: a shipped one by name, a file by its path from the profile's own folder."""
    if base is None or Path(base).suffix.lower() not in YAML:
        return base
    path = Path(os.path.relpath(Path(base).resolve(), output.resolve().parent)).as_posix()
    return path if path.startswith(os.pardir) else f"./{path}"


def asked_for(files: Sequence[Path], named: str | None, words: Words) -> Asked:
    """What `show` shows: results by the profile of their hardware or a named one, or a profile and its own results."""
    from traincast.calibration.compare import profile_for

    first, rest = files[0], files[1:]
    if first.suffix.lower() not in YAML and (first.exists() or first.suffix):
        results = results_of(files, *words)
        if named is None:
            with said_on_failure(results.problems):
                profile, note = profile_for(results)
            return Asked(profile, results, (note,) if note else ())
        return _beside(profile_named(named), results)
    if named is not None:
        raise UsageError(f"two profiles: {first} and {named}", where="--profile", fix="name one of them")
    profile = profile_named(str(first))
    if rest:
        return replace(_beside(profile, results_of(rest, *words)), own=True)
    return _own_results(first, profile, words)


def _beside(profile: "Profile", results: "Results") -> Asked:
    """Results beside a named profile: its GPU where they name none, a note where they are of other hardware."""
    from traincast.calibration.compare import settings_of
    from traincast.calibration.origin import check_same_hardware, with_gpu_of

    results, note = with_gpu_of(results, profile)
    notes = [note] if note else []
    try:
        check_same_hardware(results, settings_of(results)[0], profile)
    except DataError as error:
        notes.append(error.message)
    return Asked(profile, results, tuple(notes))


def _own_results(first: Path, profile: "Profile", words: Words) -> Asked:
    """A profile with the results that it was fitted on, as far as they are at hand."""
    from traincast.calibration.profile_file import fitted_on
    from traincast.calibration.results import Results, Stated, read_results
    from traincast.validate.collectives import collective_files, read_collectives

    told = fitted_on(first) if first.suffix.lower() in YAML else {}
    listed = told.get("files", [])
    names = [Path(str(name)).name for name in listed] if isinstance(listed, list) else []
    if not names:
        curves = tuple(one for one in read_collectives(collective_files()) if one.id in profile.own_curves)
        none = () if curves else (f"profile {profile.name} was fitted on no curve that comes along",)
        return Asked(profile, Results(curves), none, True, f"add results: traincast calibrate show {first} RESULTS...")
    places = {name: next((p for p in (first.parent / name, Path(name)) if p.is_file()), None) for name in names}
    found = [path for path in places.values() if path is not None]
    lost = [name for name, path in places.items() if path is None]
    command = shlex.join(["traincast", "calibrate", "show", str(first), *names])
    fix = f"add the results, wherever they are: {command}"
    notes = [f"fitted on {', '.join(lost)}, not found beside the profile or here"] if lost else []
    if not found:
        return Asked(profile, Results(), tuple(notes), True, fix)
    gpu, net, op = (said or _text(told.get(name)) for said, name in zip(words, ("gpu", "net", "op"), strict=True))
    asked = _beside(profile, read_results(found, _known(Stated(gpu, net, op))))
    notes.append(f"shown with {', '.join(map(str, found))}, which it was fitted on")
    return replace(asked, notes=(*notes, *asked.notes), own=True, fix=fix)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _known(stated: "Stated") -> "Stated":
    """What was stated, the GPU as the catalogue writes it. Raises CatalogError for one that it does not hold."""
    from traincast.catalog import load_catalog

    return stated if stated.gpu is None else replace(stated, gpu=load_catalog().gpu(stated.gpu).name)
