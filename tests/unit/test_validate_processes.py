"""Rows that processes share are scored as by one."""

from dataclasses import replace

import pytest

from traincast.validate import published_files, read_published
from traincast.validate import report as under_test
from traincast.validate.report import validate_rows


@pytest.mark.slow
def test_two_processes_give_the_report_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, families and what `advance` is told; a row that stands there twice is skipped by both."""
    rows = read_published(published_files(), ["korthikanti", "llama3"])
    rows = (*rows, replace(rows[0], line=99))
    monkeypatch.setattr(under_test, "_SHARE", 5)
    done: list[int] = []
    shared = validate_rows(rows, done.append, processes=2)
    assert shared == validate_rows(rows)
    assert sum(done) == len(rows)
    assert shared.rows[-1].reason.startswith("the id stands already in ")
