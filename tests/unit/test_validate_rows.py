"""Reading published rows: the header of the published files, with and without its column of notes."""

from pathlib import Path

import pytest

from traincast.errors import DataError
from traincast.validate.rows import COLUMNS, PublishedRow, RowSkippedError, expand, read_rows


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def a_row(**cells: str) -> PublishedRow:
    return PublishedRow("a.csv", 2, cells)


@pytest.mark.parametrize("header", [",".join(COLUMNS), ",".join((*COLUMNS, "notes"))], ids=["ours", "with notes"])
def test_both_headers_are_read(tmp_path, header):
    cells = ["r1", "fam", *[""] * (len(header.split(",")) - 2)]
    (row,) = read_rows(write(tmp_path / "a.csv", header, ",".join(cells)))
    assert (row.id, row.family, row.line) == ("r1", "fam", 2)
    assert row.text("hidden") == ""
    assert row.count("hidden") is None


def test_a_column_that_lacks_is_empty_and_notes_are_left_alone(tmp_path):
    header = "id,family,gpu,gpus,hidden,layers,seq,global_batch,notes"
    (row,) = read_rows(write(tmp_path / "a.csv", header, "r,f,A100-80GB-SXM,8,1024,24,2048,8,rain"))
    assert row.flag("gated_mlp") is None
    assert row.number("iter_time_s") is None
    assert row.count("gpus") == 8


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(("\ufeff" + ",".join(COLUMNS) + "\n\n\n").encode())
    assert read_rows(path) == ()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), "lacks the columns id"),
        (("id,family,hidden",), "lacks the columns gpu, gpus, layers"),
        ((",".join((*COLUMNS, "id")),), "id twice"),
        ((",".join(COLUMNS), "x," * 100), "cells where the header has"),
    ],
)
def test_a_file_of_another_form_is_refused_with_its_place(tmp_path, lines, words):
    path = write(tmp_path / "a.csv", *lines)
    with pytest.raises(DataError, match=words) as caught:
        read_rows(path)
    assert caught.value.where.startswith(str(path))
    assert caught.value.exit_code == 2


def test_a_misspelt_column_is_refused_with_the_nearest(tmp_path):
    """It would otherwise be scored as if the rows did not state it; other columns of one's own are never read."""
    header = (
        ",".join((*COLUMNS, "notes", "weather")).replace("zero_stage", "zero_stge").replace("recompute", "recomput")
    )
    path = write(tmp_path / "a.csv", header)
    with pytest.raises(DataError) as caught:
        read_rows(path)
    first, second = str(caught.value).splitlines()[1:]
    assert first.startswith(f"{path}:1: unknown column 'recomput' (fix: name it recompute where")
    assert second.startswith(f"{path}:1: unknown column 'zero_stge' (fix: name it zero_stage where")


def test_binary_junk_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(DataError, match="UTF-8"):
        read_rows(path)


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match=r"no \.csv"):
        expand([tmp_path])


def test_a_folder_stands_for_its_files_in_order(tmp_path):
    for name in ("b.csv", "a.csv", "c.txt"):
        write(tmp_path / name, "")
    assert expand([tmp_path]) == (tmp_path / "a.csv", tmp_path / "b.csv")


@pytest.mark.parametrize("text", ["abc", "-1", "nan", "inf", "1.5", "0"])
def test_a_count_that_cannot_be_skips_the_row(text):
    with pytest.raises(RowSkippedError, match="layers"):
        a_row(layers=text).count("layers")


def test_a_whole_number_may_be_written_as_a_float():
    assert a_row(gpus="64.0").essential("gpus") == 64


def test_an_essential_that_lacks_skips_the_row():
    with pytest.raises(RowSkippedError, match="vocab is not stated"):
        a_row().essential("vocab")


def test_flags():
    assert [a_row(x=text).flag("x") for text in ("y", "n", "")] == [True, False, None]
    with pytest.raises(RowSkippedError, match="neither y nor n"):
        a_row(x="perhaps").flag("x")
