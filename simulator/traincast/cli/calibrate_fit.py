"""`traincast calibrate fit`, `show` and `check`: profiles from results, and results against profiles."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, remark, working
from traincast.errors import UsageError

if TYPE_CHECKING:
    from traincast.calibration.compare import Case
    from traincast.calibration.results import Results
    from traincast.profile import Profile

Files = Annotated[
    list[Path], typer.Argument(metavar="RESULTS...", help="Records, nccl-tests logs, GEMM tables, CSV of curves.")
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, where the files do not tell it.")]
Net = Annotated[
    str | None, typer.Option("--net", metavar="TEXT", help='The network, such as "8x400G IB NDR"; logs do not tell it.')
]
Op = Annotated[str | None, typer.Option("--op", metavar="NAME", help="The collective, where the files do not tell it.")]


def fit(
    files: Files,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The profile to write (.yaml).")],
    base: Annotated[
        str | None, typer.Option("--base", metavar="PROFILE", help="What it inherits; by default the GPU's profile.")
    ] = None,
    gpu: Gpu = None,
    net: Net = None,
    op: Op = None,
) -> None:
    """Fit a profile: every constant that the results tell, the rest from the profile it inherits.

    Load it with `traincast predict SCENARIO --set profile=./FILE`.
    """
    from traincast.calibration.calibrate import calibrate
    from traincast.calibration.profile_file import write_profile
    from traincast.report.calibration_tables import fit_tables

    if output.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{output} is no name for a profile", where="-o", fix="end it in .yaml")
    if not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: no such folder", where="-o", fix="name a folder that exists")
    results = _results(files, gpu, net, op)
    with working("fitting"):
        found = calibrate(results, output.stem, base, net)
    write_profile(output, found.text)
    emit({}, fit_tables(found), "table", None)
    for line in (*results.problems, *found.problems, *found.notes):
        remark(line)


def show(
    files: Annotated[
        list[Path], typer.Argument(metavar="PROFILE|RESULTS...", help="A profile's name or file, or results.")
    ],
    profile: Annotated[
        str | None, typer.Option("--profile", metavar="NAME", help="Forecast results with this profile.")
    ] = None,
    gpu: Gpu = None,
    net: Net = None,
    op: Op = None,
    fmt: FormatOption = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Draw to FILE (.png, .svg) or write .json, .csv."),
    ] = None,
) -> None:
    """Show measured against forecast times, as a table or drawn; for a profile also its constants.

    A profile stands for the public logs that it was fitted on.
    """
    from traincast.report.calibration_tables import constants_table, show_tables, shown_payload

    stated, results = _profile_or_results(files, gpu, net, op)
    priced, note = _priced(results, profile) if stated is None else (stated, None)
    cases, problems = _cases(results, priced)
    for line in (*((note,) if note else ()), *results.problems, *problems):
        remark(line)
    if output is not None and output.suffix.lower() in (".png", ".svg", ".pdf"):
        from traincast.report.calibration_picture import draw_cases

        draw_cases(cases, priced.name, output)
        return
    form = chosen_format(fmt, output)
    tables = show_tables(cases, form)
    if stated is not None and form == "table":
        tables = (constants_table(stated), *tables)
    emit(shown_payload(cases, priced), tables, fmt, output)


def check(
    files: Files,
    profile: Annotated[str, typer.Argument(metavar="PROFILE", help="A profile's name or file.")],
    within: Annotated[
        float | None,
        typer.Option("--within", metavar="PERCENT", help="What counts as unchanged, in place of intervals."),
    ] = None,
    gpu: Gpu = None,
    net: Net = None,
    op: Op = None,
    fmt: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Compare a new run with an old profile: what changed, by collective and size. Ends with 1 where something did."""
    from traincast.calibration.compare import changes
    from traincast.profile import load_profile
    from traincast.report.calibration_tables import changes_payload, changes_table

    if within is not None and not 0 < within < 1000:
        raise UsageError(f"{within} is no share", where="--within", fix="give percent above 0")
    priced = load_profile(profile)
    results = _results(files, gpu, net, op)
    cases, problems = _cases(results, priced)
    found = changes(cases, priced, None if within is None else within / 100.0)
    emit(changes_payload(found), (changes_table(found, priced),), fmt, output)
    for line in (*results.problems, *problems):
        remark(line)
    if any(one.verdict != "as before" for one in found):
        raise typer.Exit(1)


def _results(files: list[Path], gpu: str | None, net: str | None, op: str | None) -> "Results":
    from traincast.calibration.results import Stated, read_results
    from traincast.catalog import load_catalog

    if gpu is not None:
        load_catalog().gpu(gpu)
    return read_results(files, Stated(gpu, net, op))


def _profile_or_results(
    files: list[Path], gpu: str | None, net: str | None, op: str | None
) -> "tuple[Profile | None, Results]":
    """A profile with the public curves that told it, or no profile and the results of files."""
    from traincast.calibration.results import Results
    from traincast.profile import load_profile

    named = files[0].suffix in (".yaml", ".yml") or not files[0].exists()
    if len(files) != 1 or not named:
        return None, _results(files, gpu, net, op)
    from traincast.validate.collectives import collective_files, read_collectives

    found = load_profile(str(files[0]))
    curves = tuple(one for one in read_collectives(collective_files()) if one.id in found.fitted_curves)
    return found, Results(curves)


def _priced(results: "Results", name: str | None) -> "tuple[Profile, str | None]":
    from traincast.calibration.compare import profile_for
    from traincast.profile import load_profile

    return (load_profile(name), None) if name else profile_for(results)


def _cases(results: "Results", profile: "Profile") -> "tuple[tuple[Case, ...], tuple[str, ...]]":
    from traincast.calibration.compare import cases_of

    return cases_of(results, profile)
