"""Every sample of tests/data/calibration against what a reader counts by hand (tests/data/calibration_expected.csv)."""

import csv
from pathlib import Path

import pytest

from traincast.calibration import Imported, Record, import_file

DATA = Path(__file__).parent.parent / "data"
with (DATA / "calibration_expected.csv").open(encoding="utf-8") as _file:
    EXPECTED = {row["file"]: row for row in csv.DictReader(_file)}


def shown(record: Record) -> str:
    """Size in bytes and time in us of a record, as the table has them."""
    time = record.time_us if record.time_us is not None else record.in_place_time_us
    return ":".join("" if value is None else f"{value:.10g}" for value in (record.size_bytes, time))


def found(imported: Imported) -> dict[str, str]:
    records, problems = imported.records, imported.problems
    return {
        "verdict": "import" if records else "refuse" if imported.refusals else "empty",
        "n_records": str(len(records)),
        "ranks": " ".join(map(str, sorted({one.ranks for one in records if one.ranks}))),
        "first": shown(records[0]) if records else "",
        "last": shown(records[-1]) if records else "",
        "op": " ".join(dict.fromkeys(one.op for one in records if one.op)),
        "tables": str(imported.tables),
        "contradictions": str(sum("contradict" in one.what for one in problems)),
        "dropped": str(sum(one.severity == "dropped" for one in problems)),
    }


def test_the_table_names_every_sample() -> None:
    assert sorted(EXPECTED) == sorted(path.name for path in (DATA / "calibration").iterdir())


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_gives_what_a_reader_counts(name: str) -> None:
    """Verdict, records, ranks, first and last row, collectives, tables, rows that contradict themselves or are left
    out."""
    expected = {key: value for key, value in EXPECTED[name].items() if key != "file"}
    assert found(import_file(DATA / "calibration" / name)) == expected
