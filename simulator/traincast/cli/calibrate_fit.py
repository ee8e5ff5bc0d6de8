"""`traincast calibrate fit`, `show` and `check`: profiles from results, and results against profiles."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.calibrate_files import check_not_read, emit_whole, whole, write_whole
from traincast.cli.calibrate_inputs import asked_for, inherited, profile_named, results_of, said_on_failure
from traincast.cli.output import FormatOption, OutputOption, chosen_format, emit, refuse_unwritable, remark, working
from traincast.errors import DataError, TraincastError, UsageError

if TYPE_CHECKING:
    from traincast.calibration.compare import Verdict
    from traincast.report.tables import Table

Files = Annotated[
    list[Path],
    typer.Argument(metavar="RESULTS...", readable=False, help="Records, nccl-tests logs, GEMM tables, CSV of curves."),
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, where the files do not tell it.")]
Net = Annotated[
    str | None, typer.Option("--net", metavar="TEXT", help='The network, such as "8x400G IB NDR"; logs do not tell it.')
]
Op = Annotated[str | None, typer.Option("--op", metavar="NAME", help="The collective, where the files do not tell it.")]
PICTURES = (".png", ".svg", ".pdf")


def fit(
    files: Files,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The profile to write (.yaml).")],
    base: Annotated[
        str | None, typer.Option("--base", metavar="PROFILE", help="What it inherits; by default the GPU's profile.")
    ] = None,
    gpu: Gpu = None,
    net: Net = None,
    op: Op = None,
    accept_poor: Annotated[
        bool, typer.Option("--accept-poor", help="Write the profile, marked, even where the model fails.")
    ] = False,
    fmt: FormatOption = None,
) -> None:
    """Fit a profile: every constant that the results tell, the rest from the profile it inherits.

    One GPU on one fabric a profile. Load it with `traincast predict SCENARIO --set profile=./FILE`. What the fit found
    is shown (`--format`): values, standard errors, constants that it could hardly tell apart. Ends with 1, and writes
    no FILE, where half of the points are off by more than 50 % whatever the constants are.
    """
    from traincast.calibration.calibrate import calibrate
    from traincast.report.calibration_tables import fit_payload, fit_tables

    if output.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{output} is no name for a profile", where="-o", fix="end it in .yaml")
    refuse_unwritable(output, "-o")
    check_not_read(output, [*files, *([Path(base)] if base else [])])
    if base is not None:
        profile_named(base)
    results = results_of(files, gpu, net, op)
    with said_on_failure(results.problems), working("fitting"):
        found = calibrate(results, output.stem, base, net, inherited(base, output))
    if not found.poor or accept_poor:
        write_whole(output, found.text)
    form = chosen_format(fmt, None)
    emit(fit_payload(found), fit_tables(found)[: 1 if form == "csv" else None], form, None)
    for line in (*results.problems, *found.problems, *found.notes):
        remark(line)
    if found.poor and accept_poor:
        remark(f"{'; '.join(found.poor)}: no constant of it counts as measured")
    elif found.poor:
        fix = "look at --gpu, --net, --op and at who ran (NCCL on GPUs?); --accept-poor writes the profile all the same"
        raise TraincastError(f"{'; '.join(found.poor)}: {output} is not written", fix=fix)


def show(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[PROFILE] [RESULTS...]", readable=False, help="A profile's name or file, results, or both."
        ),
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

    A profile by itself is shown with the results that it was fitted on: the public logs, or files that lie beside it.
    """
    from traincast.calibration.compare import cases_of
    from traincast.report.calibration_tables import constants_table, correlation_tables, show_tables, shown_payload

    if output is not None:
        refuse_unwritable(output, "-o")
        check_not_read(output, files)
    asked = asked_for(files, profile, (gpu, net, op))
    with said_on_failure((*asked.notes, *asked.results.problems)):
        cases, problems = cases_of(asked.results, asked.profile)
    notes = (*asked.notes, *asked.results.problems, *problems)
    drawn = output is not None and output.suffix.lower() in PICTURES
    if not cases and (drawn or not asked.own):
        why = f": {'; '.join(notes)}" if notes else ""
        raise DataError(f"nothing to {'draw' if drawn else 'show'}{why}", fix=asked.fix)
    if output is not None and drawn:
        from traincast.report.calibration_picture import draw_cases

        with whole(output) as beside:
            draw_cases(cases, asked.profile.name, beside)
    else:
        form = chosen_format(fmt, output)
        tables = show_tables(cases, form)
        if asked.own and form == "table":
            tables = (constants_table(asked.profile), *correlation_tables(asked.profile.correlations), *tables)
        emit_whole(shown_payload(cases, asked.profile), tables, form, output)
    for line in (*notes, *(() if cases else (f"nothing to compare with: {asked.fix}",))):
        remark(line)


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
    from traincast.calibration.compare import cases_of, changes, settings_of, verdict_of
    from traincast.calibration.origin import check_known, check_same_hardware, with_gpu_of
    from traincast.report.calibration_tables import changes_payload, changes_table

    if within is not None and not 0 < within < 1000:
        raise UsageError(f"{within} is no share", where="--within", fix="give percent above 0")
    if output is not None:
        refuse_unwritable(output, "-o")
        check_not_read(output, files)
    priced = profile_named(profile, files)
    results, note = with_gpu_of(results_of(files, gpu, net, op), priced)
    notes = [*results.problems, *([note] if note else [])]
    with said_on_failure(notes):
        check_known(results)
        check_same_hardware(results, settings_of(results)[0], priced)
        cases, problems = cases_of(results, priced)
    notes += problems
    found = changes(cases, priced, None if within is None else within / 100.0)
    with said_on_failure(notes):
        verdict = verdict_of(found)
    payload = {**changes_payload(found), **_verdict_entry(verdict)}
    emit_whole(payload, (changes_table(found, priced), _verdict_table(verdict)), chosen_format(fmt, output), output)
    for line in notes:
        remark(line)
    if verdict.changed:
        raise typer.Exit(1)


def _verdict_entry(verdict: "Verdict") -> dict[str, object]:
    return {
        "verdict": verdict.words,
        "bands": verdict.bands,
        "changed_bands": verdict.changed,
        "furthest": {**vars(verdict.furthest), "verdict": verdict.furthest.verdict},
    }


def _verdict_table(verdict: "Verdict") -> "Table":
    """The verdict on one row, with the band that is furthest from its forecast."""
    from traincast.report.tables import Table

    far = verdict.furthest
    name = ", ".join(word for word in (far.op, far.where, far.sizes) if word)
    columns = ("verdict", "bands", "changed", "times", "furthest from the forecast", "deviation %")
    row = (verdict.words, verdict.bands, verdict.changed, verdict.cases, name, 100.0 * (far.median_ratio - 1.0))
    return Table("Verdict", columns, (row,))
