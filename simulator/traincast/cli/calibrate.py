"""`traincast calibrate`: measurements in, profiles out."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.output import emit, refuse_suffix, remark, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traincast.calibration.collect import FileImport
    from traincast.calibration.records import Record
    from traincast.report.tables import Table


class ImportFormat(StrEnum):
    """The forms of imported measurements."""

    table = "table"
    json = "json"
    csv = "csv"
    jsonl = "jsonl"


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Logs: nccl-tests, rccl-tests, nvbandwidth, torch, GEMM tables."),
    ],
    op: Annotated[
        str | None, typer.Option("--op", metavar="NAME", help="The collective, where the files do not tell it.")
    ] = None,
    fmt: Annotated[
        ImportFormat | None,
        typer.Option("--format", help="Form of the result; by default that of the file's suffix, else a table."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the result to FILE, not to stdout.")
    ] = None,
) -> None:
    """Read measurements that exist: records of one form, and what was wrong with each file.

    `--format jsonl` writes the records as calibration keeps them. Ends with 2 where a file is refused.
    """
    from traincast.calibration.collect import all_records, as_dict, import_files
    from traincast.calibration.jsonl import write_records
    from traincast.errors import DataError, combined

    found = import_files(files, op)
    form = str(fmt) if fmt else _form_of(output)
    refused = [
        DataError(problem.what, fix="see the problems of this file", where=f"{one.file}:{problem.line}")
        for one in found
        for problem in one.imported.refusals[:1]
    ]
    if output is None or len(refused) < len(found):
        if form == "jsonl":
            _write(write_records(all_records(found)), output)
        else:
            emit(as_dict(found), _tables(found, form), form, output)
    if form in ("csv", "jsonl"):
        for one in found:
            for problem in one.imported.problems:
                remark(f"{one.file}:{problem.line}: {problem.what}")
    if refused:
        raise combined(refused)


def _form_of(output: Path | None) -> str:
    if output is not None:
        refuse_suffix(output, (".jsonl",))
    suffix = output.suffix.lower().lstrip(".") if output is not None else ""
    return suffix if suffix in ("json", "csv", "jsonl") else "table"


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_file(output, text)


def _tables(files: "Sequence[FileImport]", form: str) -> "list[Table]":
    from traincast.report.tables import Table

    if form == "csv":
        return [_record_table(files)]
    columns = ("file", "run", "op", "ranks", "nodes", "records", "smallest", "largest", "best busbw", "GPU")
    runs = tuple(_run_row(one, run.index) for one in files for run in one.runs())
    problems = tuple(
        (one.file, problem.line, problem.severity, problem.what) for one in files for problem in one.imported.problems
    )
    return [
        Table("Measurements", columns, runs),
        Table("Problems", ("file", "line", "kind", "what"), problems),
    ]


def _run_row(file: "FileImport", run: int) -> tuple[object, ...]:
    from traincast.units import format_bandwidth, format_rate, format_size

    records = [record for record in file.imported.records if record.run.index == run]
    ops = sorted({record.op or "not told" for record in records})
    sizes = [record.size_bytes for record in records if record.size_bytes]
    first = records[0]
    best = max(map(_rate, records))
    shown = format_rate(best) if first.kind == "kernel" else format_bandwidth(best)
    return (
        file.file,
        run,
        ops[0] if len(ops) == 1 else f"{len(ops)} tests",
        first.ranks,
        first.nodes,
        len(records),
        format_size(min(sizes)) if sizes else None,
        format_size(max(sizes)) if sizes else None,
        shown if best else None,
        first.run.gpu,
    )


def _rate(record: "Record") -> float:
    return record.busbw_bytes_per_s or record.bandwidth_bytes_per_s or record.flops_per_s or 0.0


def _record_table(files: "Sequence[FileImport]") -> "Table":
    import json

    from traincast.calibration.records import Record, record_entry
    from traincast.report.tables import Table

    columns = ("file", *record_entry(Record(None)))
    rows = []
    for one in files:
        for record in one.imported.records:
            entry = record_entry(record)
            entry["flags"] = " ".join(record.flags)
            entry["params"] = json.dumps(dict(record.params)) if record.params else None
            rows.append((one.file, *entry.values()))
    return Table("Records", columns, tuple(rows))
