"""`traincast sweep` on a small scenario: everything counted, nothing lost, the ranking in order of time."""

import csv
import io
import json

import pytest


def test_csv_holds_every_evaluated_shape_fastest_first(run, small):
    outcome = run("sweep", small, "--format", "csv")
    assert outcome.code == 0
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    legal, evaluated = (int(line.split()[0]) for line in outcome.err.splitlines()[:2])
    assert len(rows) == evaluated <= legal
    assert [int(row["rank"]) for row in rows] == list(range(1, evaluated + 1))
    times = [float(row["step_time_s"]) for row in rows]
    assert times == sorted(times)
    assert all(int(row["tp"]) * int(row["pp"]) * int(row["dp"]) == 8 for row in rows)


def test_top_and_axes_restrict(run, small):
    outcome = run("sweep", small, "--axis", "tp=2", "--axis", "microbatch=1,2", "--top", "3", "--format", "json")
    found = json.loads(outcome.out)
    assert len(found["shapes"]) == 3
    assert {shape["tp"] for shape in found["shapes"]} == {2}
    assert {shape["microbatch"] for shape in found["shapes"]} <= {1, 2}
    assert found["evaluated"] + found["too_big"] + found["refused"] == found["legal"]


def test_a_table_shows_the_first_twenty(run, small):
    lines = run("sweep", small).out.splitlines()
    assert "fastest first" in lines[0]
    assert len(lines) <= 3 + 20


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        ("colour=1", "no axis 'colour'"),
        ("tp", "lists no whole numbers"),
        ("tp=", "lists no whole numbers"),
        ("tp=0", "lists no whole numbers"),
        ("tp=two", "lists no whole numbers"),
        ("tp=5", "world 8 is not a multiple of tp 5"),
        ("microbatch=64", "global batch 32 is not a multiple"),
    ],
)
def test_axes_that_cannot_be(run, small, axis, words):
    outcome = run("sweep", small, "--axis", axis)
    assert outcome.code == 2
    assert outcome.out == ""
    assert words in outcome.err
    assert "fix:" in outcome.err


def test_refusals_are_told_with_their_reason(run, small):
    """A schedule that not every shape allows: no traceback, a line a shape, all of them in JSON."""
    words = ("sweep", small, "--set", "training.schedule=dualpipe", "--set", "training.p2p=async", "--axis", "tp=1,2")
    outcome = run(*words, "--format", "json")
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert found["refused"] == len(found["refusals"]) > 5
    assert all("schedule dualpipe needs" in line and "(fix: " in line for line in found["refusals"])
    told = [line for line in outcome.err.splitlines() if line.startswith("refused: ")]
    assert len(told) == 6
    assert told[-1] == f"refused: {found['refused'] - 5} more; --format json lists all"
