"""`traincast calibrate`: measurements in, profiles out."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traincast.cli.calibrate_files import check_not_read, emit_whole, write_whole
from traincast.cli.output import emit, refuse_suffix, refuse_unwritable, remark
from traincast.errors import DataError, UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from traincast.calibration.collect import FileImport
    from traincast.calibration.records import Record
    from traincast.report.tables import Table


READABLE = (
    "name logs or tables of nccl-tests, rccl-tests, nvbandwidth, torch, matrix products (columns m, n, k and TFLOPS or "
    "time (us)), or records of the suite"
)

CURVES = "a CSV of curves needs no import: `traincast calibrate fit`, `show` and `check` read it as it is"


class ImportFormat(StrEnum):
    """The forms of imported measurements."""

    table = "table"
    json = "json"
    csv = "csv"
    jsonl = "jsonl"


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", readable=False, help="Logs: nccl-tests, rccl-tests, nvbandwidth, torch, GEMM tables."
        ),
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

    `--format jsonl` writes the records as calibration keeps them. Ends with 2, and writes no FILE, where a file is
    refused or there is nothing to write.
    """
    from traincast.calibration.collect import as_dict, import_files
    from traincast.errors import combined

    form = str(fmt) if fmt else _form_of(output)
    if output is not None:
        refuse_unwritable(output, "-o")
        check_not_read(output, files)
    found = import_files(files, op)
    refused = _refusals(found, files)
    nothing = not any(one.imported.records for one in found)
    failed = bool(refused) or (output is not None and nothing)
    if output is None and form == "jsonl":
        _echo(found)
    elif output is None:
        emit(as_dict(found), _tables(found, form), form, None)
    elif not failed and form == "jsonl":
        write_whole(output, _lines(found))
    elif not failed:
        emit_whole(as_dict(found), _tables(found, form), form, output)
    if form in ("csv", "jsonl") or (failed and output is not None):
        for one in found:
            for problem in one.imported.problems:
                if problem not in one.imported.refusals[:1]:
                    remark(f"{one.file}:{problem.line}: {problem.what}")
    if refused:
        raise combined(refused)
    if failed:
        raise DataError(f"nothing was measured in {_names(found)}: {output} is not written", fix=READABLE)


def _refusals(found: "Sequence[FileImport]", paths: "Sequence[Path]") -> list[UserError]:
    """Why files have no record, an error each."""
    from traincast.calibration.curves import is_curve_table

    return [
        DataError(problem.what, fix=CURVES if is_curve_table(path) else READABLE, where=f"{one.file}:{problem.line}")
        for one, path in zip(found, paths, strict=True)
        for problem in one.imported.refusals[:1]
    ]


def _names(found: "Sequence[FileImport]") -> str:
    from traincast.calibration.profile_file import names_text

    return names_text(one.file for one in found)


def _form_of(output: Path | None) -> str:
    if output is not None:
        refuse_suffix(output, (".jsonl",))
    suffix = output.suffix.lower().lstrip(".") if output is not None else ""
    return suffix if suffix in ("json", "csv", "jsonl") else "table"


def _lines(found: "Sequence[FileImport]") -> str:
    from traincast.calibration.collect import all_records
    from traincast.calibration.jsonl import write_records

    return write_records(all_records(found))


def _echo(found: "Sequence[FileImport]") -> None:
    typer.echo(_lines(found), nl=False)


def _tables(files: "Sequence[FileImport]", form: str) -> "list[Table]":
    from traincast.report.tables import Table

    if form == "csv":
        return [_record_table(files)]
    problems = tuple(
        (one.file, problem.line, problem.severity, problem.what) for one in files for problem in one.imported.problems
    )
    return [measurements_table(files), Table("Problems", ("file", "line", "kind", "what"), problems)]


def measurements_table(files: "Sequence[FileImport]") -> "Table":
    """What files hold, a row for each run and operation: over which groups, how much, from which size to which."""
    from traincast.report.tables import Table

    columns = ("file", "run", "op", "over", "ranks", "nodes", "records", "smallest", "largest", "best rate", "GPU")
    return Table("Measurements", columns, tuple(row for one in files for row in _rows(one)))


def _rows(file: "FileImport") -> "Iterator[tuple[object, ...]]":
    from traincast.calibration.results import group_words, same_run

    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in file.imported.records:
        over = " ".join(group_words(record)) or None
        op = f"{record.op or 'not told'}{' beside another' if record.kind == 'overlap' else ''}"
        groups.setdefault((same_run(record.run), op, over, record.ranks, record.nodes), []).append(record)
    for (_, *words), records in groups.items():
        yield (file.file, records[0].run.index, *words, len(records), *_sizes_and_rate(records), records[0].run.gpu)


def _sizes_and_rate(records: "Sequence[Record]") -> tuple[object, ...]:
    from traincast.units import format_bandwidth, format_rate, format_size

    sizes = [record.size_bytes for record in records if record.size_bytes and record.kind != "kernel"]
    best = max(records, key=_rate)
    rate = None
    if busbw := _busbw(best):
        rate = f"{format_bandwidth(busbw)} busbw"
    elif best.flops_per_s:
        rate = format_rate(best.flops_per_s)
    elif best.bandwidth_bytes_per_s:
        rate = format_bandwidth(best.bandwidth_bytes_per_s)
    return (format_size(min(sizes)) if sizes else None, format_size(max(sizes)) if sizes else None, rate)


def _busbw(record: "Record") -> float:
    return record.busbw_bytes_per_s or record.in_place_busbw_bytes_per_s or 0.0


def _rate(record: "Record") -> float:
    return _busbw(record) or record.flops_per_s or record.bandwidth_bytes_per_s or 0.0


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
