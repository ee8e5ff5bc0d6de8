"""What several files gave together: records with the file that each is from, runs numbered through."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traincast.calibration.importers import import_file
from traincast.calibration.printed import printable
from traincast.calibration.records import Imported, Problem, Record, RunInfo, record_entry, run_entry


@dataclass(frozen=True)
class FileImport:
    """One file: its name without the folders, and what it gave; runs are numbered through all files."""

    file: str
    imported: Imported

    @property
    def verdict(self) -> str:
        """`import` (records), `refuse` (a reason why there are none), or `empty` (nothing was measured)."""
        return "import" if self.imported.records else "refuse" if self.imported.refusals else "empty"

    def runs(self) -> tuple[RunInfo, ...]:
        """The runs that have records, in their order."""
        return tuple({record.run.index: record.run for record in self.imported.records}.values())


def import_files(paths: Sequence[Path], op: str | None = None) -> tuple[FileImport, ...]:
    """Reads files in any known form; raises DataError where one cannot be read at all."""
    found: list[FileImport] = []
    offset = 0
    for path in paths:
        imported = _shifted(import_file(path, op), offset)
        found.append(FileImport(printable(path.name), imported))
        offset = 1 + max((record.run.index for record in imported.records), default=offset - 1)
    return tuple(found)


def all_records(files: Iterable[FileImport]) -> tuple[Record, ...]:
    """The records of all files."""
    return tuple(record for one in files for record in one.imported.records)


def as_dict(files: Sequence[FileImport]) -> dict[str, Any]:
    """Plain data: `records` (one a table row), `problems`, `runs`, `files`."""
    return {
        "records": [{"file": one.file, **record_entry(record)} for one in files for record in one.imported.records],
        "problems": [problem_entry(one.file, problem) for one in files for problem in one.imported.problems],
        "runs": [{"file": one.file, **run_entry(run)} for one in files for run in one.runs()],
        "files": [
            {
                "file": one.file,
                "verdict": one.verdict,
                "tables": one.imported.tables,
                "records": len(one.imported.records),
            }
            for one in files
        ],
    }


def problem_entry(file: str, problem: Problem) -> dict[str, Any]:
    """A problem as plain data."""
    return {"file": file, **vars(problem)}


def _shifted(imported: Imported, offset: int) -> Imported:
    """The same records, their runs numbered from `offset` on without gaps."""
    numbers: dict[RunInfo, RunInfo] = {}
    records = []
    for record in imported.records:
        if record.run not in numbers:
            numbers[record.run] = replace(record.run, index=offset + len(numbers))
        records.append(replace(record, run=numbers[record.run]))
    return replace(imported, records=tuple(records))
