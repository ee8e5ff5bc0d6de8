"""Tables: one set of cells in three forms. Laws: text cuts nothing and aligns numbers, CSV and JSON lose nothing."""

import csv
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest

from traincast.report.tables import Cell, Table, is_numeric_column, plain, render, render_csv, render_markdown
from traincast.report.tables import render_text as text

TABLE = Table(
    "Steps",
    ("model", "gpus", "step s", "fits"),
    (("GPT 1.7B", 32, 3.528123456789, True), ("GPT 1008B, with a long name", 3072, 102.6, None)),
)


def test_numbers_align_to_the_right_and_words_to_the_left():
    lines = text(TABLE).splitlines()
    assert lines[0] == "Steps"
    assert lines[3].startswith("GPT 1.7B ")
    assert [line.index(number) + len(number) for line, number in zip(lines[3:], ("32", "3072"), strict=True)] == [
        lines[1].index("gpus") + 4
    ] * 2
    assert "  3.53" in lines[3]
    assert "102.60" in lines[4]


def test_text_never_cuts_a_cell():
    wide = Table("", ("a", "b"), (("x" * 500, "y" * 300),))
    assert "x" * 500 + "  " + "y" * 300 in text(wide)


def test_a_line_break_in_a_cell_does_not_break_the_table():
    assert "two lines" in text(Table("", ("a",), (("two\nlines",),)))


def test_none_and_truth_values_read_as_words():
    assert text(TABLE).splitlines()[3].endswith("yes")
    assert text(TABLE).splitlines()[4].endswith("-")


def test_an_empty_table_says_so():
    assert text(Table("Nothing", ("a", "b"), ())).splitlines() == ["Nothing", "a  b", "-  -", "(none)"]


def test_csv_reads_back_in_full():
    rows = list(csv.DictReader(io.StringIO(render_csv(TABLE))))
    assert float(rows[0]["step s"]) == 3.528123456789
    assert [row["fits"] for row in rows] == ["true", ""]
    assert rows[1]["model"] == "GPT 1008B, with a long name"


def test_csv_holds_the_first_table_only():
    assert render({}, [TABLE, Table("b", ("other",), ())], "csv") == render_csv(TABLE)


def test_json_is_the_payload_and_has_no_nan():
    @dataclass(frozen=True)
    class Part:
        numbers: tuple[float, ...]

    payload = {"part": Part((1.5, float("nan"))), "array": np.arange(3), "scalar": np.float64(2.5), 3: {"b", "a"}}
    assert json.loads(render(payload, [], "json")) == {
        "part": {"numbers": [1.5, None]},
        "array": [0, 1, 2],
        "scalar": 2.5,
        "3": ["a", "b"],
    }
    assert plain(float("inf")) is None


def test_a_cell_reads_in_its_own_way_on_screen_and_keeps_its_value_in_csv():
    table = Table("", ("value",), ((Cell(12345.678, "12,346"),),))
    assert "12,346" in text(table)
    assert render_csv(table).splitlines()[1] == "12345.678"
    assert is_numeric_column(table, 0)


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ((0.0,), ["0.0"]),
        ((0.2197, 541.71), ["0.220", "541.710"]),
        ((1e-6, 2e-5), ["1e-06", "2e-05"]),
        ((1e12, 1.0), ["1e+12", "1"]),
        ((float("nan"), 1.0), ["-", "1.00"]),
    ],
)
def test_decimals_show_three_digits_of_the_smallest_number(numbers, shown):
    lines = text(Table("", ("x",), tuple((number,) for number in numbers))).splitlines()
    assert [line.strip() for line in lines[2:]] == shown


def test_markdown_escapes_bars():
    lines = render_markdown(Table("", ("a|b", "n"), (("c|d", 1),))).splitlines()
    assert lines == ["| a\\|b | n |", "| --- | ---: |", "| c\\|d | 1 |"]
